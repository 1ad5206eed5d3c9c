// SPDX-License-Identifier: Apache-2.0
//
// Three steps over the threads: products, then rows (norm, rotation, KV cache), then tasks of up to
// 16 query rows that share a key-value head. How rows fall into tasks does not touch their values.
#include "runtime/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "runtime/kernels/attention.h"
#include "runtime/kernels/rows.h"

namespace leapquant::runtime {

static_assert(kKvBlockTokens == kernels::kAttentionBlock);

Attention::Attention(const Checkpoint& checkpoint, const ModelConfig& config,
                     const std::string& prefix, std::int32_t full_layer)
    : full_layer_(full_layer),
      num_heads_(config.num_attention_heads),
      num_kv_heads_(config.num_key_value_heads),
      head_dim_(config.head_dim),
      rotary_half_(config.rotary_dim / 2),
      gated_(config.attn_output_gate),
      q_(checkpoint.require(prefix + "q_proj.weight",
                            {num_heads_ * query_stride(), config.hidden_size})),
      k_(checkpoint.require(prefix + "k_proj.weight",
                            {num_kv_heads_ * head_dim_, config.hidden_size})),
      v_(checkpoint.require(prefix + "v_proj.weight",
                            {num_kv_heads_ * head_dim_, config.hidden_size})),
      q_norm_(checkpoint.require(prefix + "q_norm.weight", {head_dim_}), config.rms_norm_eps,
              NormWeight::kZeroCentred),
      k_norm_(checkpoint.require(prefix + "k_norm.weight", {head_dim_}), config.rms_norm_eps,
              NormWeight::kZeroCentred),
      o_(checkpoint.require(prefix + "o_proj.weight",
                            {config.hidden_size, num_heads_ * head_dim_})) {}

std::int64_t Attention::bytes() const { return q_.bytes() + k_.bytes() + v_.bytes() + o_.bytes(); }

void Attention::store(Sequence& sequence, std::int64_t token, std::int64_t head, const float* key,
                      const float* value) const {
  const std::int64_t block = token / kKvBlockTokens;
  const auto kv_head = static_cast<std::int32_t>(head);
  const std::int64_t row_bytes = head_dim_ * kv_type_bytes(sequence.kv.shape().type);
  const std::int64_t at = token % kKvBlockTokens * row_bytes;
  std::byte* to_key = sequence.kv.keys(full_layer_, kv_head, block) + at;
  std::byte* to_value = sequence.kv.values(full_layer_, kv_head, block) + at;
  if (sequence.kv.shape().type == KvType::kFp32) {
    std::memcpy(to_key, key, static_cast<std::size_t>(row_bytes));
    std::memcpy(to_value, value, static_cast<std::size_t>(row_bytes));
  } else {
    kernels::narrow_to_bf16(key, head_dim_, reinterpret_cast<std::uint16_t*>(to_key));
    kernels::narrow_to_bf16(value, head_dim_, reinterpret_cast<std::uint16_t*>(to_value));
  }
}

void Attention::prepare_row(const Pass& pass, const Segment& segment, std::int64_t row,
                            float* queries, float* keys, const float* values) const {
  const float* cosines = pass.cosines + row * rotary_half_;
  const float* sines = pass.sines + row * rotary_half_;
  for (std::int64_t head = 0; head < num_heads_; ++head) {
    float* query = queries + (row * num_heads_ + head) * query_stride();
    q_norm_.apply_row(query, query);
    kernels::rotate(query, cosines, sines, rotary_half_);
  }
  const std::int64_t token = segment.sequence->position + row - segment.first_row;
  for (std::int64_t head = 0; head < num_kv_heads_; ++head) {
    const std::int64_t at = (row * num_kv_heads_ + head) * head_dim_;
    k_norm_.apply_row(keys + at, keys + at);
    kernels::rotate(keys + at, cosines, sines, rotary_half_);
    store(*segment.sequence, token, head, keys + at, values + at);
  }
}

void Attention::attend(const Pass& pass, const Task& task, std::int32_t worker,
                       const float* queries, float* attended) const {
  const KvCache& cache = task.segment->sequence->kv;
  const std::int64_t rows = task.num_tokens * task.num_heads;
  const std::int64_t row_floats = kernels::kAttentionRows * head_dim_;
  float* scaled =
      reinterpret_cast<float*>(pass.scratch->worker[static_cast<std::size_t>(worker)].bytes(0));
  float* outputs = scaled + row_floats;
  float* scores = outputs + row_floats;

  std::int64_t visible[kernels::kAttentionRows];
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t token = task.first_token + row / task.num_heads;
    const std::int64_t head = task.first_head + row % task.num_heads;
    const float* query =
        queries + ((task.segment->first_row + token) * num_heads_ + head) * query_stride();
    for (std::int64_t d = 0; d < head_dim_; ++d) scaled[row * head_dim_ + d] = query[d] * scale;
    visible[row] = task.segment->sequence->position + token + 1;
  }

  std::vector<const void*>& blocks = pass.scratch->worker_blocks[static_cast<std::size_t>(worker)];
  const std::int64_t num_blocks = (visible[rows - 1] + kKvBlockTokens - 1) / kKvBlockTokens;
  const auto kv_head = static_cast<std::int32_t>(task.kv_head);
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    blocks[static_cast<std::size_t>(block)] = cache.keys(full_layer_, kv_head, block);
    blocks[static_cast<std::size_t>(num_blocks + block)] =
        cache.values(full_layer_, kv_head, block);
  }
  kernels::AttentionHead head;
  head.key_blocks = blocks.data();
  head.value_blocks = blocks.data() + num_blocks;
  head.type =
      cache.shape().type == KvType::kFp32 ? kernels::WeightType::kF32 : kernels::WeightType::kBf16;
  head.head_dim = head_dim_;
  kernels::attend(head, scaled, rows, visible, outputs, scores);

  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t token = task.segment->first_row + task.first_token + row / task.num_heads;
    const std::int64_t index = token * num_heads_ + task.first_head + row % task.num_heads;
    float* output = outputs + row * head_dim_;
    if (gated_) {
      kernels::sigmoid_multiply(output, queries + index * query_stride() + head_dim_, head_dim_);
    }
    std::memcpy(attended + index * head_dim_, output,
                static_cast<std::size_t>(head_dim_) * sizeof(float));
  }
}

void Attention::forward(const Pass& pass, const float* x, float* y) const {
  Scratch& scratch = *pass.scratch;
  const std::int64_t rows = pass.rows;
  float* queries = scratch.query_gate.floats(rows * q_.outputs());
  float* keys = scratch.key.floats(rows * k_.outputs());
  float* values = scratch.value.floats(rows * v_.outputs());
  float* attended = scratch.attended.floats(rows * num_heads_ * head_dim_);
  const Product products[] = {{&q_, queries}, {&k_, keys}, {&v_, values}};
  multiply(*pass.threads, x, rows, products);

  std::vector<const Segment*> segment_of_row(static_cast<std::size_t>(rows));
  std::int64_t most_blocks = 0;
  for (const Segment& segment : pass.segments) {
    std::fill_n(segment_of_row.begin() + segment.first_row, segment.rows, &segment);
    most_blocks = std::max(most_blocks, segment.sequence->kv.num_blocks());
  }
  pass.threads->run_rows(rows, 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      prepare_row(pass, *segment_of_row[static_cast<std::size_t>(row)], row, queries, keys, values);
    }
  });

  std::vector<Task> tasks;
  const std::int64_t group = num_heads_ / num_kv_heads_;
  const std::int64_t heads_per_task = std::min(group, kernels::kAttentionRows);
  const std::int64_t tokens_per_task = kernels::kAttentionRows / heads_per_task;
  for (const Segment& segment : pass.segments) {
    for (std::int64_t token = 0; token < segment.rows; token += tokens_per_task) {
      for (std::int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
        for (std::int64_t head = 0; head < group; head += heads_per_task) {
          tasks.push_back({&segment, kv_head, kv_head * group + head,
                           std::min(heads_per_task, group - head), token,
                           std::min(tokens_per_task, segment.rows - token)});
        }
      }
    }
  }
  const std::int64_t floats =
      2 * kernels::kAttentionRows * head_dim_ + kernels::attention_scratch(head_dim_);
  const auto workers = static_cast<std::size_t>(pass.threads->count());
  scratch.worker.resize(workers);
  scratch.worker_blocks.resize(workers);
  for (std::size_t worker = 0; worker < workers; ++worker) {
    scratch.worker[worker].floats(floats);
    if (scratch.worker_blocks[worker].size() < static_cast<std::size_t>(2 * most_blocks)) {
      scratch.worker_blocks[worker].resize(static_cast<std::size_t>(2 * most_blocks));
    }
  }
  pass.threads->run(
      static_cast<std::int32_t>(tasks.size()), [&](std::int32_t task, std::int32_t worker) {
        attend(pass, tasks[static_cast<std::size_t>(task)], worker, queries, attended);
      });
  multiply(*pass.threads, attended, rows, o_, y);
}

}  // namespace leapquant::runtime

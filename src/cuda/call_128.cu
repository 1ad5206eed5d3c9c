// SPDX-License-Identifier: Apache-2.0
//
// Host side of the kernels for heads of 128 x 128: which layouts and calls they serve, and how a
// call is laid out over the current device.
#include <algorithm>
#include <cmath>

#include "core/packing.h"
#include "cuda/decode_128.cuh"
#include "cuda/small_128.cuh"

namespace leapquant::cuda {
namespace {

constexpr int32_t kMaxWindowRecords = 32;  // a lane holds one record's log decay

HeadFormat128 head_format(const BoundaryLayout& b) {
  HeadFormat128 f = {};
  f.bits = b.format.payload_bits;
  f.half_levels = b.format.levels == LEAPQUANT_HALF_INTEGERS;
  f.fp16_scale = b.format.value_scale_type == LEAPQUANT_FP16;
  f.smoothing = b.format.smoothing;
  f.num_fp16 = b.format.num_fp16;
  f.num_int8 = b.format.num_int8;
  f.num_int4 = b.format.num_int4;
  f.bytes = static_cast<int32_t>(b.bytes);
  f.value_scale = static_cast<int32_t>(b.value_scale);
  f.smoothing_at = static_cast<int32_t>(b.smoothing);
  f.fp16_keys = static_cast<int32_t>(b.fp16_keys);
  f.fp16_values = static_cast<int32_t>(b.fp16_values);
  f.key_scales = static_cast<int32_t>(b.key_scales);
  f.value_scales = static_cast<int32_t>(b.value_scales);
  f.int8_keys = static_cast<int32_t>(b.int8_keys);
  f.int8_values = static_cast<int32_t>(b.int8_values);
  f.int4_keys = static_cast<int32_t>(b.int4_keys);
  f.int4_values = static_cast<int32_t>(b.int4_values);
  f.q_max = static_cast<float>(b.q_max);
  f.inverse_q = 1.0f / f.q_max;
  f.scale_steps = b.scale_steps;
  f.fit_fixed = b.format.fit_start == LEAPQUANT_FIT_FIXED;
  f.fit_rounds = b.format.fit_rounds;
  return f;
}

int64_t bytes_of(int32_t type) { return type == LEAPQUANT_FP32 ? 4 : 2; }

// Strides with 0 resolved. heads = 0: the last axis itself holds `count` heads.
Rows128 rows_of(const void* data, int32_t type, int64_t sequence, int64_t token, int64_t sub_step,
                int64_t head, int64_t tokens, int64_t heads, int64_t count) {
  Rows128 rows = {};
  rows.data = static_cast<char*>(const_cast<void*>(data));
  rows.type = type;
  const int64_t size = bytes_of(type);
  rows.head_stride = heads == 0 ? 0 : head != 0 ? head : count * size;
  const int64_t inner = heads == 0 ? count * size : heads * rows.head_stride;
  const int64_t step = sub_step != 0 ? sub_step : inner;
  rows.token_stride = token != 0 ? token : step;
  rows.sequence_stride = sequence != 0 ? sequence : tokens * rows.token_stride;
  return rows;
}

Rows128 rows_of(const leapquant_tensor& t, bool sub_steps, int64_t tokens, int64_t heads,
                int64_t count) {
  return rows_of(t.data, t.type, t.sequence_stride_bytes, t.token_stride_bytes,
                 sub_steps ? t.sub_step_stride_bytes : 0, t.head_stride_bytes, tokens, heads,
                 count);
}

bool aligned(const Rows128& rows) {
  const int64_t all = static_cast<int64_t>(reinterpret_cast<uintptr_t>(rows.data)) |
                      rows.sequence_stride | rows.token_stride | rows.head_stride;
  return all % 16 == 0;
}

// Blocks, up to `most` on each multiprocessor, whose slowest multiprocessor has the fewest heads.
// Preferred are ranges of heads that end where sequences, or equal parts of them, do: those share
// the check of a sequence's inputs, or do it for none but their own.
int32_t blocks_for(const Call128& call, int32_t processors, int32_t most) {
  const int64_t total = int64_t{call.batch} * call.v_heads;
  int64_t best = std::min<int64_t>(total, int64_t{processors} * most);
  int64_t least = INT64_MAX;
  const auto consider = [&](int64_t blocks, int64_t weight) {
    if (blocks < 1 || blocks > int64_t{processors} * most) return;
    const int64_t share = (total + blocks - 1) / blocks;
    const int64_t cost = share * ((blocks + processors - 1) / processors) * weight;
    if (cost < least || (cost == least && blocks > best)) least = cost, best = blocks;
  };
  for (int64_t heads = 1; heads <= call.v_heads; ++heads) {
    if (call.v_heads % heads == 0) consider(total / heads, 16);
  }
  const int64_t least_sequences = std::max<int64_t>(2, call.batch / (int64_t{processors} * most));
  for (int64_t sequences = least_sequences; sequences < least_sequences + 8; ++sequences) {
    consider((call.batch + sequences - 1) / sequences, 16);
  }
  for (int64_t each = std::min(most, 3); each <= most; ++each) consider(processors * each, 17);
  return static_cast<int32_t>(best);
}

// Groups of multiprocessors that fold while the others decode, of up to `most`, with `resident`
// pairs of warps on each; 0: decode follows the folds, which run everywhere. How many heads are due
// is known on the device only: assumed are as many as staggered boundaries make in the mean. The
// costs were measured on an H200 (calls with other numbers of groups; bench/cuda/decode_128 time
// ROWS folds, parts, beside).
int32_t groups_for(const Call128& call, bool vector, int32_t processors, int32_t resident,
                   int32_t most) {
  const double total = static_cast<double>(call.batch) * call.v_heads;
  const double due = total * std::min(call.tokens, call.window) / call.window;
  const HeadFormat128& f = call.classes[0];
  const int32_t mixed = f.num_int8 + f.num_int4;
  const int32_t rank = f.num_fp16 + mixed;
  // Microseconds: of two folds at once on a multiprocessor; of one multiprocessor for a head; of
  // the whole call's bytes.
  const double fold = (mixed == 0 && rank <= 4   ? 14.4
                       : mixed == 0 && rank <= 8 ? 15.9
                                                 : 24.4 + 1.4 * std::max(0, rank - 16)) +
                      (vector ? 1.9 : 0.0);
  // Of one token of the common call: a head of a pair takes as long whatever the others do.
  const double one =
      (0.47 + 0.012 * mixed + (f.bits == 6 ? 0.018 : 0.0)) * 8.0 / resident + (vector ? 0.17 : 0.0);
  const double many = ((mixed > 0 ? 0.52 + 0.02 * mixed : 0.51) + (f.bits == 6 ? 0.07 : 0.0) +
                       (vector ? 0.3 : 0.0)) *
                      (0.35 + 0.65 * call.tokens);
  const double head = call.plain != 0 && call.tokens == 1 ? one : many;
  const double bytes = total * (call.boundary_bytes + 5000.0) * 0.28e-6;
  // Due heads are dealt unevenly: between the mean and the next whole number of rounds.
  const auto folds = [&](int32_t on) {
    const double rounds = due / (2 * on);
    return 0.5 * (rounds + std::ceil(rounds)) * fold;
  };
  const auto decode = [&](int32_t on) { return std::max(total * head / on, bytes); };
  int32_t best = 0;
  double least = folds(processors) + decode(processors);
  for (int32_t groups = 1; groups <= most && groups * kFoldGroup128 < processors; ++groups) {
    const int32_t on = groups * kFoldGroup128;
    // The longer of the two, and its start and end.
    const double time = std::max(folds(on), decode(processors - on)) + 6.0;
    if (time < least) least = time, best = groups;
  }
  return best;
}

}  // namespace

Status accepts_decode_128(const Layout& layout, Sentence* why_not) {
  const leapquant_shape& shape = layout.shape;
  const Status no = LEAPQUANT_UNSUPPORTED;
  if (shape.head_k_dim != 128 || shape.head_v_dim != 128) {
    return why_not->say(no, "cuda/128: heads are %d x %d, not 128 x 128", shape.head_k_dim,
                        shape.head_v_dim);
  }
  if (shape.sub_steps != 1 || layout.per_step) {
    return why_not->say(no, "cuda/128: only windowed states with one write per token");
  }
  if (shape.decay == LEAPQUANT_DECAY_CONSTANT) {
    return why_not->say(no, "cuda/128: constant decays are served by the general kernels");
  }
  if (layout.window_tokens + shape.max_tokens - 1 > kMaxWindowRecords ||
      layout.window.ring_tokens > kMaxWindowRecords) {
    return why_not->say(no, "cuda/128: windows of %d tokens, at most %d records are served",
                        layout.window_tokens, kMaxWindowRecords);
  }
  if (layout.classes.size() > 1 && shape.num_v_heads > kMaxHeads128) {
    return why_not->say(no, "cuda/128: %d heads of several formats, at most %d are served",
                        shape.num_v_heads, kMaxHeads128);
  }
  for (const BoundaryLayout& b : layout.classes) {
    const int32_t bits = b.format.payload_bits;
    if (bits != 8 && bits != 6 && bits != 4) {
      return why_not->say(no, "cuda/128: payload_bits is %d, served are 8, 6 and 4", bits);
    }
  }
  return LEAPQUANT_OK;
}

bool make_call_128(const Layout& layout, const leapquant_pool& pool,
                   const leapquant_decode_args& args, Call128* out) {
  const leapquant_shape& shape = layout.shape;
  const leapquant_inputs& in = args.inputs;
  if (in.read_key.data != nullptr || in.read_before_update != 0 || in.bonus != nullptr ||
      in.skip != nullptr) {
    return false;
  }
  if (int64_t{args.batch} * shape.num_v_heads > INT32_MAX) return false;
  Call128 c = {};
  c.num_classes = static_cast<int32_t>(layout.classes.size());
  for (int32_t i = 0; i < c.num_classes; ++i) {
    c.classes[i] = head_format(layout.classes[static_cast<size_t>(i)]);
    c.boundary_bytes = std::max(c.boundary_bytes, c.classes[i].bytes);
  }
  const auto tiles = [](int32_t rows) { return (rows + 15) / 16 * 16; };
  const int32_t records = layout.window_tokens - 1 + args.tokens - 1;
  for (int32_t i = 0; i < c.num_classes; ++i) {
    const HeadFormat128& f = c.classes[i];
    c.weight_rows = std::max(c.weight_rows,
                             tiles(f.num_fp16 + records) + tiles(f.num_int8) + tiles(f.num_int4));
  }
  for (int32_t h = 0; c.num_classes > 1 && h < shape.num_v_heads; ++h) {
    c.head_class[h] = layout.head_class[static_cast<size_t>(h)];
    c.head_offset[h] = static_cast<int32_t>(layout.head_offset[static_cast<size_t>(h)] / 16);
  }
  c.k_heads = shape.num_k_heads;
  c.v_heads = shape.num_v_heads;
  c.group = layout.group;
  c.ring_tokens = layout.window.ring_tokens;
  c.window = layout.window_tokens;
  c.stagger = layout.classes[0].format.stagger;
  c.first_k_head = shape.first_k_head;
  c.total_k_heads = shape.total_k_heads;
  c.stored_decay = layout.window.decay_bytes != 0;
  c.decay_bytes = layout.window.decay_bytes;
  c.delta_rule = shape.delta_rule;
  c.corrections = layout.window.corrections;
  c.log_decays = layout.window.log_decays;
  c.key_head_stride = layout.window.key_head_stride;
  c.correction_head_stride = layout.window.correction_head_stride;
  c.decay_head_stride = layout.window.decay_head_stride;
  c.states = static_cast<char*>(pool.states);
  c.windows = static_cast<char*>(pool.windows);
  c.base = pool.base;
  c.health = pool.health;
  c.state_stride = pool.state_stride_bytes;
  c.window_stride = pool.window_stride_bytes;
  c.num_state_slots = pool.num_state_slots;
  c.num_window_slots = pool.num_window_slots;
  c.batch = args.batch;
  c.tokens = args.tokens;
  c.capacity = records;
  c.state_slots = args.state_slots;
  c.window_slots = args.window_slots;
  c.positions = args.positions;
  c.num_tokens = args.num_tokens;
  c.status = args.status;
  const int64_t hk = shape.num_k_heads;
  const int64_t hv = shape.num_v_heads;
  c.q = rows_of(in.q, false, args.tokens, hk, 128);
  c.k = rows_of(in.k, true, args.tokens, hk, 128);
  c.v = rows_of(in.v, true, args.tokens, hv, 128);
  const bool vector = shape.decay == LEAPQUANT_DECAY_VECTOR;
  if (shape.decay != LEAPQUANT_DECAY_NONE) {
    c.log_decay = vector ? rows_of(in.log_decay, false, args.tokens, hv, 128)
                         : rows_of(in.log_decay, false, args.tokens, 0, hv);
  }
  if (in.beta.data != nullptr) c.beta = rows_of(in.beta, true, args.tokens, 0, hv);
  const leapquant_output& o = args.output;
  c.output = rows_of(o.data, o.type, o.sequence_stride_bytes, o.token_stride_bytes, 0,
                     o.head_stride_bytes, args.tokens, hv, 128);
  if (!aligned(c.q) || !aligned(c.k) || !aligned(c.v) || !aligned(c.output)) return false;
  if (vector && !aligned(c.log_decay)) return false;
  const int64_t row = 128 * bytes_of(c.q.type);
  c.dense = c.k.type == c.q.type && c.v.type == c.q.type && c.q.head_stride == row &&
            c.k.head_stride == row && c.v.head_stride == row && c.k_heads <= c.v_heads;
  c.gate = in.gate;
  c.beta_kind = in.beta_kind;
  c.l2norm = in.qk_l2norm;
  c.a_log = in.a_log;
  c.dt_bias = in.dt_bias;
  c.lower_bound = in.lower_bound;
  c.beta_scale = in.beta_scale == 0.0f ? 1.0f : in.beta_scale;
  c.l2norm_eps = in.l2norm_eps == 0.0f ? 1e-6f : in.l2norm_eps;
  c.q_scale = in.q_scale == 0.0f ? 1.0f : in.q_scale;
  const auto narrow = [&](const Rows128& rows) {  // a sequence's rows within 31 bits
    return rows.head_stride >= 0 && rows.head_stride <= INT32_MAX / 2 / (hv + 1) &&
           rows.token_stride >= 0 && rows.token_stride <= INT32_MAX / 2 / (args.tokens + 1);
  };
  const auto power = [](int32_t x) { return x > 0 && (x & (x - 1)) == 0; };
  const bool scalars =
      (c.beta.data == nullptr || c.beta.type == LEAPQUANT_FP32) &&
      (vector || c.log_decay.data == nullptr || c.log_decay.type == LEAPQUANT_FP32);
  c.plain = c.num_classes == 1 && hv <= 0xffff && c.dense && c.q.type == LEAPQUANT_BF16 &&
            c.output.type == LEAPQUANT_BF16 && scalars && c.gate == LEAPQUANT_GATE_READY &&
            c.beta_kind == LEAPQUANT_BETA_READY && power(c.group) && power(c.window) &&
            power(c.total_k_heads) && narrow(c.q) && narrow(c.k) && narrow(c.v) &&
            narrow(c.log_decay) && narrow(c.beta) && narrow(c.output);
  *out = c;
  return true;
}

cudaError_t decode_128(const Layout& layout, const Call128& unchecked, cudaStream_t stream) {
  const bool vector = layout.shape.decay == LEAPQUANT_DECAY_VECTOR;
  int device = 0;
  int processors = 0;
  int shared = 0;
  if (cudaError_t e = cudaGetDevice(&device)) return e;
  if (cudaError_t e = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) {
    return e;
  }
  if (cudaError_t e =
          cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device)) {
    return e;
  }
  int room = 0;
  if (cudaError_t e =
          cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)) {
    return e;
  }
  if (small_128_serves(unchecked, vector, processors, shared, room)) {
    return launch_small_128(unchecked, stream);
  }
  // Small batches share a head among more warps.
  const int64_t total = int64_t{unchecked.batch} * unchecked.v_heads;
  const int32_t pairs = total >= 4 * processors ? 1 : 2;
  Call128 call = unchecked;
  int32_t most = 0;
  if (cudaError_t e = decode_128_resident_blocks(call, vector, pairs, &most)) return e;
  most = std::max(most, 1);
  int32_t groups = 0;
  if (call.stagger != 0) {
    groups = groups_for(call, vector, processors, most, processors / kFoldGroup128);
  }
  if (groups > 0) {  // the device is asked only where they would pay
    int32_t most_groups = 0;
    if (cudaError_t e = groups_that_fold_128(call, vector, &most_groups)) return e;
    if (most_groups < groups) groups = groups_for(call, vector, processors, most, most_groups);
  }
  if (pairs == 1) {
    if (cudaError_t e = launch_check_128(&call, vector, stream)) return e;
  }
  const int32_t folding = groups > 0 ? groups * kFoldGroup128 : processors;
  if (cudaError_t e = launch_fold_128(call, vector, folding, groups > 0, stream)) return e;
  const int32_t blocks =
      groups > 0
          ? static_cast<int32_t>(std::min<int64_t>(total, int64_t{most} * (processors - folding)))
      : call.checked != 0
          ? static_cast<int32_t>(std::min<int64_t>(total, int64_t{most} * processors))
          : blocks_for(call, processors, most);
  return launch_decode_128(call, vector, pairs, blocks, true, call.checked == 0, stream);
}

}  // namespace leapquant::cuda

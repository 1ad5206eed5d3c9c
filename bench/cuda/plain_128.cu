// SPDX-License-Identifier: Apache-2.0
//
// The project's own states in BF16 and FP32, decoded by the kernels for heads of 128 x 128, and the
// general kernels: compared with each other, then timed. Usage: plain_128 check | time ROWS.JSONL.
// Timing as in decode_128: one CUDA graph per phase of the window over all slot sets (together past
// the second cache level), all phases in turn; medians; per step, one graph that moves positions.
#include "cuda/backend.h"
#include "timing.cuh"

namespace {

using namespace leapquant;
using namespace leapquant::bench;

struct Row {
  const char* state;
  const Backend* backend;
  int decay, k_dim, v_dim, batch, tokens;
  bool stagger, folds;  // folds: forced folds alone, after eight tokens each
};

__global__ void draw(float* x, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u + 12345u;
    h = (h ^ (h >> 16)) * 2246822519u;
    h = (h ^ (h >> 13)) * 3266489917u;
    x[i] = 0.2f * (static_cast<float>((h ^ (h >> 16)) >> 8) * (1.0f / 16777216.0f) - 0.5f);
  }
}

Layout layout_for(const char* format, int decay, int k_heads, int v_heads, int k_dim, int v_dim,
                  int tokens, bool stagger) {
  leapquant_shape shape = LEAPQUANT_INIT(leapquant_shape);
  shape.num_k_heads = k_heads;
  shape.num_v_heads = v_heads;
  shape.head_k_dim = k_dim;
  shape.head_v_dim = v_dim;
  shape.decay = decay;
  shape.delta_rule = 1;
  shape.max_tokens = tokens;
  leapquant_format f = LEAPQUANT_INIT(leapquant_format);
  Sentence sentence;
  Layout layout;
  if (parse_format(format, &f, &sentence) != LEAPQUANT_OK) {
    std::fprintf(stderr, "bad format %s: %s\n", format, sentence.text);
    std::exit(1);
  }
  f.stagger = stagger;
  if (make_layout(shape, &f, 1, nullptr, &layout, &sentence) != LEAPQUANT_OK) {
    std::fprintf(stderr, "no layout: %s\n", sentence.text);
    std::exit(1);
  }
  return layout;
}

// A pool on the device with states drawn at random, and the tensors of one call.
struct Bench {
  Layout layout;
  int heads, tokens, batch, slots;
  DeviceArray<std::byte> states, windows;
  DeviceArray<int32_t> base, slot_list, status;
  DeviceArray<leapquant_health> health;
  DeviceArray<std::byte> workspace;
  DeviceArray<uint8_t> q, k, v, decay, step, output;
  leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
  leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
  leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);

  static std::vector<uint8_t> numbers(size_t n, int type, float scale, bool negative, int seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    std::normal_distribution<float> normal;
    std::vector<float> x(n);
    for (float& value : x) {
      value = scale * normal(random);
      if (negative) value = -std::fabs(value);
    }
    return packed(x, type);
  }
  static std::vector<int32_t> counting(int n) {
    std::vector<int32_t> x(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) x[static_cast<size_t>(i)] = i;
    return x;
  }

  Bench(Layout l, int num_batch, int num_tokens, int num_slots, const Backend& backend)
      : layout(std::move(l)),
        heads(layout.shape.num_v_heads),
        tokens(num_tokens),
        batch(num_batch),
        slots(num_slots),
        states(static_cast<size_t>(layout.state_bytes) * static_cast<size_t>(slots)),
        windows(static_cast<size_t>(layout.window.bytes) * static_cast<size_t>(slots)),
        base(static_cast<size_t>(slots * heads)),
        slot_list(counting(slots)),
        status(static_cast<size_t>(batch)),
        health(base.count),
        workspace(backend.workspace_per_worker(layout) + 64 +
                  static_cast<size_t>(batch) * backend.workspace_per_sequence(layout)),
        q(numbers(rows(layout.shape.num_k_heads, layout.shape.head_k_dim), LEAPQUANT_BF16, 1, false,
                  1)),
        k(numbers(rows(layout.shape.num_k_heads, layout.shape.head_k_dim), LEAPQUANT_BF16, 1, false,
                  2)),
        v(numbers(rows(heads, layout.shape.head_v_dim), LEAPQUANT_BF16, 1, false, 3)),
        decay(numbers(rows(heads, vector() ? layout.shape.head_k_dim : 1), gate_type(), 0.05f, true,
                      4)),
        step(packed(std::vector<float>(rows(heads, 1), 0.5f), LEAPQUANT_FP32)),
        output(rows(heads, layout.shape.head_v_dim) * 4) {
    REQUIRE(cudaMemset(windows.data, 0, windows.count));
    REQUIRE(cudaMemset(base.data, 0, base.count * 4));
    REQUIRE(cudaMemset(health.data, 0, health.count * sizeof(leapquant_health)));
    pool = pool_of(layout, slots, states, windows, base, health);
    launch.workspace = workspace.data;
    launch.workspace_bytes = workspace.count;
    args.batch = batch;
    args.tokens = tokens;
    args.inputs.q = {q.data, LEAPQUANT_BF16, 0, 0, 0, 0};
    args.inputs.k = {k.data, LEAPQUANT_BF16, 0, 0, 0, 0};
    args.inputs.v = {v.data, LEAPQUANT_BF16, 0, 0, 0, 0};
    args.inputs.log_decay = {decay.data, gate_type(), 0, 0, 0, 0};
    args.inputs.beta = {step.data, LEAPQUANT_FP32, 0, 0, 0, 0};
    args.inputs.qk_l2norm = 1;
    args.inputs.q_scale = 0.0883883f;
    args.output.data = output.data;
    args.output.type = LEAPQUANT_BF16;
    args.status = status.data;
    const int64_t matrices =
        int64_t{batch} * heads * layout.shape.head_k_dim * layout.shape.head_v_dim;
    DeviceArray<float> matrix(static_cast<size_t>(matrices));
    draw<<<1024, 256>>>(matrix.data, matrices);
    DeviceArray<int32_t> zeros(static_cast<size_t>(batch));
    REQUIRE(cudaMemset(zeros.data, 0, zeros.count * 4));
    leapquant_transfer_args incoming = LEAPQUANT_INIT(leapquant_transfer_args);
    incoming.batch = batch;
    incoming.positions = zeros.data;
    incoming.matrices = matrix.data;
    incoming.type = LEAPQUANT_FP32;
    incoming.status = status.data;
    for (int s = 0; s + batch <= slots; s += batch) {
      incoming.state_slots = slot_list.data + s;
      backend.import_states(layout, pool, incoming, launch);
    }
    REQUIRE(cudaDeviceSynchronize());
  }
  bool vector() const { return layout.shape.decay == LEAPQUANT_DECAY_VECTOR; }
  int gate_type() const { return vector() ? LEAPQUANT_BF16 : LEAPQUANT_FP32; }
  size_t rows(int per_token, int width) const {
    return static_cast<size_t>(batch) * static_cast<size_t>(tokens) *
           static_cast<size_t>(per_token) * static_cast<size_t>(width);
  }
  int faults() const {
    int found = 0;
    for (const int32_t s : status.get()) found += s != LEAPQUANT_OK;
    return found;
  }
};

// ---- Check: the special kernels against the general ones on the same pool, step by step ----

double relative(const std::vector<double>& a, const std::vector<double>& b) {
  double norm = 0.0;
  const double miss = difference(a.data(), b.data(), a.size(), &norm);
  return norm > 0.0 ? miss / norm : miss;
}

std::vector<double> doubles(const void* bytes, size_t count, int bits) {
  std::vector<double> x(count);
  for (size_t i = 0; i < count; ++i) {
    if (bits == 32) {
      x[i] = static_cast<double>(static_cast<const float*>(bytes)[i]);
    } else {
      const uint32_t word = uint32_t{static_cast<const uint16_t*>(bytes)[i]} << 16;
      x[i] = static_cast<double>(std::bit_cast<float>(word));
    }
  }
  return x;
}

int check() {
  const Backend& special = cuda::backend_plain_128();
  const Backend& general = cuda::general_backend();
  int failures = 0;
  for (const char* state : {"bf16", "fp32", "bf16:step", "fp32:step"}) {
    for (const int decay : {LEAPQUANT_DECAY_SCALAR, LEAPQUANT_DECAY_VECTOR}) {
      for (const int tokens : {1, 3}) {
        const Layout layout = layout_for(state, decay, 2, 4, 128, 128, tokens, true);
        Sentence why_not;
        if (special.accepts(layout, &why_not) != LEAPQUANT_OK) {
          std::printf("%s\n", why_not.text);
          return 1;
        }
        const auto make = [&](const Backend& backend) {
          return Bench(layout_for(state, decay, 2, 4, 128, 128, tokens, true), 3, tokens, 3,
                       backend);
        };
        Bench own = make(general), other = make(general);
        DeviceArray<int32_t> positions(size_t{3});
        double worst_output = 0.0, worst_state = 0.0, worst_health = 0.0;
        for (int position = 0; position < 60; position += tokens) {
          positions.put({position, position, position});
          for (Bench* bench : {&own, &other}) {
            bench->args.state_slots = bench->slot_list.data;
            bench->args.positions = positions.data;
            bench->args.output.type = LEAPQUANT_FP32;
            const Backend& backend = bench == &own ? special : general;
            backend.decode(bench->layout, bench->pool, bench->args, bench->launch);
            REQUIRE(cudaDeviceSynchronize());
            failures += bench->faults();
          }
          const size_t numbers = own.output.count / 4;
          worst_output =
              std::max(worst_output, relative(doubles(own.output.get().data(), numbers, 32),
                                              doubles(other.output.get().data(), numbers, 32)));
          const int bits = layout.classes[0].format.payload_bits;
          const size_t entries = own.states.count * 8 / static_cast<size_t>(bits);
          worst_state =
              std::max(worst_state, relative(doubles(own.states.get().data(), entries, bits),
                                             doubles(other.states.get().data(), entries, bits)));
          const auto a = own.health.get(), b = other.health.get();
          for (size_t i = 0; i < a.size(); ++i) {
            const double miss = std::fabs(double{a[i].fold_error} - double{b[i].fold_error});
            worst_health = std::max(worst_health, miss / (double{b[i].fold_error} + 1e-12));
            failures += a[i].flags != b[i].flags;
          }
          failures += own.base.get() != other.base.get();
          // Both go on from the same state: what differs does not add up.
          REQUIRE(cudaMemcpy(own.states.data, other.states.data, own.states.count,
                             cudaMemcpyDeviceToDevice));
          if (own.windows.count > 0) {
            REQUIRE(cudaMemcpy(own.windows.data, other.windows.data, own.windows.count,
                               cudaMemcpyDeviceToDevice));
          }
        }
        // FP32 numbers differ by the order of sums of some hundred terms. A BF16 state entry, or an
        // FP16 correction, between two neighbours may go either way: a step of 2^-8 or 2^-11 in a
        // few of them.
        const bool half = layout.classes[0].format.payload_bits == 16;
        const bool good = worst_output < (half ? 3e-4 : 1e-4) &&
                          worst_state < (half ? 3e-4 : 1e-5) && worst_health < (half ? 0.02 : 1e-9);
        failures += good ? 0 : 1;
        std::printf("%-10s decay %d, %d tokens: outputs %.2e, states %.2e, health %.2e%s\n", state,
                    decay, tokens, worst_output, worst_state, worst_health, good ? "" : "  BAD");
      }
    }
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}

// ---- Timing ----

void time_row(const Row& row, double copy, std::FILE* out) {
  constexpr int kHeads = 32;
  Layout layout = layout_for(row.state, row.decay, kHeads, kHeads, row.k_dim, row.v_dim,
                             row.folds ? 8 : row.tokens, row.stagger);
  const bool per_step = layout.per_step;
  const int64_t set_bytes = (layout.state_bytes + layout.window.bytes) * row.batch;
  const int sets = sets_of(set_bytes, 96);
  Bench bench(std::move(layout), row.batch, row.tokens, sets * row.batch, *row.backend);
  const Layout& l = bench.layout;
  const int window = l.window_tokens;
  const int phases = per_step || row.folds ? 1 : window / row.tokens;
  const int by = row.folds ? 8 : per_step ? row.tokens : window;
  std::vector<int32_t> at(static_cast<size_t>(phases * row.batch));
  for (int p = 0; p < phases; ++p) {
    for (int i = 0; i < row.batch; ++i) {
      at[static_cast<size_t>(p * row.batch + i)] = row.folds ? 8 : p * row.tokens;
    }
  }
  DeviceArray<int32_t> positions(at);
  cudaStream_t stream;
  REQUIRE(cudaStreamCreate(&stream));
  bench.launch.stream = stream;
  std::vector<cudaGraphExec_t> graphs;
  for (int p = 0; p < phases; ++p) {
    graphs.push_back(graph_of(stream, [&] {
      for (int s = 0; s < sets; ++s) {
        const int32_t* slots = bench.slot_list.data + s * row.batch;
        const int32_t* places = positions.data + p * row.batch;
        Status status = LEAPQUANT_OK;
        if (row.folds) {
          leapquant_fold_args fold = LEAPQUANT_INIT(leapquant_fold_args);
          fold.batch = row.batch;
          fold.state_slots = slots;
          fold.positions = places;
          fold.status = bench.status.data;
          status = row.backend->fold(l, bench.pool, fold, bench.launch);
        } else {
          bench.args.state_slots = slots;
          bench.args.positions = places;
          status = row.backend->decode(l, bench.pool, bench.args, bench.launch);
        }
        if (status != LEAPQUANT_OK) std::exit(1);
      }
      advance<<<(row.batch + 255) / 256, 256, 0, stream>>>(positions.data + p * row.batch,
                                                           row.batch, by);
    }));
  }
  const int repeats = phases > 1 ? 7 : 21;
  const auto [mean, fastest, slowest] = time_phases(graphs, sets, repeats, stream);
  if (bench.faults() != 0) std::printf("  %d faulty sequences\n", bench.faults());
  const double head = static_cast<double>(l.state_bytes) / kHeads;
  const double record =
      2.0 * row.k_dim + 2.0 * row.v_dim + l.window.decay_count * l.window.decay_bytes;
  const double inputs =
      4.0 * row.k_dim + 4.0 * row.v_dim + 4.0 + (bench.vector() ? 2.0 * row.k_dim : 4.0);
  double bytes = head * (1.0 + row.tokens / 16.0) + 8.5 * record + row.tokens * (record + inputs);
  if (per_step) bytes = 2.0 * head + row.tokens * inputs;
  if (row.folds) bytes = 2.0 * head + 8.0 * record;
  bytes *= row.batch * kHeads;
  const double rate = bytes / (mean * 1e-6) / 1e9;
  char line[512];
  std::snprintf(line, sizeof line,
                "{\"family\":\"%s\",\"state\":\"%s\",\"rank\":%d,\"window\":%d,\"heads\":%d,"
                "\"batch\":%d,\"tokens\":%d,\"schedule\":\"%s\",\"us\":%.2f,\"bytes\":%.0f,"
                "\"gb_per_s\":%.0f,\"copy_share\":%.3f,\"peer\":false,\"slowest_us\":%.2f,"
                "\"fastest_us\":%.2f,\"decays\":\"fp32\",\"k_dim\":%d,\"v_dim\":%d,"
                "\"variant\":\"%s%s\"}",
                bench.vector() ? "kda" : "gdn", row.state, l.classes[0].rank, per_step ? 1 : window,
                kHeads, row.batch, row.tokens,
                per_step      ? "-"
                : row.folds   ? "forced folds"
                : row.stagger ? "staggered"
                              : "aligned",
                mean, bytes, rate, rate / copy, slowest, fastest, row.k_dim, row.v_dim,
                row.backend->name, row.folds ? ", folds" : "");
  std::printf("%s\n", line);
  std::fflush(stdout);
  if (out != nullptr) {
    std::fprintf(out, "%s\n", line);
    std::fflush(out);
  }
  REQUIRE(cudaStreamDestroy(stream));
}

int time_all(const char* path, const std::string& which) {
  std::FILE* out = std::fopen(path, "w");
  if (out == nullptr) return 1;
  const double copy = copy_bandwidth();
  std::printf("copy %.0f GB/s\n", copy);
  const int S = LEAPQUANT_DECAY_SCALAR, V = LEAPQUANT_DECAY_VECTOR;
  const Backend* own = &cuda::backend_plain_128();
  const Backend* general = &cuda::general_backend();
  std::vector<Row> rows;
  if (which != "general") {
    for (const char* state : {"fp32:step", "bf16", "bf16:step", "fp32"}) {
      rows.push_back({state, own, S, 128, 128, 512, 1, true, false});
      if (which == "short") continue;
      for (const int batch : {64, 256, 1024}) {
        rows.push_back({state, own, S, 128, 128, batch, 1, true, false});
      }
      for (const int batch : {1, 8}) {
        rows.push_back({state, own, S, 128, 128, batch, 1, false, false});
      }
      rows.push_back({state, own, V, 128, 128, 512, 1, true, false});
    }
    rows.push_back({"bf16", own, S, 128, 128, 128, 1, true, false});
    rows.push_back({"bf16", own, S, 128, 128, 128, 4, true, false});
  }
  if (which == "general" || which == "all") {
    for (const char* state : {"int8", "bf16", "fp32:step"}) {
      rows.push_back({state, general, S, 64, 64, 64, 1, true, false});
      rows.push_back({state, general, S, 256, 256, 64, 1, true, false});
      rows.push_back({state, general, S, 128, 256, 64, 1, true, false});
      rows.push_back({state, general, S, 128, 128, 64, 1, true, false});
    }
    rows.push_back({"int8", general, S, 128, 128, 64, 1, true, true});
    rows.push_back({"int8", general, S, 64, 64, 64, 1, true, true});
    rows.push_back({"int8", general, S, 256, 256, 64, 1, true, true});
  }
  for (const Row& row : rows) time_row(row, copy, out);
  std::fclose(out);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc >= 2 && std::strcmp(argv[1], "check") == 0) return check();
  if (argc >= 3 && std::strcmp(argv[1], "time") == 0) {
    return time_all(argv[2], argc >= 4 ? argv[3] : "all");
  }
  std::fprintf(stderr,
               "usage: plain_128 check | time ROWS.JSONL [short | plain | general | all]\n");
  return 2;
}

// SPDX-License-Identifier: Apache-2.0
//
// The specialised decode and fold for heads of 128 x 128: first checked step by step against the
// FP64 reference on the same stored bytes, then timed. Usage: decode_128 check | time ROWS.JSONL.
// Timing: one CUDA graph per phase of the window over all slot sets (together past the L2), all
// phases in turn; medians; bytes and the share of the copy bandwidth of the same run.
#include "companion.cuh"
#include "decode_check.cuh"
#include "decode_plain_check.cuh"
#include "decode_sets.cuh"

namespace {

using namespace leapquant;
using namespace leapquant::bench;

// ---- Timing ----

struct Row {
  const char* state;
  int decay, half_decays, batch, tokens;
  bool stagger;
  // Blocks (of one pair: pairs) as far as they fit; 20 and more: in all; 0: the library's choice.
  int pairs, per_processor;
  bool overlaps, folds;  // folds = false: decode alone, boundaries ignored (for analysis)
  int k_heads = 32;
  Work beside = Work::kNone;  // what runs on some multiprocessors at the same time
  int beside_blocks = 0;
  int fold_blocks = 0;   // 0: 132
  bool grouped = false;  // fold blocks in clusters
};

// What a row measures, as the table of results calls it.
std::string variant_of(const Row& row) {
  const std::string keys =
      row.k_heads != 32 ? ", " + std::to_string(row.k_heads) + " key heads" : "";
  if (row.pairs == 0) return "library" + keys;
  std::string name = row.per_processor == 0
                         ? "folds alone"
                         : std::to_string(row.pairs) + "/" + std::to_string(row.per_processor);
  if (!row.folds) name += " decode alone";
  if (row.tokens > 1) name += ", " + std::to_string(row.tokens) + " tokens a call";
  if (row.fold_blocks != 0) {
    name += ", folds on " + std::to_string(row.fold_blocks);
    if (row.grouped) name += " in clusters";
  }
  if (row.beside != Work::kNone) {
    name += ", beside work " + std::to_string(static_cast<int>(row.beside)) + " on " +
            std::to_string(row.beside_blocks);
  }
  return name + keys;
}

// Times a row, prints it and writes it to `out`. False, and nothing is written, where calls left
// faults or outputs that are not finite.
bool time_row(const Row& row, double copy, std::FILE* out) {
  const Case c = {row.state,  row.state,      row.decay, row.k_heads,     32,
                  row.tokens, LEAPQUANT_BF16, 0,         row.half_decays, 0.05};
  DecodeSets decode(c, row.stagger, row.batch, 256);
  const bool vector = decode.vector;
  cudaStream_t stream;
  REQUIRE(cudaStreamCreate(&stream));
  std::vector<cudaGraphExec_t> graphs;
  for (int p = 0; p < decode.phases; ++p) {
    graphs.push_back(graph_of(stream, [&] {
      for (int set = 0; set < decode.sets; ++set) {
        cuda::Call128 call = decode.call(p, set);
        if (row.pairs == 0) {
          REQUIRE(cuda::decode_128(decode.layout, call, stream));
        } else {
          if (row.pairs == 1) REQUIRE(cuda::launch_check_128(&call, vector, stream));
          if (row.folds)
            REQUIRE(cuda::launch_fold_128(
                call, vector, row.fold_blocks != 0 ? row.fold_blocks : 132, row.grouped, stream));
          if (row.per_processor == 0) continue;  // folds alone
          int fit = 0;
          REQUIRE(cuda::decode_128_resident_blocks(call, vector, row.pairs, &fit));
          const int blocks =
              row.per_processor < 20 ? 132 * std::min(row.per_processor, fit) : row.per_processor;
          REQUIRE(cuda::launch_decode_128(call, vector, row.pairs, blocks,
                                          row.overlaps && row.folds, !row.folds, stream));
        }
      }
      if (row.folds) decode.advance_positions(p, stream);
    }));
  }
  const int repeats = row.batch >= 512 ? 7 : 9;
  PhaseTimes times;
  {
    const Beside beside(row.beside, row.beside_blocks);
    times = time_phases(graphs, decode.sets, repeats, stream);
  }
  const auto [mean, fastest, slowest] = times;
  const int64_t wrong = decode.count_wrong(stream);
  const double bytes = decode.bytes();
  const double rate = bytes / (mean * 1e-6) / 1e9;
  char line[512];
  std::snprintf(line, sizeof line,
                "{\"family\":\"%s\",\"state\":\"%s\",\"rank\":%d,\"window\":16,\"heads\":32,"
                "\"batch\":%d,\"tokens\":%d,\"schedule\":\"%s\",\"us\":%.2f,\"bytes\":%.0f,"
                "\"gb_per_s\":%.0f,\"copy_share\":%.3f,\"peer\":false,\"slowest_us\":%.2f,"
                "\"fastest_us\":%.2f,\"decays\":\"%s\",\"variant\":\"%s\"}",
                vector ? "kda" : "gdn", row.state, decode.layout.classes[0].rank, row.batch,
                row.tokens, row.stagger ? "staggered" : "aligned", mean, bytes, rate, rate / copy,
                slowest, fastest, row.half_decays ? "fp16" : "fp32", variant_of(row).c_str());
  std::printf("%s\n", line);
  if (wrong != 0) {
    std::printf("  no figure: %lld sequences faulty, outputs or heads not finite\n",
                static_cast<long long>(wrong));
  }
  std::fflush(stdout);
  if (wrong == 0) std::fprintf(out, "%s\n", line);
  std::fflush(out);
  REQUIRE(cudaStreamDestroy(stream));
  return wrong == 0;
}

int time_all(const char* path, const char* which) {
  std::FILE* out = std::fopen(path, "w");
  if (out == nullptr) {
    std::fprintf(stderr, "decode_128: %s cannot be written\n", path);
    return 1;
  }
  const double copy = copy_bandwidth();
  std::printf("copy %.0f GB/s\n", copy);
  const int S = LEAPQUANT_DECAY_SCALAR, V = LEAPQUANT_DECAY_VECTOR;
  std::vector<Row> rows;
  const std::string w = which;
  if (w == "shape") {  // decode alone by blocks
    rows = {
        {"int8", S, 0, 512, 1, false, 1, 5, false, false},
        {"int8", S, 0, 512, 1, false, 1, 6, false, false},
        {"int8", S, 0, 512, 1, false, 1, 512, false, false},
        {"int8", S, 0, 512, 1, false, 1, 1024, false, false},
        {"int8", S, 0, 64, 1, false, 1, 512, false, false},
        {"int8", S, 0, 64, 1, false, 2, 3, false, false},
        {"int4", S, 0, 512, 1, false, 1, 7, false, false},
        {"int8", V, 1, 512, 1, false, 1, 5, false, false},
        {"int8", S, 0, 128, 1, false, 1, 512, false, false},
        {"int8", S, 0, 256, 1, false, 1, 512, false, false},
        {"int8", S, 0, 128, 4, false, 1, 5, false, false},
        {"int8", S, 0, 128, 4, false, 1, 6, false, false},
    };
  }
  if (w == "beside") {  // how decode and folds share the multiprocessors
    for (const bool grouped : {false, true}) {
      for (const int folding : {48, 64, 80}) {
        rows.push_back({"int8", S, 0, 512, 1, true, 1, 6 * (132 - folding), true, true, 32,
                        Work::kNone, 0, folding, grouped});
      }
    }
    rows.push_back({"int8", S, 0, 64, 1, true, 1, 408, true, true, 32, Work::kNone, 0, 64, true});
    for (const int folding : {64, 80, 96, 112}) {
      rows.push_back({"int8+", S, 0, 512, 1, true, 1, 6 * (132 - folding), true, true, 32,
                      Work::kNone, 0, folding, true});
    }
    for (const int folding : {32, 48, 64}) {
      rows.push_back({"int8", V, 1, 512, 1, true, 1, 5 * (132 - folding), true, true, 32,
                      Work::kNone, 0, folding, true});
    }
  }
  if (w == "companions") {  // what slows decode down on the same multiprocessors
    for (const Work work :
         {Work::kNone, Work::kSleep, Work::kLoop, Work::kStream, Work::kParameters}) {
      rows.push_back({"int8", S, 0, 512, 1, false, 1, 512, false, false, 32, work, 132});
    }
  }
  if (w == "code") {  // on half of the multiprocessors slows folds and decode on the others
    for (const Work work : {Work::kOccupy, Work::kCode8, Work::kCode16, Work::kCode24,
                            Work::kCode32, Work::kCode48, Work::kCode64, Work::kCode96}) {
      rows.push_back({"int8", S, 0, 512, 1, true, 1, 0, false, true, 32, work, 66, 66});
      rows.push_back({"int8", S, 0, 512, 1, false, 1, 6 * 66, false, false, 32, work, 66});
    }
  }
  if (w == "first") {  // what a call's first folds cost more than its later ones, beside what
    for (const Work work : {Work::kOccupy, Work::kReads, Work::kCode32}) {
      for (const int batch : {64, 128, 256, 512}) {
        rows.push_back({"int8", S, 0, batch, 1, true, 1, 0, false, true, 32, work, 66, 64});
      }
    }
  }
  if (w == "parts") {  // of the device: decode, then folds, on fewer multiprocessors
    for (const int free : {132, 108, 88, 66, 44}) {
      rows.push_back(
          {"int8", S, 0, 512, 1, false, 1, 6 * free, false, false, 32, Work::kOccupy, 132 - free});
      rows.push_back(
          {"int8", S, 0, 512, 1, true, 1, 0, false, true, 32, Work::kOccupy, 132 - free, free});
    }
    // 1,024 blocks of two pairs are clusters of two: these wait long where multiprocessors are
    // taken.
    rows.push_back({"int8", S, 0, 512, 1, false, 2, 1024, false, false, 32, Work::kOccupy, 66});
  }
  if (w == "folds") {  // folds alone
    for (const char* state : {"int8", "int6", "int4", "int8+", "int6+", "int4+", "int4-compact"}) {
      rows.push_back({state, S, 0, 512, 1, true, 1, 0, false, true});
    }
    rows.push_back({"int8", V, 1, 512, 1, true, 1, 0, false, true});
  }
  if (w == "decode") {  // decode alone, in the library's own shapes
    for (int batch : {64, 128, 512}) {
      rows.push_back({"int8", S, 0, batch, 1, false, 1, 8, false, false});
    }
    for (int tokens : {2, 4, 8}) {
      rows.push_back({"int8", S, 0, 128, tokens, false, 1, 512, false, false});
    }
    rows.push_back({"int8", V, 1, 512, 1, false, 1, 8, false, false});
  }
  if (w == "drafts") rows = {{"int8", S, 0, 128, 4, false, 1, 512, false, false}};
  if (w == "kda") rows = {{"int8", V, 1, 512, 1, false, 1, 8, false, false}};
  if (w == "nofold") rows = {{"int8", S, 0, 512, 1, false, 1, 7, false, false}};
  if (w == "main") rows = {{"int8", S, 0, 512, 1, true, 0, 0, true, true}};
  if (w == "one") rows = {{"int8", S, 0, 512, 1, true, 1, 4, true, true}};
  if (w == "tiny" || w == "few") {  // where one launch may serve a call
    for (int batch : {1, 2, 4, 8, 12, 16, 24, 32}) {
      if (w == "tiny" && batch != 1 && batch != 8) continue;
      rows.push_back({"int8", S, 0, batch, 1, false, 0, 0, true, true});
      if (w == "tiny") rows.push_back({"int8", S, 0, batch, 1, true, 0, 0, true, true});
    }
  }
  if (w == "small") {  // where launches count
    for (int batch : {1, 8}) rows.push_back({"int8", S, 0, batch, 1, false, 2, 4, false, false});
    for (int batch : {1, 8}) rows.push_back({"int8", S, 0, batch, 1, false, 0, 0, true, true});
    for (int batch : {64, 512}) rows.push_back({"int8", S, 0, batch, 1, true, 0, 0, true, true});
    for (int batch : {64, 512}) {  // value heads in pairs, as models have them
      rows.push_back({"int8", S, 0, batch, 1, true, 0, 0, true, true, 16});
    }
  }
  if (w == "table" || w == "all") {
    for (const char* state : {"int8", "int6", "int4", "int8+", "int6+", "int4+", "int4-compact"}) {
      rows.push_back({state, S, 0, 512, 1, true, 0, 0, true, true});
    }
    rows.push_back({"int8", V, 1, 512, 1, true, 0, 0, true, true});
    rows.push_back({"int8", V, 0, 512, 1, true, 0, 0, true, true});
    for (int batch : {64, 256, 1024}) {
      rows.push_back({"int8", S, 0, batch, 1, true, 0, 0, true, true});
    }
    for (int batch : {1, 8}) rows.push_back({"int8", S, 0, batch, 1, false, 0, 0, true, true});
    rows.push_back({"int8:r=8", S, 0, 512, 1, true, 0, 0, true, true});
    rows.push_back({"int8", S, 0, 512, 1, false, 0, 0, true, true});
    rows.push_back({"int8", S, 0, 128, 1, true, 0, 0, true, true});
    rows.push_back({"int8", S, 0, 128, 4, true, 0, 0, true, true});
  }
  bool good = true;
  for (const Row& row : rows) good = time_row(row, copy, out) && good;
  if (rows.empty()) std::fprintf(stderr, "decode_128: there are no rows called %s\n", which);
  std::fclose(out);
  return good && !rows.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc >= 2 && std::strcmp(argv[1], "check") == 0) {
    const int S = LEAPQUANT_DECAY_SCALAR, V = LEAPQUANT_DECAY_VECTOR;
    bool plain = true;
    for (const int tokens : {1, 4}) {
      plain = check_plain("int8", true, 32, S, tokens) && plain;
      plain = check_plain("int8", false, 16, S, tokens) && plain;
      plain = check_plain("int4+", true, 16, S, tokens) && plain;
      plain = check_plain("int6", false, 32, V, tokens) && plain;
    }
    plain = check_plain("int8", false, 16, S, 8) && plain;
    return check() != 0 || !plain ? 1 : 0;
  }
  if (argc >= 3 && std::strcmp(argv[1], "time") == 0) {
    return time_all(argv[2], argc >= 4 ? argv[3] : "all");
  }
  std::fprintf(
      stderr,
      "usage: decode_128 check | time ROWS.JSONL [all | table | main | small | decode | folds |\n"
      "       beside | parts | companions | code | first | shape | drafts | kda | nofold | one |\n"
      "       tiny | few]\n");
  return 2;
}

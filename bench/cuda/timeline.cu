// SPDX-License-Identifier: Apache-2.0
//
// Where a large call of heads of 128 x 128 spends its time: stamps of its check, folds and decode
// (cuda/stamps.cuh), from kernels compiled with them. A stamp costs a store or two; the call is up
// to a few percent slower than the library's.
// Usage: timeline [FORMAT [BATCH [scalar | vector]]], boundaries staggered; default: int8 512
// scalar
#include <optional>
#include <utility>

#include "decode_sets.cuh"

namespace {

using namespace leapquant;
using namespace leapquant::bench;
using cuda::Stamp;
using cuda::StampTime;

constexpr int kWindows = 6;  // calls of the last are read

// The stamps of a call.
struct Noted {
  std::vector<StampTime> stamps;
  uint64_t begin;  // of its check, in nanoseconds; the largest number where nothing was checked

  explicit Noted(std::vector<StampTime> read) : stamps(std::move(read)), begin(UINT64_MAX) {
    for (int team = 0; team < cuda::kStampTeams; ++team) {
      if (const auto t = at(Stamp::kCheckBegins, team, 0)) begin = std::min(begin, t->nanoseconds);
    }
  }

  std::optional<StampTime> at(Stamp what, int team, int turn) const {
    const StampTime& found = stamps[static_cast<size_t>(cuda::place_of(what, team, turn))];
    if (found.cycles == 0) return std::nullopt;
    return found;
  }
  // Microseconds from the call's begin, of all teams.
  std::vector<double> times(Stamp what, int turn) const {
    std::vector<double> found;
    for (int team = 0; team < cuda::kStampTeams; ++team) {
      if (const auto t = at(what, team, turn)) {
        found.push_back((static_cast<double>(t->nanoseconds) - static_cast<double>(begin)) * 1e-3);
      }
    }
    return found;
  }
  // Cycles of a turn from one stamp to another, of all teams.
  void add_cycles(Stamp from, Stamp to, int turn, std::vector<double>* all) const {
    for (int team = 0; team < cuda::kStampTeams; ++team) {
      const auto a = at(from, team, turn);
      const auto b = at(to, team, turn);
      if (a && b) all->push_back(static_cast<double>(b->cycles - a->cycles));
    }
  }
};

double share_of(std::vector<double> values, double share) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

// One line: over the teams of a call its first, middle, nine tenths and last; of these the middle
// over the calls.
void print_times(const char* name, const std::vector<Noted>& calls, Stamp what, int turn) {
  std::vector<double> teams, first, middle, most, last;
  for (const Noted& call : calls) {
    const std::vector<double> times = call.times(what, turn);
    if (times.empty()) continue;
    teams.push_back(static_cast<double>(times.size()));
    first.push_back(share_of(times, 0.0));
    middle.push_back(share_of(times, 0.5));
    most.push_back(share_of(times, 0.9));
    last.push_back(share_of(times, 1.0));
  }
  if (teams.empty()) return;
  std::printf("%-34s %6.0f %8.1f %8.1f %8.1f %8.1f\n", name, share_of(teams, 0.5),
              share_of(first, 0.5), share_of(middle, 0.5), share_of(most, 0.5),
              share_of(last, 0.5));
}

void print_cycles(const char* name, const std::vector<Noted>& calls, Stamp from, Stamp to) {
  std::vector<double> first, later;
  for (const Noted& call : calls) {
    call.add_cycles(from, to, 0, &first);
    for (int turn = 1; turn < cuda::kStampTurns; ++turn) call.add_cycles(from, to, turn, &later);
  }
  std::printf("%-34s %8.0f %8.0f %8.0f %8.0f\n", name, share_of(first, 0.5), share_of(later, 0.5),
              share_of(later, 0.9), share_of(later, 1.0));
}

// Stamps that follow each other: what was done until the next, from which.
using Chain = std::vector<std::pair<const char*, Stamp>>;
void print_chain(const char* title, const std::vector<Noted>& calls, const Chain& chain) {
  std::printf("\n%-34s %8s %8s %8s %8s\n", title, "first", "later", "9 of 10", "most");
  for (size_t i = 0; i + 1 < chain.size(); ++i) {
    print_cycles(chain[i].first, calls, chain[i].second, chain[i + 1].second);
  }
  print_cycles("all", calls, chain.front().second, chain.back().second);
}

std::vector<Noted> run(DecodeSets* decode, cudaStream_t stream) {
  const auto decode_once = [&](int phase, int set, StampTime* stamps) {
    cuda::Call128 call = decode->call(phase, set);
    call.stamps = stamps;
    REQUIRE(cuda::decode_128(decode->layout, call, stream));
  };
  DeviceArray<StampTime> stamps(cuda::kStampsOfCall);
  std::vector<Noted> noted;
  for (int window = 0; window < kWindows; ++window) {
    const bool last = window + 1 == kWindows;
    for (int phase = 0; phase < decode->phases; ++phase) {
      REQUIRE(cudaMemsetAsync(stamps.data, 0, stamps.count * sizeof(StampTime), stream));
      // The noted call has calls before it and behind it, as a layer in a model has.
      for (int set = 0; set < decode->sets; ++set) {
        decode_once(phase, set, last && set == decode->sets / 2 ? stamps.data : nullptr);
      }
      decode->advance_positions(phase, stream);
      REQUIRE(cudaStreamSynchronize(stream));
      if (last) noted.emplace_back(stamps.get());  // one call a phase
    }
  }
  return noted;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string format = argc > 1 ? argv[1] : "int8";
  const int batch = argc > 2 ? std::atoi(argv[2]) : 512;
  const std::string decay = argc > 3 ? argv[3] : "scalar";
  if (argc > 4 || batch < 1 || batch > 16384 || (decay != "scalar" && decay != "vector")) {
    std::fprintf(stderr, "usage: timeline [FORMAT [BATCH, 1 to 16384 [scalar | vector]]]\n");
    return 2;
  }
  const bool vector = decay == "vector";
  const Case c = {format.c_str(),
                  format.c_str(),
                  vector ? LEAPQUANT_DECAY_VECTOR : LEAPQUANT_DECAY_SCALAR,
                  32,
                  32,
                  1,
                  LEAPQUANT_BF16,
                  0,
                  vector,
                  0.05};
  DecodeSets decode(c, true, batch, 8);
  cudaStream_t stream;
  REQUIRE(cudaStreamCreate(&stream));
  const std::vector<Noted> calls = run(&decode, stream);
  if (calls.front().begin == UINT64_MAX) {
    std::fprintf(stderr,
                 "timeline: calls of %d sequences are not checked by a launch of their own, "
                 "with which a timeline begins; take a larger batch\n",
                 batch);
    return 1;
  }
  std::printf("%s, batch %d, %s decays: microseconds from a call's begin, %zu calls\n",
              format.c_str(), batch, decay.c_str(), calls.size());
  std::printf("%-34s %6s %8s %8s %8s %8s\n", "", "teams", "first", "middle", "9 of 10", "last");
  print_times("check begins", calls, Stamp::kCheckBegins, 0);
  print_times("check ends", calls, Stamp::kCheckEnds, 0);
  print_times("folds begin", calls, Stamp::kFoldsBegin, 0);
  print_times("a team knows its heads", calls, Stamp::kListed, 0);
  for (int turn = 0; turn < cuda::kStampTurns; ++turn) {
    const std::string name = "head " + std::to_string(turn) + " of a team is folded";
    print_times(name.c_str(), calls, Stamp::kFolded, turn);
  }
  print_times("decode begins", calls, Stamp::kDecodeBegins, 0);
  print_times("a pair is done", calls, Stamp::kDecodeEnds, 0);
  print_chain("cycles of a fold", calls,
              {{"prepare", Stamp::kArrived},
               {"rebuild", Stamp::kPrepared},
               {"norm and copy", Stamp::kRebuilt},
               {"fit", Stamp::kCopied},
               {"codec", Stamp::kFitted},
               {"send", Stamp::kEncoded},
               {"", Stamp::kFolded}});
  print_chain("cycles of a head, codes", calls,
              {{"inputs", Stamp::kCodesTurn},
               {"prepared", Stamp::kCodesInputs},
               {"codes there", Stamp::kCodesPrepared},
               {"read", Stamp::kCodesThere},
               {"rows weighed", Stamp::kCodesRead},
               {"rows summed", Stamp::kCodesMet},
               {"left to copies", Stamp::kCodesSummed},
               {"done", Stamp::kCodesLeft},
               {"", Stamp::kCodesDone}});
  print_chain("cycles of a head, rows", calls,
              {{"inputs", Stamp::kRowsTurn},
               {"prepared, rows there", Stamp::kRowsInputs},
               {"weighed", Stamp::kRowsThere},
               {"codes read", Stamp::kRowsWeighed},
               {"rows summed", Stamp::kRowsMet},
               {"left to copies", Stamp::kRowsSummed},
               {"done", Stamp::kRowsLeft},
               {"", Stamp::kRowsDone}});
  const int64_t wrong = decode.count_wrong(stream);
  if (wrong != 0) {
    std::printf("%lld sequences faulty, outputs or heads not finite\n",
                static_cast<long long>(wrong));
  }
  return wrong != 0 ? 1 : 0;
}

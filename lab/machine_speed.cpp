// SPDX-License-Identifier: Apache-2.0
//
// See machine_speed.h.
#include "lab/machine_speed.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "lab/simd_clones.h"
#include "runtime/error.h"

namespace leapquant::lab {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::int64_t kPieceFloats = 1 << 16;  // 256 KiB: fine enough for any number of workers

// Where results go that would otherwise be removed as unused.
volatile std::uint64_t sink;

LEAPQUANT_LAB_CLONES
std::uint64_t sum_words(const std::uint64_t* words, std::size_t count) {
  std::uint64_t sums[16] = {};
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (std::size_t j = 0; j < 16; ++j) sums[j] += words[i + j];
  }
  std::uint64_t total = 0;
  for (; i < count; ++i) total += words[i];
  for (const std::uint64_t sum : sums) total += sum;
  return total;
}

LEAPQUANT_LAB_CLONES
std::uint64_t sum_prefetching(const std::uint64_t* words, std::size_t count) {
  constexpr std::size_t kDistance = 128;  // 1 KiB ahead
  std::uint64_t sums[16] = {};
  for (std::size_t i = 0; i + 16 <= count; i += 16) {
    __builtin_prefetch(words + i + kDistance);
    __builtin_prefetch(words + i + kDistance + 8);
    for (std::size_t j = 0; j < 16; ++j) sums[j] += words[i + j];
  }
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  return total;
}

// Writes past the caches where the machine can, so that the target is not read first.
void stream_floats(float* to, const float* from, std::int64_t count) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  using Vector __attribute__((vector_size(16))) = float;
  for (std::int64_t i = 0; i < count; i += 4) {
    __builtin_ia32_movntps(to + i, *reinterpret_cast<const Vector*>(from + i));
  }
  __builtin_ia32_sfence();
#else
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
#endif
}

LEAPQUANT_LAB_CLONES
void copy_floats(float* __restrict to, const float* __restrict from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
}

LEAPQUANT_LAB_CLONES
void scale_floats(float* x, std::int64_t count, float factor) {
  for (std::int64_t i = 0; i < count; ++i) x[i] *= factor;
}

LEAPQUANT_LAB_CLONES
void scale_prefetching(float* x, std::int64_t count, float factor, std::int64_t distance) {
  constexpr std::int64_t kLine = 16;
  for (std::int64_t i = 0; i < count; i += kLine) {
    __builtin_prefetch(x + i + distance, 1);
    for (std::int64_t j = 0; j < kLine; ++j) x[i + j] *= factor;
  }
}

constexpr int kRounds = 2000;

// Vectors as the compiler knows them; a * b + c becomes one instruction where it may be contracted.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define LEAPQUANT_LAB_CONTRACTED(isa) __attribute__((target(isa), optimize("fp-contract=fast")))
#define LEAPQUANT_LAB_HAS_TARGETS 1

template <int kWidth>
struct VectorOf {
  using Type __attribute__((vector_size(kWidth * sizeof(float)))) = float;
};

// kChains independent sums: enough for the latency of two units, few enough for the registers.
template <int kWidth, int kChains>
__attribute__((always_inline)) inline float multiply_add_vectors(std::int64_t* done) {
  using Vector = typename VectorOf<kWidth>::Type;
  Vector sums[kChains];
  for (int i = 0; i < kChains; ++i)
    sums[i] = Vector{} + static_cast<float>(i + 2);  // 1 would stay 1
  const Vector a = Vector{} + 0.999F;
  const Vector b = Vector{} + 0.001F;
  for (int r = 0; r < kRounds; ++r) {
    for (Vector& sum : sums) sum = sum * a + b;
  }
  for (int i = 1; i < kChains; ++i) sums[0] += sums[i];
  *done = std::int64_t{kRounds} * kChains * kWidth;
  return sums[0][0];
}

LEAPQUANT_LAB_CONTRACTED("avx512f") float multiply_add_avx512(std::int64_t* done) {
  return multiply_add_vectors<16, 16>(done);
}
LEAPQUANT_LAB_CONTRACTED("avx2,fma") float multiply_add_avx2(std::int64_t* done) {
  return multiply_add_vectors<8, 12>(done);
}
#endif

float multiply_add_plain(std::int64_t* done) {
  constexpr int kWidth = 64;
  float sums[kWidth];
  for (int i = 0; i < kWidth; ++i) sums[i] = static_cast<float>(i);
  for (int r = 0; r < kRounds; ++r) {
    for (float& sum : sums) sum = sum * 0.999F + 0.001F;
  }
  *done = std::int64_t{kRounds} * kWidth;
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

float multiply_add(std::int64_t* done) {
#if defined(LEAPQUANT_LAB_HAS_TARGETS)
  if (__builtin_cpu_supports("avx512f")) return multiply_add_avx512(done);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return multiply_add_avx2(done);
  }
#endif
  return multiply_add_plain(done);
}

template <typename Function>
void run_pieces(const leapquant_runner* runner, std::int64_t pieces, Function&& function) {
  const leapquant_task task = [](void* argument, std::int32_t index, std::int32_t) {
    (*static_cast<Function*>(argument))(index);
  };
  runner->run(runner->context, static_cast<std::int32_t>(pieces), task, &function);
}

template <typename Function>
double seconds_of(Function&& function) {
  const Clock::time_point start = Clock::now();
  function();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

std::int64_t last_level_cache_bytes() {
  std::int64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) +
                       "/size");
    std::int64_t size = 0;
    char unit = 0;
    if (!(file >> size >> unit)) continue;
    size *= unit == 'K' ? 1024 : unit == 'M' ? 1024 * 1024 : 1;
    largest = std::max(largest, size);
  }
  return largest > 0 ? largest : std::int64_t{32} << 20;
}

std::int64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::int64_t kibibytes = 0;
  std::string unit;
  while (file >> name >> kibibytes) {
    if (name == "MemAvailable:") return kibibytes * 1024;
    std::getline(file, unit);
  }
  return 0;
}

void MachineSpeed::Free::operator()(float* memory) const { std::free(memory); }

MachineSpeed::MachineSpeed(std::int64_t bytes, const leapquant_runner* runner)
    : floats_((bytes / 4 + kPieceFloats - 1) / kPieceFloats * kPieceFloats), runner_(runner) {
  const std::size_t size = static_cast<std::size_t>(floats_) * sizeof(float);
  a_.reset(static_cast<float*>(std::aligned_alloc(64, size)));
  b_.reset(static_cast<float*>(std::aligned_alloc(64, size)));
  if (!a_ || !b_) throw runtime::Error("There is not enough memory for the benchmark's buffers.");
  std::fill_n(a_.get(), floats_, 1.0F);
  std::fill_n(b_.get(), floats_, 1.0F);
}

double MachineSpeed::read_rate() {
  double best = 1e30;
  for (const bool prefetch : {false, true}) {
    best = std::min(best, seconds_of([&] {
                      run_pieces(runner_, floats_ / kPieceFloats, [&](std::int32_t piece) {
                        const auto* words =
                            reinterpret_cast<const std::uint64_t*>(a_.get() + piece * kPieceFloats);
                        sink = sink + (prefetch ? sum_prefetching(words, kPieceFloats / 2)
                                                : sum_words(words, kPieceFloats / 2));
                      });
                    }));
  }
  return static_cast<double>(floats_) * 4 / best;
}

double MachineSpeed::copy_rate() {
  const double library = seconds_of([&] {
    run_pieces(runner_, floats_ / kPieceFloats, [&](std::int32_t piece) {
      std::memcpy(b_.get() + piece * kPieceFloats, a_.get() + piece * kPieceFloats,
                  kPieceFloats * 4);
    });
  });
  const double loop = seconds_of([&] {
    run_pieces(runner_, floats_ / kPieceFloats, [&](std::int32_t piece) {
      copy_floats(b_.get() + piece * kPieceFloats, a_.get() + piece * kPieceFloats, kPieceFloats);
    });
  });
  const double stream = seconds_of([&] {
    run_pieces(runner_, floats_ / kPieceFloats, [&](std::int32_t piece) {
      stream_floats(b_.get() + piece * kPieceFloats, a_.get() + piece * kPieceFloats, kPieceFloats);
    });
  });
  return static_cast<double>(floats_) * 8 / std::min({library, loop, stream});
}

double MachineSpeed::scale_rate() {
  double best = 1e30;
  for (const std::int64_t distance : {0, 128, 512}) {
    best = std::min(best, seconds_of([&] {
                      run_pieces(runner_, floats_ / kPieceFloats, [&](std::int32_t piece) {
                        float* x = a_.get() + piece * kPieceFloats;
                        // A factor of one: the values must stay normal numbers however often this
                        // runs.
                        if (distance == 0) {
                          scale_floats(x, kPieceFloats, 1.0F);
                        } else {
                          scale_prefetching(x, kPieceFloats, 1.0F, distance);
                        }
                      });
                    }));
  }
  return static_cast<double>(floats_) * 8 / best;
}

double MachineSpeed::multiply_add_rate() {
  constexpr std::int32_t kTasks = 1000;
  std::int64_t per_task = 0;
  multiply_add(&per_task);
  const double seconds = seconds_of([&] {
    run_pieces(runner_, kTasks, [&](std::int32_t) {
      std::int64_t done = 0;
      sink = sink + static_cast<std::uint64_t>(multiply_add(&done));
    });
  });
  return static_cast<double>(per_task) * kTasks / seconds;
}

double read_seconds(std::span<const std::span<const std::byte>> pieces) {
  return seconds_of([&] {
    std::uint64_t total = 0;
    for (const std::span<const std::byte> piece : pieces) {
      // Tensors of BF16 may begin between words: the few bytes at the ends are left out.
      void* start = const_cast<std::byte*>(piece.data());
      std::size_t room = piece.size();
      if (std::align(8, 8, start, room) == nullptr) continue;
      total += sum_words(static_cast<const std::uint64_t*>(start), room / 8);
    }
    sink = total;
  });
}

}  // namespace leapquant::lab

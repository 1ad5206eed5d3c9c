// SPDX-License-Identifier: Apache-2.0
//
// Fibers, and who waits for whom.
#include "emulator/machine.h"

#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

namespace leapquant::emulator {
namespace {

constexpr size_t kStackBytes = size_t{1} << 18;
constexpr uint32_t kBarriers = 16;
constexpr uint32_t kMostWarps = 32;
constexpr uint64_t kAllAwake = ~uint64_t{0};
constexpr uint32_t kRoundsAsleep = 8;

// One thread of the block. It waits while *generation == value.
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  uint32_t index = 0;
  bool done = false;
  const uint64_t* generation = nullptr;
  uint64_t value = 0;
  const char* where = nullptr;  // it waits, and at which of these
  uint32_t which = 0;
  bool waits() const { return generation != nullptr && *generation == value; }
};

// Two sets of words: a lane may give its next while another has yet to read the last.
struct Warp {
  WarpWords words[2];
  const char* instruction = nullptr;
  uint32_t arrived = 0;
  uint64_t generation = 0;
};

struct Barrier {
  uint32_t threads = 0;
  uint32_t arrived = 0;
  uint64_t generation = 0;
  bool any = false;
  bool result = false;
  uint32_t lanes[kMostWarps] = {};  // that have come, by warp
};

struct ByteBarrier {
  uint32_t arrivals = 0;
  uint32_t missing = 0;  // arrivals
  int64_t bytes = 0;     // expected and not arrived
  uint64_t phase = 0;
};

struct Copy {
  uint32_t shared;
  const char* global;
  std::vector<char> bytes;
  uint32_t barrier;
};

struct Store {
  uint32_t thread;
  char* global;
  uint32_t shared;
  std::vector<char> bytes;
  bool read = false;
};

struct Machine {
  uint32_t blocks = 0;
  Place dim = {};
  char* memory = nullptr;
  uint32_t shared = 0;
  Setting setting;
  const std::function<void()>* kernel = nullptr;

  uint32_t block = 0;
  ucontext_t caller;  // of run
  std::vector<std::unique_ptr<Fiber>> fibers;
  Fiber* current = nullptr;
  std::vector<uint32_t> order;  // in which threads get their turns, and whose turn it is
  size_t turn = 0;
  bool any_left =
      false;  // of this round: threads that have not ended, and that had something to do
  bool any_ran = false;
  uint32_t rounds = 0;
  uint64_t awake = 0;  // warps that go on, a bit each
  std::vector<Warp> warps;
  Barrier barriers[kBarriers];
  std::map<uint32_t, ByteBarrier> byte_barriers;
  std::vector<Copy> copies;
  std::vector<Store> stores;
  std::mt19937_64 random;
  std::string failure;
};

// There is one, since kernels find their place by names without arguments.
Machine machine;

std::string number(uint64_t x) { return std::to_string(x); }
std::string name_of(const Fiber& fiber) { return "thread " + number(fiber.index); }

void note(const std::string& sentence) {
  if (machine.failure.empty()) {
    machine.failure = "block " + number(machine.block) + ": " + sentence;
  }
}

// The phase of a byte barrier ends with its last arrival or byte.
void end_phase_of(ByteBarrier* barrier) {
  if (barrier->missing != 0 || barrier->bytes != 0) return;
  barrier->missing = barrier->arrivals;
  ++barrier->phase;
}

// Lets one copy arrive. False: none is on its way.
bool deliver() {
  if (machine.copies.empty()) return false;
  const size_t which = machine.setting.seed == 0 ? 0 : machine.random() % machine.copies.size();
  const Copy copy = machine.copies[which];
  machine.copies.erase(machine.copies.begin() + static_cast<int64_t>(which));
  char* to = machine.memory + copy.shared;
  const unsigned char poison = machine.setting.poison;
  if (!std::all_of(to, to + copy.bytes.size(),
                   [&](char x) { return static_cast<unsigned char>(x) == poison; })) {
    note("shared memory was written while a bulk copy to it was on its way");
  }
  if (std::memcmp(copy.global, copy.bytes.data(), copy.bytes.size()) != 0) {
    note("global memory changed while a bulk copy of it was on its way");
  }
  std::memcpy(to, copy.bytes.data(), copy.bytes.size());
  ByteBarrier& barrier = machine.byte_barriers[copy.barrier];
  barrier.bytes -= static_cast<int64_t>(copy.bytes.size());
  end_phase_of(&barrier);
  return true;
}

void note_deadlock() {
  std::map<std::string, uint32_t> waiting;
  for (uint32_t i = 0; i < machine.dim.x * machine.dim.y; ++i) {
    const Fiber& fiber = *machine.fibers[i];
    if (!fiber.done) ++waiting[fiber.where + number(fiber.which)];
  }
  std::string sentence = "nobody can go on:";
  for (const auto& [where, threads] : waiting) {
    sentence += " " + number(threads) + " threads wait at " + where + ";";
  }
  note(sentence);
}

// The next turns of all threads: one after another, or mixed, with three warps of four asleep for a
// while, so that warps that do not wait for each other drift apart.
void new_round() {
  const bool all = !machine.any_ran;
  machine.turn = 0;
  machine.any_left = machine.any_ran = false;
  if (machine.setting.seed == 0) return;
  std::shuffle(machine.order.begin(), machine.order.end(), machine.random);
  if (all) {
    machine.awake = kAllAwake;
  } else if (machine.awake == kAllAwake || ++machine.rounds % kRoundsAsleep == 0) {
    machine.awake = machine.random() & machine.random();
  }
}

// Whose turn it is; none: the block has ended or failed.
Fiber* next_fiber() {
  while (machine.failure.empty()) {
    while (machine.turn < machine.order.size()) {
      Fiber* fiber = machine.fibers[machine.order[machine.turn++]].get();
      if (fiber->done) continue;
      machine.any_left = true;
      if (fiber->waits() || (machine.awake >> (fiber->index / 32) & 1) == 0) continue;
      machine.any_ran = true;
      return fiber;
    }
    if (!machine.any_left) return nullptr;
    if (!machine.any_ran && machine.awake == kAllAwake && !deliver()) note_deadlock();
    new_round();
  }
  return nullptr;
}

void to_next() {
  Fiber* self = machine.current;
  machine.current = next_fiber();
  if (machine.current == self) return;
  swapcontext(&self->context,
              machine.current != nullptr ? &machine.current->context : &machine.caller);
}

void wait_while(const uint64_t& generation, uint64_t value, const char* where, uint32_t which) {
  Fiber* fiber = machine.current;
  fiber->generation = &generation;
  fiber->value = value;
  fiber->where = where;
  fiber->which = which;
  to_next();
  fiber->generation = nullptr;
}

void enter() {
  (*machine.kernel)();
  machine.current->done = true;
  to_next();
}

void start(uint32_t index) {
  if (index == machine.fibers.size()) machine.fibers.push_back(std::make_unique<Fiber>());
  Fiber& fiber = *machine.fibers[index];
  if (fiber.stack == nullptr) fiber.stack.reset(new char[kStackBytes]);
  fiber.index = index;
  fiber.done = false;
  fiber.generation = nullptr;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, enter, 0);
}

void run_block() {
  const uint32_t threads = machine.dim.x * machine.dim.y;
  std::memset(machine.memory, machine.setting.poison, machine.shared);
  machine.warps.assign(threads / 32, {});
  for (Barrier& barrier : machine.barriers) barrier = {};
  machine.byte_barriers.clear();
  machine.copies.clear();
  machine.stores.clear();
  machine.order.resize(threads);
  for (uint32_t i = 0; i < threads; ++i) start(machine.order[i] = i);
  machine.awake = kAllAwake;
  new_round();
  machine.current = next_fiber();
  swapcontext(&machine.caller, &machine.current->context);
  if (!machine.copies.empty()) note("it ended while bulk copies were on their way");
  if (!machine.stores.empty()) note("it ended before its bulk stores were known to be written");
}

Warp& warp() { return machine.warps[machine.current->index / 32]; }

ByteBarrier& byte_barrier(uint32_t barrier) {
  const auto found = machine.byte_barriers.find(barrier);
  if (found == machine.byte_barriers.end()) {
    fail(name_of(*machine.current) + " uses a byte barrier that nobody has initialised");
  }
  return found->second;
}

void check_aligned(const void* global, uint32_t shared, uint32_t bytes) {
  if ((reinterpret_cast<uintptr_t>(global) | shared | bytes) % 16 != 0 || bytes == 0) {
    fail("a bulk copy whose addresses or size are no multiples of 16 bytes");
  }
}

}  // namespace

std::string run(uint32_t blocks, Place block_dim, char* memory, uint32_t shared,
                const Setting& setting, const std::function<void()>& kernel) {
  machine.blocks = blocks;
  machine.dim = block_dim;
  machine.memory = memory;
  machine.shared = shared;
  machine.setting = setting;
  machine.kernel = &kernel;
  machine.random.seed(setting.seed);
  machine.failure.clear();
  for (machine.block = 0; machine.block < blocks && machine.failure.empty(); ++machine.block) {
    run_block();
  }
  return machine.failure;
}

Place thread_index() {
  const uint32_t index = machine.current->index;
  return {index % machine.dim.x, index / machine.dim.x};
}
uint32_t block_index() { return machine.block; }
Place block_place() {
  const uint32_t width = machine.setting.width != 0 ? machine.setting.width : machine.blocks;
  return {machine.block % width, machine.block / width};
}
Place block_dim() { return machine.dim; }
uint32_t grid_dim() { return machine.blocks; }

void fail(const std::string& sentence) {
  note(sentence);
  setcontext(&machine.caller);  // which does not come back
  std::abort();
}

uint32_t lane() { return machine.current->index % 32; }

WarpWords& give_words(const char* instruction, std::initializer_list<uint32_t> words) {
  Warp& w = warp();
  if (w.arrived == 0) w.instruction = instruction;
  if (std::strcmp(w.instruction, instruction) != 0) {
    fail("lanes of warp " + number(machine.current->index / 32) +
         " are at different instructions: " + w.instruction + "and " + instruction);
  }
  WarpWords& all = w.words[w.generation % 2];
  std::copy(words.begin(), words.end(), all[lane()]);
  ++w.arrived;
  return all;
}
bool is_last_of_warp() { return warp().arrived == 32; }
void release_warp() {
  warp().arrived = 0;
  ++warp().generation;
}
void wait_for_warp() {
  Warp& w = warp();
  wait_while(w.generation, w.generation, w.instruction, machine.current->index / 32);
}

bool meet(uint32_t id, uint32_t threads, bool condition, bool waits) {
  if (id >= kBarriers) fail("barrier " + number(id) + ": there are sixteen");
  if (threads % 32 != 0) fail("barrier " + number(id) + " of no multiple of 32 threads");
  Barrier& barrier = machine.barriers[id];
  if (barrier.arrived == 0) barrier.threads = threads;
  if (barrier.threads != threads) {
    fail("barrier " + number(id) + " is one of " + number(barrier.threads) +
         " threads and one of " + number(threads));
  }
  barrier.any = barrier.any || condition;
  ++barrier.lanes[machine.current->index / 32];
  if (++barrier.arrived < threads) {
    if (!waits) return false;
    wait_while(barrier.generation, barrier.generation, "barrier ", id);
    return barrier.result;
  }
  for (uint32_t& lanes : barrier.lanes) {
    if (lanes % 32 != 0) {
      fail("barrier " + number(id) + " is full with " + number(lanes) + " lanes of a warp");
    }
    lanes = 0;
  }
  barrier.result = barrier.any;
  barrier.any = false;
  barrier.arrived = 0;
  ++barrier.generation;
  return barrier.result;
}

uint32_t shared_address(const void* pointer) {  // which may lie outside: what uses it is checked
  return static_cast<uint32_t>(static_cast<const char*>(pointer) - machine.memory);
}
char* at_shared(uint32_t address, uint32_t bytes) {
  if (uint64_t{address} + bytes > machine.shared) fail("an access past the end of shared memory");
  return machine.memory + address;
}

void init_byte_barrier(uint32_t barrier, uint32_t arrivals) {
  at_shared(barrier, 8);
  machine.byte_barriers[barrier] = {arrivals, arrivals, 0, 0};
}
void expect_bytes(uint32_t barrier, uint32_t bytes) {
  ByteBarrier& b = byte_barrier(barrier);
  if (b.missing == 0) fail("a byte barrier got more arrivals than it counts");
  --b.missing;
  b.bytes += bytes;
  end_phase_of(&b);
}
void wait_for_bytes(uint32_t barrier, uint32_t parity) {
  const ByteBarrier& b = byte_barrier(barrier);
  while (b.phase % 2 == parity) wait_while(b.phase, b.phase, "the byte barrier ", barrier);
}
void copy_bytes(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  check_aligned(global, shared, bytes);
  byte_barrier(barrier);
  char* to = at_shared(shared, bytes);
  const char* from = static_cast<const char*>(global);
  machine.copies.push_back({shared, from, std::vector<char>(from, from + bytes), barrier});
  std::memset(to, machine.setting.poison, bytes);
}

void store_bytes(void* global, uint32_t shared, uint32_t bytes) {
  check_aligned(global, shared, bytes);
  const char* from = at_shared(shared, bytes);
  machine.stores.push_back({machine.current->index, static_cast<char*>(global), shared,
                            std::vector<char>(from, from + bytes)});
}
void stores_are_read() {
  for (Store& store : machine.stores) {
    if (store.thread != machine.current->index || store.read) continue;
    store.read = true;
    if (std::memcmp(machine.memory + store.shared, store.bytes.data(), store.bytes.size()) != 0) {
      fail("shared memory changed before a bulk store had read it");
    }
  }
}
void stores_are_written() {
  stores_are_read();
  const auto mine = [](const Store& store) { return store.thread == machine.current->index; };
  for (const Store& store : machine.stores) {
    if (mine(store)) std::memcpy(store.global, store.bytes.data(), store.bytes.size());
  }
  std::erase_if(machine.stores, mine);
}

}  // namespace leapquant::emulator

// SPDX-License-Identifier: Apache-2.0
//
// A multiprocessor on the CPU, for device code that a host compiler has compiled: the threads of a
// block are fibers of one thread, which change places where they wait for each other; warps,
// barriers and bulk copies do what the PTX manual promises and no more. A copy arrives when nothing
// else can go on. What the manual forbids ends the run with a sentence. No time, no caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>

namespace leapquant::emulator {

// What must not matter to a result.
struct Setting {
  uint64_t seed = 0;            // of the order of threads and copies; 0: one after another
  unsigned char poison = 0xff;  // in shared memory before a block and in place of copies to come
  uint32_t width = 0;           // blocks of a row of the grid; 0: all of them
};

struct Place {
  uint32_t x, y;
};

// Runs `kernel` for all threads of `blocks` blocks, one block after another, with `shared` bytes of
// dynamic shared memory at `memory`. Empty, or what went wrong.
std::string run(uint32_t blocks, Place block_dim, char* memory, uint32_t shared,
                const Setting& setting, const std::function<void()>& kernel);

// ---- What device code calls ----

Place thread_index();
uint32_t block_index();
Place block_place();
Place block_dim();
uint32_t grid_dim();
// Ends the run; does not come back.
[[noreturn]] void fail(const std::string& sentence);

// Words that the lanes of a warp give to an instruction of all lanes, and what it gives back.
using WarpWords = uint32_t[32][12];
uint32_t lane();
WarpWords& give_words(const char* instruction, std::initializer_list<uint32_t> words);
bool is_last_of_warp();
void release_warp();
void wait_for_warp();
// An instruction of all 32 lanes: `action` works once, on the words of all.
template <typename Action>
const WarpWords& together(const char* instruction, std::initializer_list<uint32_t> words,
                          const Action& action) {
  WarpWords& all = give_words(instruction, words);
  if (is_last_of_warp()) {
    action(all);
    release_warp();
  } else {
    wait_for_warp();
  }
  return all;
}

// Barrier `id` (0 to 15) of `threads` threads; whether `condition` held in any of them. waits: else
// this thread only tells that it has come.
bool meet(uint32_t id, uint32_t threads, bool condition = false, bool waits = true);

// Shared memory by address.
uint32_t shared_address(const void* pointer);
char* at_shared(uint32_t address, uint32_t bytes);

// Barriers in shared memory that count arrivals and bytes, and the copies that they wait for.
void init_byte_barrier(uint32_t barrier, uint32_t arrivals);
void expect_bytes(uint32_t barrier, uint32_t bytes);
void wait_for_bytes(uint32_t barrier, uint32_t parity);
void copy_bytes(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier);
// Stores of this thread: written late, when it waits for that; read: shared memory may change.
void store_bytes(void* global, uint32_t shared, uint32_t bytes);
void stores_are_read();
void stores_are_written();

}  // namespace leapquant::emulator

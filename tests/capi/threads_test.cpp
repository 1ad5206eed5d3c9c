// SPDX-License-Identifier: Apache-2.0
//
// The thread pool keeps its promises (every task once, a worker's tasks one after another), results
// do not depend on it, and calls from many threads over one shared layout do not disturb one
// another.
#include <atomic>
#include <thread>

#include "capi/small_layer.h"

namespace leapquant_test {
namespace {

struct Tally {
  std::vector<std::atomic<int>> times;
  std::vector<std::atomic<int>> inside;  // per worker
  std::atomic<int> overlaps{0};
  Tally(int32_t tasks, int32_t workers)
      : times(static_cast<size_t>(tasks)), inside(static_cast<size_t>(workers)) {}
};

void count_task(void* argument, int32_t task, int32_t worker) {
  Tally& tally = *static_cast<Tally*>(argument);
  if (tally.inside.at(static_cast<size_t>(worker)).fetch_add(1) != 0) ++tally.overlaps;
  ++tally.times.at(static_cast<size_t>(task));
  tally.inside.at(static_cast<size_t>(worker)).fetch_sub(1);
}

TEST(Threads, EveryTaskOnceAndWorkersAlone) {
  for (const int32_t workers : {1, 2, 3, 8}) {
    leapquant_threads* threads = nullptr;
    ASSERT_EQ(leapquant_threads_create(workers, &threads), LEAPQUANT_OK);
    const leapquant_runner* runner = leapquant_threads_runner(threads);
    ASSERT_EQ(runner->num_workers, workers);
    for (int round = 0; round < 200; ++round) {
      const int32_t tasks = round % 20;
      Tally tally(tasks, workers);
      runner->run(runner->context, tasks, count_task, &tally);
      for (const auto& times : tally.times) ASSERT_EQ(times.load(), 1);
      ASSERT_EQ(tally.overlaps.load(), 0);
    }
    leapquant_threads_destroy(threads);
  }
}

TEST(Threads, WakeAfterSleep) {
  leapquant_threads* threads = nullptr;
  ASSERT_EQ(leapquant_threads_create(2, &threads), LEAPQUANT_OK);
  const leapquant_runner* runner = leapquant_threads_runner(threads);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    Tally tally(5, 2);
    runner->run(runner->context, 5, count_task, &tally);
    for (const auto& times : tally.times) ASSERT_EQ(times.load(), 1);
  }
  leapquant_threads_destroy(threads);
}

TEST(Threads, Arguments) {
  leapquant_threads* threads = nullptr;
  EXPECT_REFUSED(leapquant_threads_create(-1, &threads), LEAPQUANT_INVALID_ARGUMENT,
                 "num_threads is -1");
  EXPECT_REFUSED(leapquant_threads_create(1025, &threads), LEAPQUANT_INVALID_ARGUMENT, "1025");
  EXPECT_REFUSED(leapquant_threads_create(1, nullptr), LEAPQUANT_NULL_POINTER, "threads is null");
  EXPECT_EQ(leapquant_threads_runner(nullptr), nullptr);
  leapquant_threads_destroy(nullptr);
  ASSERT_EQ(leapquant_threads_create(0, &threads), LEAPQUANT_OK) << "all cores";
  EXPECT_GE(leapquant_threads_runner(threads)->num_workers, 1);
  leapquant_threads_destroy(threads);
}

TEST(Threads, ResultsDoNotDependOnThem) {
  SmallLayer alone("int4+");
  SmallLayer together("int4+");
  leapquant_threads* threads = nullptr;
  ASSERT_EQ(leapquant_threads_create(3, &threads), LEAPQUANT_OK);
  together.launch.runner = leapquant_threads_runner(threads);
  together.workspace.reset(new Buffer(leapquant_workspace_bytes(together.layout, 3, 16)));
  together.launch.workspace = together.workspace->data;
  together.launch.workspace_bytes = together.workspace->bytes;
  for (SmallLayer* layer : {&alone, &together}) {
    ASSERT_EQ(layer->reset({0, 1, 2}), LEAPQUANT_OK);
    for (int32_t p = 0; p < 40; ++p) {
      const auto args = layer->decode_args({2, 0, 1}, {p, p, p}, 1, {1, 2, 3});
      ASSERT_EQ(layer->run(args), LEAPQUANT_OK) << leapquant_last_error();
    }
  }
  EXPECT_EQ(alone.output, together.output);
  EXPECT_EQ(alone.snapshot(), together.snapshot());
  leapquant_threads_destroy(threads);
}

// Own slots, own workspaces, one layout and one pool.
TEST(Threads, CallsShareALayoutAndAPool) {
  SmallLayer shared("int8", small_shape(), 4, 4);
  ASSERT_EQ(shared.reset({0, 1, 2, 3}), LEAPQUANT_OK);
  std::vector<std::vector<float>> outputs(4);
  std::vector<std::thread> callers;
  std::atomic<int> failures{0};
  for (int32_t slot = 0; slot < 4; ++slot) {
    callers.emplace_back([&, slot] {
      Buffer workspace(leapquant_workspace_bytes(shared.layout, 1, 1));
      leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
      launch.workspace = workspace.data;
      launch.workspace_bytes = workspace.bytes;
      for (int32_t p = 0; p < 36; ++p) {
        const Activations x(shared.shape, {static_cast<uint64_t>(slot)}, {p}, 1);
        std::vector<float> o(4 * 12);
        int32_t status = -1;
        leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
        args.batch = 1;
        args.tokens = 1;
        args.state_slots = &slot;
        args.positions = &p;
        args.inputs.q.data = x.q.data();
        args.inputs.k.data = x.k.data();
        args.inputs.v.data = x.v.data();
        args.inputs.log_decay.data = x.log_decay.data();
        args.inputs.beta.data = x.beta.data();
        args.inputs.qk_l2norm = 1;
        args.output.data = o.data();
        args.status = &status;
        if (leapquant_decode(shared.layout, &shared.pool, &args, &launch) != LEAPQUANT_OK) {
          ++failures;
        }
        outputs[static_cast<size_t>(slot)].insert(outputs[static_cast<size_t>(slot)].end(),
                                                  o.begin(), o.end());
        // A failure of this thread does not show in another's sentence.
        args.tokens = 100 + slot;
        if (leapquant_decode(shared.layout, &shared.pool, &args, &launch) !=
                LEAPQUANT_INVALID_ARGUMENT ||
            std::string(leapquant_last_error()).find(std::to_string(100 + slot)) ==
                std::string::npos) {
          ++failures;
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failures.load(), 0);
  SmallLayer alone;
  for (int32_t slot = 0; slot < 4; ++slot) {
    ASSERT_EQ(alone.reset({0}), LEAPQUANT_OK);
    EXPECT_EQ(alone.feed(0, 0, 36, static_cast<uint64_t>(slot)),
              outputs[static_cast<size_t>(slot)]);
  }
}

}  // namespace
}  // namespace leapquant_test

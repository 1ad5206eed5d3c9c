// SPDX-License-Identifier: Apache-2.0
//
// C API, section "Threads": a pool of workers that sleep between calls. Tasks are handed out by one
// counter, so a long task does not hold up the others; a worker's number is its own for ever, so
// two tasks never share a worker's scratch. Results do not depend on who takes which task.
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>

#include "capi/last_error.h"

namespace {

constexpr int32_t kMaxThreads = 1024;
// How often a worker looks for new work before it sleeps: about the time between two layers of one
// decode step. Sleeping and waking costs several microseconds more.
constexpr int32_t kSpins = 2000;

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int32_t available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  const int count = CPU_COUNT(&set);
  return count < 1 ? 1 : count;
}

}  // namespace

struct leapquant_threads {
  struct Worker {
    leapquant_threads* pool = nullptr;
    int32_t number = 0;
    pthread_t thread{};
  };

  leapquant_runner runner{};
  Worker* workers = nullptr;  // [num_started], numbers 1..num_started
  int32_t num_started = 0;

  std::mutex mutex;
  std::condition_variable wake;      // workers wait here for the next round
  std::condition_variable finished;  // the caller waits here for `working` to reach 0
  std::atomic<uint64_t> round{0};    // grows by one with every call
  std::atomic<bool> stopping{false};
  std::atomic<int32_t> working{0};

  leapquant_task task = nullptr;
  void* argument = nullptr;
  int32_t num_tasks = 0;
  std::atomic<int32_t> next_task{0};

  void take_tasks(int32_t worker) {
    for (int32_t i = next_task.fetch_add(1); i < num_tasks; i = next_task.fetch_add(1)) {
      task(argument, i, worker);
    }
  }

  // The next round after `seen`, or 0 when the pool ends.
  uint64_t wait_for_round(uint64_t seen) {
    for (int32_t i = 0; i < kSpins; ++i) {
      if (stopping.load() || round.load() != seen) break;
      pause_briefly();
    }
    if (!stopping.load() && round.load() == seen) {
      std::unique_lock<std::mutex> lock(mutex);
      wake.wait(lock, [&] { return stopping.load() || round.load() != seen; });
    }
    return stopping.load() ? 0 : round.load();
  }

  void work(int32_t number) {
    uint64_t seen = 0;
    while (true) {
      seen = wait_for_round(seen);
      if (seen == 0) return;
      take_tasks(number);
      if (working.fetch_sub(1) == 1) {
        const std::lock_guard<std::mutex> lock(mutex);
        finished.notify_one();
      }
    }
  }

  void run(int32_t tasks, leapquant_task given_task, void* given_argument) {
    if (num_started == 0 || tasks <= 1) {
      for (int32_t i = 0; i < tasks; ++i) given_task(given_argument, i, 0);
      return;
    }
    task = given_task;
    argument = given_argument;
    num_tasks = tasks;
    next_task.store(0);
    working.store(num_started);
    {
      const std::lock_guard<std::mutex> lock(mutex);
      round.fetch_add(1);
    }
    wake.notify_all();
    take_tasks(0);
    for (int32_t i = 0; i < kSpins && working.load() > 0; ++i) pause_briefly();
    if (working.load() > 0) {
      std::unique_lock<std::mutex> lock(mutex);
      finished.wait(lock, [&] { return working.load() == 0; });
    }
  }

  void stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      stopping.store(true);
    }
    wake.notify_all();
    for (int32_t i = 0; i < num_started; ++i) pthread_join(workers[i].thread, nullptr);
  }
};

namespace {

void* enter_worker(void* argument) {
  auto* worker = static_cast<leapquant_threads::Worker*>(argument);
  worker->pool->work(worker->number);
  return nullptr;
}

void run_on_threads(void* context, int32_t num_tasks, leapquant_task task, void* argument) {
  static_cast<leapquant_threads*>(context)->run(num_tasks, task, argument);
}

leapquant_status start(leapquant_threads* pool, int32_t num_threads) {
  pool->runner = {pool, num_threads, run_on_threads};
  if (num_threads == 1) return LEAPQUANT_OK;
  pool->workers =
      new (std::nothrow) leapquant_threads::Worker[static_cast<size_t>(num_threads - 1)];
  if (pool->workers == nullptr) {
    return leapquant::capi::fail(LEAPQUANT_OUT_OF_MEMORY, "the host refused memory for %d threads",
                                 num_threads);
  }
  for (int32_t i = 0; i + 1 < num_threads; ++i) {
    leapquant_threads::Worker& worker = pool->workers[i];
    worker.pool = pool;
    worker.number = i + 1;
    const int error = pthread_create(&worker.thread, nullptr, enter_worker, &worker);
    if (error != 0) {
      return leapquant::capi::fail(LEAPQUANT_OUT_OF_MEMORY,
                                   "the host refused thread %d of %d (error %d)", i + 1,
                                   num_threads, error);
    }
    ++pool->num_started;
  }
  return LEAPQUANT_OK;
}

}  // namespace

extern "C" {

leapquant_status leapquant_threads_create(int32_t num_threads, leapquant_threads** threads) {
  using leapquant::capi::fail;
  if (threads == nullptr) return fail(LEAPQUANT_NULL_POINTER, "threads is null");
  if (num_threads < 0 || num_threads > kMaxThreads) {
    return fail(LEAPQUANT_INVALID_ARGUMENT,
                "num_threads is %d, expected 0 (all cores available) to %d", num_threads,
                kMaxThreads);
  }
  leapquant_threads* pool = new (std::nothrow) leapquant_threads;
  if (pool == nullptr) {
    return fail(LEAPQUANT_OUT_OF_MEMORY, "the host refused %zu bytes for a thread pool",
                sizeof(leapquant_threads));
  }
  const leapquant_status s = start(pool, num_threads == 0 ? available_cores() : num_threads);
  if (s != LEAPQUANT_OK) {
    leapquant_threads_destroy(pool);
    return s;
  }
  *threads = pool;
  return LEAPQUANT_OK;
}

const leapquant_runner* leapquant_threads_runner(leapquant_threads* threads) {
  return threads == nullptr ? nullptr : &threads->runner;
}

void leapquant_threads_destroy(leapquant_threads* threads) {
  if (threads == nullptr) return;
  threads->stop();
  delete[] threads->workers;
  delete threads;
}

}  // extern "C"

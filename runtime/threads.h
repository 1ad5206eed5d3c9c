// SPDX-License-Identifier: Apache-2.0
//
// The threads of the runtime: one pool of the library, shared by the library's operations and by
// the runtime's own loops. It schedules nothing; a call spreads its tasks and waits.
#ifndef LEAPQUANT_RUNTIME_THREADS_H_
#define LEAPQUANT_RUNTIME_THREADS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "leapquant/leapquant.h"

namespace leapquant::runtime {

// One call at a time may use a pool. Results of the runtime do not depend on its size.
class Threads {
 public:
  // num_threads >= 1 workers including the caller; 0: all cores available to the process. Throws
  // Error for a negative number and when threads cannot be made.
  explicit Threads(std::int32_t num_threads);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  std::int32_t count() const { return runner_->num_workers; }
  const leapquant_runner* runner() const { return runner_; }

  // Calls function(task, worker) once for every task in 0..num_tasks-1 and returns when all are
  // done. The function must not throw.
  template <typename Function>
  void run(std::int32_t num_tasks, Function&& function) const {
    if (num_tasks <= 0) return;
    if (num_tasks == 1) {
      function(0, 0);
      return;
    }
    using Callable = std::remove_reference_t<Function>;
    const leapquant_task task = [](void* argument, std::int32_t index, std::int32_t worker) {
      (*static_cast<Callable*>(argument))(index, worker);
    };
    void* argument = const_cast<void*>(static_cast<const void*>(&function));
    runner_->run(runner_->context, num_tasks, task, argument);
  }

  // Calls function(first, last) for pieces of 0..rows, each of at least `grain` rows (the last may
  // be shorter); on the calling thread alone when there is one piece.
  template <typename Function>
  void run_rows(std::int64_t rows, std::int64_t grain, Function&& function) const {
    const std::int64_t most = std::int64_t{4} * count();
    const std::int64_t piece = std::max<std::int64_t>({grain, (rows + most - 1) / most, 1});
    const std::int64_t pieces = count() == 1 ? 1 : (rows + piece - 1) / piece;
    if (pieces <= 1) {
      if (rows > 0) function(std::int64_t{0}, rows);
      return;
    }
    run(static_cast<std::int32_t>(pieces), [&](std::int32_t index, std::int32_t) {
      function(index * piece, std::min(rows, (index + 1) * piece));
    });
  }

 private:
  leapquant_threads* threads_ = nullptr;
  const leapquant_runner* runner_ = nullptr;
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_THREADS_H_

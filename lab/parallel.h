// SPDX-License-Identifier: Apache-2.0
//
// Spreads independent pieces of work over threads of its own. For coarse work (layers, formats,
// heads); the library and the runtime have pools for fine work.
#ifndef LEAPQUANT_LAB_PARALLEL_H_
#define LEAPQUANT_LAB_PARALLEL_H_

#include <functional>

namespace leapquant::lab {

// Number of cores that this process may use, at least 1.
int available_cores();

// Calls work(i) once for every i in 0..count-1 on up to `threads` threads (0: all cores), in no
// particular order. Returns when all are done. The first exception of a call is thrown again here
// after the running calls have ended; calls that have not begun are then left out.
void for_each_index(int count, int threads, const std::function<void(int)>& work);

}  // namespace leapquant::lab

#endif  // LEAPQUANT_LAB_PARALLEL_H_

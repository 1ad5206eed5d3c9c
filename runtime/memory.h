// SPDX-License-Identifier: Apache-2.0
//
// How much memory there is, and how to say bytes to a person.
#ifndef LEAPQUANT_RUNTIME_MEMORY_H_
#define LEAPQUANT_RUNTIME_MEMORY_H_

#include <cstdint>
#include <string>

namespace leapquant::runtime {

// Bytes that the system can give this process now without swapping: what Linux calls MemAvailable,
// less where a control group allows less.
std::int64_t available_memory_bytes();

// "1.5 GiB (1,610,612,736 bytes)"; below 1 KiB "812 bytes".
std::string describe_bytes(std::int64_t bytes);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_MEMORY_H_

// SPDX-License-Identifier: Apache-2.0
//
// Anonymous mappings. Pages appear when they are first written and go when a slot is released, so
// what is resident follows the slots that live.
#include "capi/slot_memory.h"

#include <sys/mman.h>
#include <unistd.h>

namespace leapquant::capi {

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

bool Mapping::reserve(size_t bytes) {
  if (bytes == 0) return true;
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return false;
  data_ = static_cast<std::byte*>(mapped);
  bytes_ = bytes;
  return true;
}

void Mapping::give_back(size_t offset, size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t first = (offset + page - 1) / page * page;
  const size_t end = (offset + bytes) / page * page;
  if (first < end) madvise(data_ + first, end - first, MADV_DONTNEED);
}

}  // namespace leapquant::capi

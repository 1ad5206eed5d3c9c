// SPDX-License-Identifier: Apache-2.0
//
// Anonymous mappings. Pages appear when they are first written and go when a slot is released, so
// what is resident follows the slots that live.
#include "capi/slot_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace leapquant::capi {

Mapping::~Mapping() {
  if (data_ == nullptr) return;
  if (device_ != nullptr) {
    device_->release(data_);
  } else {
    munmap(data_, bytes_);
  }
}

bool Mapping::reserve(size_t bytes, const DeviceMemory* device, Sentence* why_not) {
  if (bytes == 0) return true;
  if (device != nullptr) {
    void* memory = nullptr;
    if (device->allocate(bytes, &memory, why_not) != LEAPQUANT_OK) return false;
    data_ = static_cast<std::byte*>(memory);
    bytes_ = bytes;
    device_ = device;
    return device->clear(memory, bytes, why_not) == LEAPQUANT_OK;
  }
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return false;
  data_ = static_cast<std::byte*>(mapped);
  bytes_ = bytes;
  return true;
}

void Mapping::clear(size_t offset, size_t bytes) {
  if (device_ == nullptr) {
    std::memset(data_ + offset, 0, bytes);
    return;
  }
  Sentence ignored;
  device_->clear(data_ + offset, bytes, &ignored);
}

void Mapping::give_back(size_t offset, size_t bytes) {
  if (device_ != nullptr) return;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t first = (offset + page - 1) / page * page;
  const size_t end = (offset + bytes) / page * page;
  if (first < end) madvise(data_ + first, end - first, MADV_DONTNEED);
}

}  // namespace leapquant::capi

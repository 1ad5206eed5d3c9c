// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a safetensors file: refused with an Error, or every view lies inside and is
// readable.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "runtime/error.h"
#include "runtime/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace leapquant::runtime;
  std::vector<std::uint64_t> aligned(size / 8 + 1);  // as a mapped file is
  if (size > 0) std::memcpy(aligned.data(), data, size);
  const std::span file(reinterpret_cast<const std::byte*>(aligned.data()), size);
  SafetensorsHeader header;
  try {
    header = parse_safetensors(file, "fuzz");
  } catch (const Error&) {
    return 0;
  }
  std::size_t covered = 0;
  unsigned sum = 0;
  for (const TensorView& tensor : header.tensors) {
    if (tensor.data < file.data() || tensor.data + tensor.bytes > file.data() + size) std::abort();
    if (tensor.bytes % dtype_bytes(tensor.dtype) != 0) std::abort();
    for (std::size_t i = 0; i < tensor.bytes; ++i) sum += std::to_integer<unsigned>(tensor.data[i]);
    covered += tensor.bytes;
  }
  volatile unsigned keep = sum;  // the reads above must happen
  static_cast<void>(keep);
  if (covered > size) std::abort();
  return 0;
}

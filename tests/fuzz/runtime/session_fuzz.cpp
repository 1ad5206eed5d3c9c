// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a session file: refused with an Error, or every part lies inside, is readable and
// agrees with the shapes.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "runtime/error.h"
#include "runtime/session.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace leapquant::runtime;
  std::vector<std::uint64_t> aligned(size / 8 + 2);  // as a mapped file is
  if (size > 0) std::memcpy(aligned.data(), data, size);
  const std::span file(reinterpret_cast<const std::byte*>(aligned.data()), size);
  SessionContents contents;
  try {
    contents = parse_session(file, "fuzz");
  } catch (const Error&) {
    return 0;
  }
  if (contents.position > static_cast<std::int64_t>(contents.mark.tokens.size())) std::abort();
  KvCache cache(contents.kv_shape);
  cache.unpack(contents.kv, contents.position);
  float sum = 0;
  for (const float value : contents.convolution) sum += value;
  unsigned bytes = 0;
  for (const auto blob : contents.blobs) {
    for (const std::byte byte : blob) bytes += std::to_integer<unsigned>(byte);
  }
  volatile float keep_sum = sum;  // the reads above must happen
  volatile unsigned keep_bytes = bytes;
  static_cast<void>(keep_sum);
  static_cast<void>(keep_bytes);
  return 0;
}

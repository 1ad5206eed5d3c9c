// SPDX-License-Identifier: Apache-2.0
//
// The blocks of kv_cache.h. A block holds all layers of 128 tokens:
// [layers, 2 (keys, values), heads, tokens, head_dim].
#include "runtime/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "runtime/error.h"

namespace leapquant::runtime {

std::int64_t kv_type_bytes(KvType type) { return type == KvType::kFp32 ? 4 : 2; }

std::string_view kv_type_name(KvType type) { return type == KvType::kFp32 ? "fp32" : "bf16"; }

std::size_t KvCache::block_bytes() const {
  return static_cast<std::size_t>(shape_.bytes_per_token() * kKvBlockTokens);
}

std::int64_t KvCache::allocated_bytes() const {
  return num_blocks() * static_cast<std::int64_t>(block_bytes());
}

void KvCache::grow(std::int64_t num_tokens) {
  const auto blocks = static_cast<std::size_t>((num_tokens + kKvBlockTokens - 1) / kKvBlockTokens);
  if (blocks > blocks_.size()) {
    blocks_.reserve(blocks);
    // Not cleared: every row is written before it is read.
    while (blocks_.size() < blocks) {
      blocks_.push_back(std::make_unique_for_overwrite<std::byte[]>(block_bytes()));
    }
  }
  num_tokens_ = std::max(num_tokens_, num_tokens);
}

void KvCache::clear() {
  blocks_.clear();
  num_tokens_ = 0;
}

std::size_t KvCache::offset(std::int32_t layer, std::int32_t values, std::int32_t head) const {
  const std::int64_t rows = (std::int64_t{layer} * 2 + values) * shape_.num_heads + head;
  return static_cast<std::size_t>(rows * kKvBlockTokens * shape_.head_dim *
                                  kv_type_bytes(shape_.type));
}

std::byte* KvCache::keys(std::int32_t layer, std::int32_t head, std::int64_t block) {
  return blocks_[static_cast<std::size_t>(block)].get() + offset(layer, 0, head);
}
std::byte* KvCache::values(std::int32_t layer, std::int32_t head, std::int64_t block) {
  return blocks_[static_cast<std::size_t>(block)].get() + offset(layer, 1, head);
}
const std::byte* KvCache::keys(std::int32_t layer, std::int32_t head, std::int64_t block) const {
  return blocks_[static_cast<std::size_t>(block)].get() + offset(layer, 0, head);
}
const std::byte* KvCache::values(std::int32_t layer, std::int32_t head, std::int64_t block) const {
  return blocks_[static_cast<std::size_t>(block)].get() + offset(layer, 1, head);
}

std::vector<std::byte> KvCache::pack() const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(num_tokens_ * shape_.bytes_per_token()));
  const std::int64_t row = shape_.head_dim * kv_type_bytes(shape_.type);
  std::byte* to = bytes.data();
  for (std::int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    for (std::int32_t part = 0; part < 2 * shape_.num_heads; ++part) {
      const std::size_t from = offset(layer, part / shape_.num_heads, part % shape_.num_heads);
      for (std::int64_t block = 0; block < num_blocks(); ++block) {
        const std::int64_t tokens =
            std::clamp<std::int64_t>(num_tokens_ - block * kKvBlockTokens, 0, kKvBlockTokens);
        const auto size = static_cast<std::size_t>(tokens * row);
        std::memcpy(to, blocks_[static_cast<std::size_t>(block)].get() + from, size);
        to += size;
      }
    }
  }
  return bytes;
}

void KvCache::unpack(std::span<const std::byte> bytes, std::int64_t num_tokens) {
  if (num_tokens < 0 ||
      bytes.size() != static_cast<std::size_t>(num_tokens * shape_.bytes_per_token())) {
    throw Error(fmt::format("A KV cache of {} tokens takes {} bytes, but there are {}.", num_tokens,
                            num_tokens * shape_.bytes_per_token(), bytes.size()));
  }
  clear();
  grow(num_tokens);
  const std::int64_t row = shape_.head_dim * kv_type_bytes(shape_.type);
  const std::byte* from = bytes.data();
  for (std::int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    for (std::int32_t part = 0; part < 2 * shape_.num_heads; ++part) {
      const std::size_t to = offset(layer, part / shape_.num_heads, part % shape_.num_heads);
      for (std::int64_t block = 0; block < num_blocks(); ++block) {
        const std::int64_t tokens = std::min(kKvBlockTokens, num_tokens - block * kKvBlockTokens);
        const auto size = static_cast<std::size_t>(tokens * row);
        std::memcpy(blocks_[static_cast<std::size_t>(block)].get() + to, from, size);
        from += size;
      }
    }
  }
}

}  // namespace leapquant::runtime

// SPDX-License-Identifier: Apache-2.0
//
// Keys and values of the full-attention layers of one sequence, in blocks that are allocated as the
// sequence grows, so that growth copies nothing. It knows no mathematics: see attention.h.
#ifndef LEAPQUANT_RUNTIME_KV_CACHE_H_
#define LEAPQUANT_RUNTIME_KV_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace leapquant::runtime {

// FP32 keeps the runtime exact (golden outputs, sessions); BF16 halves the bytes and rounds keys
// and values to nearest even.
enum class KvType : std::uint32_t { kFp32 = 0, kBf16 = 1 };
std::int64_t kv_type_bytes(KvType type);
std::string_view kv_type_name(KvType type);

struct KvShape {
  std::int32_t num_layers = 0;  // full-attention layers
  std::int32_t num_heads = 0;   // key-value heads
  std::int32_t head_dim = 0;
  KvType type = KvType::kFp32;

  // Keys and values of one token over all layers.
  std::int64_t bytes_per_token() const {
    return std::int64_t{2} * num_layers * num_heads * head_dim * kv_type_bytes(type);
  }
};

inline constexpr std::int64_t kKvBlockTokens = 128;

class KvCache {
 public:
  explicit KvCache(const KvShape& shape) : shape_(shape) {}

  const KvShape& shape() const { return shape_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  std::int64_t allocated_bytes() const;

  // Makes room for tokens up to num_tokens; those that were there stay. Throws std::bad_alloc.
  void grow(std::int64_t num_tokens);
  void clear();

  // Rows of head_dim elements of one block, [kKvBlockTokens, head_dim] of the cache's type.
  std::byte* keys(std::int32_t layer, std::int32_t head, std::int64_t block);
  std::byte* values(std::int32_t layer, std::int32_t head, std::int64_t block);
  const std::byte* keys(std::int32_t layer, std::int32_t head, std::int64_t block) const;
  const std::byte* values(std::int32_t layer, std::int32_t head, std::int64_t block) const;
  std::int64_t num_blocks() const { return static_cast<std::int64_t>(blocks_.size()); }

  // All tokens as one piece, [layers, 2 (keys, values), heads, tokens, head_dim]: for sessions.
  std::vector<std::byte> pack() const;
  // Replaces the contents. bytes must be num_tokens * bytes_per_token() long; throws Error.
  void unpack(std::span<const std::byte> bytes, std::int64_t num_tokens);

 private:
  std::size_t offset(std::int32_t layer, std::int32_t values, std::int32_t head) const;
  std::size_t block_bytes() const;

  KvShape shape_;
  std::int64_t num_tokens_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_KV_CACHE_H_

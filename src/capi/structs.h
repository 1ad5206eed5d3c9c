// SPDX-License-Identifier: Apache-2.0
//
// Versions of the structs that callers hand in and out: struct_size says how much of a struct the
// caller knows. Nothing behind the door sees a caller's struct; it sees the copy made here.
#pragma once

#include <cstddef>
#include <cstring>

#include "capi/last_error.h"

namespace leapquant::capi {

// Smallest struct_size accepted: the end of the last field without a zero default in 0.1.0. Never
// grows: fields added later default to zero.
template <typename Struct>
inline constexpr size_t kSmallestSize = sizeof(Struct);
template <>
inline constexpr size_t kSmallestSize<leapquant_shape> = offsetof(leapquant_shape, first_k_head);
template <>
inline constexpr size_t kSmallestSize<leapquant_format> = offsetof(leapquant_format, fit_start);
template <>
inline constexpr size_t kSmallestSize<leapquant_pool> = offsetof(leapquant_pool, health);

// Furthest beyond its own knowledge that the library looks for a zero tail; what lies above is a
// struct_size that nobody set.
inline constexpr size_t kLargestTail = 4096;

template <typename Struct>
Status check_struct_size(const Struct* given, const char* name) {
  if (given == nullptr) return fail(LEAPQUANT_NULL_POINTER, "%s is null", name);
  const size_t size = given->struct_size;
  if (size < kSmallestSize<Struct> || size > sizeof(Struct) + kLargestTail) {
    return fail(
        LEAPQUANT_INVALID_ARGUMENT,
        "%s.struct_size is %zu, expected sizeof the struct, %zu here (LEAPQUANT_INIT sets it)",
        name, size, sizeof(Struct));
  }
  const unsigned char* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0) {
      return fail(
          LEAPQUANT_INVALID_ARGUMENT,
          "%s.struct_size is %zu and byte %zu is not zero: this library (%s) knows %zu bytes "
          "and cannot honour a later field",
          name, size, i, leapquant_version_string(), sizeof(Struct));
    }
  }
  return LEAPQUANT_OK;
}

// *copy becomes the caller's struct in the library's version, unknown fields zero.
template <typename Struct>
Status take_struct(const Struct* given, const char* name, Struct* copy) {
  if (Status s = check_struct_size(given, name)) return s;
  std::memset(static_cast<void*>(copy), 0, sizeof(Struct));
  const size_t size = given->struct_size < sizeof(Struct) ? given->struct_size : sizeof(Struct);
  std::memcpy(static_cast<void*>(copy), given, size);
  copy->struct_size = sizeof(Struct);
  return LEAPQUANT_OK;
}

// Hands `value` out as far as the caller's struct reaches; the caller's struct_size stays. Check
// the size first, with check_struct_size.
template <typename Struct>
void give_struct(const Struct& value, Struct* out) {
  const uint32_t size = out->struct_size;
  std::memcpy(static_cast<void*>(out), &value, size < sizeof(Struct) ? size : sizeof(Struct));
  out->struct_size = size;
}

template <typename Integer, size_t N>
Status check_reserved(const Integer (&reserved)[N], const char* name, Status status) {
  for (size_t i = 0; i < N; ++i) {
    if (reserved[i] != 0) {
      return fail(status, "%s.reserved[%zu] is %lld, expected 0", name, i,
                  static_cast<long long>(reserved[i]));
    }
  }
  return LEAPQUANT_OK;
}

}  // namespace leapquant::capi

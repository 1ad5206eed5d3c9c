// SPDX-License-Identifier: Apache-2.0
//
// An array in memory of its own whose allocation may fail without an exception, which nothing in
// the library could catch. It has the few members that layouts need and does not grow.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace leapquant {

template <typename T>
class Array {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  Array() = default;
  Array(Array&& other) noexcept : data_(other.data_), size_(other.size_) { other.forget(); }
  Array& operator=(Array&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  // A copy could fail without saying so.
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { delete[] data_; }

  // `size` elements, each T(), in place of those before. False when the host refuses the memory:
  // the array is then empty.
  [[nodiscard]] bool allocate(size_t size) {
    delete[] data_;
    forget();
    if (size == 0) return true;
    data_ = new (std::nothrow) T[size]();
    if (data_ == nullptr) return false;
    size_ = size;
    return true;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }

 private:
  void forget() {
    data_ = nullptr;
    size_ = 0;
  }

  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace leapquant

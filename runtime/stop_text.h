// SPDX-License-Identifier: Apache-2.0
//
// Finds the first of some stop texts in bytes that arrive piece by piece, and keeps back what may
// still become one.
#ifndef LEAPQUANT_RUNTIME_STOP_TEXT_H_
#define LEAPQUANT_RUNTIME_STOP_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

namespace leapquant::runtime {

class StopText {
 public:
  // stops must outlive this; none of them is empty.
  explicit StopText(const std::vector<std::string>& stops) : stops_(&stops) {}

  // Adds bytes and returns those that are certain to precede any stop text. Once found() is true,
  // further bytes are dropped.
  std::string push(std::string_view bytes);
  // What was kept back, when no more bytes come.
  std::string finish();
  bool found() const { return found_; }

 private:
  const std::vector<std::string>* stops_;
  std::string pending_;
  bool found_ = false;
};

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_STOP_TEXT_H_

// SPDX-License-Identifier: Apache-2.0
//
// Stop texts: what is returned never depends on how the bytes arrive, and nothing of a stop text or
// behind it is ever shown.
#include "runtime/stop_text.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace leapquant::runtime {
namespace {

TEST(StopText, WithoutStopsEverythingPassesAtOnce) {
  const std::vector<std::string> none;
  StopText stop(none);
  EXPECT_EQ(stop.push("abc"), "abc");
  EXPECT_EQ(stop.finish(), "");
  EXPECT_FALSE(stop.found());
}

TEST(StopText, KeepsBackABeginning) {
  const std::vector<std::string> stops = {"END", "\n\n"};
  StopText stop(stops);
  EXPECT_EQ(stop.push("tokEN"), "tok");
  EXPECT_EQ(stop.push("T\n"), "ENT");
  EXPECT_EQ(stop.push("x"), "\nx");
  EXPECT_EQ(stop.push("E"), "");
  EXPECT_EQ(stop.push("NDafter"), "");
  EXPECT_TRUE(stop.found());
  EXPECT_EQ(stop.push("more"), "");
  EXPECT_EQ(stop.finish(), "");
}

TEST(StopText, GivesBackAnUnfinishedBeginning) {
  const std::vector<std::string> stops = {"aab"};
  StopText stop(stops);
  EXPECT_EQ(stop.push("aaa"), "a");
  EXPECT_EQ(stop.finish(), "aa");
  EXPECT_FALSE(stop.found());
}

RC_GTEST_PROP(StopText, AnyCutGivesTheTextBeforeTheFirstStop, ()) {
  const auto letter = rc::gen::elementOf(std::string("ab"));
  const auto text = *rc::gen::container<std::string>(letter);
  const std::vector<std::string> stops =
      *rc::gen::resize(3, rc::gen::container<std::vector<std::string>>(
                              rc::gen::nonEmpty(rc::gen::container<std::string>(letter))));
  const auto cuts = *rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 5));

  StopText stop(stops);
  std::string shown;
  std::size_t at = 0;
  std::size_t cut = 0;
  std::size_t fed = 0;
  while (at < text.size() && !stop.found()) {
    const auto size =
        std::min(text.size() - at, cut < cuts.size() ? static_cast<std::size_t>(cuts[cut++]) : 1);
    shown += stop.push(std::string_view(text).substr(at, size));
    at += size;
    fed = at;
  }
  shown += stop.finish();
  // The first stop text among the bytes that were fed.
  std::size_t first = std::string::npos;
  for (const std::string& one : stops) first = std::min(first, text.substr(0, fed).find(one));
  RC_ASSERT(stop.found() == (first != std::string::npos));
  if (!stop.found()) {
    RC_ASSERT(shown == text);
  } else {
    // Earlier bytes cannot hold one, but of two that overlap the one that was complete first
    // counts.
    RC_ASSERT(text.starts_with(shown));
    RC_ASSERT(std::any_of(stops.begin(), stops.end(), [&](const std::string& one) {
      return text.substr(shown.size()).starts_with(one);
    }));
  }
}

}  // namespace
}  // namespace leapquant::runtime

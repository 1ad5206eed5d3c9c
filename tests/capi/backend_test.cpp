// SPDX-License-Identifier: Apache-2.0
//
// The rule by which a backend is chosen: in order, by device, the first that accepts; else all the
// reasons.
#include "backend/registry.h"

#include <gtest/gtest.h>

#include <string>

namespace leapquant {
namespace {

Status yes(const Layout&, Sentence*) { return LEAPQUANT_OK; }
Status no_bits(const Layout&, Sentence* why_not) {
  return why_not->say(LEAPQUANT_UNSUPPORTED, "narrow: payload_bits is 3, expected 8");
}
Status no_dims(const Layout&, Sentence* why_not) {
  return why_not->say(LEAPQUANT_UNSUPPORTED, "square: head_k_dim differs from head_v_dim");
}
Status long_winded(const Layout&, Sentence* why_not) {
  return why_not->say(LEAPQUANT_UNSUPPORTED, "%s", std::string(600, 'x').c_str());
}

Backend backend(const char* name, leapquant_device device,
                Status (*accepts)(const Layout&, Sentence*)) {
  Backend made = {};
  made.name = name;
  made.device = device;
  made.accepts = accepts;
  return made;
}

class Choice : public ::testing::Test {
 protected:
  Status choose(std::initializer_list<const Backend*> list, leapquant_device where) {
    chosen = nullptr;
    sentence = {};
    return choose_backend_from(list.begin(), list.size(), layout, where, &chosen, &sentence);
  }

  Layout layout;
  Sentence sentence;
  const Backend* chosen = nullptr;
  const Backend narrow = backend("narrow", LEAPQUANT_CPU, no_bits);
  const Backend square = backend("square", LEAPQUANT_CPU, no_dims);
  const Backend general = backend("general", LEAPQUANT_CPU, yes);
  const Backend other = backend("other", LEAPQUANT_CPU, yes);
  const Backend device = backend("device", LEAPQUANT_CUDA, yes);
};

TEST_F(Choice, TheFirstThatAcceptsWins) {
  EXPECT_EQ(choose({&device, &narrow, &general, &other}, LEAPQUANT_CPU), LEAPQUANT_OK);
  EXPECT_EQ(chosen, &general);
  EXPECT_EQ(choose({&narrow, &device}, LEAPQUANT_CUDA), LEAPQUANT_OK);
  EXPECT_EQ(chosen, &device);
}

TEST_F(Choice, EveryReasonIsTold) {
  EXPECT_EQ(choose({&narrow, &device, &square}, LEAPQUANT_CPU), LEAPQUANT_UNSUPPORTED);
  EXPECT_EQ(chosen, nullptr);
  EXPECT_STREQ(sentence.text,
               "no backend accepts this layout; narrow: payload_bits is 3, expected 8; square: "
               "head_k_dim differs from head_v_dim");
}

TEST_F(Choice, ReasonsThatDoNotFitAreCut) {
  const Backend talker = backend("talker", LEAPQUANT_CPU, long_winded);
  EXPECT_EQ(choose({&talker, &talker, &narrow}, LEAPQUANT_CPU), LEAPQUANT_UNSUPPORTED);
  EXPECT_EQ(std::string(sentence.text).size(), sizeof(sentence.text) - 1);
}

TEST_F(Choice, ADeviceThatIsNotBuiltIn) {
  EXPECT_EQ(choose({&narrow, &general}, LEAPQUANT_CUDA), LEAPQUANT_DEVICE_UNAVAILABLE);
  EXPECT_NE(std::string(sentence.text).find("device is CUDA, but no backend"), std::string::npos);
}

TEST_F(Choice, TheLibraryServesTheCpu) {
  leapquant_shape shape = LEAPQUANT_INIT(leapquant_shape);
  shape.num_k_heads = 1;
  shape.num_v_heads = 1;
  shape.head_k_dim = 4;
  shape.head_v_dim = 256;
  leapquant_format format = LEAPQUANT_INIT(leapquant_format);
  format.payload_bits = 3;
  ASSERT_EQ(make_layout(shape, &format, 1, nullptr, &layout, &sentence), LEAPQUANT_OK);
  EXPECT_EQ(choose_backend(layout, LEAPQUANT_CPU, &chosen, &sentence), LEAPQUANT_OK)
      << sentence.text;
  EXPECT_STREQ(chosen->name, "cpu");
}

}  // namespace
}  // namespace leapquant

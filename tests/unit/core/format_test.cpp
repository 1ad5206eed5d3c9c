// SPDX-License-Identifier: Apache-2.0
//
// Format strings: presets, options, mixes by head, the way back to text, and refusals.
#include "core/format.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/layout.h"

namespace leapquant {
namespace {

leapquant_format parse(const std::string& text) {
  leapquant_format format = LEAPQUANT_INIT(leapquant_format);
  Sentence sentence;
  EXPECT_EQ(parse_format(text.c_str(), &format, &sentence), LEAPQUANT_OK)
      << text << ": " << sentence.text;
  return format;
}

leapquant_format normalised(const leapquant_format& format) {
  leapquant_format result;
  Sentence sentence;
  EXPECT_EQ(normalise_format(format, &result, &sentence), LEAPQUANT_OK) << sentence.text;
  return result;
}

std::string print(const leapquant_format& format) {
  char buffer[128];
  EXPECT_TRUE(print_format(normalised(format), buffer, sizeof(buffer)));
  return buffer;
}

TEST(Format, PresetsComeBackByName) {
  std::vector<std::string> names;
  for (int32_t i = 0; preset_name(i) != nullptr; ++i) names.emplace_back(preset_name(i));
  EXPECT_EQ(names, (std::vector<std::string>{"fp32", "bf16", "int8", "int6", "int4", "int8+",
                                             "int6+", "int4+", "int4-compact"}));
  for (const std::string& name : names) {
    EXPECT_EQ(print(parse(name)), name);
    EXPECT_EQ(parse(name).policy, LEAPQUANT_WINDOWED) << name;
    EXPECT_EQ(normalised(parse(name)).window, 16) << name;
  }
}

TEST(Format, OptionsSetTheirFields) {
  const leapquant_format f = parse(
      "4h:scale=fp16:smooth=log8:i8=4:i4=11:window=32:stagger=1:decay=fp16:fit=fixed:"
      "rounds=2:steps=7.5");
  EXPECT_EQ(f.payload_bits, 4);
  EXPECT_EQ(f.levels, LEAPQUANT_HALF_INTEGERS);
  EXPECT_EQ(f.value_scale_type, LEAPQUANT_FP16);
  EXPECT_EQ(f.smoothing, LEAPQUANT_SMOOTHING_LOG8);
  EXPECT_EQ(f.num_int8, 4);
  EXPECT_EQ(f.num_int4, 11);
  EXPECT_EQ(f.window, 32);
  EXPECT_EQ(f.stagger, 1);
  EXPECT_EQ(f.log_decay_type, LEAPQUANT_FP16);
  EXPECT_EQ(f.fit_start, LEAPQUANT_FIT_FIXED);
  EXPECT_EQ(f.fit_rounds, 2);
  EXPECT_EQ(f.scale_steps, 7.5f);
  EXPECT_EQ(parse("int8:r=8:window=32").num_fp16, 8);
  EXPECT_EQ(parse("int8:step").policy, LEAPQUANT_PER_STEP);
}

// Any format of a grid, to text and back: the same format, and the same text again.
TEST(Format, TextRoundTrips) {
  for (const char* head : {"8", "8h", "6", "6h", "4", "4h", "3", "3h", "int8", "int4+"}) {
    for (const char* scale : {"", ":scale=fp16", ":scale=fp32"}) {
      for (const char* smooth : {"", ":smooth=none", ":smooth=fp32", ":smooth=log8"}) {
        for (const char* rest : {"", ":r=3", ":i8=2:i4=5", ":window=1:stagger=1", ":decay=fp16",
                                 ":fit=fixed:rounds=4", ":fit=warm", ":step", ":step:r=2"}) {
          const std::string text = std::string(head) + scale + smooth + rest;
          const leapquant_format format = normalised(parse(text));
          const std::string printed = print(format);
          EXPECT_TRUE(same_format(normalised(parse(printed)), format)) << text << " -> " << printed;
          EXPECT_EQ(print(parse(printed)), printed) << text;
        }
      }
    }
  }
}

TEST(Format, MixesByHead) {
  std::vector<leapquant_format> formats(8);
  std::vector<uint8_t> head_format(6, 99);
  int32_t count = 0;
  Sentence sentence;
  ASSERT_EQ(parse_formats("mix(int8+@0-1,int4-compact@5,int6)", 0, 6, formats.data(), 8, &count,
                          head_format.data(), &sentence),
            LEAPQUANT_OK)
      << sentence.text;
  EXPECT_EQ(count, 3);
  const int32_t bits[] = {8, 8, 6, 6, 6, 4};
  for (size_t h = 0; h < 6; ++h) EXPECT_EQ(formats[head_format[h]].payload_bits, bits[h]) << h;
}

TEST(Format, RefusalsNameTheTrouble) {
  const std::pair<const char*, const char*> cases[] = {{"", "allowed"},
                                                       {"int5", "int5"},
                                                       {"int8:", ""},
                                                       {"int8:r=", "r="},
                                                       {"int8:r=x", "r=x"},
                                                       {"int8:colour=red", "colour"},
                                                       {"int8:scale=bf16", "scale=bf16"},
                                                       {"int8:window=99", "window"},
                                                       {"int8:r=33", "num_fp16"},
                                                       {"fp32:r=4", "compensators"},
                                                       {"INT8", "INT8"}};
  for (const auto& [text, part] : cases) {
    leapquant_format format;
    std::memset(&format, 0x5a, sizeof(format));
    const leapquant_format before = format;
    Sentence sentence;
    const Status status = parse_format(text, &format, &sentence);
    EXPECT_EQ(status, LEAPQUANT_INVALID_FORMAT) << text;
    EXPECT_NE(std::string(sentence.text).find(part), std::string::npos)
        << text << ": " << sentence.text;
    EXPECT_EQ(std::memcmp(&format, &before, sizeof(format)), 0) << text << " changed the format";
  }
}

TEST(Format, PrintingNeedsRoom) {
  char buffer[4];
  EXPECT_FALSE(print_format(normalised(parse("int4-compact")), buffer, sizeof(buffer)));
}

}  // namespace
}  // namespace leapquant

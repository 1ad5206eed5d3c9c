// SPDX-License-Identifier: Apache-2.0
//
// Amounts of memory, tables and lists of formats as text.
#include <gtest/gtest.h>

#include <algorithm>

#include "tool/byte_size.h"
#include "tool/state_arguments.h"
#include "tool/table.h"
#include "tool/verb.h"

namespace leapquant::tool {
namespace {

TEST(ByteSize, ReadsUnits) {
  EXPECT_EQ(parse_byte_size("0", "--memory"), 0);
  EXPECT_EQ(parse_byte_size("1000", "--memory"), 1000);
  EXPECT_EQ(parse_byte_size("24GiB", "--memory"), std::int64_t{24} << 30);
  EXPECT_EQ(parse_byte_size("24 GiB", "--memory"), std::int64_t{24} << 30);
  EXPECT_EQ(parse_byte_size("2K", "--memory"), 2048);
  EXPECT_EQ(parse_byte_size("80GB", "--memory"), 80'000'000'000);
  EXPECT_EQ(parse_byte_size("1.5MiB", "--memory"), 1'572'864);
}

TEST(ByteSize, RefusesWhatIsNoAmount) {
  for (const char* text :
       {"", "GiB", "-1", "1e400", "nan", "inf", "12parsecs", "1 GiB ", "1GiBB", "99999999999TiB"}) {
    EXPECT_THROW(parse_byte_size(text, "--memory"), UsageError) << text;
  }
}

TEST(ByteSize, ShowsThreeDigits) {
  EXPECT_EQ(show_byte_size(512), "512 B");
  EXPECT_EQ(show_byte_size(19456), "19.0 KiB");
  EXPECT_EQ(show_byte_size(1536), "1.50 KiB");
  EXPECT_EQ(show_byte_size(std::int64_t{3} << 40), "3.00 TiB");
  EXPECT_EQ(show_count(0), "0");
  EXPECT_EQ(show_count(999), "999");
  EXPECT_EQ(show_count(1000), "1,000");
  EXPECT_EQ(show_count(14942208), "14,942,208");
  EXPECT_EQ(show_count(-1234567), "-1,234,567");
}

TEST(TableText, AlignsColumns) {
  Table table({"name", ">count"});
  table.add({"a", "1"});
  table.add({"längst", "1,000"});
  table.add({"short"});
  EXPECT_EQ(table.text(),
            "name    count\n"
            "-------------\n"
            "a           1\n"
            "längst  1,000\n"
            "short\n");
}

TEST(SplitStates, KeepsMixesWhole) {
  using List = std::vector<std::string>;
  EXPECT_EQ(split_states("int8"), List({"int8"}));
  EXPECT_EQ(split_states("fp32,int8:r=8:window=32"), List({"fp32", "int8:r=8:window=32"}));
  EXPECT_EQ(split_states("mix(int8+@0-1,int4+),bf16"), List({"mix(int8+@0-1,int4+)", "bf16"}));
  EXPECT_THROW(split_states("int8,,fp32"), UsageError);
  EXPECT_THROW(split_states(""), UsageError);
}

TEST(PresetNames, AreThoseOfTheLibrary) {
  const std::vector<std::string> names = preset_names();
  for (const char* name :
       {"fp32", "bf16", "int8", "int6", "int4", "int8+", "int6+", "int4+", "int4-compact"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
}

}  // namespace
}  // namespace leapquant::tool

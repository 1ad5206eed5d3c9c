// SPDX-License-Identifier: Apache-2.0
//
// JSON from files that may be wrong: limits, and sentences that name the key.
#include "runtime/strict_json.h"

#include "unit/runtime/expect_error.h"

namespace leapquant::runtime {
namespace {

TEST(ParseStrictJson, AcceptsOneValue) {
  const nlohmann::json value = parse_strict_json(" {\"a\": [1, {\"a\": null}], \"b\": 2}\n", "f");
  EXPECT_EQ(value["a"][0], 1);
  EXPECT_EQ(value["b"], 2);
}

TEST(ParseStrictJson, SaysWhatIsWrong) {
  EXPECT_ERROR(parse_strict_json("", "file.json"), "file.json: the JSON is malformed near byte");
  EXPECT_ERROR(parse_strict_json("{\"a\": 1", "f"), "malformed");
  EXPECT_ERROR(parse_strict_json("{} {}", "f"), "malformed");
  EXPECT_ERROR(parse_strict_json("{\"a\": NaN}", "f"), "malformed");
  EXPECT_ERROR(parse_strict_json("\"\xff\"", "f"), "malformed");
  EXPECT_ERROR(parse_strict_json("{\"a\": 1e999}", "f"), "out of range");
  EXPECT_ERROR(parse_strict_json("{\"a\": 1, \"a\": 1}", "f"), "\"a\" occurs twice");
  EXPECT_ERROR(parse_strict_json("[{\"b\": {\"a\": 1, \"a\": 1}}]", "f"), "\"a\" occurs twice");
}

TEST(ParseStrictJson, LimitsTheDepth) {
  EXPECT_EQ(parse_strict_json("[[[]]]", "f", 3).size(), 1u);
  EXPECT_ERROR(parse_strict_json("[[[[]]]]", "f", 3), "nested deeper than 3");
  // Deep enough to end a recursive parser.
  EXPECT_ERROR(parse_strict_json(std::string(1'000'000, '['), "f"), "nested deeper than 16");
}

TEST(JsonObject, GivesValuesAndNamesKeys) {
  const nlohmann::json value = nlohmann::json::parse(
      R"({"i": 7, "f": 0.5, "t": true, "s": "x", "l": [1], "o": {"k": 1}, "n": null})");
  const JsonObject object(value, "f.json");
  EXPECT_EQ(object.integer("i", 0, 7), 7);
  EXPECT_EQ(object.number("f", 0, 1), 0.5);
  EXPECT_EQ(object.number("i", 0, 10), 7);
  EXPECT_TRUE(object.boolean("t"));
  EXPECT_EQ(object.string("s"), "x");
  EXPECT_EQ(object.array("l").size(), 1u);
  EXPECT_EQ(object.object("o").integer("k", 0, 1), 1);
  EXPECT_FALSE(object.contains("n"));
  EXPECT_ERROR(object.integer("n", 0, 1), "f.json: key \"n\" is missing");
  EXPECT_ERROR(object.integer("none", 0, 1), "key \"none\" is missing");
  EXPECT_ERROR(object.integer("i", 0, 6), "from 0 to 6, found 7");
  EXPECT_ERROR(object.integer("f", 0, 6), "must be an integer from 0 to 6, found 0.5");
  EXPECT_ERROR(object.integer("s", 0, 6), "must be an integer, found string");
  EXPECT_ERROR(object.number("f", 1, 2), "must be from 1.0 to 2.0, found 0.5");
  EXPECT_ERROR(object.number("s", 1, 2), "must be a number, found string");
  EXPECT_ERROR(object.boolean("i"), "must be true or false, found number");
  EXPECT_ERROR(object.string("i"), "must be a string, found number");
  EXPECT_ERROR(object.array("o"), "must be an array, found object");
  EXPECT_ERROR(object.object("l"), "key \"l\" must be a JSON object, found array");
  EXPECT_ERROR(object.object("o").string("k"), "key \"o.k\" must be a string");
  EXPECT_ERROR(JsonObject(value["l"], "f.json"), "the file must be a JSON object, found array");
}

TEST(JsonInteger, RefusesWhatDoesNotFit) {
  const auto parse = [](const char* text) {
    return json_integer(nlohmann::json::parse(text), "x", INT64_MIN, INT64_MAX);
  };
  EXPECT_EQ(parse("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(parse("-9223372036854775808"), INT64_MIN);
  EXPECT_ERROR(parse("9223372036854775808"), "found 9223372036854775808");
  EXPECT_ERROR(parse("18446744073709551616"), "found 1.8446744073709552e+19");
}

}  // namespace
}  // namespace leapquant::runtime

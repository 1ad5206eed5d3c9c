// SPDX-License-Identifier: Apache-2.0
//
// JSON from files that may be wrong or hostile: parsing with limits, and access that names the key
// when a value is missing or of the wrong type. Writing JSON is left to nlohmann/json.
#ifndef LEAPQUANT_RUNTIME_STRICT_JSON_H_
#define LEAPQUANT_RUNTIME_STRICT_JSON_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace leapquant::runtime {

// Parses one JSON value that fills the text (white space around it is allowed). label names the
// text in sentences. Throws Error for malformed JSON or UTF-8, nesting deeper than max_depth, and a
// key that occurs twice in one object (which of the two counts would be a guess).
nlohmann::json parse_strict_json(std::string_view text, std::string_view label,
                                 std::size_t max_depth = 16);

// An object with the words for its sentences: label is the file, path the place inside it.
class JsonObject {
 public:
  // Throws Error when value is no object. value must outlive this.
  JsonObject(const nlohmann::json& value, std::string label, std::string path = "");

  // nullptr when the key is missing or null.
  const nlohmann::json* find(std::string_view key) const;
  bool contains(std::string_view key) const { return find(key) != nullptr; }

  // The value of a key. Throw Error when it is missing, null, of another type or out of range.
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high) const;
  double number(std::string_view key, double low, double high) const;
  bool boolean(std::string_view key) const;
  std::string string(std::string_view key) const;
  const nlohmann::json& array(std::string_view key) const;
  JsonObject object(std::string_view key) const;

  // "FILE: key \"a.b\"", the beginning of every sentence about a value.
  std::string where(std::string_view key) const;
  const std::string& label() const { return label_; }

 private:
  const nlohmann::json& at(std::string_view key) const;

  const nlohmann::json* value_;
  std::string label_;
  std::string path_;
};

// A value as integer in [low, high]; where begins the sentence. Throws Error otherwise.
std::int64_t json_integer(const nlohmann::json& value, std::string_view where, std::int64_t low,
                          std::int64_t high);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_STRICT_JSON_H_

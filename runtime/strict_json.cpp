// SPDX-License-Identifier: Apache-2.0
//
// See strict_json.h.
#include "runtime/strict_json.h"

#include <cmath>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/error.h"

namespace leapquant::runtime {

using nlohmann::json;

json parse_strict_json(std::string_view text, std::string_view label, std::size_t max_depth) {
  std::vector<std::unordered_set<std::string>> keys;  // of the objects that are open
  std::size_t depth = 0;
  const auto watch = [&](int, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (++depth > max_depth) {
          throw Error(std::string(label) + ": the JSON is nested deeper than " +
                      std::to_string(max_depth) + " levels.");
        }
        if (event == json::parse_event_t::object_start) keys.emplace_back();
        break;
      case json::parse_event_t::object_end:
        keys.pop_back();
        --depth;
        break;
      case json::parse_event_t::array_end:
        --depth;
        break;
      case json::parse_event_t::key:
        if (!keys.back().insert(parsed.get_ref<const std::string&>()).second) {
          throw Error(std::string(label) + ": the key " +
                      in_quotes(parsed.get_ref<const std::string&>()) +
                      " occurs twice in one JSON object.");
        }
        break;
      case json::parse_event_t::value:
        break;
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::parse_error& error) {
    throw Error(std::string(label) + ": the JSON is malformed near byte " +
                std::to_string(error.byte) + ".");
  } catch (const json::exception&) {
    throw Error(std::string(label) + ": the JSON holds a number that is out of range.");
  }
}

JsonObject::JsonObject(const json& value, std::string label, std::string path)
    : value_(&value), label_(std::move(label)), path_(std::move(path)) {
  if (!value.is_object()) {
    throw Error(label_ + ": " + (path_.empty() ? "the file" : "key " + in_quotes(path_)) +
                " must be a JSON object, found " + value.type_name() + ".");
  }
}

std::string JsonObject::where(std::string_view key) const {
  return label_ + ": key " +
         in_quotes(path_.empty() ? std::string(key) : path_ + "." + std::string(key));
}

const json* JsonObject::find(std::string_view key) const {
  const auto found = value_->find(std::string(key));
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}

const json& JsonObject::at(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) throw Error(where(key) + " is missing.");
  return *value;
}

std::int64_t json_integer(const json& value, std::string_view where, std::int64_t low,
                          std::int64_t high) {
  // Numbers beyond 64 bits arrive as floating point and unsigned ones may exceed int64.
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() ||
                     value.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX));
  if (!value.is_number()) {
    throw Error(std::string(where) + " must be an integer, found " + value.type_name() + ".");
  }
  if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high) {
    throw Error(std::string(where) + " must be an integer from " + std::to_string(low) + " to " +
                std::to_string(high) + ", found " + value.dump() + ".");
  }
  return value.get<std::int64_t>();
}

std::int64_t JsonObject::integer(std::string_view key, std::int64_t low, std::int64_t high) const {
  return json_integer(at(key), where(key), low, high);
}

double JsonObject::number(std::string_view key, double low, double high) const {
  const json& value = at(key);
  if (!value.is_number()) {
    throw Error(where(key) + " must be a number, found " + value.type_name() + ".");
  }
  const double number = value.get<double>();
  if (!std::isfinite(number) || number < low || number > high) {
    throw Error(where(key) + " must be from " + json(low).dump() + " to " + json(high).dump() +
                ", found " + value.dump() + ".");
  }
  return number;
}

bool JsonObject::boolean(std::string_view key) const {
  const json& value = at(key);
  if (!value.is_boolean()) {
    throw Error(where(key) + " must be true or false, found " + value.type_name() + ".");
  }
  return value.get<bool>();
}

std::string JsonObject::string(std::string_view key) const {
  const json& value = at(key);
  if (!value.is_string()) {
    throw Error(where(key) + " must be a string, found " + value.type_name() + ".");
  }
  return value.get<std::string>();
}

const json& JsonObject::array(std::string_view key) const {
  const json& value = at(key);
  if (!value.is_array()) {
    throw Error(where(key) + " must be an array, found " + value.type_name() + ".");
  }
  return value;
}

JsonObject JsonObject::object(std::string_view key) const {
  return JsonObject(at(key), label_,
                    path_.empty() ? std::string(key) : path_ + "." + std::string(key));
}

}  // namespace leapquant::runtime

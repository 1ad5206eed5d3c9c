// SPDX-License-Identifier: Apache-2.0
//
// See usage_sentences.h.
#include "tool/usage_sentences.h"

#include <string_view>

namespace leapquant::tool {
namespace {

// "leapquant bench model"
std::string path_of(const CLI::App& app) {
  std::string path;
  for (const CLI::App* at = &app; at != nullptr; at = at->get_parent()) {
    path = at->get_name() + (path.empty() ? "" : " " + path);
  }
  return path;
}

// The names of all verbs below this one; empty where it has none.
std::string verbs_of(const CLI::App& app) {
  std::string names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + verb->get_name();
  }
  return names;
}

bool is_option(const std::string& word) { return word.size() > 1 && word.starts_with('-'); }

// About what stands where the name of a verb should: the parser only says that one is missing.
std::string unknown_verb(const CLI::App& verb) {
  const std::string names = verbs_of(verb);
  if (names.empty()) return "";
  for (const std::string& word : verb.remaining()) {
    if (!word.starts_with('-')) {
      return "'" + word + "' is no verb of " + verb.get_name() + "; known here: " + names;
    }
  }
  return "";
}

// About an option that the verb does not have: where another one is missing, the parser tells of
// that one only, though it may be the same misspelt.
std::string unknown_option(const CLI::App& verb) {
  for (const std::string& word : verb.remaining()) {
    if (is_option(word)) return "'" + word + "' is no option of " + verb.get_name();
  }
  return "";
}

std::string unexpected_word(const CLI::App& verb) {
  for (const std::string& word : verb.remaining()) {
    return "'" + word + "' stands where " + path_of(verb) + " takes nothing more";
  }
  return "";
}

// The option that the parser's sentence begins with.
const CLI::Option* option_at_fault(const CLI::App& verb, std::string_view sentence) {
  for (const CLI::Option* option : verb.get_options()) {
    const std::string name = option->get_name();
    if (!sentence.starts_with(name) || sentence.size() <= name.size()) continue;
    const char next = sentence[name.size()];
    if (next == ' ' || next == ':') return option;
  }
  return nullptr;
}

// A flag that was given a value it does not take: the parser's sentence has its name in the middle.
std::string flag_with_value(const CLI::App& verb, std::string_view sentence) {
  for (const CLI::Option* option : verb.get_options()) {
    const std::string name = option->get_name();
    if (option->get_expected_max() == 0 && option->count() > 0 &&
        sentence.find(name + " = ") != sentence.npos) {
      return name + " takes no value, found '" + option->results().front() + "'";
    }
  }
  return "";
}

std::string missing_verb(const CLI::App& verb) {
  const std::string names = verbs_of(verb);
  return names.empty() ? "" : verb.get_name() + " needs a verb: " + names;
}

std::string missing_option(const CLI::App& verb, std::string_view sentence) {
  const CLI::Option* option = option_at_fault(verb, sentence);
  return option == nullptr ? "" : option->get_name() + " is required: " + option->get_description();
}

std::string wrong_count(const CLI::App& verb, std::string_view sentence) {
  const CLI::Option* option = option_at_fault(verb, sentence);
  if (option == nullptr) return "";
  const std::string name = option->get_name();
  const auto given = static_cast<int>(option->results().size());
  if (given > option->get_expected_max()) {
    return name + " was given " + std::to_string(given) + " times; give it once";
  }
  return name + " needs a value: " + option->get_description();
}

template <typename Error>
bool is(const CLI::ParseError& error) {
  return dynamic_cast<const Error*>(&error) != nullptr;
}

}  // namespace

const CLI::App& deepest(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : deepest(*chosen.front());
}

std::string help_hint(const CLI::App& app) { return "see '" + path_of(deepest(app)) + " --help'."; }

std::string usage_sentence(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& verb = deepest(app);
  std::string own = unknown_verb(verb);
  if (own.empty() && (is<CLI::RequiredError>(error) || is<CLI::ExtrasError>(error))) {
    own = unknown_option(verb);
  }
  if (own.empty() && is<CLI::ExtrasError>(error)) own = unexpected_word(verb);
  if (own.empty() && is<CLI::RequiredError>(error)) own = missing_verb(verb);
  if (own.empty() && is<CLI::RequiredError>(error)) own = missing_option(verb, error.what());
  if (own.empty() && is<CLI::ArgumentMismatch>(error)) own = wrong_count(verb, error.what());
  if (own.empty() && is<CLI::ConversionError>(error)) own = flag_with_value(verb, error.what());
  return own.empty() ? error.what() : own;
}

}  // namespace leapquant::tool

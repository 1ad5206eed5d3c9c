// SPDX-License-Identifier: Apache-2.0
//
// The command-line tool: finds the verb, runs it, and turns what happens into a sentence and an
// exit code: 0 done, 1 failed, 2 wrong usage.
#include <csignal>
#include <exception>
#include <filesystem>
#include <new>
#include <string>

#include "leapquant/leapquant.h"
#include "runtime/error.h"
#include "tool/console.h"
#include "tool/option_checks.h"
#include "tool/verb.h"

namespace leapquant::tool {
namespace {

constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

const CLI::App& deepest(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : deepest(*chosen.front());
}

std::string help_hint(const CLI::App& app) {
  std::string path;
  for (const CLI::App* at = &deepest(app); at != nullptr; at = at->get_parent()) {
    path = at->get_name() + (path.empty() ? "" : " " + path);
  }
  return "see '" + path + " --help'.";
}

// A sentence about what stands where the name of a verb should: the parser only says that one is
// missing. Empty where nothing stands there.
std::string unknown_verb(const CLI::App& app) {
  const CLI::App& last = deepest(app);
  std::string names;
  for (const CLI::App* verb : last.get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + verb->get_name();
  }
  if (names.empty()) return "";
  for (const std::string& word : last.remaining()) {
    if (!word.starts_with('-')) {
      return "'" + word + "' is no verb of " + last.get_name() + "; known here: " + names;
    }
  }
  return "";
}

// A sentence about an option that the verb does not have: where another one is missing, the parser
// tells of that one only, though it may be the same misspelt. Empty where there is none.
std::string unknown_option(const CLI::App& app) {
  const CLI::App& last = deepest(app);
  for (const std::string& word : last.remaining()) {
    if (word.size() > 1 && word.starts_with('-')) {
      return "'" + word + "' is no option of " + last.get_name();
    }
  }
  return "";
}

int run(int count, char** arguments) {
  CLI::App app(
      "Runs hybrid language models with their recurrent state kept in 8, 6 or 4 bits, and "
      "measures\n"
      "what that costs and gains.",
      "leapquant");
  app.set_version_flag("--version", std::string("leapquant ") + leapquant_version_string());
  app.require_subcommand(1);
  app.footer("'leapquant VERB --help' tells more, with an example.");
  Verbs verbs;
  add_run(app, verbs);
  add_generate(app, verbs);
  add_eval(app, verbs);
  add_inspect(app, verbs);
  add_plan(app, verbs);
  add_state(app, verbs);
  add_drift(app, verbs);
  add_record(app, verbs);
  add_bench(app, verbs);
  try {
    app.parse(count, arguments);
    refuse_empty_values(app);
  } catch (const CLI::CallForAllHelp&) {
    print(app.help("", CLI::AppFormatMode::All));
    return kDone;
  } catch (const CLI::CallForHelp&) {
    print(app.help());
    return kDone;
  } catch (const CLI::CallForVersion& version) {
    print(std::string(version.what()) + "\n");
    return kDone;
  } catch (const CLI::ParseError& error) {
    std::string unknown = unknown_verb(app);
    if (unknown.empty() && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
      unknown = unknown_option(app);
    }
    complain((unknown.empty() ? error.what() : unknown) + "; " + help_hint(app));
    return kWrongUsage;
  }
  try {
    verbs.at (&deepest(app))();
  } catch (const UsageError& error) {
    complain(std::string(error.what()) + " For the options " + help_hint(app));
    return kWrongUsage;
  }
  return kDone;
}

int guarded(int count, char** arguments) {
  try {
    const int code = run(count, arguments);
    flush_output();
    return code;
  } catch (const runtime::Error& error) {
    complain(error.what());
  } catch (const std::bad_alloc&) {
    complain(
        "There is not enough memory for this; use a shorter context, or fewer prompts at a time "
        "where there are several.");
  } catch (const std::filesystem::filesystem_error& error) {
    complain(std::string("The file system refused: ") + error.what() + ".");
  } catch (const std::exception& error) {
    complain(std::string("An error that the program did not expect: ") + error.what() +
             ". Please report it.");
  }
  return kFailed;
}

}  // namespace
}  // namespace leapquant::tool

int main(int count, char** arguments) {
  // A reader that goes away shows as a failed write, which has a sentence and an exit code.
  std::signal(SIGPIPE, SIG_IGN);
  // So does a file that grows past the limit of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  return leapquant::tool::guarded(count, arguments);
}

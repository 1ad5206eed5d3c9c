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
#include "tool/usage_sentences.h"
#include "tool/verb.h"

namespace leapquant::tool {
namespace {

constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

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
    complain(usage_sentence(app, error) + "; " + help_hint(app));
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

// SPDX-License-Identifier: Apache-2.0
//
// See evaluation.h.
#include "lab/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>

#include "runtime/error.h"
#include "runtime/generate.h"
#include "runtime/sampler.h"

namespace leapquant::lab {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// FNV-1a; only tells apart task files that use the same ids.
std::string digest_of(const Task& task) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  const auto mix = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    hash = (hash ^ 0xffU) * 0x100000001b3U;
  };
  mix(task.prompt);
  mix(task.answer);
  mix(task.check == Check::kExact ? "exact" : "last_line");
  return fmt::format("{:016x}", hash);
}

std::size_t argmax(std::span<const float> logits) {
  return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// A prompt on its way through a batch.
struct Item {
  const Task* task = nullptr;
  std::vector<runtime::TokenId> prompt;
  std::vector<runtime::TokenId> answer;
  std::vector<float> reference;  // [answer + 1, vocab] logits with an FP32 state; empty: no KL
  std::string reference_fault;   // why there is no such reference; empty: there is, or no KL
  runtime::SequenceId sequence = -1;
  bool follows = true;  // every prediction so far was the answer's next token
  PromptResult result;
};

// Why the last call for a sequence gave no prediction; empty when it did.
std::string fault_of(const runtime::Batch& batch, runtime::SequenceId sequence,
                     std::span<const float> logits) {
  const std::string& fault = batch.fault(sequence);
  return fault.empty() ? runtime::fault_of_logits(logits) : fault;
}

// Tokens of prompts per call, so that a cancellation need not wait for many. A prompt by itself is
// not cut: its state would be rounded once more.
constexpr std::size_t kPrefilledAtOnce = 1024;

class Evaluator {
 public:
  Evaluator(const runtime::Model& model, const runtime::Tokenizer& tokenizer,
            const runtime::Threads& threads, const EvaluationOptions& options, ResultsLog& log)
      : model_(model), tokenizer_(tokenizer), threads_(threads), options_(options), log_(log) {
    if (model.config().eos_token_ids.empty()) {
      throw runtime::Error("The model names no end token, so answers have no end to be judged.");
    }
  }

  bool run_file(const TaskFile& file, std::vector<EvaluationRow>& rows) {
    count_work(file);
    for (std::size_t begin = 0; begin < file.tasks.size();) {
      if (cancelled()) return false;
      begin += run_group(file, begin);
    }
    if (cancelled()) return false;
    for (const runtime::StateFormat& state : options_.states) rows.push_back(row(file, state));
    return true;
  }

 private:
  bool cancelled() const { return options_.cancel != nullptr && *options_.cancel; }

  std::size_t vocab() const { return static_cast<std::size_t>(model_.config().vocab_size); }

  PromptResult key(const TaskFile& file, const Task& task,
                   const runtime::StateFormat& state) const {
    PromptResult result;
    result.model = fmt::format("{:016x}{}{}", model_.fingerprint(),
                               options_.device.empty() ? "" : "/", options_.device);
    result.tier = file.tier;
    result.task = file.name;
    result.id = task.id;
    result.digest = digest_of(task);
    result.state = state.text;
    return result;
  }

  bool is_done(const TaskFile& file, const Task& task, const runtime::StateFormat& state) const {
    return log_.find(key(file, task, state), options_.divergence) != nullptr;
  }

  void count_work(const TaskFile& file) {
    done_ = 0;
    total_ = 0;
    for (const Task& task : file.tasks) {
      const auto tokens = static_cast<std::int64_t>(tokenizer_.encode(task.answer).size());
      for (const auto& state : options_.states) total_ += is_done(file, task, state) ? 0 : tokens;
    }
  }

  void report(const TaskFile& file, const runtime::StateFormat& state, std::int64_t tokens) {
    done_ += tokens;
    if (!options_.progress) return;
    options_.progress(fmt::format("{} {}/{}", state.text, file.tier, file.name),
                      std::min(done_, total_), total_);
  }

  std::unique_ptr<runtime::Batch> make_batch(const runtime::StateFormat& state,
                                             std::size_t sequences) const {
    runtime::BatchOptions options = options_.batch_options;
    options.max_sequences = static_cast<std::int32_t>(sequences);
    return std::make_unique<runtime::Batch>(model_, state, threads_, options);
  }

  // Runs the tasks from `begin` that fit into one batch, in all states; returns their number.
  std::size_t run_group(const TaskFile& file, std::size_t begin) {
    const std::size_t limit =
        std::min<std::size_t>(static_cast<std::size_t>(options_.batch), group_limit(file, begin));
    const std::size_t count = std::min(limit, file.tasks.size() - begin);
    std::vector<Item> items(count);
    bool any = false;
    for (std::size_t i = 0; i < count; ++i) {
      items[i].task = &file.tasks[begin + i];
      items[i].prompt = tokenizer_.encode(items[i].task->prompt);
      items[i].answer = tokenizer_.encode(items[i].task->answer);
      for (const auto& state : options_.states) any |= !is_done(file, *items[i].task, state);
    }
    if (!any) return count;
    if (options_.divergence) fill_references(items);
    for (const runtime::StateFormat& state : options_.states) {
      std::vector<Item*> pending;
      for (Item& item : items) {
        if (is_done(file, *item.task, state)) continue;
        item.result = key(file, *item.task, state);
        item.follows = true;
        pending.push_back(&item);
      }
      // A batch may hold fewer sequences than asked for when memory is short.
      for (std::span<Item*> rest(pending); !rest.empty();) {
        if (cancelled()) return count;
        rest = rest.subspan(run_batch(file, state, rest));
      }
    }
    return count;
  }

  // Reference logits of a group stay below half a gibibyte, however large the vocabulary.
  std::size_t group_limit(const TaskFile& file, std::size_t begin) const {
    if (!options_.divergence) return static_cast<std::size_t>(options_.batch);
    const std::size_t budget = (std::size_t{1} << 29) / sizeof(float) / vocab();
    std::size_t rows = 0;
    std::size_t count = 0;
    for (; begin + count < file.tasks.size(); ++count) {
      rows += tokenizer_.encode(file.tasks[begin + count].answer).size() + 1;
      if (rows > budget && count > 0) break;
    }
    return count;
  }

  static void require_context(const runtime::Batch& batch, const Task& task, std::int64_t tokens) {
    try {
      batch.require_context(tokens);
    } catch (const runtime::Error& error) {
      throw runtime::Error("The task in " + task.place + " does not fit. " + error.what());
    }
  }

  void fill_references(std::vector<Item>& items) const {
    runtime::StateOptions fp32;
    fp32.state = "fp32";
    const auto batch = make_batch(runtime::resolve_state(fp32, model_.config()), 1);
    std::vector<float> logits;
    for (Item& item : items) {
      if (cancelled()) return;
      std::vector<runtime::TokenId> tokens = item.prompt;
      tokens.insert(tokens.end(), item.answer.begin(), item.answer.end());
      const auto length = static_cast<std::int64_t>(tokens.size());
      require_context(*batch, *item.task, length);
      const auto sequence = batch->open(length);
      if (!sequence) throw runtime::Error("There is not enough free memory for one prompt.");
      logits.resize(tokens.size() * vocab());
      // In FP32, passes of one call and of several give the same bits.
      const auto pass = static_cast<std::size_t>(batch->options().prefill_chunk);
      for (std::size_t at = 0; at < tokens.size() && !cancelled(); at += pass) {
        const std::size_t count = std::min(pass, tokens.size() - at);
        batch->prefill_with_all_logits({*sequence, std::span(tokens).subspan(at, count)},
                                       std::span(logits).subspan(at * vocab(), count * vocab()));
      }
      if (cancelled()) return;
      const auto kept = std::span<const float>(logits).last((item.answer.size() + 1) * vocab());
      const std::string fault = fault_of(*batch, *sequence, kept);
      batch->close(*sequence);
      if (fault.empty()) {
        item.reference.assign(kept.begin(), kept.end());
      } else {
        item.reference_fault = "With an FP32 state: " + fault;
      }
    }
  }

  std::int64_t max_tokens(const Item& item) const {
    return static_cast<std::int64_t>(item.answer.size()) + options_.extra_tokens;
  }

  // Runs and logs the items that fit at once; returns their number. A cancelled batch logs nothing.
  std::size_t run_batch(const TaskFile& file, const runtime::StateFormat& state,
                        std::span<Item*> items) {
    const auto batch = make_batch(state, items.size());
    std::size_t opened = 0;
    for (Item* item : items) {
      const std::int64_t context =
          static_cast<std::int64_t>(item->prompt.size()) + max_tokens(*item);
      require_context(*batch, *item->task, context);
      const auto sequence = batch->open(context);
      if (!sequence) break;
      item->sequence = *sequence;
      ++opened;
    }
    if (opened == 0) throw runtime::Error("There is not enough free memory for one prompt.");
    const std::span<Item*> group = items.first(opened);
    follow_answers(file, state, *batch, group);
    for (Item* item : group) batch->close(item->sequence);
    if (!cancelled()) generate_others(file, state, *batch, group);
    if (cancelled()) return opened;
    std::vector<PromptResult> results;
    for (Item* item : group) {
      mark_fault(*item);
      results.push_back(item->result);
    }
    log_.append(results);
    return opened;
  }

  static void mark_fault(Item& item) {
    PromptResult& result = item.result;
    if (result.fault.empty()) result.fault = item.reference_fault;
    if (result.fault.empty()) return;
    result.has_kl = true;
    result.kl_sum = std::numeric_limits<double>::quiet_NaN();
    result.loss_sum = result.kl_sum;
  }

  void judge_step(Item& item, std::size_t step, std::span<const float> logits) const {
    const std::size_t predicted = argmax(logits);
    const bool is_end = step == item.answer.size();
    item.follows &= is_end ? model_.config().is_eos(static_cast<std::int32_t>(predicted))
                           : predicted == static_cast<std::size_t>(item.answer[step]);
    if (item.reference.empty()) return;
    item.result.kl_sum +=
        divergence(std::span(item.reference).subspan(step * vocab(), vocab()), logits);
    ++item.result.kl_tokens;
    const std::vector<std::int32_t>& ends = model_.config().eos_token_ids;
    if (is_end && ends.empty()) return;  // such a model has no token to expect
    item.result.loss_sum +=
        token_loss(logits, static_cast<std::size_t>(is_end ? ends.front() : item.answer[step]));
  }

  // Prefills all prompts, then feeds the answers token by token, one of every sequence per step.
  void follow_answers(const TaskFile& file, const runtime::StateFormat& state,
                      runtime::Batch& batch, std::span<Item*> items) {
    std::vector<runtime::Feed> feeds;
    for (const Item* item : items) feeds.push_back({item->sequence, item->prompt});
    std::vector<float> logits(items.size() * vocab());
    for (std::size_t i = 0; i < feeds.size();) {
      if (cancelled()) return;
      std::size_t count = 1;
      std::size_t tokens = feeds[i].tokens.size();
      while (i + count < feeds.size() &&
             tokens + feeds[i + count].tokens.size() <= kPrefilledAtOnce) {
        tokens += feeds[i + count++].tokens.size();
      }
      if (!batch.prefill(std::span(feeds).subspan(i, count),
                         std::span(logits).subspan(i * vocab(), count * vocab()),
                         options_.cancel)) {
        return;
      }
      i += count;
    }
    std::vector<Item*> active(items.begin(), items.end());
    for (std::size_t step = 0; !cancelled(); ++step) {
      std::vector<Item*> next;
      for (std::size_t i = 0; i < active.size(); ++i) {
        Item& item = *active[i];
        const auto predictions = std::span<const float>(logits).subspan(i * vocab(), vocab());
        item.result.fault = fault_of(batch, item.sequence, predictions);
        if (!item.result.fault.empty()) {
          item.follows = false;
          continue;
        }
        item.result.has_kl = !item.reference.empty();
        judge_step(item, step, predictions);
        // Without KL nothing more is to learn from a prompt that has gone another way.
        const bool useful = item.follows || !item.reference.empty();
        if (step < item.answer.size() && useful) next.push_back(&item);
      }
      active = std::move(next);
      if (active.empty()) break;
      feeds.clear();
      for (const Item* item : active) {
        feeds.push_back({item->sequence, std::span(item->answer).subspan(step, 1)});
      }
      const Clock::time_point start = Clock::now();
      batch.decode(feeds, std::span(logits).first(active.size() * vocab()));
      const double share = seconds_since(start) / static_cast<double>(active.size());
      for (Item* item : active) {
        item->result.seconds += share;
        ++item->result.tokens;
      }
      report(file, state, static_cast<std::int64_t>(active.size()));
    }
    for (Item* item : items) item->result.right = item->follows;
  }

  void generate_others(const TaskFile& file, const runtime::StateFormat& state,
                       runtime::Batch& batch, std::span<Item*> items) {
    std::vector<runtime::Prompt> prompts;
    std::vector<Item*> others;
    for (Item* item : items) {
      if (item->follows) continue;
      runtime::Prompt prompt;
      prompt.tokens = item->prompt;
      prompt.max_tokens = max_tokens(*item);
      prompts.push_back(std::move(prompt));
      others.push_back(item);
    }
    if (others.empty()) return;
    runtime::GenerateEvents events;
    events.progress = [&](std::int64_t, std::size_t) { report(file, state, 0); };
    runtime::GenerateOptions options;
    options.cancel = options_.cancel;
    runtime::GenerateStatistics statistics;
    const auto completions =
        runtime::generate(batch, tokenizer_, prompts, options, events, &statistics);
    for (std::size_t i = 0; i < others.size(); ++i) {
      PromptResult& result = others[i]->result;
      if (result.fault.empty()) result.fault = completions[i].fault;
      result.right = completions[i].reason != runtime::FinishReason::kFault &&
                     is_right(*others[i]->task, completions[i].text);
      const auto tokens =
          std::max<std::int64_t>(0, static_cast<std::int64_t>(completions[i].tokens.size()) - 1);
      result.tokens += tokens;
      if (statistics.decoded_tokens > 0) {
        result.seconds += statistics.decode_seconds * static_cast<double>(tokens) /
                          static_cast<double>(statistics.decoded_tokens);
      }
    }
  }

  EvaluationRow row(const TaskFile& file, const runtime::StateFormat& state) const {
    EvaluationRow row;
    row.tier = file.tier;
    row.task = file.name;
    row.state = state_name(state);
    row.policy = policy_name(state);
    row.has_kl = options_.divergence;
    row.state_bytes = runtime::state_bytes_per_sequence(model_.config(), state).total();
    double kl = 0;
    double loss = 0;
    std::int64_t kl_tokens = 0;
    double seconds = 0;
    std::int64_t tokens = 0;
    for (const Task& task : file.tasks) {
      const PromptResult* result = log_.find(key(file, task, state), options_.divergence);
      if (result == nullptr) continue;
      ++row.total;
      row.correct += result->right ? 1 : 0;
      kl += result->kl_sum;
      loss += result->loss_sum;
      kl_tokens += result->kl_tokens;
      seconds += result->seconds;
      tokens += result->tokens;
      if (!std::isnan(result->kl_sum)) continue;
      row.faults.push_back({task.id, result->fault.empty()
                                         ? "The results file says that it was not finite."
                                         : result->fault});
    }
    if (kl_tokens > 0 || !row.faults.empty()) {
      const auto count = static_cast<double>(std::max<std::int64_t>(kl_tokens, 1));
      row.mean_kl = kl / count;
      row.mean_loss = loss / count;
    }
    if (seconds > 0) row.tokens_per_second = static_cast<double>(tokens) / seconds;
    return row;
  }

  const runtime::Model& model_;
  const runtime::Tokenizer& tokenizer_;
  const runtime::Threads& threads_;
  const EvaluationOptions& options_;
  ResultsLog& log_;
  std::int64_t done_ = 0;
  std::int64_t total_ = 0;
};

// log(sum exp(logit - *top)) with *top the largest logit.
double log_of_sum(std::span<const float> logits, double* top) {
  *top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - *top);
  return std::log(sum);
}

}  // namespace

std::string state_name(const runtime::StateFormat& format) {
  constexpr std::string_view kStep = ":step";
  std::string name = format.text;
  const std::size_t at = name.find(kStep);
  if (format.per_step() && at != std::string::npos) name.erase(at, kStep.size());
  return name;
}

std::string_view policy_name(const runtime::StateFormat& format) {
  return format.per_step() ? "step" : "window";
}

double token_loss(std::span<const float> logits, std::size_t token) {
  double top = 0;
  const double log_sum = log_of_sum(logits, &top);
  return log_sum + top - static_cast<double>(logits[token]);
}

double divergence(std::span<const float> p_logits, std::span<const float> q_logits) {
  double p_top = 0;
  double q_top = 0;
  const double p_log_sum = log_of_sum(p_logits, &p_top);
  const double q_log_sum = log_of_sum(q_logits, &q_top);
  double total = 0;
  for (std::size_t i = 0; i < p_logits.size(); ++i) {
    const double log_p = static_cast<double>(p_logits[i]) - p_top - p_log_sum;
    const double log_q = static_cast<double>(q_logits[i]) - q_top - q_log_sum;
    total += std::exp(log_p) * (log_p - log_q);
  }
  // Rounding can leave a few units in the last place below zero. NaN stays.
  return total < 0 ? 0 : total;
}

std::vector<EvaluationRow> evaluate(const runtime::Model& model,
                                    const runtime::Tokenizer& tokenizer,
                                    const runtime::Threads& threads,
                                    const std::vector<TaskFile>& files,
                                    const EvaluationOptions& options, ResultsLog& log) {
  Evaluator evaluator(model, tokenizer, threads, options, log);
  std::vector<EvaluationRow> rows;
  for (const TaskFile& file : files) {
    if (!evaluator.run_file(file, rows)) break;
  }
  return rows;
}

}  // namespace leapquant::lab

// SPDX-License-Identifier: Apache-2.0
//
// How many tasks a model solves with its recurrent state in each of several formats, and how far
// its predictions move from those with an FP32 state. Prompts run in batches; results go to a log.
#ifndef LEAPQUANT_LAB_EVALUATION_H_
#define LEAPQUANT_LAB_EVALUATION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/results_log.h"
#include "lab/tasks.h"
#include "runtime/batch.h"
#include "runtime/model.h"
#include "runtime/state_options.h"
#include "runtime/threads.h"
#include "runtime/tokenizer.h"

namespace leapquant::lab {

struct EvaluationOptions {
  std::vector<runtime::StateFormat> states;
  std::int32_t batch = 64;              // prompts at a time
  runtime::BatchOptions batch_options;  // device and so on; max_sequences is not looked at
  // Part of the results' identity in the log, so that those of a device never stand for the CPU's;
  // empty: the CPU.
  std::string device;
  bool divergence = true;                     // measure mean_kl
  std::int64_t extra_tokens = 16;             // generated past the answer's length before giving up
  const std::atomic<bool>* cancel = nullptr;  // checked after every step
  // Tokens decoded so far of `label` ("int8 medium/add"), and how many there will be at most.
  std::function<void(std::string_view label, std::int64_t done, std::int64_t total)> progress;
};

// A prompt whose sequence or logits were not finite, in the state of a row or, where KL is
// measured, in FP32. Its answer may be right up to there; its KL is not a number.
struct PromptFault {
  std::string id;
  std::string reason;  // a sentence
};

// All prompts of one file in one state.
struct EvaluationRow {
  std::string tier;
  std::string task;
  std::string state;   // canonical text without the policy
  std::string policy;  // "window" or "step"
  std::int64_t correct = 0;
  std::int64_t total = 0;
  bool has_kl = false;
  // Mean over the tokens of all answers, end tokens included, of KL(FP32 state || this state) of
  // the next-token distributions, in nats. The prompt is prefilled exactly in both, the answer is
  // fed token by token with the state kept in its format.
  double mean_kl = 0;
  // Mean over the same tokens of -log of the probability of the answer's token; exp of it is the
  // perplexity. Known where mean_kl is. Both are NaN when a prompt has a fault.
  double mean_loss = 0;
  std::vector<PromptFault> faults;  // these prompts are part of the total
  double tokens_per_second = 0;     // decoded tokens of all prompts over the time of decode steps
  std::int64_t state_bytes = 0;     // boundary states, windows and metadata of one sequence
};

// "int8" and "step" of a format whose canonical text is "int8:step".
std::string state_name(const runtime::StateFormat& format);
std::string_view policy_name(const runtime::StateFormat& format);

// Evaluates what the log does not hold yet, faults included; rows of finished files in the order
// files x states. Stops within a step, with the rows of the files that are complete, when *cancel
// becomes true; a batch that was under way leaves nothing in the log. Throws runtime::Error.
//
// A prompt is right when greedy generation gives the answer, as tasks.h compares. Feeding the
// answer and predicting each of its tokens and then the end is the same as generating it, bit by
// bit, so only prompts where a prediction differs are generated a second time.
std::vector<EvaluationRow> evaluate(const runtime::Model& model,
                                    const runtime::Tokenizer& tokenizer,
                                    const runtime::Threads& threads,
                                    const std::vector<TaskFile>& files,
                                    const EvaluationOptions& options, ResultsLog& log);

// -log of the probability of `token` in nats of a distribution given as logits, in FP64.
double token_loss(std::span<const float> logits, std::size_t token);

// KL(p || q) in nats of two distributions given as logits, in FP64; NaN when a logit is NaN.
double divergence(std::span<const float> p_logits, std::span<const float> q_logits);

}  // namespace leapquant::lab

#endif  // LEAPQUANT_LAB_EVALUATION_H_

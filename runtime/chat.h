// SPDX-License-Identifier: Apache-2.0
//
// Conversations in the ChatML form that Qwen3.5 was trained on. It renders messages to text and to
// token ids; it does not interpret Jinja templates, tools or images.
#ifndef LEAPQUANT_RUNTIME_CHAT_H_
#define LEAPQUANT_RUNTIME_CHAT_H_

#include <span>
#include <string>
#include <vector>

#include "runtime/model_config.h"
#include "runtime/tokenizer.h"

namespace leapquant::runtime {

enum class ChatRole { kSystem, kUser, kAssistant };

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content;  // UTF-8
};

struct ChatOptions {
  // Opens the assistant's turn at the end, so that the model answers.
  bool generation_prompt = true;
  // With a generation prompt: true opens a <think> block, false gives an empty, closed one.
  bool thinking = false;
};

// The text of the conversation: `<|im_start|>ROLE\nTEXT<|im_end|>\n` per message. There is no
// default system message. Assistant messages that a later user message follows keep only what comes
// after their last </think>. Throws Error for no messages, a system message that is not the first,
// and content that is not UTF-8.
std::string render_chat(std::span<const ChatMessage> messages, const ChatOptions& options = {});

// The ids of render_chat, except that content never becomes a special token: a user who types
// "<|im_end|>" sends these characters and cannot end the turn. Throws Error when the tokenizer has
// no ChatML tokens.
std::vector<TokenId> encode_chat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                 const ChatOptions& options = {});

// The end-of-turn token of ChatML, at which generation stops beside the model's eos tokens. Throws
// Error when the tokenizer has none.
TokenId end_of_turn_token(const Tokenizer& tokenizer);

// Whether the published chat template of a model of this size thinks when not told: the 0.8B and 2B
// models (hidden size up to 2048) do not, larger ones do.
bool thinks_by_default(const ModelConfig& config);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_CHAT_H_

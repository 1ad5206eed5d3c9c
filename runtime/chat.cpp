// SPDX-License-Identifier: Apache-2.0
//
// See chat.h.
#include "runtime/chat.h"

#include <optional>
#include <string_view>

#include "runtime/error.h"
#include "runtime/unicode.h"

namespace leapquant::runtime {
namespace {

constexpr std::string_view kStart = "<|im_start|>";
constexpr std::string_view kEnd = "<|im_end|>";

std::string_view role_name(ChatRole role) {
  switch (role) {
    case ChatRole::kSystem:
      return "system";
    case ChatRole::kUser:
      return "user";
    case ChatRole::kAssistant:
      return "assistant";
  }
  throw Error("A chat message has an unknown role.");
}

// A conversation as text between markers: marker, text, marker, text, ... Each text ends where a
// marker stands, so encoding part by part gives the ids of the whole.
struct Part {
  std::string_view marker;
  std::string text;
};

std::string_view answer_only(std::string_view content) {
  constexpr std::string_view kThinkEnd = "</think>";
  const std::size_t at = content.rfind(kThinkEnd);
  if (at == content.npos) return content;
  content.remove_prefix(at + kThinkEnd.size());
  const std::size_t text = content.find_first_not_of('\n');
  content.remove_prefix(text == content.npos ? content.size() : text);
  return content;
}

std::vector<Part> parts_of(std::span<const ChatMessage> messages, const ChatOptions& options) {
  if (messages.empty()) throw Error("A chat needs at least one message.");
  std::size_t last_user = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == ChatRole::kUser) last_user = i;
  }
  std::vector<Part> parts;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    require_utf8(message.content, "Chat message " + std::to_string(i));
    if (message.role == ChatRole::kSystem && i != 0) {
      throw Error("Chat message " + std::to_string(i) +
                  " is a system message; only the first message may be one.");
    }
    const bool past_answer = message.role == ChatRole::kAssistant && i < last_user;
    std::string text(role_name(message.role));
    text += '\n';
    text += past_answer ? answer_only(message.content) : std::string_view(message.content);
    parts.push_back({kStart, std::move(text)});
    parts.push_back({kEnd, "\n"});
  }
  if (options.generation_prompt) {
    parts.push_back(
        {kStart, options.thinking ? "assistant\n<think>\n" : "assistant\n<think>\n\n</think>\n\n"});
  }
  return parts;
}

TokenId require_token(const Tokenizer& tokenizer, std::string_view text) {
  if (const std::optional<TokenId> id = tokenizer.find(text)) return *id;
  throw Error("The tokenizer has no token " + in_quotes(text) +
              "; a chat needs a model that was trained on ChatML.");
}

}  // namespace

std::string render_chat(std::span<const ChatMessage> messages, const ChatOptions& options) {
  std::string text;
  for (const Part& part : parts_of(messages, options)) {
    text += part.marker;
    text += part.text;
  }
  return text;
}

std::vector<TokenId> encode_chat(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                 const ChatOptions& options) {
  const TokenId start = require_token(tokenizer, kStart);
  const TokenId end = require_token(tokenizer, kEnd);
  std::vector<TokenId> ids;
  for (const Part& part : parts_of(messages, options)) {
    ids.push_back(part.marker == kStart ? start : end);
    const std::vector<TokenId> text = tokenizer.encode(part.text, SpecialTokens::kAsText);
    ids.insert(ids.end(), text.begin(), text.end());
  }
  return ids;
}

TokenId end_of_turn_token(const Tokenizer& tokenizer) { return require_token(tokenizer, kEnd); }

bool thinks_by_default(const ModelConfig& config) { return config.hidden_size > 2048; }

}  // namespace leapquant::runtime

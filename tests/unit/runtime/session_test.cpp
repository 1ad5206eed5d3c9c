// SPDX-License-Identifier: Apache-2.0
//
// Sessions: a resumed run continues bit by bit, and files that are not exactly what was written are
// refused without a trace.
#include "runtime/session.h"

#include <fstream>
#include <iterator>

#include "runtime/generate.h"
#include "unit/runtime/tiny_model.h"

namespace leapquant::runtime {
namespace {

Tokenizer byte_tokenizer() {
  return Tokenizer::load(std::filesystem::path(LEAPQUANT_SOURCE_DIR) / "models" / "gdn-16m");
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class SessionTest : public testing::Test {
 protected:
  std::unique_ptr<Batch> make_batch(const std::string& state,
                                    const BatchOptions& options = {}) const {
    StateOptions state_options;
    state_options.state = state;
    return std::make_unique<Batch>(model, resolve_state(state_options, model.config()), threads,
                                   options);
  }
  static GenerateOptions sampled() {
    GenerateOptions options;
    options.stop_at_end_tokens = false;
    options.sampling.temperature = 0.9;
    options.sampling.repetition_penalty = 1.1;
    options.sampling.presence_penalty = 0.2;
    return options;
  }
  // Generates max_tokens tokens after the prompt and saves; returns the completion.
  Completion run(Batch& batch, const Prompt& prompt, const std::filesystem::path& path) const {
    GenerateEvents events;
    events.finished = [&](const Completion& completion, SequenceId sequence) {
      save_session(path, batch, sequence, completion.mark);
    };
    return generate(batch, tokenizer, std::span(&prompt, 1), sampled(), events)[0];
  }
  Prompt prompt(std::int64_t max_tokens) const {
    Prompt result;
    result.tokens = random_tokens(37, 5);
    result.max_tokens = max_tokens;
    result.seed = 7;
    return result;
  }

  TinyModel tiny;
  Model model = tiny.load();
  Threads threads{1};
  Tokenizer tokenizer = byte_tokenizer();
  TemporaryFolder folder;
};

TEST_F(SessionTest, ResumesBitByBit) {
  for (const std::string state :
       {"fp32", "int8", "int4+", "bf16:window=16", "int6:step", "mix(int8@1.0&0.2,int4-compact)"}) {
    for (const KvType kv_type : {KvType::kFp32, KvType::kBf16}) {
      BatchOptions options;
      options.kv_type = kv_type;
      const std::filesystem::path whole_path = folder.path() / "whole";
      const std::filesystem::path first_path = folder.path() / "first";
      const std::filesystem::path second_path = folder.path() / "second";
      auto batch = make_batch(state, options);
      const Completion whole = run(*batch, prompt(60), whole_path);
      const Completion first = run(*batch, prompt(23), first_path);
      // Another batch, as another process would have.
      auto other = make_batch(state, options);
      const SessionFile session(first_path);
      Prompt rest;
      rest.session = &session;
      rest.max_tokens = 37;
      rest.seed = 7;
      const Completion second = run(*other, rest, second_path);
      std::vector<TokenId> tokens = first.tokens;
      tokens.insert(tokens.end(), second.tokens.begin(), second.tokens.end());
      EXPECT_EQ(tokens, whole.tokens) << state;
      EXPECT_EQ(bytes_of(second_path), bytes_of(whole_path)) << state;
    }
  }
}

TEST_F(SessionTest, TakesMoreText) {
  auto batch = make_batch("int8");
  const std::filesystem::path path = folder.path() / "session";
  const Completion first = run(*batch, prompt(10), path);
  const SessionFile session(path);
  EXPECT_EQ(session.contents().position, 37 + 9);
  EXPECT_EQ(session.contents().mark.tokens, first.mark.tokens);
  EXPECT_EQ(session.contents().mark.prompt_tokens, 37);
  EXPECT_EQ(session.contents().mark.draws, 10u);
  Prompt more;
  more.session = &session;
  more.tokens = random_tokens(8, 9);
  more.max_tokens = 4;
  const Completion second = generate(*batch, tokenizer, std::span(&more, 1), sampled())[0];
  EXPECT_EQ(second.tokens.size(), 4u);
  EXPECT_EQ(second.prompt_tokens, 9);  // the token that was sampled last, and the new text
  EXPECT_EQ(second.mark.prompt_tokens, 37 + 10 + 8);
}

TEST_F(SessionTest, AnyChangedByteIsNoticed) {
  auto batch = make_batch("int4+");
  const std::filesystem::path path = folder.path() / "session";
  run(*batch, prompt(5), path);
  std::string bytes = bytes_of(path);
  ASSERT_NO_THROW(SessionFile{path});
  std::vector<std::uint64_t> aligned(bytes.size() / 8 + 2);
  auto* data = reinterpret_cast<std::byte*>(aligned.data());
  std::memcpy(data, bytes.data(), bytes.size());
  const std::span<const std::byte> file(data, bytes.size());
  ASSERT_NO_THROW(parse_session(file, "file"));
  for (std::size_t at = 0; at < bytes.size(); at += at < 700 ? 1 : 37) {
    data[at] ^= std::byte{1};
    EXPECT_THROW(parse_session(file, "file"), Error) << "byte " << at;
    data[at] ^= std::byte{1};
  }
  for (std::size_t size = 0; size < bytes.size(); size += size < 700 ? 1 : 41) {
    EXPECT_THROW(parse_session(file.first(size), "file"), Error) << "size " << size;
  }
  const std::span<const std::byte> longer(data, bytes.size() + 1);
  EXPECT_THROW(parse_session(longer, "file"), Error);
}

TEST_F(SessionTest, OtherModelsFormatsAndCachesAreRefused) {
  auto batch = make_batch("int8");
  const std::filesystem::path path = folder.path() / "session";
  run(*batch, prompt(5), path);
  const SessionFile session(path);
  Prompt rest;
  rest.session = &session;
  rest.max_tokens = 3;
  const auto resume = [&](Batch& other) { generate(other, tokenizer, std::span(&rest, 1), {}); };
  EXPECT_ERROR(resume(*make_batch("int6")), "--state 'int8' alone");
  BatchOptions options;
  options.kv_type = KvType::kBf16;
  EXPECT_ERROR(resume(*make_batch("int8", options)), "KV cache in fp32");
  TinyOptions other_options;
  other_options.seed = 3;
  const TinyModel other_tiny(other_options);
  const Model other_model = other_tiny.load();
  Batch other(other_model, batch->format(), threads);
  EXPECT_ERROR(resume(other), "another model");
}

TEST_F(SessionTest, ADamagedStateBehindGoodChecksumsIsRefused) {
  auto batch = make_batch("int8");
  const std::filesystem::path path = folder.path() / "session";
  run(*batch, prompt(5), path);
  const SessionFile session(path);
  SessionContents contents = session.contents();
  std::vector<std::byte> blob(contents.blobs[1].begin(), contents.blobs[1].end());
  blob[blob.size() / 2] ^= std::byte{16};
  contents.blobs[1] = blob;
  const std::filesystem::path damaged_path = folder.path() / "damaged";
  write_session(damaged_path, contents);
  const SessionFile damaged(damaged_path);
  Prompt rest;
  rest.session = &damaged;
  rest.max_tokens = 3;
  EXPECT_ERROR(generate(*batch, tokenizer, std::span(&rest, 1), {}), "linear layer 1");
  EXPECT_EQ(batch->num_open(), 0);
}

TEST_F(SessionTest, WhatCannotBeWrittenLeavesNothing) {
  auto batch = make_batch("int8");
  const std::size_t before = folder.entries();
  EXPECT_THROW(run(*batch, prompt(5), folder.path() / "no" / "such" / "folder"), Error);
  EXPECT_EQ(folder.entries(), before);
  EXPECT_EQ(batch->num_open(), 0);
}

TEST_F(SessionTest, AnotherVersionIsNamed) {
  auto batch = make_batch("int8");
  const std::filesystem::path path = folder.path() / "session";
  run(*batch, prompt(5), path);
  std::string bytes = bytes_of(path);
  bytes[8] = 2;
  folder.write("session", bytes);
  EXPECT_ERROR(SessionFile{path}, "version 2");
  EXPECT_ERROR(SessionFile{folder.write("text", "hello")}, "5 bytes");
}

}  // namespace
}  // namespace leapquant::runtime

// SPDX-License-Identifier: Apache-2.0
//
// A sequence on the disk: tokens, KV cache, convolution states and recurrent states in one file
// that another process resumes bit by bit. Layout of the file: docs/FORMAT.md, "Session file". The
// recurrent states are blobs of the library (leapquant_save), whose format is its own.
#ifndef LEAPQUANT_RUNTIME_SESSION_H_
#define LEAPQUANT_RUNTIME_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/batch.h"
#include "runtime/kv_cache.h"
#include "runtime/mapped_file.h"
#include "runtime/tokenizer.h"

namespace leapquant::runtime {

// What a sequence is beside its memory.
struct SessionMark {
  std::vector<TokenId> tokens;     // all, in order; those past the position are not fed yet
  std::int64_t prompt_tokens = 0;  // how many of them are the prompt, the rest were generated
  std::uint64_t draws = 0;         // uniform draws that the sampler has made
};

// The contents of a session, views or values; blobs and kv may point into a SessionFile.
struct SessionContents {
  std::uint64_t fingerprint = 0;  // of the model
  std::string state;              // canonical text of the format
  std::int64_t position = 0;      // tokens fed
  SessionMark mark;
  std::int32_t convolution_inputs = 0;  // inputs kept per channel: kernel - 1
  std::int32_t convolution_channels = 0;
  KvShape kv_shape;
  std::span<const float> convolution;             // [linear layers, convolution_inputs, channels]
  std::span<const std::byte> kv;                  // KvCache::pack
  std::vector<std::span<const std::byte>> blobs;  // [linear layers]
};

// A session file, mapped and fully verified: magic, version, sizes, checksums of header and
// sections, nothing before, between or behind them. What the blobs hold is verified by the library
// when it loads them (leapquant_inspect tells).
class SessionFile {
 public:
  explicit SessionFile(const std::filesystem::path& path);
  const SessionContents& contents() const { return contents_; }
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  MappedFile file_;
  SessionContents contents_;
};

// Whether the bytes begin as those of a session; what follows may be anything.
bool begins_as_session(std::span<const std::byte> bytes);

// Parses the bytes of a whole file, which must be 16-byte aligned; views point into them. Throws
// Error with the reason for anything that write_session does not write.
SessionContents parse_session(std::span<const std::byte> bytes, std::string_view label);

// Writes a file completely or not at all. Throws Error.
void write_session(const std::filesystem::path& path, const SessionContents& contents);

// Saves an open sequence. mark.tokens must begin with the position(sequence) tokens that were fed.
void save_session(const std::filesystem::path& path, const Batch& batch, SequenceId sequence,
                  const SessionMark& mark);

// Throws Error unless the session was saved by this model, in the batch's state format and KV type.
void require_session_fits(const SessionFile& session, const Batch& batch);
// Fills a sequence that was opened and never fed. On failure the sequence must be closed.
void restore_session(const SessionFile& session, Batch& batch, SequenceId sequence);

}  // namespace leapquant::runtime

#endif  // LEAPQUANT_RUNTIME_SESSION_H_

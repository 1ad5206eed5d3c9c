// SPDX-License-Identifier: Apache-2.0
//
// Recurrent states in files: blobs of the library (one layer each) and sessions (all layers of a
// sequence). Reading, converting between formats and comparing; no model is needed.
#ifndef LEAPQUANT_TOOL_SAVED_STATES_H_
#define LEAPQUANT_TOOL_SAVED_STATES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "leapquant/leapquant.h"
#include "runtime/mapped_file.h"
#include "runtime/session.h"
#include "runtime/state_options.h"

namespace leapquant::tool {

// What a verified blob says of itself.
struct BlobFacts {
  leapquant_saved_info info{};
  runtime::LayerFormat format;  // as saved
};
// Verifies all checksums. label begins the sentence. Throws runtime::Error.
BlobFacts inspect_blob(std::span<const std::byte> blob, const std::string& label);

// A file with one blob, or a session; verified when opened, as is every blob in it.
class SavedStates {
 public:
  explicit SavedStates(const std::string& path);

  const std::string& path() const { return path_; }
  // nullptr for a blob.
  const runtime::SessionContents* session() const {
    return session_ ? &session_->contents() : nullptr;
  }
  const std::vector<std::span<const std::byte>>& blobs() const { return blobs_; }
  const std::vector<BlobFacts>& facts() const { return facts_; }

 private:
  std::string path_;
  runtime::MappedFile file_;
  std::optional<runtime::SessionFile> session_;
  std::vector<std::span<const std::byte>> blobs_;
  std::vector<BlobFacts> facts_;
};

// The state that a blob stands for, records applied: FP32 [num_v_heads, head_k_dim, head_v_dim].
std::vector<float> matrices_of(std::span<const std::byte> blob, const BlobFacts& facts);
// The same state in another format, with an empty window, as a blob.
std::vector<std::byte> convert_blob(std::span<const std::byte> blob, const BlobFacts& facts,
                                    const runtime::LayerFormat& format);

// "int8", "mix of 2 formats", for people.
std::string format_text(const runtime::LayerFormat& format);

}  // namespace leapquant::tool

#endif  // LEAPQUANT_TOOL_SAVED_STATES_H_

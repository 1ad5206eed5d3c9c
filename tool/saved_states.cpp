// SPDX-License-Identifier: Apache-2.0
//
// See saved_states.h.
#include "tool/saved_states.h"

#include <fmt/format.h>

#include "lab/format_layer.h"
#include "runtime/error.h"

namespace leapquant::tool {
namespace {

constexpr std::int32_t kMaxHeads = 65536;

// A layout of the saved shape in some format, with memory of one slot.
class OneSlot {
 public:
  OneSlot(const BlobFacts& facts, const runtime::LayerFormat& format)
      : layout_(shape_of(facts), format),
        memory_(layout_, facts.info.shape.num_v_heads, 1),
        workspace_(layout_, 1, 1) {}

  const leapquant_layout* layout() const { return layout_.get(); }
  const leapquant_pool& pool() const { return memory_.pool(); }
  leapquant_launch launch() const { return workspace_.launch(nullptr); }
  std::int32_t window_slot() const { return memory_.pool().num_window_slots > 0 ? 0 : -1; }

 private:
  static leapquant_shape shape_of(const BlobFacts& facts) {
    if (facts.info.shape.decay == LEAPQUANT_DECAY_CONSTANT) {
      throw runtime::Error(
          "The saved state belongs to a layer with constant decays, which the file does not hold; "
          "it can be verified and inspected here, but not converted or compared.");
    }
    return facts.info.shape;
  }

  runtime::StateLayout layout_;
  lab::PoolMemory memory_;
  lab::Workspace workspace_;
};

leapquant_transfer_args transfer(const std::int32_t* slot, const std::int32_t* window_slot,
                                 const std::int32_t* position, float* matrices,
                                 std::int32_t* status) {
  leapquant_transfer_args args = LEAPQUANT_INIT(leapquant_transfer_args);
  args.batch = 1;
  args.state_slots = slot;
  args.window_slots = window_slot;
  args.positions = position;
  args.matrices = matrices;
  args.type = LEAPQUANT_FP32;
  args.order = LEAPQUANT_KV;
  args.status = status;
  return args;
}

}  // namespace

BlobFacts inspect_blob(std::span<const std::byte> blob, const std::string& label) {
  BlobFacts facts;
  facts.info = LEAPQUANT_INIT(leapquant_saved_info);
  facts.format.head_format.resize(kMaxHeads);
  if (leapquant_inspect(blob.data(), blob.size(), &facts.info, facts.format.head_format.data(),
                        kMaxHeads) != LEAPQUANT_OK) {
    throw runtime::Error(label + " is no sound saved state: " + leapquant_last_error() + ".");
  }
  facts.format.head_format.resize(static_cast<std::size_t>(facts.info.shape.num_v_heads));
  facts.format.formats.assign(facts.info.formats, facts.info.formats + facts.info.num_formats);
  return facts;
}

SavedStates::SavedStates(const std::string& path) : path_(path), file_(path) {
  const std::string label = "The file " + runtime::in_quotes(path, 400);
  leapquant_saved_info info = LEAPQUANT_INIT(leapquant_saved_info);
  const leapquant_status status =
      leapquant_inspect(file_.bytes().data(), file_.bytes().size(), &info, nullptr, 0);
  if (file_.bytes().empty() ||
      (status == LEAPQUANT_BAD_MAGIC && !runtime::begins_as_session(file_.bytes()))) {
    throw runtime::Error(label +
                         " begins neither as a saved state does nor as a session; name one that "
                         "leapquant wrote, whole.");
  }
  if (status == LEAPQUANT_BAD_MAGIC) {
    session_.emplace(path);
    blobs_ = session_->contents().blobs;
    for (std::size_t layer = 0; layer < blobs_.size(); ++layer) {
      facts_.push_back(
          inspect_blob(blobs_[layer], fmt::format("{}, recurrent layer {},", label, layer)));
    }
    return;
  }
  facts_.push_back(inspect_blob(file_.bytes(), label));
  blobs_.push_back(file_.bytes());
  const auto expected = static_cast<std::size_t>(facts_.front().info.blob_bytes);
  if (file_.bytes().size() != expected) {
    throw runtime::Error(fmt::format("{} has {} bytes behind the saved state of {}.", label,
                                     file_.bytes().size() - expected, expected));
  }
}

std::vector<float> matrices_of(std::span<const std::byte> blob, const BlobFacts& facts) {
  const OneSlot slot(facts, facts.format);
  const leapquant_shape& shape = facts.info.shape;
  const std::int32_t index = 0;
  const std::int32_t window = slot.window_slot();
  std::int32_t position = 0;
  std::int32_t status = 0;
  lab::require_ok(leapquant_load(slot.layout(), &slot.pool(), 0, window, facts.info.fingerprint,
                                 blob.data(), blob.size(), &position),
                  "Loading a saved state");
  std::vector<float> matrices(static_cast<std::size_t>(shape.num_v_heads) *
                              static_cast<std::size_t>(shape.head_k_dim) *
                              static_cast<std::size_t>(shape.head_v_dim));
  const leapquant_transfer_args args =
      transfer(&index, &window, &position, matrices.data(), &status);
  const leapquant_launch launch = slot.launch();
  lab::require_ok(leapquant_export(slot.layout(), &slot.pool(), &args, &launch),
                  "Reading a saved state");
  return matrices;
}

std::vector<std::byte> convert_blob(std::span<const std::byte> blob, const BlobFacts& facts,
                                    const runtime::LayerFormat& format) {
  std::vector<float> matrices = matrices_of(blob, facts);
  const OneSlot slot(facts, format);
  const std::int32_t index = 0;
  const std::int32_t window = slot.window_slot();
  const std::int32_t position = facts.info.position;
  std::int32_t status = 0;
  const leapquant_launch launch = slot.launch();
  lab::require_ok(
      leapquant_reset(slot.layout(), &slot.pool(), 1, &index, &window, &position, &launch),
      "Clearing a state");
  const leapquant_transfer_args args =
      transfer(&index, &window, &position, matrices.data(), &status);
  lab::require_ok(leapquant_import(slot.layout(), &slot.pool(), &args, &launch),
                  "Converting a saved state");
  std::size_t bytes = 0;
  lab::require_ok(leapquant_saved_bytes(slot.layout(), &slot.pool(), 0, window, position, &bytes),
                  "Sizing a saved state");
  std::vector<std::byte> result(bytes);
  std::size_t written = 0;
  lab::require_ok(leapquant_save(slot.layout(), &slot.pool(), 0, window, position,
                                 facts.info.fingerprint, result.data(), bytes, &written),
                  "Saving a state");
  result.resize(written);
  return result;
}

std::string format_text(const runtime::LayerFormat& format) {
  std::string text;
  for (const leapquant_format& one : format.formats) {
    char name[256];
    if (leapquant_format_to_string(&one, name, sizeof(name)) != LEAPQUANT_OK) continue;
    text += (text.empty() ? "" : " + ") + std::string(name);
  }
  return text;
}

}  // namespace leapquant::tool

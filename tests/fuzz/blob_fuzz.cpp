// SPDX-License-Identifier: Apache-2.0
//
// Saved states from outside: inspect and load take any bytes. Half of the calls get their checksums
// repaired first, since a mutation that a checksum catches tells nothing about what lies behind it.
// What loads must save again as it was and decode without harm.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "capi/blob.h"
#include "leapquant/leapquant.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

using namespace leapquant::capi;

uint8_t* at(std::vector<uint8_t>& bytes, size_t offset) { return bytes.data() + offset; }

// Recomputes the checksums of whatever sections the prefix claims, as far as they exist.
void repair(std::vector<uint8_t>& bytes) {
  if (bytes.size() < prefix::kBytes) return;
  const size_t header = load_number<uint32_t>(at(bytes, prefix::kHeaderBytes));
  const uint64_t states = load_number<uint64_t>(at(bytes, prefix::kStatesBytes));
  const uint64_t window = load_number<uint64_t>(at(bytes, prefix::kWindowBytes));
  const size_t size = bytes.size();
  if (header >= prefix::kBytes && header <= size && states <= size - header &&
      window <= size - header - states) {
    store_number(at(bytes, prefix::kTablesChecksum),
                 checksum(at(bytes, prefix::kBytes), header - prefix::kBytes));
    store_number(at(bytes, prefix::kStatesChecksum), checksum(at(bytes, header), states));
    store_number(at(bytes, prefix::kWindowChecksum), checksum(at(bytes, header + states), window));
  }
  store_number(at(bytes, prefix::kPrefixChecksum), prefix_checksum(bytes.data()));
}

// A layout of the blob's own shape and formats, with one slot.
struct Layer {
  explicit Layer(const leapquant_saved_info& info, const std::vector<uint8_t>& head_format,
                 const std::vector<float>& constants) {
    leapquant_shape shape = info.shape;
    if (shape.decay == LEAPQUANT_DECAY_CONSTANT) shape.constant_log_decay = constants.data();
    require(leapquant_layout_create(&shape, info.formats, info.num_formats, head_format.data(),
                                    LEAPQUANT_CPU, &layout) == LEAPQUANT_OK);
    leapquant_sizes sizes = LEAPQUANT_INIT(leapquant_sizes);
    require(leapquant_bytes_per_slot(layout, &sizes) == LEAPQUANT_OK);
    require(leapquant_slots_create(layout, 1,
                                   sizes.state_bytes + sizes.window_bytes + sizes.metadata_bytes,
                                   &slots) == LEAPQUANT_OK);
    require(leapquant_slots_pool(slots, 0, &pool) == LEAPQUANT_OK);
    require(leapquant_slots_acquire(slots, &state, &window) == LEAPQUANT_OK);
  }
  ~Layer() {
    leapquant_slots_destroy(slots);
    leapquant_layout_destroy(layout);
  }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  leapquant_layout* layout = nullptr;
  leapquant_slots* slots = nullptr;
  leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
  int32_t state = -1;
  int32_t window = -1;
};

void export_states(const Layer& layer, const leapquant_saved_info& info, int32_t position) {
  const size_t bytes = (leapquant_workspace_bytes(layer.layout, 1, 1) + 63) / 64 * 64;
  const std::unique_ptr<void, void (*)(void*)> workspace(std::aligned_alloc(64, bytes), std::free);
  leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
  launch.workspace = workspace.get();
  launch.workspace_bytes = bytes;
  std::vector<float> matrices(static_cast<size_t>(info.shape.num_v_heads) *
                              static_cast<size_t>(info.shape.head_k_dim) *
                              static_cast<size_t>(info.shape.head_v_dim));
  int32_t status = -1;
  leapquant_transfer_args args = LEAPQUANT_INIT(leapquant_transfer_args);
  args.batch = 1;
  args.state_slots = &layer.state;
  args.window_slots = &layer.window;
  args.positions = &position;
  args.matrices = matrices.data();
  args.status = &status;
  require(leapquant_export(layer.layout, &layer.pool, &args, &launch) == LEAPQUANT_OK);
}

void read_blob(const std::vector<uint8_t>& bytes) {
  leapquant_saved_info info = LEAPQUANT_INIT(leapquant_saved_info);
  const uint8_t nothing = 0;
  const void* data = bytes.empty() ? &nothing : bytes.data();
  if (leapquant_inspect(data, bytes.size(), &info, nullptr, 0) != LEAPQUANT_OK) {
    require(leapquant_last_error()[0] != '\0');
    return;
  }
  // A mutation may ask for a large layer; a slot of a few MiB shows the same faults.
  if (info.blob_bytes > (1 << 20)) return;
  std::vector<uint8_t> head_format(static_cast<size_t>(info.shape.num_v_heads));
  require(leapquant_inspect(data, bytes.size(), &info, head_format.data(),
                            info.shape.num_v_heads) == LEAPQUANT_OK);
  const HeaderLayout header =
      header_layout(info.num_formats, info.shape.num_v_heads, info.shape.decay == 1);
  std::vector<float> constants(static_cast<size_t>(info.shape.num_v_heads));
  if (info.shape.decay == LEAPQUANT_DECAY_CONSTANT) {
    std::memcpy(constants.data(), bytes.data() + header.constant_decays, 4 * constants.size());
  }
  const Layer layer(info, head_format, constants);
  int32_t position = -1;
  require(leapquant_load(layer.layout, &layer.pool, layer.state, layer.window, info.fingerprint,
                         data, bytes.size(), &position) == LEAPQUANT_OK);
  require(position == info.position);
  size_t again_bytes = 0;
  require(leapquant_saved_bytes(layer.layout, &layer.pool, layer.state, layer.window, position,
                                &again_bytes) == LEAPQUANT_OK);
  require(again_bytes == static_cast<size_t>(info.blob_bytes));
  std::vector<uint8_t> again(again_bytes);
  size_t written = 0;
  require(leapquant_save(layer.layout, &layer.pool, layer.state, layer.window, position,
                         info.fingerprint, again.data(), again.size(), &written) == LEAPQUANT_OK);
  require(std::memcmp(again.data(), bytes.data(), again.size()) == 0);
  export_states(layer, info, position);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> bytes(data, data + size);
  read_blob(bytes);
  repair(bytes);
  read_blob(bytes);
  return 0;
}

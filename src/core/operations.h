// SPDX-License-Identifier: Apache-2.0
//
// What a backend offers: a table of functions over the public argument structs. The door has
// checked every pointer, stride, slot and position that the host can see; a backend finds the
// faults of single sequences, writes them to the status array and returns OK (or a device or
// internal error).
#pragma once

#include <cstddef>

#include "core/layout.h"

namespace leapquant {

// Memory of a device, where a backend's pools do not lie in the host's. Copies wait for the device;
// failures give a status and a sentence.
struct DeviceMemory {
  Status (*read)(void* host, const void* device, size_t bytes, Sentence* sentence);
  Status (*write)(void* device, const void* host, size_t bytes, Sentence* sentence);
  Status (*clear)(void* device, size_t bytes, Sentence* sentence);
  Status (*wait)(void* stream, Sentence* sentence);
  Status (*allocate)(size_t bytes, void** device, Sentence* sentence);
  void (*release)(void* device);
  // One head's boundary state [head.bytes] in host memory, between the order in which the device
  // keeps its codes and the canonical one of docs/FORMAT.md.
  void (*to_canonical)(const BoundaryLayout& head, const std::byte* from, std::byte* to);
  void (*from_canonical)(const BoundaryLayout& head, const std::byte* from, std::byte* to);
};

struct Backend {
  const char* name;  // "cpu", "reference", "cuda"
  leapquant_device device;
  const char* (*target)();  // SIMD target or device, for reports
  // OK, or UNSUPPORTED with the reason, which begins with the backend's name.
  Status (*accepts)(const Layout& layout, Sentence* why_not);
  // Bytes of scratch per worker, and per sequence of a call.
  size_t (*workspace_per_worker)(const Layout& layout);
  size_t (*workspace_per_sequence)(const Layout& layout);

  Status (*decode)(const Layout&, const leapquant_pool&, const leapquant_decode_args&,
                   const leapquant_launch&);
  Status (*prefill)(const Layout&, const leapquant_pool&, const leapquant_prefill_args&,
                    const leapquant_launch&);
  Status (*fold)(const Layout&, const leapquant_pool&, const leapquant_fold_args&,
                 const leapquant_launch&);
  Status (*export_states)(const Layout&, const leapquant_pool&, const leapquant_transfer_args&,
                          const leapquant_launch&);
  Status (*import_states)(const Layout&, const leapquant_pool&, const leapquant_transfer_args&,
                          const leapquant_launch&);
  Status (*copy)(const Layout&, const leapquant_pool&, int32_t batch, const int32_t* source_states,
                 const int32_t* source_windows, const int32_t* destination_states,
                 const int32_t* destination_windows, const leapquant_launch&);
  Status (*reset)(const Layout&, const leapquant_pool&, int32_t batch, const int32_t* states,
                  const int32_t* windows, const int32_t* positions, const leapquant_launch&);

  // Null: pools and arrays lie in host memory. Otherwise copy and reset leave rows at fault alone
  // and a leapquant_status per row, int32_t [batch], at the start of the sequences' scratch.
  const DeviceMemory* memory = nullptr;
};

// Runs tasks through the caller's runner, or one after another on the calling thread.
inline void run_tasks(const leapquant_launch& launch, int32_t num_tasks, leapquant_task task,
                      void* argument) {
  if (launch.runner != nullptr) {
    if (num_tasks > 0) launch.runner->run(launch.runner->context, num_tasks, task, argument);
    return;
  }
  for (int32_t i = 0; i < num_tasks; ++i) task(argument, i, 0);
}

// Workspace: workers' scratch first, each 64-byte aligned, then the sequences' scratch.
inline std::byte* worker_scratch(const leapquant_launch& launch, size_t per_worker,
                                 int32_t worker) {
  return static_cast<std::byte*>(launch.workspace) +
         (per_worker + 63) / 64 * 64 * static_cast<size_t>(worker);
}
inline std::byte* sequence_scratch(const leapquant_launch& launch, size_t per_worker) {
  return worker_scratch(launch, per_worker,
                        launch.runner != nullptr ? launch.runner->num_workers : 1);
}

}  // namespace leapquant

// SPDX-License-Identifier: Apache-2.0
//
// The tables of the CUDA backends: from the public structs to calls of the kernels. Every pointer
// of a call is the device's; nothing here reads through one, and nothing waits for the device.
#include "cuda/backend.h"

#include <cstdio>

#include "cuda/device_memory.h"
#include "cuda/operations.cuh"
#ifdef LEAPQUANT_CUDA_128
#include "cuda/decode_128.cuh"
#include "cuda/plain_128.cuh"
#endif

namespace leapquant::cuda {
namespace {

Status status_of(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return LEAPQUANT_OK;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoKernelImageForDevice:
      return LEAPQUANT_DEVICE_UNAVAILABLE;
    default:
      return LEAPQUANT_INTERNAL;
  }
}

cudaStream_t stream_of(const leapquant_launch& launch) {
  return static_cast<cudaStream_t>(launch.stream);
}

// The current device at the first question: its name or what keeps it from serving, and what helps.
struct Device {
  char name[48] = "no device";
  char refusal[256] = {0};
  int major = 0;
  int minor = 0;

  void refuse(cudaError_t error) {
    constexpr int kNeeded = CUDART_VERSION;
    int driver = 0;
    cudaDriverGetVersion(&driver);
    if (driver == 0) {
      std::snprintf(refusal, sizeof(refusal),
                    "no CUDA device can be used: there is no NVIDIA driver; install one for CUDA "
                    "%d.%d or later",
                    kNeeded / 1000, kNeeded % 1000 / 10);
    } else if (error == cudaErrorInsufficientDriver) {
      std::snprintf(refusal, sizeof(refusal),
                    "no CUDA device can be used: the NVIDIA driver is for CUDA %d.%d, but the "
                    "library needs %d.%d; update the driver",
                    driver / 1000, driver % 1000 / 10, kNeeded / 1000, kNeeded % 1000 / 10);
    } else if (error == cudaErrorNoDevice || error == cudaErrorInvalidDevice) {
      std::snprintf(refusal, sizeof(refusal),
                    "no CUDA device can be used: the NVIDIA driver shows none to this process; see "
                    "nvidia-smi and CUDA_VISIBLE_DEVICES");
    } else {
      std::snprintf(refusal, sizeof(refusal), "no CUDA device can be used: %s",
                    cudaGetErrorString(error));
    }
    cudaGetLastError();  // the error is told; it must not come up again
  }

  // The library has no code for this device.
  void refuse_architecture(cudaError_t error) {
    char built[64] = {0};
    int used = 0;
    for (const int architecture : {__CUDA_ARCH_LIST__}) {
      const auto room = sizeof(built) - static_cast<size_t>(used);
      const int added = std::snprintf(built + used, room, "%s%d.%d", used > 0 ? ", " : "",
                                      architecture / 100, architecture % 100 / 10);
      if (added < 0 || static_cast<size_t>(added) >= room) break;
      used += added;
    }
    std::snprintf(
        refusal, sizeof(refusal),
        "%s has compute capability %d.%d, but the library was built for %s; build it with "
        "LEAPQUANT_CUDA_ARCHITECTURES=%d%d (%s)",
        name, major, minor, built, major, minor, cudaGetErrorString(error));
    cudaGetLastError();
  }

  Device() {
    int index = 0;
    int count = 0;
    cudaDeviceProp properties;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess) error = cudaGetDevice(&index);
    if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, index);
    if (error != cudaSuccess) {
      refuse(error);
      return;
    }
    std::snprintf(name, sizeof(name), "%.*s", static_cast<int>(sizeof(name)) - 1, properties.name);
    major = properties.major;
    minor = properties.minor;
    error = find_kernels();
    if (error != cudaSuccess) refuse_architecture(error);
  }
};

const Device& device() {
  static const Device found;
  return found;
}

const char* target() { return device().name; }

Status accepts(const Layout&, Sentence* why_not) {
  if (device().refusal[0] == '\0') return LEAPQUANT_OK;
  return why_not->say(LEAPQUANT_DEVICE_UNAVAILABLE, "cuda: %s", device().refusal);
}

// Slots and positions of any operation's struct.
template <typename Args>
Call call_of(const Layout& layout, const leapquant_pool& pool, const Args& args,
             const leapquant_launch& launch) {
  Call call;
  fill_layout(layout, pool, launch, &call);
  call.batch = args.batch;
  call.state_slots = args.state_slots;
  call.window_slots = args.window_slots;
  call.positions = args.positions;
  call.status = args.status;
  return call;
}

Call decode_call(const Layout& layout, const leapquant_pool& pool,
                 const leapquant_decode_args& args, const leapquant_launch& launch) {
  Call call = call_of(layout, pool, args, launch);
  call.tokens = args.tokens;
  call.num_tokens = args.num_tokens;
  call.needs_window = 1;
  fill_tensors(layout, args.inputs, args.output, args.tokens, &call);
  return call;
}

Status decode(const Layout& layout, const leapquant_pool& pool, const leapquant_decode_args& args,
              const leapquant_launch& launch) {
  if (args.batch == 0) return LEAPQUANT_OK;
  Call call = decode_call(layout, pool, args, launch);
  return status_of(decode_general(layout, &call, stream_of(launch)));
}

Status prefill(const Layout& layout, const leapquant_pool& pool, const leapquant_prefill_args& args,
               const leapquant_launch& launch) {
  if (args.batch == 0) return LEAPQUANT_OK;
  Call call = call_of(layout, pool, args, launch);
  call.token_offsets = args.token_offsets;
  call.checkpoints = args.checkpoints;
  call.num_checkpoints = args.num_checkpoints;
  call.through = args.through;
  fill_tensors(layout, args.inputs, args.output, 0, &call);
  return status_of(prefill_general(layout, &call, stream_of(launch)));
}

Status fold(const Layout& layout, const leapquant_pool& pool, const leapquant_fold_args& args,
            const leapquant_launch& launch) {
  if (args.batch == 0) return LEAPQUANT_OK;
  Call call = call_of(layout, pool, args, launch);
  call.destination_slots = args.destination_slots;
  return status_of(fold_general(layout, &call, stream_of(launch)));
}

Call transfer_call(const Layout& layout, const leapquant_pool& pool,
                   const leapquant_transfer_args& args, const leapquant_launch& launch) {
  Call call = call_of(layout, pool, args, launch);
  call.matrices = static_cast<char*>(args.matrices);
  call.matrix_type = args.type;
  call.transposed = args.order == LEAPQUANT_VK ? 1 : 0;
  const int64_t matrix = int64_t{layout.shape.head_k_dim} * layout.shape.head_v_dim *
                         (args.type == LEAPQUANT_FP32 ? 4 : 2);
  call.matrix_head = args.head_stride_bytes != 0 ? args.head_stride_bytes : matrix;
  call.matrix_sequence = args.sequence_stride_bytes != 0
                             ? args.sequence_stride_bytes
                             : call.matrix_head * layout.shape.num_v_heads;
  return call;
}

Status export_states(const Layout& layout, const leapquant_pool& pool,
                     const leapquant_transfer_args& args, const leapquant_launch& launch) {
  if (args.batch == 0) return LEAPQUANT_OK;
  Call call = transfer_call(layout, pool, args, launch);
  return status_of(export_general(layout, &call, stream_of(launch)));
}

Status import_states(const Layout& layout, const leapquant_pool& pool,
                     const leapquant_transfer_args& args, const leapquant_launch& launch) {
  if (args.batch == 0) return LEAPQUANT_OK;
  Call call = transfer_call(layout, pool, args, launch);
  return status_of(import_general(layout, &call, stream_of(launch)));
}

// Copy and reset have no status array of the caller's; the door looks for faults here.
int32_t* row_status(const Layout& layout, const leapquant_launch& launch) {
  return reinterpret_cast<int32_t*>(sequence_scratch(launch, scratch_bytes(layout)));
}

Status copy(const Layout& layout, const leapquant_pool& pool, int32_t batch,
            const int32_t* source_states, const int32_t* source_windows,
            const int32_t* destination_states, const int32_t* destination_windows,
            const leapquant_launch& launch) {
  if (batch == 0) return LEAPQUANT_OK;
  Call call;
  fill_layout(layout, pool, launch, &call);
  call.batch = batch;
  call.status = row_status(layout, launch);
  const CopySlots slots = {source_states,       source_windows,     destination_states,
                           destination_windows, layout.state_bytes, layout.window.bytes};
  return status_of(copy_general(call, slots, stream_of(launch)));
}

Status reset(const Layout& layout, const leapquant_pool& pool, int32_t batch, const int32_t* states,
             const int32_t* windows, const int32_t* positions, const leapquant_launch& launch) {
  if (batch == 0) return LEAPQUANT_OK;
  Call call;
  fill_layout(layout, pool, launch, &call);
  call.batch = batch;
  call.state_slots = states;
  call.window_slots = windows;
  call.positions = positions;
  call.status = row_status(layout, launch);
  cudaError_t error = reset_general(layout, &call, stream_of(launch));
  if (error == cudaSuccess) {
    error = clear_windows(call, layout.window.bytes, stream_of(launch));
  }
  return status_of(error);
}

constexpr Backend table_of(const char* name, decltype(Backend::accepts) accepts_layout,
                           decltype(Backend::decode) decode_call) {
  return Backend{
      .name = name,
      .device = LEAPQUANT_CUDA,
      .target = target,
      .accepts = accepts_layout,
      .workspace_per_worker = scratch_bytes,
      .workspace_per_sequence = [](const Layout&) { return sizeof(int32_t); },
      .decode = decode_call,
      .prefill = prefill,
      .fold = fold,
      .export_states = export_states,
      .import_states = import_states,
      .copy = copy,
      .reset = reset,
      .memory = &kDeviceMemory,
  };
}

#ifdef LEAPQUANT_CUDA_128
Status accepts_device_128(const Layout& layout, Sentence* why_not) {
  if (Status s = accepts(layout, why_not)) return s;
  if (device().major == 9 && device().minor == 0) return LEAPQUANT_OK;
  return why_not->say(LEAPQUANT_UNSUPPORTED, "cuda/128: %s has compute capability %d.%d, not 9.0",
                      device().name, device().major, device().minor);
}

Status accepts_128(const Layout& layout, Sentence* why_not) {
  if (Status s = accepts_device_128(layout, why_not)) return s;
  return accepts_decode_128(layout, why_not);
}

Status accepts_plain(const Layout& layout, Sentence* why_not) {
  if (Status s = accepts_device_128(layout, why_not)) return s;
  return accepts_plain_128(layout, why_not);
}

Status decode_plain(const Layout& layout, const leapquant_pool& pool,
                    const leapquant_decode_args& args, const leapquant_launch& launch) {
  if (args.batch == 0) return LEAPQUANT_OK;
  Call call = decode_call(layout, pool, args, launch);
  const auto serve = serves_plain_128(call) ? decode_plain_128 : decode_general;
  return status_of(serve(layout, &call, stream_of(launch)));
}

Status decode_any(const Layout& layout, const leapquant_pool& pool,
                  const leapquant_decode_args& args, const leapquant_launch& launch) {
  Call128 call;
  if (args.batch == 0 || !make_call_128(layout, pool, args, &call)) {
    return decode(layout, pool, args, launch);
  }
  return status_of(decode_128(layout, call, stream_of(launch)));
}
#else
Status accepts_128(const Layout&, Sentence* why_not) {
  return why_not->say(LEAPQUANT_UNSUPPORTED, "cuda/128: not built for compute capability 9.0");
}
constexpr auto accepts_plain = accepts_128;
constexpr auto decode_plain = decode;
#endif

}  // namespace

const Backend& general_backend() {
  static constexpr Backend table = table_of("cuda", accepts, decode);
  return table;
}

const Backend& backend_128() {
#ifdef LEAPQUANT_CUDA_128
  static constexpr Backend table = table_of("cuda-128", accepts_128, decode_any);
#else
  static constexpr Backend table = table_of("cuda-128", accepts_128, decode);
#endif
  return table;
}

const Backend& backend_plain_128() {
  static constexpr Backend table = table_of("cuda-plain-128", accepts_plain, decode_plain);
  return table;
}

}  // namespace leapquant::cuda

// SPDX-License-Identifier: Apache-2.0
//
// LeapQuant, C++20 over the C API: objects that free themselves, spans whose lengths are checked,
// failures as values. Header-only, needs no exceptions. leapquant.h is the manual: every function
// here is one call of the function of the same name there, and the plain structs are used as they
// are. Not a second interface: whatever is missing here is called in C, with get().
#ifndef LEAPQUANT_LEAPQUANT_HPP_
#define LEAPQUANT_LEAPQUANT_HPP_

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "leapquant/leapquant.h"

namespace leapquant {
// Names of their own in object files, so that nothing here can be taken for the library's inside.
inline namespace cpp {

// ---- Failures -----------------------------------------------------------------------------------

struct Error {
  leapquant_status status = LEAPQUANT_INTERNAL;
  std::string sentence;  // which argument, what was expected, what came
};

// The last failure of this thread.
inline Error last_error(leapquant_status status) { return {status, leapquant_last_error()}; }

// A value, or why there is none. value() of a failure and error() of a success are programming
// errors, which debug builds catch.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  T& value() & {
    assert(ok());
    return *value_;
  }
  const T& value() const& {
    assert(ok());
    return *value_;
  }
  T value() && {
    assert(ok());
    return std::move(*value_);
  }
  const Error& error() const {
    assert(!ok());
    return error_;
  }

 private:
  std::optional<T> value_;
  Error error_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}
  // From a status of the C API.
  explicit Result(leapquant_status status) {
    if (status != LEAPQUANT_OK) error_ = last_error(status);
  }

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    assert(!ok());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

// ---- Formats ------------------------------------------------------------------------------------

inline Result<leapquant_format> format_from_string(const std::string& text) {
  leapquant_format format = LEAPQUANT_INIT(leapquant_format);
  const leapquant_status s = leapquant_format_from_string(text.c_str(), &format);
  if (s != LEAPQUANT_OK) return last_error(s);
  return format;
}

struct HeadFormats {
  std::vector<leapquant_format> formats;
  std::vector<std::uint8_t> head_format;  // [num_v_heads]
};

// A format or a mix by head for layer number `layer` of the model's linear layers.
inline Result<HeadFormats> formats_from_string(const std::string& text, std::int32_t layer,
                                               std::int32_t num_v_heads) {
  constexpr std::int32_t kMost = 8;
  HeadFormats result;
  result.formats.resize(kMost);
  result.head_format.resize(num_v_heads > 0 ? static_cast<std::size_t>(num_v_heads) : 1);
  std::int32_t count = 0;
  const leapquant_status s =
      leapquant_formats_from_string(text.c_str(), layer, num_v_heads, result.formats.data(), kMost,
                                    &count, result.head_format.data());
  if (s != LEAPQUANT_OK) return last_error(s);
  result.formats.resize(static_cast<std::size_t>(count));
  return result;
}

inline Result<std::string> format_to_string(const leapquant_format& format) {
  char buffer[256];
  const leapquant_status s = leapquant_format_to_string(&format, buffer, sizeof(buffer));
  if (s != LEAPQUANT_OK) return last_error(s);
  return std::string(buffer);
}

// ---- Owners -------------------------------------------------------------------------------------

class Layout {
 public:
  // head_format may be empty: all heads use formats[0].
  static Result<Layout> create(const leapquant_shape& shape,
                               std::span<const leapquant_format> formats,
                               std::span<const std::uint8_t> head_format = {},
                               leapquant_device device = LEAPQUANT_CPU) {
    if (!head_format.empty() && head_format.size() != static_cast<std::size_t>(shape.num_v_heads)) {
      char text[128];
      std::snprintf(text, sizeof(text), "head_format has %zu entries, expected num_v_heads, %d",
                    head_format.size(), shape.num_v_heads);
      return Error{LEAPQUANT_INVALID_ARGUMENT, text};
    }
    leapquant_layout* layout = nullptr;
    const leapquant_status s = leapquant_layout_create(
        &shape, formats.data(), static_cast<std::int32_t>(formats.size()),
        head_format.empty() ? nullptr : head_format.data(), device, &layout);
    if (s != LEAPQUANT_OK) return last_error(s);
    leapquant_shape kept = shape;
    kept.constant_log_decay = nullptr;
    if (kept.sub_steps == 0) kept.sub_steps = 1;
    return Layout(layout, kept);
  }

  const leapquant_layout* get() const { return layout_.get(); }
  // As given to create; constant_log_decay is null.
  const leapquant_shape& shape() const { return shape_; }
  const char* backend() const { return leapquant_layout_backend(get()); }
  leapquant_sizes sizes() const {
    leapquant_sizes sizes = LEAPQUANT_INIT(leapquant_sizes);
    leapquant_bytes_per_slot(get(), &sizes);
    return sizes;
  }
  std::int64_t boundary_bytes(std::int32_t v_head) const {
    return leapquant_boundary_bytes(get(), v_head);
  }
  std::int32_t last_boundary(std::int32_t v_head, std::int32_t position) const {
    return leapquant_last_boundary(get(), v_head, position);
  }

 private:
  struct Destroy {
    void operator()(leapquant_layout* layout) const { leapquant_layout_destroy(layout); }
  };
  Layout(leapquant_layout* layout, const leapquant_shape& shape) : layout_(layout), shape_(shape) {}

  std::unique_ptr<leapquant_layout, Destroy> layout_;
  leapquant_shape shape_;
};

class Threads {
 public:
  // 0: all cores available.
  static Result<Threads> create(std::int32_t num_threads = 0) {
    leapquant_threads* threads = nullptr;
    const leapquant_status s = leapquant_threads_create(num_threads, &threads);
    if (s != LEAPQUANT_OK) return last_error(s);
    return Threads(threads);
  }
  const leapquant_runner* runner() const { return leapquant_threads_runner(threads_.get()); }

 private:
  struct Destroy {
    void operator()(leapquant_threads* threads) const { leapquant_threads_destroy(threads); }
  };
  explicit Threads(leapquant_threads* threads) : threads_(threads) {}

  std::unique_ptr<leapquant_threads, Destroy> threads_;
};

// A workspace and how to launch with it. Not shared by calls at the same time.
class Launch {
 public:
  // threads may be null: the calling thread alone. It must outlive the launch.
  static Result<Launch> create(const Layout& layout, std::int32_t max_batch,
                               const Threads* threads = nullptr,
                               leapquant_check check = LEAPQUANT_CHECK_DEFAULT) {
    const leapquant_runner* runner = threads == nullptr ? nullptr : threads->runner();
    const std::size_t bytes = leapquant_workspace_bytes(
        layout.get(), runner == nullptr ? 1 : runner->num_workers, max_batch);
    auto* memory = static_cast<std::byte*>(
        ::operator new(bytes == 0 ? 64 : bytes, std::align_val_t{64}, std::nothrow));
    if (memory == nullptr) {
      return Error{LEAPQUANT_OUT_OF_MEMORY, "the host refused memory for a workspace"};
    }
    leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
    launch.check = check;
    launch.runner = runner;
    launch.workspace = memory;
    launch.workspace_bytes = bytes;
    return Launch(memory, launch);
  }
  const leapquant_launch* get() const { return &launch_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const {
      ::operator delete(memory, std::align_val_t{64}, std::nothrow);
    }
  };
  Launch(std::byte* memory, const leapquant_launch& launch) : memory_(memory), launch_(launch) {}

  std::unique_ptr<std::byte, Free> memory_;
  leapquant_launch launch_;
};

struct Slot {
  std::int32_t state = -1;
  std::int32_t window = -1;
};
struct CheckpointSlot {
  std::int32_t state = -1;
  std::int32_t evicted = -1;  // slot whose checkpoint made room, or -1
};

// Slots of num_layers equal layers under a byte budget. The layout must outlive them.
class Slots {
 public:
  static Result<Slots> create(const Layout& layout, std::int32_t num_layers,
                              std::int64_t budget_bytes) {
    leapquant_slots* slots = nullptr;
    const leapquant_status s =
        leapquant_slots_create(layout.get(), num_layers, budget_bytes, &slots);
    if (s != LEAPQUANT_OK) return last_error(s);
    return Slots(slots);
  }

  leapquant_slots* get() const { return slots_.get(); }
  Result<leapquant_pool> pool(std::int32_t layer) const {
    leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
    const leapquant_status s = leapquant_slots_pool(get(), layer, &pool);
    if (s != LEAPQUANT_OK) return last_error(s);
    return pool;
  }
  Result<Slot> acquire() {
    Slot slot;
    const leapquant_status s = leapquant_slots_acquire(get(), &slot.state, &slot.window);
    if (s != LEAPQUANT_OK) return last_error(s);
    return slot;
  }
  Result<CheckpointSlot> acquire_checkpoint() {
    CheckpointSlot slot;
    const leapquant_status s =
        leapquant_slots_acquire_checkpoint(get(), &slot.state, &slot.evicted);
    if (s != LEAPQUANT_OK) return last_error(s);
    return slot;
  }
  // EMPTY_ENTRY: the checkpoint has been evicted.
  Result<void> touch(std::int32_t state_slot) {
    return Result<void>(leapquant_slots_touch(get(), state_slot));
  }
  Result<void> release(std::int32_t state_slot, bool scrub = false) {
    return Result<void>(leapquant_slots_release(get(), state_slot, scrub ? 1 : 0));
  }
  leapquant_slots_usage usage() const {
    leapquant_slots_usage usage = LEAPQUANT_INIT(leapquant_slots_usage);
    leapquant_slots_get_usage(get(), &usage);
    return usage;
  }

 private:
  struct Destroy {
    void operator()(leapquant_slots* slots) const { leapquant_slots_destroy(slots); }
  };
  explicit Slots(leapquant_slots* slots) : slots_(slots) {}

  std::unique_ptr<leapquant_slots, Destroy> slots_;
};

// ---- Views --------------------------------------------------------------------------------------

// A packed input tensor and its length in elements, which a call checks.
struct Tensor {
  leapquant_tensor view = {};
  std::size_t elements = 0;

  Tensor() = default;
  Tensor(std::span<const float> data) : elements(data.size()) { set(data.data(), LEAPQUANT_FP32); }
  static Tensor fp16(std::span<const std::uint16_t> data) { return {data, LEAPQUANT_FP16}; }
  static Tensor bf16(std::span<const std::uint16_t> data) { return {data, LEAPQUANT_BF16}; }

 private:
  Tensor(std::span<const std::uint16_t> data, leapquant_type type) : elements(data.size()) {
    set(data.data(), type);
  }
  void set(const void* data, leapquant_type type) {
    view.data = data;
    view.type = type;
  }
};

// Activations of a call, packed. Empty spans and tensors mean null; the rest as leapquant_inputs.
struct Inputs {
  Tensor q, k, v, read_key, log_decay, beta;
  std::span<const float> a_log, dt_bias, bonus, skip;
  leapquant_gate gate = LEAPQUANT_GATE_READY;
  float lower_bound = 0.0f;
  leapquant_beta beta_kind = LEAPQUANT_BETA_READY;
  float beta_scale = 0.0f;
  bool qk_l2norm = false;
  float l2norm_eps = 0.0f;
  float q_scale = 0.0f;
  bool read_before_update = false;
};

// Sequences of a call. window_slots may be empty: the state's index.
struct Batch {
  std::span<const std::int32_t> state_slots, window_slots, positions;
  std::span<std::int32_t> status;
};

namespace lengths {

inline std::optional<Error> check(const char* name, std::size_t given, std::size_t expected) {
  if (given == expected) return std::nullopt;
  char text[160];
  std::snprintf(text, sizeof(text), "%s has %zu elements, expected %zu", name, given, expected);
  return Error{LEAPQUANT_INVALID_ARGUMENT, text};
}

struct Length {
  const char* name;
  std::size_t given;
  std::size_t expected;
  bool may_be_empty;
};

inline std::optional<Error> check_all(std::span<const Length> all) {
  for (const Length& length : all) {
    if (length.may_be_empty && length.given == 0) continue;
    if (auto error = check(length.name, length.given, length.expected)) return error;
  }
  return std::nullopt;
}

inline std::optional<Error> check_batch(const Batch& batch) {
  const std::size_t n = batch.state_slots.size();
  const Length all[] = {{"window_slots", batch.window_slots.size(), n, true},
                        {"positions", batch.positions.size(), n, false},
                        {"status", batch.status.size(), n, false}};
  return check_all(all);
}

// rows: tokens of all sequences.
inline std::optional<Error> check_inputs(const leapquant_shape& s, const Inputs& x,
                                         std::size_t rows) {
  const auto size = [](std::int32_t n) { return static_cast<std::size_t>(n); };
  const std::size_t keys = rows * size(s.num_k_heads) * size(s.head_k_dim);
  const std::size_t n = size(s.sub_steps);
  const std::size_t heads = size(s.num_v_heads);
  const bool vector = s.decay == LEAPQUANT_DECAY_VECTOR;
  const std::size_t gates = heads * (vector ? size(s.head_k_dim) : 1);
  const Length all[] = {{"q", x.q.elements, keys, false},
                        {"k", x.k.elements, keys * n, false},
                        {"v", x.v.elements, rows * n * heads * size(s.head_v_dim), false},
                        {"read_key", x.read_key.elements, keys * n, true},
                        {"log_decay", x.log_decay.elements, rows * gates, true},
                        {"beta", x.beta.elements, rows * n * heads, true},
                        {"a_log", x.a_log.size(), heads, true},
                        {"dt_bias", x.dt_bias.size(), gates, true},
                        {"bonus", x.bonus.size(), heads * size(s.head_k_dim), true},
                        {"skip", x.skip.size(), heads, true}};
  return check_all(all);
}

inline const float* or_null(std::span<const float> data) {
  return data.empty() ? nullptr : data.data();
}

inline leapquant_inputs to_c(const Inputs& x) {
  leapquant_inputs c = LEAPQUANT_INIT(leapquant_inputs);
  c.q = x.q.view;
  c.k = x.k.view;
  c.v = x.v.view;
  c.read_key = x.read_key.view;
  c.log_decay = x.log_decay.view;
  c.beta = x.beta.view;
  c.gate = x.gate;
  c.a_log = or_null(x.a_log);
  c.dt_bias = or_null(x.dt_bias);
  c.lower_bound = x.lower_bound;
  c.beta_kind = x.beta_kind;
  c.beta_scale = x.beta_scale;
  c.qk_l2norm = x.qk_l2norm ? 1 : 0;
  c.l2norm_eps = x.l2norm_eps;
  c.q_scale = x.q_scale;
  c.read_before_update = x.read_before_update ? 1 : 0;
  c.bonus = or_null(x.bonus);
  c.skip = or_null(x.skip);
  return c;
}

inline const std::int32_t* or_null(std::span<const std::int32_t> data) {
  return data.empty() ? nullptr : data.data();
}

}  // namespace lengths

// ---- Operations ---------------------------------------------------------------------------------

// tokens: T of every sequence; num_tokens [batch] may be empty. output [batch, T, HV, V].
inline Result<void> decode(const Layout& layout, const leapquant_pool& pool, const Batch& batch,
                           std::int32_t tokens, const Inputs& inputs, std::span<float> output,
                           const Launch& launch, std::span<const std::int32_t> num_tokens = {}) {
  const leapquant_shape& s = layout.shape();
  const std::size_t n = batch.state_slots.size();
  const std::size_t rows = n * static_cast<std::size_t>(tokens < 0 ? 0 : tokens);
  if (auto error = lengths::check_batch(batch)) return *error;
  if (auto error = lengths::check_inputs(s, inputs, rows)) return *error;
  const std::size_t row =
      static_cast<std::size_t>(s.num_v_heads) * static_cast<std::size_t>(s.head_v_dim);
  const lengths::Length rest[] = {{"output", output.size(), rows * row, false},
                                  {"num_tokens", num_tokens.size(), n, true}};
  if (auto error = lengths::check_all(rest)) return *error;
  leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
  args.batch = static_cast<std::int32_t>(n);
  args.tokens = tokens;
  args.state_slots = batch.state_slots.data();
  args.window_slots = lengths::or_null(batch.window_slots);
  args.positions = batch.positions.data();
  args.num_tokens = lengths::or_null(num_tokens);
  args.inputs = lengths::to_c(inputs);
  args.output.data = output.data();
  args.output.type = LEAPQUANT_FP32;
  args.status = batch.status.data();
  return Result<void>(leapquant_decode(layout.get(), &pool, &args, launch.get()));
}

// token_offsets [batch + 1]; output [total tokens, HV, V].
inline Result<void> prefill(const Layout& layout, const leapquant_pool& pool, const Batch& batch,
                            std::span<const std::int32_t> token_offsets, const Inputs& inputs,
                            std::span<float> output, const Launch& launch,
                            std::span<const leapquant_checkpoint> checkpoints = {},
                            bool through = false) {
  const leapquant_shape& s = layout.shape();
  const std::size_t n = batch.state_slots.size();
  if (auto error = lengths::check_batch(batch)) return *error;
  if (auto error = lengths::check("token_offsets", token_offsets.size(), n + 1)) return *error;
  const std::int32_t last = token_offsets.back();
  const std::size_t rows = static_cast<std::size_t>(last < 0 ? 0 : last);
  if (auto error = lengths::check_inputs(s, inputs, rows)) return *error;
  const std::size_t row =
      static_cast<std::size_t>(s.num_v_heads) * static_cast<std::size_t>(s.head_v_dim);
  if (auto error = lengths::check("output", output.size(), rows * row)) return *error;
  leapquant_prefill_args args = LEAPQUANT_INIT(leapquant_prefill_args);
  args.batch = static_cast<std::int32_t>(n);
  args.state_slots = batch.state_slots.data();
  args.window_slots = lengths::or_null(batch.window_slots);
  args.positions = batch.positions.data();
  args.token_offsets = token_offsets.data();
  args.inputs = lengths::to_c(inputs);
  args.output.data = output.data();
  args.output.type = LEAPQUANT_FP32;
  args.num_checkpoints = static_cast<std::int32_t>(checkpoints.size());
  args.checkpoints = checkpoints.data();
  args.through = through ? 1 : 0;
  args.status = batch.status.data();
  return Result<void>(leapquant_prefill(layout.get(), &pool, &args, launch.get()));
}

// destination_slots may be empty: in place.
inline Result<void> fold(const Layout& layout, const leapquant_pool& pool, const Batch& batch,
                         const Launch& launch,
                         std::span<const std::int32_t> destination_slots = {}) {
  if (auto error = lengths::check_batch(batch)) return *error;
  const lengths::Length rest[] = {
      {"destination_slots", destination_slots.size(), batch.state_slots.size(), true}};
  if (auto error = lengths::check_all(rest)) return *error;
  leapquant_fold_args args = LEAPQUANT_INIT(leapquant_fold_args);
  args.batch = static_cast<std::int32_t>(batch.state_slots.size());
  args.state_slots = batch.state_slots.data();
  args.window_slots = lengths::or_null(batch.window_slots);
  args.positions = batch.positions.data();
  args.destination_slots = lengths::or_null(destination_slots);
  args.status = batch.status.data();
  return Result<void>(leapquant_fold(layout.get(), &pool, &args, launch.get()));
}

// ---- Saved states -------------------------------------------------------------------------------

inline Result<std::vector<std::byte>> save(const Layout& layout, const leapquant_pool& pool,
                                           Slot slot, std::int32_t position,
                                           std::uint64_t fingerprint) {
  std::size_t bytes = 0;
  leapquant_status s =
      leapquant_saved_bytes(layout.get(), &pool, slot.state, slot.window, position, &bytes);
  if (s != LEAPQUANT_OK) return last_error(s);
  std::vector<std::byte> blob(bytes);
  std::size_t written = 0;
  s = leapquant_save(layout.get(), &pool, slot.state, slot.window, position, fingerprint,
                     blob.data(), blob.size(), &written);
  if (s != LEAPQUANT_OK) return last_error(s);
  return blob;
}

// The saved position.
inline Result<std::int32_t> load(const Layout& layout, const leapquant_pool& pool, Slot slot,
                                 std::uint64_t fingerprint, std::span<const std::byte> blob) {
  std::int32_t position = 0;
  const leapquant_status s = leapquant_load(layout.get(), &pool, slot.state, slot.window,
                                            fingerprint, blob.data(), blob.size(), &position);
  if (s != LEAPQUANT_OK) return last_error(s);
  return position;
}

inline Result<leapquant_saved_info> inspect(std::span<const std::byte> blob) {
  leapquant_saved_info info = LEAPQUANT_INIT(leapquant_saved_info);
  const leapquant_status s = leapquant_inspect(blob.data(), blob.size(), &info, nullptr, 0);
  if (s != LEAPQUANT_OK) return last_error(s);
  return info;
}

}  // namespace cpp
}  // namespace leapquant

#endif  // LEAPQUANT_LEAPQUANT_HPP_

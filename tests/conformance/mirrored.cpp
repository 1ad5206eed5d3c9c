// SPDX-License-Identifier: Apache-2.0
//
// One staging buffer per call: ranges are packed into it, uploaded at once and downloaded at once;
// the bytes between them must come back as they went. Device buffers grow and are kept to the end
// of the program.
#include "conformance/mirrored.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace leapquant::conformance {
namespace {

constexpr size_t kAlignment = 256;
constexpr std::byte kGuard{0x5a};  // behind every range

// Device memory that only grows.
struct Buffer {
  void* data = nullptr;
  size_t bytes = 0;

  Status grow(const DeviceMemory& memory, size_t needed, Sentence* sentence) {
    if (needed <= bytes) return LEAPQUANT_OK;
    if (data != nullptr) memory.release(data);
    data = nullptr;
    bytes = 0;
    if (Status s = memory.allocate(needed, &data, sentence)) return s;
    bytes = needed;
    // Nobody may rely on what the memory holds: NaN in every type.
    const std::vector<unsigned char> poison(needed, 0xff);
    return memory.write(data, poison.data(), needed, sentence);
  }
};

class Staging {
 public:
  explicit Staging(const Backend& device) : memory_(*device.memory) {}

  // Adds a range; null stays null. Returns its index, -1 for null.
  int add(const void* data, size_t bytes, bool written) {
    if (data == nullptr) return -1;
    ranges_.push_back({const_cast<void*>(data), used_, bytes, written});
    used_ += (bytes + kAlignment) / kAlignment * kAlignment;  // at least one guarding byte
    return static_cast<int>(ranges_.size()) - 1;
  }
  std::byte* host(int range) { return host_.data() + ranges_[static_cast<size_t>(range)].at; }

  Status reserve(Buffer* buffer, Sentence* sentence) {
    host_.assign(used_, kGuard);
    for (const Range& r : ranges_) std::memcpy(host_.data() + r.at, r.data, r.bytes);
    if (Status s = buffer->grow(memory_, used_, sentence)) return s;
    device_ = static_cast<std::byte*>(buffer->data);
    return LEAPQUANT_OK;
  }
  template <typename T>
  T* at(int range) const {
    if (range < 0) return nullptr;
    return reinterpret_cast<T*>(device_ + ranges_[static_cast<size_t>(range)].at);
  }
  Status upload(Sentence* sentence) {
    return memory_.write(device_, host_.data(), used_, sentence);
  }
  Status download(Sentence* sentence) {
    if (Status s = memory_.read(host_.data(), device_, used_, sentence)) return s;
    for (size_t i = 0; i < ranges_.size(); ++i) {
      const size_t end = i + 1 < ranges_.size() ? ranges_[i + 1].at : used_;
      for (size_t at = ranges_[i].at + ranges_[i].bytes; at < end; ++at) {
        if (host_[at] == kGuard) continue;
        return sentence->say(LEAPQUANT_INTERNAL, "a byte behind range %zu was written", i);
      }
    }
    return LEAPQUANT_OK;
  }
  void give_back() const {
    for (const Range& r : ranges_) {
      if (r.written) std::memcpy(r.data, host_.data() + r.at, r.bytes);
    }
  }

 private:
  struct Range {
    void* data;
    size_t at;
    size_t bytes;
    bool written;
  };
  const DeviceMemory& memory_;
  std::vector<Range> ranges_;
  std::vector<std::byte> host_;
  std::byte* device_ = nullptr;
  size_t used_ = 0;
};

int64_t type_bytes(int32_t type) { return type == LEAPQUANT_FP32 ? 4 : 2; }

// Bytes from the first to the end of the last row of a tensor. heads_last: no head axis.
size_t extent(const leapquant_tensor& t, int64_t sequences, int64_t tokens, int64_t sub_steps,
              int64_t heads, int64_t last, bool heads_last) {
  const auto given_or = [](int64_t given, int64_t packed) { return given != 0 ? given : packed; };
  const int64_t size = type_bytes(t.type);
  const int64_t row = last * size;
  const int64_t head = heads_last ? size : given_or(t.head_stride_bytes, row);
  const int64_t step = given_or(t.sub_step_stride_bytes, heads * head);
  const int64_t token = given_or(t.token_stride_bytes, sub_steps * step);
  const int64_t sequence = given_or(t.sequence_stride_bytes, tokens * token);
  if (sequences == 0 || tokens == 0) return 0;
  return static_cast<size_t>((sequences - 1) * sequence + (tokens - 1) * token +
                             (sub_steps - 1) * step + (heads - 1) * head + row);
}

// A call in the making: what all operations share.
class Call {
 public:
  Call(const Backend& device, const Layout& layout, const leapquant_pool& pool, Buffer* buffer,
       Buffer* workspace)
      : device_(device),
        layout_(layout),
        pool_(pool),
        buffer_(buffer),
        workspace_(workspace),
        staging_(device) {
    const auto heads = static_cast<size_t>(pool.num_state_slots * layout.shape.num_v_heads);
    add_slots();
    base_ = staging_.add(pool.base, heads * sizeof(int32_t), true);
    health_ = staging_.add(pool.health, heads * sizeof(leapquant_health), true);
  }

  int add_ints(const int32_t* data, int64_t count, bool written = false) {
    return staging_.add(data, static_cast<size_t>(count) * sizeof(int32_t), written);
  }
  int add(const void* data, size_t bytes, bool written = false) {
    return staging_.add(data, bytes, written);
  }
  template <typename T>
  T* at(int range) const {
    return staging_.at<T>(range);
  }

  // What the structs of all operations on a batch share.
  struct SequenceRanges {
    int slots, windows, positions, status;
  };
  template <typename Args>
  SequenceRanges add_sequences(const Args& args) {
    return {add_ints(args.state_slots, args.batch), add_ints(args.window_slots, args.batch),
            add_ints(args.positions, args.batch), add_ints(args.status, args.batch, true)};
  }
  // The arguments with the sequences' arrays on the device; the rest is the caller's to place.
  template <typename Args>
  Args place_sequences(const SequenceRanges& ranges, const Args& args) const {
    Args there = args;
    there.state_slots = at<int32_t>(ranges.slots);
    there.window_slots = at<int32_t>(ranges.windows);
    there.positions = at<int32_t>(ranges.positions);
    there.status = at<int32_t>(ranges.status);
    return there;
  }

  // Tensors and parameters of inputs.
  struct InputRanges {
    int q, k, v, read_key, log_decay, beta, a_log, dt_bias, bonus, skip, output;
  };
  InputRanges add_inputs(const leapquant_inputs& in, const leapquant_output& output,
                         int64_t sequences, int64_t tokens) {
    const leapquant_shape& s = layout_.shape;
    const int64_t n = s.sub_steps;
    const bool vector = s.decay == LEAPQUANT_DECAY_VECTOR;
    const auto tensor = [&](const leapquant_tensor& t, int64_t steps, int64_t heads, int64_t last,
                            bool heads_last = false) {
      return staging_.add(t.data, extent(t, sequences, tokens, steps, heads, last, heads_last),
                          false);
    };
    const auto floats = [&](const float* data, int64_t count) {
      return staging_.add(data, static_cast<size_t>(count) * sizeof(float), false);
    };
    InputRanges r;
    r.q = tensor(in.q, 1, s.num_k_heads, s.head_k_dim);
    r.k = tensor(in.k, n, s.num_k_heads, s.head_k_dim);
    r.v = tensor(in.v, n, s.num_v_heads, s.head_v_dim);
    r.read_key = tensor(in.read_key, n, s.num_k_heads, s.head_k_dim);
    r.log_decay = vector ? tensor(in.log_decay, 1, s.num_v_heads, s.head_k_dim)
                         : tensor(in.log_decay, 1, s.num_v_heads, 1, true);
    r.beta = tensor(in.beta, n, s.num_v_heads, 1, true);
    r.a_log = floats(in.a_log, s.num_v_heads);
    r.dt_bias = floats(in.dt_bias, int64_t{s.num_v_heads} * (vector ? s.head_k_dim : 1));
    r.bonus = floats(in.bonus, int64_t{s.num_v_heads} * s.head_k_dim);
    r.skip = floats(in.skip, s.num_v_heads);
    leapquant_tensor out = {};
    out.data = output.data;
    out.type = output.type;
    out.sequence_stride_bytes = output.sequence_stride_bytes;
    out.token_stride_bytes = output.token_stride_bytes;
    out.head_stride_bytes = output.head_stride_bytes;
    r.output = staging_.add(
        output.data, extent(out, sequences, tokens, 1, s.num_v_heads, s.head_v_dim, false), true);
    return r;
  }
  void place_inputs(const InputRanges& r, leapquant_inputs* in, leapquant_output* output) const {
    in->q.data = at<void>(r.q);
    in->k.data = at<void>(r.k);
    in->v.data = at<void>(r.v);
    in->read_key.data = at<void>(r.read_key);
    in->log_decay.data = at<void>(r.log_decay);
    in->beta.data = at<void>(r.beta);
    in->a_log = at<float>(r.a_log);
    in->dt_bias = at<float>(r.dt_bias);
    in->bonus = at<float>(r.bonus);
    in->skip = at<float>(r.skip);
    output->data = at<void>(r.output);
  }

  // Uploads, runs `work(pool, launch)`, downloads.
  template <typename Work>
  Status run(const Work& work) {
    Sentence sentence;
    if (Status s = transfer(work, &sentence)) {
      std::fprintf(stderr, "mirrored call: %s\n", sentence.text);
      return s;
    }
    return LEAPQUANT_OK;
  }
  Status prepare(int32_t batch) {
    Sentence sentence;
    const auto rounded = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
    const size_t scratch =
        rounded(device_.workspace_per_worker(layout_)) +
        rounded(device_.workspace_per_sequence(layout_)) * static_cast<size_t>(batch);
    Status s = workspace_->grow(*device_.memory, scratch + 64, &sentence);
    if (s == LEAPQUANT_OK) s = staging_.reserve(buffer_, &sentence);
    if (s != LEAPQUANT_OK) std::fprintf(stderr, "mirrored call: %s\n", sentence.text);
    return s;
  }

 private:
  // States and windows, of which the last slot ends with its own bytes. Where windows lie in the
  // pages of the states, one range holds both.
  void add_slots() {
    const auto bytes = [](int32_t count, int64_t stride, int64_t used) {
      return count == 0 ? int64_t{0} : (count - 1) * stride + used;
    };
    const int64_t states =
        bytes(pool_.num_state_slots, pool_.state_stride_bytes, layout_.state_bytes);
    const int64_t windows =
        bytes(pool_.num_window_slots, pool_.window_stride_bytes, layout_.window.bytes);
    const auto* state = static_cast<const std::byte*>(pool_.states);
    const auto* window = static_cast<const std::byte*>(pool_.windows);
    if (windows == 0 || window == nullptr || window >= state + states ||
        state >= window + windows) {
      states_ = staging_.add(state, static_cast<size_t>(states), true);
      windows_ = windows == 0 ? -1 : staging_.add(window, static_cast<size_t>(windows), true);
      return;
    }
    const std::byte* begin = std::min(state, window);
    const std::byte* end = std::max(state + states, window + windows);
    states_ = windows_ = staging_.add(begin, static_cast<size_t>(end - begin), true);
    state_offset_ = state - begin;
    window_offset_ = window - begin;
  }

  void reorder(bool to_device) {
    if (states_ < 0) return;
    std::vector<std::byte> head_bytes;
    for (int32_t slot = 0; slot < pool_.num_state_slots; ++slot) {
      std::byte* at = staging_.host(states_) + state_offset_ + slot * pool_.state_stride_bytes;
      for (int32_t h = 0; h < layout_.shape.num_v_heads; ++h) {
        const BoundaryLayout& head = layout_.head(h);
        head_bytes.assign(at, at + head.bytes);
        (to_device ? device_.memory->from_canonical : device_.memory->to_canonical)(
            head, head_bytes.data(), at);
        at += head.bytes;
      }
    }
  }

  template <typename Work>
  Status transfer(const Work& work, Sentence* sentence) {
    reorder(true);
    if (Status s = staging_.upload(sentence)) return s;
    leapquant_pool pool = pool_;
    pool.states = states_ < 0 ? nullptr : at<std::byte>(states_) + state_offset_;
    pool.windows = windows_ < 0 ? nullptr : at<std::byte>(windows_) + window_offset_;
    pool.base = at<int32_t>(base_);
    pool.health = at<leapquant_health>(health_);
    leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
    launch.workspace = workspace_->data;
    launch.workspace_bytes = workspace_->bytes;
    if (Status s = work(pool, launch)) return sentence->say(s, "the backend returned %d", s);
    if (Status s = staging_.download(sentence)) return s;
    reorder(false);
    staging_.give_back();
    return LEAPQUANT_OK;
  }

  const Backend& device_;
  const Layout& layout_;
  leapquant_pool pool_;
  Buffer* buffer_;
  Buffer* workspace_;
  Staging staging_;
  int states_, windows_, base_, health_;
  int64_t state_offset_ = 0;
  int64_t window_offset_ = 0;
};

template <int kIndex>
struct Mirror {
  static const Backend* device;
  static Buffer buffer;
  static Buffer workspace;

  static Status decode(const Layout& layout, const leapquant_pool& pool,
                       const leapquant_decode_args& args, const leapquant_launch&) {
    Call call(*device, layout, pool, &buffer, &workspace);
    const auto sequences = call.add_sequences(args);
    const int counts = call.add_ints(args.num_tokens, args.batch);
    const auto inputs = call.add_inputs(args.inputs, args.output, args.batch, args.tokens);
    if (Status s = call.prepare(args.batch)) return s;
    auto there = call.place_sequences(sequences, args);
    there.num_tokens = call.at<int32_t>(counts);
    call.place_inputs(inputs, &there.inputs, &there.output);
    return call.run([&](const leapquant_pool& p, const leapquant_launch& l) {
      return device->decode(layout, p, there, l);
    });
  }

  static Status prefill(const Layout& layout, const leapquant_pool& pool,
                        const leapquant_prefill_args& args, const leapquant_launch&) {
    Call call(*device, layout, pool, &buffer, &workspace);
    const auto sequences = call.add_sequences(args);
    const int offsets = call.add_ints(args.token_offsets, args.batch + 1);
    const int checkpoints =
        args.num_checkpoints == 0
            ? -1
            : call.add(args.checkpoints,
                       static_cast<size_t>(args.num_checkpoints) * sizeof(leapquant_checkpoint));
    const auto inputs =
        call.add_inputs(args.inputs, args.output, 1, args.token_offsets[args.batch]);
    if (Status s = call.prepare(args.batch)) return s;
    auto there = call.place_sequences(sequences, args);
    there.token_offsets = call.at<int32_t>(offsets);
    there.checkpoints = call.at<leapquant_checkpoint>(checkpoints);
    call.place_inputs(inputs, &there.inputs, &there.output);
    return call.run([&](const leapquant_pool& p, const leapquant_launch& l) {
      return device->prefill(layout, p, there, l);
    });
  }

  static Status fold(const Layout& layout, const leapquant_pool& pool,
                     const leapquant_fold_args& args, const leapquant_launch&) {
    Call call(*device, layout, pool, &buffer, &workspace);
    const auto sequences = call.add_sequences(args);
    const int destinations = call.add_ints(args.destination_slots, args.batch);
    if (Status s = call.prepare(args.batch)) return s;
    auto there = call.place_sequences(sequences, args);
    there.destination_slots = call.at<int32_t>(destinations);
    return call.run([&](const leapquant_pool& p, const leapquant_launch& l) {
      return device->fold(layout, p, there, l);
    });
  }

  static Status transfer(const Layout& layout, const leapquant_pool& pool,
                         const leapquant_transfer_args& args, bool importing) {
    Call call(*device, layout, pool, &buffer, &workspace);
    const auto sequences = call.add_sequences(args);
    const leapquant_shape& s = layout.shape;
    const int64_t matrix = int64_t{s.head_k_dim} * s.head_v_dim * type_bytes(args.type);
    const int64_t head = args.head_stride_bytes != 0 ? args.head_stride_bytes : matrix;
    const int64_t sequence =
        args.sequence_stride_bytes != 0 ? args.sequence_stride_bytes : head * s.num_v_heads;
    const int64_t bytes = (args.batch - 1) * sequence + (s.num_v_heads - 1) * head + matrix;
    const int matrices = call.add(args.matrices, static_cast<size_t>(bytes), !importing);
    if (Status status_of_memory = call.prepare(args.batch)) return status_of_memory;
    auto there = call.place_sequences(sequences, args);
    there.matrices = call.at<void>(matrices);
    return call.run([&](const leapquant_pool& p, const leapquant_launch& l) {
      return (importing ? device->import_states : device->export_states)(layout, p, there, l);
    });
  }
  static Status export_states(const Layout& layout, const leapquant_pool& pool,
                              const leapquant_transfer_args& args, const leapquant_launch&) {
    return transfer(layout, pool, args, false);
  }
  static Status import_states(const Layout& layout, const leapquant_pool& pool,
                              const leapquant_transfer_args& args, const leapquant_launch&) {
    return transfer(layout, pool, args, true);
  }

  static Status copy(const Layout& layout, const leapquant_pool& pool, int32_t batch,
                     const int32_t* source_states, const int32_t* source_windows,
                     const int32_t* destination_states, const int32_t* destination_windows,
                     const leapquant_launch&) {
    Call call(*device, layout, pool, &buffer, &workspace);
    const int arrays[] = {call.add_ints(source_states, batch), call.add_ints(source_windows, batch),
                          call.add_ints(destination_states, batch),
                          call.add_ints(destination_windows, batch)};
    if (Status s = call.prepare(batch)) return s;
    return call.run([&](const leapquant_pool& p, const leapquant_launch& l) {
      return device->copy(layout, p, batch, call.at<int32_t>(arrays[0]),
                          call.at<int32_t>(arrays[1]), call.at<int32_t>(arrays[2]),
                          call.at<int32_t>(arrays[3]), l);
    });
  }

  static Status reset(const Layout& layout, const leapquant_pool& pool, int32_t batch,
                      const int32_t* states, const int32_t* windows, const int32_t* positions,
                      const leapquant_launch&) {
    Call call(*device, layout, pool, &buffer, &workspace);
    const int arrays[] = {call.add_ints(states, batch), call.add_ints(windows, batch),
                          call.add_ints(positions, batch)};
    if (Status s = call.prepare(batch)) return s;
    return call.run([&](const leapquant_pool& p, const leapquant_launch& l) {
      return device->reset(layout, p, batch, call.at<int32_t>(arrays[0]),
                           call.at<int32_t>(arrays[1]), call.at<int32_t>(arrays[2]), l);
    });
  }

  static const Backend& table() {
    static const Backend mirrored_table = {
        .name = device->name,
        .device = device->device,
        .target = device->target,
        .accepts = device->accepts,
        .workspace_per_worker = [](const Layout&) { return size_t{0}; },
        .workspace_per_sequence = [](const Layout&) { return size_t{0}; },
        .decode = decode,
        .prefill = prefill,
        .fold = fold,
        .export_states = export_states,
        .import_states = import_states,
        .copy = copy,
        .reset = reset,
    };
    return mirrored_table;
  }
};

template <int kIndex>
const Backend* Mirror<kIndex>::device = nullptr;
template <int kIndex>
Buffer Mirror<kIndex>::buffer;
template <int kIndex>
Buffer Mirror<kIndex>::workspace;

template <int kIndex>
const Backend* mirrored_at(const Backend& device) {
  const Backend*& own = Mirror<kIndex>::device;
  if (own == nullptr) own = &device;
  return own == &device ? &Mirror<kIndex>::table() : nullptr;
}

}  // namespace

const Backend& mirrored(const Backend& device) {
  if (const Backend* table = mirrored_at<0>(device)) return *table;
  if (const Backend* table = mirrored_at<1>(device)) return *table;
  if (const Backend* table = mirrored_at<2>(device)) return *table;
  if (const Backend* table = mirrored_at<3>(device)) return *table;
  std::fprintf(stderr, "test set-up: more than four device backends\n");
  std::abort();
}

}  // namespace leapquant::conformance

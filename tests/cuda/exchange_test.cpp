// SPDX-License-Identifier: Apache-2.0
//
// States that go between host and device (case L1): a saved state is the same bytes from either
// side, and goes on alike on the device it came from.
#include <cmath>

#include "cuda/device_layer.h"

namespace leapquant::cuda_test {
namespace {

constexpr uint64_t kFingerprint = 0x1eaf;

// The same layer on the CPU, one slot, sequences of one token a call.
class HostLayer {
 public:
  HostLayer(const leapquant_shape& shape, const std::string& format)
      : shape_(shape),
        layout_(shape, format, LEAPQUANT_CPU),
        states_(blocks(layout_.sizes().state_bytes)),
        windows_(blocks(layout_.sizes().window_bytes)),
        base_(static_cast<size_t>(shape.num_v_heads)),
        health_(static_cast<size_t>(shape.num_v_heads)),
        workspace_(blocks(static_cast<int64_t>(leapquant_workspace_bytes(layout_.get(), 1, 1)))) {
    const int32_t slot = 0;
    const int32_t position = 0;
    const leapquant_pool p = pool();
    const leapquant_launch l = launch();
    require(leapquant_reset(layout_.get(), &p, 1, &slot, nullptr, &position, &l));
  }
  leapquant_pool pool() {
    leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
    pool.num_state_slots = 1;
    pool.num_window_slots = layout_.sizes().window_bytes > 0 ? 1 : 0;
    pool.states = states_.data();
    pool.state_stride_bytes = layout_.sizes().state_bytes;
    pool.windows = windows_.data();
    pool.window_stride_bytes = layout_.sizes().window_bytes;
    pool.base = base_.data();
    pool.health = health_.data();
    return pool;
  }
  leapquant_launch launch() {
    leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
    launch.workspace = workspace_.data();
    launch.workspace_bytes = workspace_.size() * sizeof(Block);
    return launch;
  }
  const leapquant_layout* layout() const { return layout_.get(); }
  std::vector<float> decode(int32_t position, const Tokens& token) {
    const int32_t slot = 0;
    int32_t status = 0;
    std::vector<float> o(static_cast<size_t>(shape_.num_v_heads * shape_.head_v_dim));
    leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
    args.batch = args.tokens = 1;
    args.state_slots = &slot;
    args.positions = &position;
    args.inputs = token.inputs();
    args.output.data = o.data();
    args.output.type = LEAPQUANT_FP32;
    args.status = &status;
    const leapquant_pool p = pool();
    const leapquant_launch l = launch();
    require(leapquant_decode(layout_.get(), &p, &args, &l));
    return o;
  }

 private:
  struct alignas(64) Block {
    std::byte bytes[64];
  };
  static size_t blocks(int64_t bytes) { return static_cast<size_t>(bytes / 64 + 1); }
  leapquant_shape shape_;
  LayoutHandle layout_;
  std::vector<Block> states_, windows_;
  std::vector<int32_t> base_;
  std::vector<leapquant_health> health_;
  std::vector<Block> workspace_;
};

std::vector<uint8_t> save(const leapquant_layout* layout, const leapquant_pool& pool, int32_t slot,
                          int32_t position) {
  size_t bytes = 0;
  const int32_t window = pool.num_window_slots > 0 ? slot : -1;
  require(leapquant_saved_bytes(layout, &pool, slot, window, position, &bytes));
  std::vector<uint8_t> blob(bytes);
  size_t written = 0;
  require(leapquant_save(layout, &pool, slot, window, position, kFingerprint, blob.data(), bytes,
                         &written));
  EXPECT_EQ(written, bytes);
  return blob;
}

int32_t load(const leapquant_layout* layout, const leapquant_pool& pool, int32_t slot,
             const std::vector<uint8_t>& blob) {
  int32_t position = -1;
  require(leapquant_load(layout, &pool, slot, pool.num_window_slots > 0 ? slot : -1, kFingerprint,
                         blob.data(), blob.size(), &position));
  return position;
}

double relative(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0.0;
  double total = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2.0);
    total += std::pow(static_cast<double>(b[i]), 2.0);
  }
  return std::sqrt(error / total);
}

const char* const kFormats[] = {"fp32",   "bf16",         "int8",      "int6",
                                "int4",   "int8+",        "int6+",     "int4+",
                                "3h:r=2", "int4-compact", "int8:step", "int8+:stagger=1"};

// Host to device and back: the documented bytes. Then 100 more tokens, fold, and the way back.
TEST(Exchange, SavedStatesAreTheSameBytesEverywhere) {
  for (const int32_t dim : {128, 64, 20}) {
    const leapquant_shape shape = conformance::make_shape(2, 4, dim, dim, LEAPQUANT_DECAY_SCALAR);
    const Tokens tokens = conformance::random_tokens(shape, 160, 7201);
    for (const char* format : kFormats) {
      SCOPED_TRACE(std::string(format) + ", " + std::to_string(dim));
      HostLayer host(shape, format);
      for (int32_t t = 0; t < 39; ++t) host.decode(t, conformance::slice(tokens, t, 1));
      const std::vector<uint8_t> blob = save(host.layout(), host.pool(), 0, 39);

      DeviceLayer device(shape, format, 3, 1);
      EXPECT_EQ(load(device.layout().get(), device.pool(), 2, blob), 39);
      EXPECT_TRUE(save(device.layout().get(), device.pool(), 2, 39) == blob);

      // Both go on from the same bytes; until the next fold there is rounding only, at most 1e-5 of
      // the exact outputs on either side.
      std::vector<float> here;
      std::vector<float> there;
      for (int32_t t = 39; t < 139; ++t) {
        const Tokens token = conformance::slice(tokens, t, 1);
        const std::vector<float> a = host.decode(t, token);
        const std::vector<float> b = device.decode({{2, t, 1}}, token);
        if (t < 48) {  // before the next fold of any head there is rounding only
          here.insert(here.end(), a.begin(), a.end());
          there.insert(there.end(), b.begin(), b.end());
        }
      }
      if (std::string(format).find("step") == std::string::npos &&
          std::string(format).find("stagger") == std::string::npos) {
        EXPECT_LE(relative(there, here), 2e-5);
      }

      // Folded there, saved there, loaded here: the state that the device exports.
      const bool per_step = std::string(format).find("step") != std::string::npos;
      if (!per_step) device.fold(2, 139);
      const std::vector<uint8_t> back = save(device.layout().get(), device.pool(), 2, 139);
      HostLayer again(shape, format);
      EXPECT_EQ(load(again.layout(), again.pool(), 0, back), 139);
      EXPECT_TRUE(save(again.layout(), again.pool(), 0, 139) == back);
      const Tokens next = conformance::slice(tokens, 139, 1);
      EXPECT_LE(relative(device.decode({{2, 139, 1}}, next), again.decode(139, next)), 2e-5);
    }
  }
}

// L3 on a device: no record, seven, fifteen; vector decays, boundaries by head, heads of any ratio.
// The blob of the host is the device's; after a fold there, the host's again, and both decode
// alike.
TEST(Exchange, EveryFillAndDecay) {
  const leapquant_shape shapes[] = {conformance::make_shape(2, 6, 128, 128, LEAPQUANT_DECAY_SCALAR),
                                    conformance::make_shape(2, 2, 128, 128, LEAPQUANT_DECAY_VECTOR),
                                    conformance::make_shape(1, 2, 64, 96, LEAPQUANT_DECAY_VECTOR)};
  for (const leapquant_shape& shape : shapes) {
    const Tokens tokens = conformance::random_tokens(shape, 60, 7203);
    for (const std::string format : {"int8", "int4+:stagger=1", "int6+:decay=fp16", "bf16"}) {
      if (format.find("decay") != std::string::npos && shape.decay != LEAPQUANT_DECAY_VECTOR) {
        continue;
      }
      for (const int32_t fill : {32, 39, 47}) {
        SCOPED_TRACE(format + ", " + std::to_string(fill) + " tokens, decay " +
                     std::to_string(shape.decay));
        HostLayer host(shape, format);
        for (int32_t t = 0; t < fill; ++t) host.decode(t, conformance::slice(tokens, t, 1));
        const std::vector<uint8_t> blob = save(host.layout(), host.pool(), 0, fill);
        DeviceLayer device(shape, format, 2, 1);
        EXPECT_EQ(load(device.layout().get(), device.pool(), 1, blob), fill);
        EXPECT_TRUE(save(device.layout().get(), device.pool(), 1, fill) == blob);
        for (int32_t t = fill; t < fill + 3; ++t) {
          device.decode({{1, t, 1}}, conformance::slice(tokens, t, 1));
          EXPECT_EQ(device.status(1)[0], LEAPQUANT_OK);
        }
        device.fold(1, fill + 3);
        const std::vector<uint8_t> folded = save(device.layout().get(), device.pool(), 1, fill + 3);
        HostLayer again(shape, format);
        EXPECT_EQ(load(again.layout(), again.pool(), 0, folded), fill + 3);
        EXPECT_TRUE(save(again.layout(), again.pool(), 0, fill + 3) == folded);
        const Tokens next = conformance::slice(tokens, fill + 3, 1);
        EXPECT_LE(relative(device.decode({{1, fill + 3, 1}}, next), again.decode(fill + 3, next)),
                  2e-5);
      }
    }
  }
}

// A device with activations and outputs in BF16, a host with the same values in FP32: the outputs
// are the host's but for their own rounding (2^-9 of each), and a state saved on the way goes back.
TEST(Exchange, NarrowActivationsGoOnAlike) {
  const leapquant_shape shapes[] = {conformance::make_shape(2, 4, 128, 128, LEAPQUANT_DECAY_SCALAR),
                                    conformance::make_shape(2, 2, 128, 128, LEAPQUANT_DECAY_VECTOR),
                                    conformance::make_shape(1, 2, 64, 96, LEAPQUANT_DECAY_SCALAR)};
  for (const leapquant_shape& shape : shapes) {
    Tokens tokens = conformance::random_tokens(shape, 60, 7204);
    for (std::vector<float>* values : {&tokens.q, &tokens.k, &tokens.v}) {
      for (float& x : *values) x = bf16_to_float(float_to_bf16(x));
    }
    for (const char* format : {"int8", "int4+:stagger=1", "bf16", "fp32:step"}) {
      SCOPED_TRACE(std::string(format) + ", " + std::to_string(shape.head_k_dim) + ", decay " +
                   std::to_string(shape.decay));
      HostLayer host(shape, format);
      for (int32_t t = 0; t < 33; ++t) host.decode(t, conformance::slice(tokens, t, 1));
      DeviceLayer device(shape, format, 2, 1);
      device.use_bf16_rows();
      EXPECT_EQ(
          load(device.layout().get(), device.pool(), 1, save(host.layout(), host.pool(), 0, 33)),
          33);
      // No head folds from here to the end: boundaries lie at 24, 32, 40 and 48.
      std::vector<float> here, there;
      for (int32_t t = 33; t < 39; ++t) {
        const Tokens token = conformance::slice(tokens, t, 1);
        const std::vector<float> a = host.decode(t, token);
        const std::vector<float> b = device.decode({{1, t, 1}}, token);
        EXPECT_EQ(device.status(1)[0], LEAPQUANT_OK);
        here.insert(here.end(), a.begin(), a.end());
        there.insert(there.end(), b.begin(), b.end());
      }
      EXPECT_LE(relative(there, here), 0x1p-9 + 2e-5);

      HostLayer again(shape, format);
      EXPECT_EQ(
          load(again.layout(), again.pool(), 0, save(device.layout().get(), device.pool(), 1, 39)),
          39);
      // FP16 records differ where FP32 corrections round to different neighbours, one in
      // thousands: 1e-4 of the norm covers several.
      const Tokens next = conformance::slice(tokens, 39, 1);
      const std::vector<float> before = host.decode(39, next);
      EXPECT_LE(relative(again.decode(39, next), before), 1e-4);
    }
  }
}

// What is wrong with a blob is found before the slot changes.
TEST(Exchange, RefusedBlobsChangeNothing) {
  const leapquant_shape shape = conformance::make_shape(1, 2, 64, 64, LEAPQUANT_DECAY_SCALAR);
  const Tokens tokens = conformance::random_tokens(shape, 20, 7202);
  DeviceLayer device(shape, "int8", 1, 1);
  device.reset({0});
  for (int32_t t = 0; t < 20; ++t) device.decode({{0, t, 1}}, conformance::slice(tokens, t, 1));
  const std::vector<uint8_t> before = device.slot_bytes(0);
  std::vector<uint8_t> blob = save(device.layout().get(), device.pool(), 0, 20);
  blob[blob.size() / 2] ^= 1;
  int32_t position = -1;
  const leapquant_pool p = device.pool();
  EXPECT_EQ(leapquant_load(device.layout().get(), &p, 0, 0, kFingerprint, blob.data(), blob.size(),
                           &position),
            LEAPQUANT_CHECKSUM_MISMATCH);
  EXPECT_EQ(
      leapquant_load(device.layout().get(), &p, 0, 0, kFingerprint, blob.data(), 100, &position),
      LEAPQUANT_TRUNCATED);
  EXPECT_TRUE(device.slot_bytes(0) == before);
}

}  // namespace
}  // namespace leapquant::cuda_test

// SPDX-License-Identifier: Apache-2.0
//
// Recordings: what the layers hand to the library, however the tokens were fed; written and read
// back unchanged; replaying one through the library gives the run's state.
#include "runtime/recorder.h"

#include "runtime/batch.h"
#include "unit/runtime/tiny_model.h"

namespace leapquant::runtime {
namespace {

class RecorderTest : public testing::Test {
 protected:
  // Feeds the tokens, the first `prompt` as a prompt, and gives the state of linear layer 1.
  std::vector<float> run(Recorder* recorder, std::span<const TokenId> tokens,
                         std::size_t prompt) const {
    const Threads threads(2);
    StateOptions options;
    options.state = "fp32";
    Batch batch(model, resolve_state(options, model.config()), threads);
    batch.record(recorder);
    const SequenceId sequence = *batch.open(static_cast<std::int64_t>(tokens.size()));
    const Feed first{sequence, tokens.first(prompt)};
    batch.prefill(std::span(&first, 1), {});
    for (std::size_t t = prompt; t < tokens.size(); ++t) {
      const Feed feed{sequence, tokens.subspan(t, 1)};
      batch.decode(std::span(&feed, 1), {});
    }
    std::vector<float> state(4 * 16 * 8);
    batch.export_state(sequence, 1, state);
    return state;
  }

  TinyModel tiny;
  Model model = tiny.load();
};

TEST_F(RecorderTest, TheRecurrenceOverARecordingGivesTheState) {
  const std::vector<TokenId> tokens = random_tokens(40, 1);
  Recorder recorder(model.config());
  const std::vector<float> state = run(&recorder, tokens, 25);
  ASSERT_EQ(recorder.num_tokens(), 40);
  EXPECT_EQ(recorder.bytes_per_token(), 2 * 4 * (96 + 8));
  const LayerInputs& layer = recorder.layers()[1];
  // S <- exp(g) S; u = beta (v - S^T k); S <- S + k u^T, in FP64, with k normalised as documented.
  std::vector<double> s(state.size());
  for (std::size_t t = 0; t < 40; ++t) {
    for (std::size_t head = 0; head < 4; ++head) {
      double* matrix = s.data() + head * 16 * 8;
      const float* k = layer.k.data() + (t * 2 + head / 2) * 16;
      double norm = 1e-6;
      for (std::size_t i = 0; i < 16; ++i) norm += double{k[i]} * k[i];
      norm = std::sqrt(norm);
      const double decay = std::exp(double{layer.log_decay[t * 4 + head]});
      const double beta = layer.beta[t * 4 + head];
      for (std::size_t i = 0; i < 16 * 8; ++i) matrix[i] *= decay;
      for (std::size_t j = 0; j < 8; ++j) {
        double read = 0;
        for (std::size_t i = 0; i < 16; ++i) read += matrix[i * 8 + j] * k[i] / norm;
        const double u = beta * (layer.v[(t * 4 + head) * 8 + j] - read);
        for (std::size_t i = 0; i < 16; ++i) matrix[i * 8 + j] += k[i] / norm * u;
      }
    }
  }
  double difference = 0;
  double total = 0;
  for (std::size_t i = 0; i < s.size(); ++i) {
    difference += std::pow(s[i] - state[i], 2);
    total += std::pow(s[i], 2);
  }
  // FP32 against FP64 over 40 tokens.
  EXPECT_LT(std::sqrt(difference / total), 1e-5);
}

TEST_F(RecorderTest, RecordingChangesNothing) {
  const std::vector<TokenId> tokens = random_tokens(30, 2);
  Recorder recorder(model.config());
  EXPECT_EQ(run(&recorder, tokens, 10), run(nullptr, tokens, 10));
}

TEST_F(RecorderTest, WritesAndReads) {
  const std::vector<TokenId> tokens = random_tokens(12, 3);
  Recorder recorder(model.config());
  run(&recorder, tokens, 12);
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "recording.safetensors";
  recorder.write(path);
  const Recording recording = read_recording(path);
  EXPECT_EQ(recording.num_tokens, 12);
  EXPECT_EQ(recording.num_k_heads, 2);
  EXPECT_EQ(recording.num_v_heads, 4);
  EXPECT_EQ(recording.head_k_dim, 16);
  EXPECT_EQ(recording.head_v_dim, 8);
  EXPECT_EQ(recording.model_layers, (std::vector<std::int32_t>{0, 1}));
  ASSERT_EQ(recording.layers.size(), 2u);
  for (std::size_t l = 0; l < 2; ++l) {
    EXPECT_EQ(recording.layers[l].q, recorder.layers()[l].q);
    EXPECT_EQ(recording.layers[l].k, recorder.layers()[l].k);
    EXPECT_EQ(recording.layers[l].v, recorder.layers()[l].v);
    EXPECT_EQ(recording.layers[l].log_decay, recorder.layers()[l].log_decay);
    EXPECT_EQ(recording.layers[l].beta, recorder.layers()[l].beta);
  }
}

TEST_F(RecorderTest, RefusesWhatIsNoRecording) {
  EXPECT_ERROR(read_recording(tiny.folder() / "model.safetensors"), "no recording");
  const TemporaryFolder folder;
  const std::vector<float> values(6);
  const auto write = [&](const std::string& name, std::vector<std::int64_t> shape) {
    const std::vector<TensorToWrite> tensors = {
        {name, DType::kF32, std::move(shape), std::as_bytes(std::span(values))}};
    write_safetensors(folder.path() / "x", tensors, {{"kind", "leapquant recording 1"}});
    return folder.path() / "x";
  };
  EXPECT_ERROR(read_recording(write("layers.0.w", {6})), "does not belong");
  EXPECT_ERROR(read_recording(write("layers.99999999.q", {6})), "does not belong");
  EXPECT_ERROR(read_recording(write("layers..q", {6})), "does not belong");
  EXPECT_THROW(read_recording(write("layers.0.q", {1, 2, 3})), Error);
}

}  // namespace
}  // namespace leapquant::runtime

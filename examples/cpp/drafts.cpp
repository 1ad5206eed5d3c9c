// SPDX-License-Identifier: Apache-2.0
//
// Drafts and rollback: four drafted tokens are verified in one call, two are kept. Nothing is
// committed or undone: the next call merely passes the smaller position. The result equals a run
// that never saw the rejected tokens.
#include <cstdio>
#include <span>
#include <vector>

#include "leapquant/leapquant.hpp"

namespace {

constexpr int kHeads = 2;
constexpr int kDim = 32;

// What a model would compute for tokens first .. first + count - 1 of a text.
struct Text {
  std::vector<float> q, k, v, log_decay, beta;
  Text(int first, int count, int text) {
    for (int t = first; t < first + count; ++t) {
      for (int i = 0; i < kHeads * kDim; ++i) {
        q.push_back(static_cast<float>((i * 29 + t * 71 + text) % 61 - 30) / 30.0f);
        k.push_back(static_cast<float>((i * 31 + t * 53 + text) % 67 - 33) / 33.0f);
        v.push_back(static_cast<float>((i * 37 + t * 43 + text) % 71 - 35) / 35.0f);
      }
      log_decay.insert(log_decay.end(), {-0.05f, -0.3f});
      beta.insert(beta.end(), {0.8f, 0.6f});
    }
  }
};

struct Engine {
  leapquant::Layout layout;
  leapquant::Slots slots;
  leapquant_pool pool;
  leapquant::Launch launch;

  // Feeds tokens [first, first + count) of a text to one sequence; their outputs.
  leapquant::Result<std::vector<float>> decode(leapquant::Slot slot, int first, int count,
                                               int text) {
    const Text x(first, count, text);
    leapquant::Inputs inputs;
    inputs.q = std::span<const float>(x.q);
    inputs.k = std::span<const float>(x.k);
    inputs.v = std::span<const float>(x.v);
    inputs.log_decay = std::span<const float>(x.log_decay);
    inputs.beta = std::span<const float>(x.beta);
    inputs.qk_l2norm = true;
    std::vector<float> output(static_cast<std::size_t>(count * kHeads * kDim));
    std::int32_t status = 0;
    const leapquant::Batch batch = {{&slot.state, 1}, {&slot.window, 1}, {&first, 1}, {&status, 1}};
    const auto done = leapquant::decode(layout, pool, batch, count, inputs, output, launch);
    if (!done) return done.error();
    return output;
  }
};

leapquant::Result<Engine> make_engine() {
  leapquant_shape shape = LEAPQUANT_INIT(leapquant_shape);
  shape.num_k_heads = kHeads;
  shape.num_v_heads = kHeads;
  shape.head_k_dim = kDim;
  shape.head_v_dim = kDim;
  shape.decay = LEAPQUANT_DECAY_SCALAR;
  shape.delta_rule = 1;
  shape.max_tokens = 4;
  const auto format = leapquant::format_from_string("int4+");
  if (!format) return format.error();
  auto layout = leapquant::Layout::create(shape, {&format.value(), 1});
  if (!layout) return layout.error();
  auto slots = leapquant::Slots::create(layout.value(), 1, 1 << 20);
  if (!slots) return slots.error();
  const auto pool = slots.value().pool(0);
  if (!pool) return pool.error();
  auto launch = leapquant::Launch::create(layout.value(), 1);
  if (!launch) return launch.error();
  return Engine{std::move(layout).value(), std::move(slots).value(), pool.value(),
                std::move(launch).value()};
}

leapquant::Result<bool> run() {
  auto made = make_engine();
  if (!made) return made.error();
  Engine engine = std::move(made).value();
  const auto drafting = engine.slots.acquire();
  const auto plain = engine.slots.acquire();
  if (!drafting || !plain) return (drafting ? plain : drafting).error();

  constexpr int kTrueText = 0;
  constexpr int kWrongGuess = 1000;
  for (int t = 0; t < 5; ++t) {
    for (const leapquant::Slot slot : {drafting.value(), plain.value()}) {
      if (const auto done = engine.decode(slot, t, 1, kTrueText); !done) return done.error();
    }
  }
  // Tokens 5 and 6 are kept, then a wrong guess for 7 and 8 is rejected: position 7 comes next.
  for (const auto& [first, text] : {std::pair{5, kTrueText}, std::pair{7, kWrongGuess}}) {
    const auto done = engine.decode(drafting.value(), first, 2, text);
    if (!done) return done.error();
  }
  for (int t = 5; t < 7; ++t) {
    if (const auto done = engine.decode(plain.value(), t, 1, kTrueText); !done) return done.error();
  }
  const auto after_drafts = engine.decode(drafting.value(), 7, 1, kTrueText);
  const auto without_drafts = engine.decode(plain.value(), 7, 1, kTrueText);
  if (!after_drafts || !without_drafts)
    return (after_drafts ? without_drafts : after_drafts).error();
  return after_drafts.value() == without_drafts.value();
}

}  // namespace

int main() {
  const auto equal = run();
  if (!equal) {
    std::fprintf(stderr, "drafts: %s\n", equal.error().sentence.c_str());
    return 1;
  }
  std::printf("rejected drafts left %s\n", equal.value() ? "no trace" : "A TRACE");
  return equal.value() ? 0 : 1;
}

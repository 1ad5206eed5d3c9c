/* SPDX-License-Identifier: Apache-2.0
 *
 * One layer, one sequence: decode with a window of 16 tokens and an 8-bit state, save it half-way,
 * load it into another slot, go on there. Both runs must agree bit for bit.
 *
 *   cc decode.c $(pkg-config --cflags --libs leapquant) && ./a.out
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "leapquant/leapquant.h"

enum { kHeads = 2, kKeyDim = 64, kValueDim = 64, kTokens = 40 };

static void require_ok(leapquant_status status) {
  if (status == LEAPQUANT_OK) return;
  fprintf(stderr, "decode: %s\n", leapquant_last_error());
  exit(1);
}

/* Stands for what a model computes for token `t`. */
static void fill(float* values, int count, int t, int which) {
  for (int i = 0; i < count; ++i) {
    values[i] = (float)((i * 37 + t * 101 + which * 13) % 199 - 99) / 99.0f;
  }
}

/* Decodes token number `position` of the sequence in `slot`; output [kHeads, kValueDim]. */
static void decode(const leapquant_layout* layout, const leapquant_pool* pool,
                   const leapquant_launch* launch, int32_t slot, int32_t position, float* output) {
  float q[kHeads * kKeyDim], k[kHeads * kKeyDim], v[kHeads * kValueDim];
  const float log_decay[kHeads] = {-0.01f, -0.2f};
  const float beta[kHeads] = {0.9f, 0.5f};
  int32_t status = 0;
  fill(q, kHeads * kKeyDim, position, 1);
  fill(k, kHeads * kKeyDim, position, 2);
  fill(v, kHeads * kValueDim, position, 3);

  leapquant_decode_args args = LEAPQUANT_INIT(leapquant_decode_args);
  args.batch = 1;
  args.tokens = 1;
  args.state_slots = &slot; /* the window has the same index */
  args.positions = &position;
  args.inputs.q.data = q;
  args.inputs.k.data = k;
  args.inputs.v.data = v;
  args.inputs.log_decay.data = log_decay;
  args.inputs.beta.data = beta;
  args.inputs.qk_l2norm = 1;
  args.output.data = output;
  args.status = &status;
  require_ok(leapquant_decode(layout, pool, &args, launch));
}

int main(void) {
  leapquant_shape shape = LEAPQUANT_INIT(leapquant_shape);
  shape.num_k_heads = kHeads;
  shape.num_v_heads = kHeads;
  shape.head_k_dim = kKeyDim;
  shape.head_v_dim = kValueDim;
  shape.decay = LEAPQUANT_DECAY_SCALAR;
  shape.delta_rule = 1;
  leapquant_format format = LEAPQUANT_INIT(leapquant_format);
  require_ok(leapquant_format_from_string("int8", &format));
  leapquant_layout* layout = NULL;
  require_ok(leapquant_layout_create(&shape, &format, 1, NULL, LEAPQUANT_CPU, &layout));

  /* Room for two sequences; an engine with its own memory fills a leapquant_pool itself. */
  leapquant_sizes sizes = LEAPQUANT_INIT(leapquant_sizes);
  require_ok(leapquant_bytes_per_slot(layout, &sizes));
  leapquant_slots* slots = NULL;
  require_ok(leapquant_slots_create(
      layout, 1, 2 * (sizes.state_bytes + sizes.window_bytes + sizes.metadata_bytes), &slots));
  leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
  require_ok(leapquant_slots_pool(slots, 0, &pool));
  int32_t first, second, window;
  require_ok(leapquant_slots_acquire(slots, &first, &window));
  require_ok(leapquant_slots_acquire(slots, &second, &window));

  leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
  launch.workspace_bytes = (leapquant_workspace_bytes(layout, 1, 1) + 63) / 64 * 64;
  launch.workspace = aligned_alloc(64, launch.workspace_bytes);

  float output[kHeads * kValueDim], continued[kHeads * kValueDim];
  for (int32_t t = 0; t < kTokens / 2; ++t) decode(layout, &pool, &launch, first, t, output);

  size_t bytes = 0, written = 0;
  int32_t position = 0;
  require_ok(leapquant_saved_bytes(layout, &pool, first, first, kTokens / 2, &bytes));
  void* blob = malloc(bytes);
  require_ok(leapquant_save(layout, &pool, first, first, kTokens / 2, 1, blob, bytes, &written));
  require_ok(leapquant_load(layout, &pool, second, second, 1, blob, written, &position));

  for (int32_t t = position; t < kTokens; ++t) {
    decode(layout, &pool, &launch, first, t, output);
    decode(layout, &pool, &launch, second, t, continued);
  }
  const int equal = memcmp(output, continued, sizeof(output)) == 0;
  printf("%s: %lld bytes of state instead of %d, %zu saved, continued %s\n",
         leapquant_layout_backend(layout), (long long)sizes.state_bytes,
         kHeads * kKeyDim * kValueDim * 4, written, equal ? "bit for bit" : "WITH A DIFFERENCE");

  free(blob);
  free(launch.workspace);
  leapquant_slots_destroy(slots);
  leapquant_layout_destroy(layout);
  return equal ? 0 : 1;
}

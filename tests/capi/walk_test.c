/* SPDX-License-Identifier: Apache-2.0
 *
 * A C99 program that walks the whole C API against the shared library, in the order of the header:
 * version, status, formats, layout, pools, every operation, saved states, slots, threads. It checks
 * that each call can be made from C and does its plain duty; the details are the other tests'.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "leapquant/leapquant.h"

enum { kKeyHeads = 1, kHeads = 2, kKeyDim = 8, kValueDim = 16, kBatch = 2, kStates = 4, kMost = 8 };
enum {
  kKeyValues = kBatch * kMost * kKeyHeads * kKeyDim,
  kValues = kBatch * kMost * kHeads * kValueDim
};

static int failures = 0;

static void check(int holds, const char* what, int line) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "walk_test.c:%d: %s does not hold; last error: %s\n", line, what,
          leapquant_last_error());
}
#define CHECK(condition) check((condition), #condition, __LINE__)
#define CHECK_OK(call) check((call) == LEAPQUANT_OK, #call, __LINE__)

static float q[kKeyValues], k[kKeyValues], v[kValues], log_decay[kBatch * kMost * kHeads],
    beta[kBatch * kMost * kHeads], output[kValues];

static void fill(float* values, int count, float low, float high, unsigned seed) {
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = low + (high - low) * (float)(seed >> 8) / 16777216.0f;
  }
}

static leapquant_inputs make_inputs(void) {
  leapquant_inputs inputs = LEAPQUANT_INIT(leapquant_inputs);
  inputs.q.data = q;
  inputs.k.data = k;
  inputs.v.data = v;
  inputs.log_decay.data = log_decay;
  inputs.beta.data = beta;
  inputs.qk_l2norm = 1;
  return inputs;
}

static void walk_version_and_status(void) {
  char text[32];
  CHECK(leapquant_version_number() == LEAPQUANT_VERSION_NUMBER);
  sprintf(text, "%d.%d.%d", LEAPQUANT_VERSION_MAJOR, LEAPQUANT_VERSION_MINOR,
          LEAPQUANT_VERSION_PATCH);
  CHECK(strcmp(text, leapquant_version_string()) == 0);
  CHECK(strcmp(leapquant_last_error(), "") == 0);
  CHECK(strlen(leapquant_status_string(LEAPQUANT_OK)) > 0);
}

static leapquant_layout* walk_formats_and_layout(leapquant_sizes* sizes) {
  leapquant_format formats[2] = {LEAPQUANT_INIT(leapquant_format),
                                 LEAPQUANT_INIT(leapquant_format)};
  uint8_t head_format[kHeads];
  int32_t num_formats = 0;
  char text[128];
  CHECK_OK(leapquant_format_from_string("int8:window=8", &formats[0]));
  CHECK_OK(leapquant_format_to_string(&formats[0], text, sizeof(text)));
  CHECK(strcmp(text, "int8:window=8") == 0);
  CHECK(strcmp(leapquant_preset_name(0), "fp32") == 0);
  CHECK(leapquant_preset_name(-1) == NULL);
  CHECK_OK(leapquant_formats_from_string("mix(int8:window=8@0,int4+:window=8)", 0, kHeads, formats,
                                         2, &num_formats, head_format));
  CHECK(num_formats == 2 && head_format[0] == 0 && head_format[1] == 1);

  leapquant_shape shape = LEAPQUANT_INIT(leapquant_shape);
  shape.num_k_heads = kKeyHeads;
  shape.num_v_heads = kHeads;
  shape.head_k_dim = kKeyDim;
  shape.head_v_dim = kValueDim;
  shape.decay = LEAPQUANT_DECAY_SCALAR;
  shape.delta_rule = 1;
  shape.max_tokens = 2;
  leapquant_layout* layout = NULL;
  CHECK_OK(
      leapquant_layout_create(&shape, formats, num_formats, head_format, LEAPQUANT_CPU, &layout));
  CHECK(strncmp(leapquant_layout_backend(layout), "cpu/", 4) == 0);
  CHECK_OK(leapquant_bytes_per_slot(layout, sizes));
  CHECK(leapquant_boundary_bytes(layout, 0) + leapquant_boundary_bytes(layout, 1) ==
        sizes->state_bytes);
  CHECK(sizes->num_classes == 2);
  CHECK(sizes->ring_tokens == 8 + 2 * 2 - 1);
  CHECK(leapquant_last_boundary(layout, 0, 17) == 16);
  return layout;
}

static void walk_operations(const leapquant_layout* layout, const leapquant_pool* pool,
                            const leapquant_launch* launch) {
  const int32_t slots[kBatch] = {2, 0};
  const int32_t zeros[kBatch] = {0, 0};
  int32_t positions[kBatch] = {0, 0};
  int32_t status[kBatch] = {-1, -1};
  CHECK_OK(leapquant_reset(layout, pool, kBatch, slots, NULL, zeros, launch));

  const int32_t offsets[kBatch + 1] = {0, 5, 8};
  const leapquant_checkpoint checkpoint = {0, 3, 3};
  leapquant_prefill_args prefill = LEAPQUANT_INIT(leapquant_prefill_args);
  prefill.batch = kBatch;
  prefill.state_slots = slots;
  prefill.positions = positions;
  prefill.token_offsets = offsets;
  prefill.inputs = make_inputs();
  prefill.output.data = output;
  prefill.num_checkpoints = 1;
  prefill.checkpoints = &checkpoint;
  prefill.status = status;
  CHECK_OK(leapquant_prefill(layout, pool, &prefill, launch));
  CHECK(status[0] == LEAPQUANT_OK && status[1] == LEAPQUANT_OK);
  CHECK(pool->base[2 * kHeads] == 5 && pool->base[0] == 3 && pool->base[3 * kHeads] == 3);

  leapquant_decode_args decode = LEAPQUANT_INIT(leapquant_decode_args);
  const int32_t num_tokens[kBatch] = {2, 1};
  positions[0] = 5;
  positions[1] = 3;
  decode.batch = kBatch;
  decode.tokens = 2;
  decode.state_slots = slots;
  decode.positions = positions;
  decode.num_tokens = num_tokens;
  decode.inputs = make_inputs();
  decode.output.data = output;
  decode.status = status;
  CHECK_OK(leapquant_decode(layout, pool, &decode, launch));
  for (int i = 0; i < kBatch * 2 * kHeads * kValueDim; ++i) CHECK(isfinite(output[i]));
  for (int i = 0; i < kHeads * kValueDim; ++i) CHECK(output[3 * kHeads * kValueDim + i] == 0.0f);

  leapquant_fold_args fold = LEAPQUANT_INIT(leapquant_fold_args);
  positions[0] = 7;
  positions[1] = 4;
  fold.batch = kBatch;
  fold.state_slots = slots;
  fold.positions = positions;
  fold.status = status;
  CHECK_OK(leapquant_fold(layout, pool, &fold, launch));
  CHECK(pool->base[2 * kHeads] == 7 && pool->base[0] == 4);
  CHECK(pool->health[0].fold_error < 0.1f && pool->health[0].flags == 0);

  static float matrices[kBatch * kHeads * kKeyDim * kValueDim];
  static float again[kBatch * kHeads * kKeyDim * kValueDim];
  leapquant_transfer_args transfer = LEAPQUANT_INIT(leapquant_transfer_args);
  transfer.batch = kBatch;
  transfer.state_slots = slots;
  transfer.positions = positions;
  transfer.matrices = matrices;
  transfer.type = LEAPQUANT_FP32;
  transfer.order = LEAPQUANT_VK;
  transfer.status = status;
  CHECK_OK(leapquant_export(layout, pool, &transfer, launch));
  CHECK_OK(leapquant_import(layout, pool, &transfer, launch));
  transfer.matrices = again;
  CHECK_OK(leapquant_export(layout, pool, &transfer, launch));
  for (int i = 0; i < kBatch * kHeads * kKeyDim * kValueDim; ++i) {
    CHECK(fabsf(matrices[i] - again[i]) < 0.05f);
  }

  const int32_t from = 2, to = 1;
  CHECK_OK(leapquant_copy(layout, pool, 1, &from, NULL, &to, NULL, launch));
  CHECK(pool->base[1 * kHeads] == 7);
}

static void walk_saved_states(const leapquant_layout* layout, const leapquant_pool* pool) {
  size_t bytes = 0, written = 0;
  int32_t position = 0;
  leapquant_saved_info info = LEAPQUANT_INIT(leapquant_saved_info);
  uint8_t heads[kHeads];
  CHECK_OK(leapquant_saved_bytes(layout, pool, 2, 2, 7, &bytes));
  void* blob = malloc(bytes);
  CHECK_OK(leapquant_save(layout, pool, 2, 2, 7, 99, blob, bytes, &written));
  CHECK(written == bytes);
  CHECK_OK(leapquant_inspect(blob, bytes, &info, heads, kHeads));
  CHECK(info.position == 7 && info.fingerprint == 99 && info.num_formats == 2 && heads[1] == 1);
  CHECK_OK(leapquant_load(layout, pool, 3, 3, 99, blob, bytes, &position));
  CHECK(position == 7);
  free(blob);
}

static void walk_slots(const leapquant_layout* layout, const leapquant_sizes* sizes) {
  leapquant_slots* slots = NULL;
  leapquant_slots_usage usage = LEAPQUANT_INIT(leapquant_slots_usage);
  leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
  int32_t state = -1, window = -1, kept = -1, evicted = -2;
  const int64_t one = sizes->state_bytes + sizes->window_bytes + sizes->metadata_bytes;
  CHECK_OK(leapquant_slots_create(layout, 2, 2 * 2 * one, &slots));
  CHECK_OK(leapquant_slots_pool(slots, 1, &pool));
  CHECK_OK(leapquant_slots_acquire(slots, &state, &window));
  CHECK_OK(leapquant_slots_acquire_checkpoint(slots, &kept, &evicted));
  CHECK(evicted == -1 && kept != state);
  CHECK_OK(leapquant_slots_touch(slots, kept));
  CHECK_OK(leapquant_slots_get_usage(slots, &usage));
  CHECK(usage.num_sequences == 1 && usage.num_checkpoints == 1);
  CHECK(usage.resident_bytes <= usage.budget_bytes);
  CHECK_OK(leapquant_slots_release(slots, state, 1));
  leapquant_slots_destroy(slots);
}

static void count_task(void* argument, int32_t task, int32_t worker) {
  int* times = (int*)argument;
  (void)worker;
  times[task] += 1;
}

static void walk_threads(void) {
  leapquant_threads* threads = NULL;
  int times[10] = {0};
  CHECK_OK(leapquant_threads_create(2, &threads));
  const leapquant_runner* runner = leapquant_threads_runner(threads);
  CHECK(runner->num_workers == 2);
  runner->run(runner->context, 10, count_task, times);
  for (int i = 0; i < 10; ++i) CHECK(times[i] == 1);
  leapquant_threads_destroy(threads);
}

/* Memory at a multiple of 64 within `memory`, which has 64 bytes to spare. */
static void* align_64(char* memory) { return memory + (64 - (size_t)memory % 64) % 64; }

int main(void) {
  leapquant_sizes sizes = LEAPQUANT_INIT(leapquant_sizes);
  walk_version_and_status();
  leapquant_layout* layout = walk_formats_and_layout(&sizes);
  if (failures > 0) return 1;

  fill(q, kKeyValues, -1.0f, 1.0f, 1);
  fill(k, kKeyValues, -1.0f, 1.0f, 2);
  fill(v, kValues, -1.0f, 1.0f, 3);
  fill(log_decay, kBatch * kMost * kHeads, -0.2f, 0.0f, 4);
  fill(beta, kBatch * kMost * kHeads, 0.1f, 0.9f, 5);
  leapquant_pool pool = LEAPQUANT_INIT(leapquant_pool);
  char* states = malloc((size_t)(kStates * sizes.state_bytes) + 64);
  char* windows = malloc((size_t)(kStates * sizes.window_bytes) + 64);
  static int32_t base[kStates * kHeads];
  static leapquant_health health[kStates * kHeads];
  pool.num_state_slots = kStates;
  pool.num_window_slots = kStates;
  pool.states = align_64(states);
  pool.state_stride_bytes = sizes.state_bytes;
  pool.windows = align_64(windows);
  pool.window_stride_bytes = sizes.window_bytes;
  pool.base = base;
  pool.health = health;
  leapquant_launch launch = LEAPQUANT_INIT(leapquant_launch);
  launch.workspace_bytes = leapquant_workspace_bytes(layout, 1, kBatch);
  char* workspace = malloc(launch.workspace_bytes + 64);
  launch.workspace = align_64(workspace);

  walk_operations(layout, &pool, &launch);
  walk_saved_states(layout, &pool);
  walk_slots(layout, &sizes);
  walk_threads();
  free(workspace);
  free(windows);
  free(states);
  leapquant_layout_destroy(layout);
  return failures == 0 ? 0 : 1;
}

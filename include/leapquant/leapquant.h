/* SPDX-License-Identifier: Apache-2.0
 *
 * LeapQuant, C API: the one stable surface of the library. It keeps the recurrent state of
 * linear-attention layers in 8, 6, 4 or 3 bits (or BF16 / FP32) and decodes from it directly.
 * Read top to bottom: version, status, glossary, shapes, formats, layouts, pools, launches,
 * operations, saved states, slots, threads.
 *
 * Rules that hold everywhere
 * - The caller owns all large memory. Functions that answer sizes come before those that need them.
 *   Operations never allocate, print, abort or throw. Freeing NULL does nothing.
 * - A bad argument changes nothing; the call returns a status and leapquant_last_error() gives one
 *   sentence for the calling thread: which argument, what was expected, what came.
 * - Every struct that may grow begins with struct_size; set it to sizeof(the struct) and zero the
 *   rest (LEAPQUANT_INIT does both). A smaller struct_size, of an older header, stands for a struct
 *   whose later fields are zero; a larger one than the library knows is accepted only when the
 *   unknown tail is zero. Structs that lie inside others or in arrays (leapquant_shape,
 *   leapquant_format, leapquant_inputs) keep their size: they grow into `reserved`, which is zero.
 * - Strides are in bytes. Last axes are contiguous. A stride of 0 means "packed".
 * - Threads: a layout is immutable and may be shared. Two calls may run at the same time as long as
 *   no state or window slot that one of them writes is used by the other and they use different
 *   workspaces. leapquant_slots and leapquant_threads objects say their own rules.
 * - Results are bitwise independent of batch composition, row order, slot number and thread count.
 * - ABI: within one major version (0: within one minor version) functions and enum values are only
 *   added, never changed or renumbered; structs grow only at their end.
 */
#ifndef LEAPQUANT_LEAPQUANT_H_
#define LEAPQUANT_LEAPQUANT_H_

#include <stddef.h>
#include <stdint.h>

#if defined(LEAPQUANT_STATIC)
#define LEAPQUANT_API
#else
#define LEAPQUANT_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version ------------------------------------------------------------------------------- */

#define LEAPQUANT_VERSION_MAJOR 0
#define LEAPQUANT_VERSION_MINOR 1
#define LEAPQUANT_VERSION_PATCH 0
/* major * 10000 + minor * 100 + patch of the header that the caller was compiled with. */
#define LEAPQUANT_VERSION_NUMBER \
  (LEAPQUANT_VERSION_MAJOR * 10000 + LEAPQUANT_VERSION_MINOR * 100 + LEAPQUANT_VERSION_PATCH)

/* Version of the library that is loaded, encoded as LEAPQUANT_VERSION_NUMBER. Never fails. */
LEAPQUANT_API uint32_t leapquant_version_number(void);
/* The same as text, "0.1.0". Static storage. Never fails. */
LEAPQUANT_API const char* leapquant_version_string(void);

/* Zeroes a struct of this header and sets its struct_size: leapquant_shape shape =
 * LEAPQUANT_INIT(leapquant_shape); in C an initialiser, in C++ a value. */
#ifdef __cplusplus
extern "C++" {
template <typename Struct>
constexpr Struct leapquant_init() {
  Struct value{};
  value.struct_size = sizeof(Struct);
  return value;
}
}
#define LEAPQUANT_INIT(type) (leapquant_init<type>())
#else
#define LEAPQUANT_INIT(type) {.struct_size = sizeof(type)}
#endif

/* ---- Status -------------------------------------------------------------------------------- */

/* Values are pinned for ever. Groups: argument 10-39, data 40-69, resource and device 70-89,
 * internal 90-99. */
typedef enum leapquant_status {
  LEAPQUANT_OK = 0,
  LEAPQUANT_INVALID_ARGUMENT = 10,     /* a value outside its documented range */
  LEAPQUANT_NULL_POINTER = 11,         /* a required pointer is null */
  LEAPQUANT_INVALID_SHAPE = 12,        /* heads, dims or sub-steps that no state can have */
  LEAPQUANT_INVALID_FORMAT = 13,       /* a format outside its documented ranges */
  LEAPQUANT_INVALID_STRIDE = 14,       /* a stride that lets rows overlap or breaks alignment */
  LEAPQUANT_BUFFER_TOO_SMALL = 15,     /* a buffer or workspace below its asked size */
  LEAPQUANT_SLOT_OUT_OF_RANGE = 16,    /* a slot index at or past the pool's end */
  LEAPQUANT_SLOT_REPEATED = 17,        /* one slot twice in a call that writes it */
  LEAPQUANT_POSITION_BELOW_BASE = 18,  /* tokens already folded cannot be taken back */
  LEAPQUANT_POSITION_PAST_WINDOW = 19, /* records between base and position are not in the ring */
  LEAPQUANT_UNSUPPORTED = 20,          /* valid, but no backend accepts it; the sentence says why */
  LEAPQUANT_NON_FINITE_INPUT = 40,     /* NaN or infinity in q, k, v, read key, beta or gate */
  LEAPQUANT_POSITIVE_LOG_DECAY = 41,   /* log decay above zero: the state would grow */
  LEAPQUANT_TRUNCATED = 42,            /* a saved state ends early */
  LEAPQUANT_BAD_MAGIC = 43,            /* not a saved state */
  LEAPQUANT_VERSION_MISMATCH = 44,     /* saved by a version this library cannot read */
  LEAPQUANT_CHECKSUM_MISMATCH = 45,    /* bytes of a saved state have changed */
  LEAPQUANT_SHAPE_MISMATCH = 46,       /* saved with another shape */
  LEAPQUANT_FORMAT_MISMATCH = 47,      /* saved in another format */
  LEAPQUANT_FINGERPRINT_MISMATCH = 48, /* saved by another model */
  LEAPQUANT_EMPTY_ENTRY = 49,          /* all zero: never written, a miss and not a state */
  LEAPQUANT_CORRUPT = 50,              /* contents that no save writes, though checksums agree */
  LEAPQUANT_POOL_FULL = 70,            /* no free slot within the byte budget */
  LEAPQUANT_OUT_OF_MEMORY = 71,        /* the host refused memory to a create call */
  LEAPQUANT_DEVICE_UNAVAILABLE = 72,   /* the asked device is not built in or not present */
  LEAPQUANT_INTERNAL = 90              /* a defect of the library; please report it */
} leapquant_status;

/* One sentence per status value. Static storage; an unknown value gets a sentence too. */
LEAPQUANT_API const char* leapquant_status_string(leapquant_status status);
/* The sentence of the last failure on this thread, or "" if none. Valid until the thread's next
 * failing call. */
LEAPQUANT_API const char* leapquant_last_error(void);

/* ---- Types --------------------------------------------------------------------------------- */

typedef enum leapquant_type {
  LEAPQUANT_FP32 = 0,
  LEAPQUANT_FP16 = 1,
  LEAPQUANT_BF16 = 2
} leapquant_type;

typedef enum leapquant_device { LEAPQUANT_CPU = 0, LEAPQUANT_CUDA = 1 } leapquant_device;

/* Decay of the old state before each token: S <- Diag(exp(log_decay)) S. */
typedef enum leapquant_decay {
  LEAPQUANT_DECAY_NONE = 0,     /* exp(0) */
  LEAPQUANT_DECAY_CONSTANT = 1, /* one constant per value head, given with the shape (RetNet) */
  LEAPQUANT_DECAY_SCALAR = 2,   /* one per token and value head (GDN, Mamba2) */
  LEAPQUANT_DECAY_VECTOR = 3    /* one per token, value head and key channel (KDA, GLA, RWKV) */
} leapquant_decay;

/* ---- Shape of a layer ---------------------------------------------------------------------- */

/* One layer's recurrent state: per value head a matrix S [head_k_dim, head_v_dim].
 *   per token:     S <- Diag(a) S,  then for every sub-step j
 *                  u_j = beta_j (v_j - S_before^T b_j),   S <- S + k_j u_j^T
 *   output:        o = S^T q
 * where b_0 reads the state before the decay (default b_0 = a . k_0, that is: k_0 reads the decayed
 * state) and b_j, j > 0, the state after sub-step j - 1 (default k_j). Without the delta rule
 * u_j = beta_j v_j. Value head h uses key head h / (num_v_heads / num_k_heads).
 * Source of the general form: arXiv 2609.38166, section 2. */
typedef struct leapquant_shape {
  uint32_t struct_size;
  int32_t num_k_heads;             /* >= 1 */
  int32_t num_v_heads;             /* a multiple of num_k_heads, <= 65536 */
  int32_t head_k_dim;              /* multiple of 4, 4..256 */
  int32_t head_v_dim;              /* multiple of 4, 4..256 */
  int32_t decay;                   /* leapquant_decay */
  int32_t delta_rule;              /* 1: u = beta (v - S^T b); 0: u = beta v */
  int32_t sub_steps;               /* writes per token, 1..8 (DeltaProduct n, RWKV7 2); 0 means 1 */
  int32_t max_tokens;              /* largest number of tokens per decode call, 1..8; 0 means 1 */
  int32_t first_k_head;            /* tensor parallelism: index of this shard's first key head; */
  int32_t total_k_heads;           /* key heads of the whole layer; 0 means num_k_heads */
  const float* constant_log_decay; /* [num_v_heads], <= 0; only LEAPQUANT_DECAY_CONSTANT; copied */
  int32_t reserved[4];             /* zero */
} leapquant_shape;

/* ---- Format of a state --------------------------------------------------------------------- */

typedef enum leapquant_policy {
  LEAPQUANT_WINDOWED = 0, /* the state is rounded once per window; records fill the window */
  LEAPQUANT_PER_STEP = 1  /* the state is rounded after every token; no records, no rollback */
} leapquant_policy;

typedef enum leapquant_levels {
  LEAPQUANT_INTEGERS = 0,     /* codes -Q..Q, Q = 2^(bits-1) - 1 */
  LEAPQUANT_HALF_INTEGERS = 1 /* codes -2^(bits-1)..2^(bits-1)-1, standing for code + 1/2 */
} leapquant_levels;

typedef enum leapquant_smoothing {
  LEAPQUANT_SMOOTHING_NONE = 0,
  LEAPQUANT_SMOOTHING_FP32 = 1, /* one FP32 factor per key row */
  LEAPQUANT_SMOOTHING_LOG8 = 2  /* one byte n per key row: 2^((n - 128) / 8) */
} leapquant_smoothing;

typedef enum leapquant_fit_start {
  LEAPQUANT_FIT_DEFAULT = 0, /* the measured default of this version, see docs/FORMAT.md */
  LEAPQUANT_FIT_FIXED = 1,   /* the fixed table of start vectors at every fold */
  LEAPQUANT_FIT_WARM = 2     /* the stored value-side compensators; fixed where these are dead */
} leapquant_fit_start;

/* A format is data. Bytes are given in docs/FORMAT.md. The first block decides the bytes; the
 * second is the encoder's choice, and states encoded differently are read alike. */
typedef struct leapquant_format {
  uint32_t struct_size;
  int32_t payload_bits;     /* 8, 6, 4, 3: quantised residual; 16: BF16 state; 32: FP32 state */
  int32_t levels;           /* leapquant_levels; payload_bits <= 8 only */
  int32_t value_scale_type; /* LEAPQUANT_FP32, or LEAPQUANT_FP16 rounded up */
  int32_t smoothing;        /* leapquant_smoothing */
  int32_t num_fp16;         /* compensators in FP16; num_fp16 + num_int8 + num_int4 is 0..32 */
  int32_t num_int8;         /* compensators in INT8, one FP16 scale per vector */
  int32_t num_int4;         /* compensators in INT4 half-integers, one FP16 scale per vector */
  int32_t policy;           /* leapquant_policy */
  int32_t window;           /* tokens between folds, 1..64; per step: 1 (0 means 16, per step 1) */
  int32_t stagger;        /* 1: boundaries of key head k at floor(k window / total_k_heads); 0: all
                             heads at multiples of window */
  int32_t log_decay_type; /* records' per-channel log decays: LEAPQUANT_FP32 or LEAPQUANT_FP16 */

  int32_t fit_start;   /* leapquant_fit_start */
  int32_t fit_rounds;  /* rounds of block subspace iteration, 1..4; 0 means default */
  float scale_steps;   /* steps at which a column's largest magnitude lies; 0 means default:
                          Q for integers, 7.75 for 4-bit half-integers, else 2^(bits-1) - 1/2 */
  int32_t reserved[5]; /* zero */
} leapquant_format;

/* Fills *format from text: a preset ("fp32", "bf16", "int8", "int6", "int4", "int8+", "int6+",
 * "int4+", "int4-compact") or a payload ("8", "6", "4", "3"; "h" appended for half-integers), then
 * options, each after a colon: "int8:r=8:window=32", "4h:scale=fp16:smooth=log8:i8=4:i4=11",
 * "int8:step" (per step: no compensators, no smoothing). The grammar is in docs/FORMAT.md ("Format
 * strings"). Presets are windowed, 16 tokens. Not changed on failure. Errors: NULL_POINTER,
 * INVALID_FORMAT (the sentence names the part and lists what is allowed). */
LEAPQUANT_API leapquant_status leapquant_format_from_string(const char* text,
                                                            leapquant_format* format);
/* Parses a format, or a mix by head, "mix(int8+@0-3,int4-compact)": entries FORMAT@HEADS in order,
 * the first that names a head wins, the last, without @, takes the rest. HEADS: ranges joined by
 * "&", each with an optional linear-layer index in front: "0-1&7", "3.0-1" (layer 3 only).
 * layer: index of this layer among the model's linear layers. formats [max_formats] receives
 * *num_formats distinct formats, head_format [num_v_heads] the index of each head's format.
 * Unspecified after a failure. Errors: as above; INVALID_ARGUMENT when a head is out of range;
 * BUFFER_TOO_SMALL. */
LEAPQUANT_API leapquant_status leapquant_formats_from_string(
    const char* text, int32_t layer, int32_t num_v_heads, leapquant_format* formats,
    int32_t max_formats, int32_t* num_formats, uint8_t* head_format);
/* Writes the canonical text of a format, zero-terminated, into buffer [bytes] (128 is enough);
 * from_string of it gives the same format. */
LEAPQUANT_API leapquant_status leapquant_format_to_string(const leapquant_format* format,
                                                          char* buffer, size_t bytes);
/* Name of preset i, NULL past the last. Static storage. */
LEAPQUANT_API const char* leapquant_preset_name(int32_t i);

/* ---- Layout: shape and formats, with every size and the chosen backend ---------------------- */

typedef struct leapquant_layout leapquant_layout;

/* Creates a layout for one layer. formats [num_formats], 1..8; head_format [num_v_heads] indexes
 * formats, NULL: all heads use formats[0]. Formats of one layout share window, stagger and policy;
 * value heads of one key head may differ in everything else. device picks the backend: the first of
 * the ordered list that accepts wins. *layout is set only on success.
 * Errors: NULL_POINTER, INVALID_SHAPE, INVALID_FORMAT, UNSUPPORTED (the sentence lists every
 * reason), DEVICE_UNAVAILABLE, OUT_OF_MEMORY. */
LEAPQUANT_API leapquant_status leapquant_layout_create(
    const leapquant_shape* shape, const leapquant_format* formats, int32_t num_formats,
    const uint8_t* head_format, leapquant_device device, leapquant_layout** layout);
LEAPQUANT_API void leapquant_layout_destroy(leapquant_layout* layout);
/* Name of the backend that serves this layout and its SIMD target, e.g. "cpu/AVX2". Static. */
LEAPQUANT_API const char* leapquant_layout_backend(const leapquant_layout* layout);

/* Bytes of one slot; the one source of sizes for allocators, tools and documents. */
typedef struct leapquant_sizes {
  uint32_t struct_size;
  int64_t state_bytes;    /* boundary states of all value heads, multiple of 16 */
  int64_t window_bytes;   /* records of one active sequence, multiple of 16; 0 per step */
  int64_t metadata_bytes; /* base and health of all value heads */
  int64_t saved_bytes;    /* largest saved blob of one slot, window included */
  int32_t ring_tokens;    /* R: tokens a window's ring holds */
  int32_t num_classes;    /* distinct formats */
} leapquant_sizes;
LEAPQUANT_API leapquant_status leapquant_bytes_per_slot(const leapquant_layout* layout,
                                                        leapquant_sizes* sizes);
/* Bytes of one head's boundary state; 0 for a head out of range. */
LEAPQUANT_API int64_t leapquant_boundary_bytes(const leapquant_layout* layout, int32_t v_head);
/* Last boundary of value head v_head at or below position (the next one lies `window` tokens
 * further); may be negative: no boundary yet. Pure arithmetic, no pool needed. INT32_MIN for a head
 * out of range or a null layout. */
LEAPQUANT_API int32_t leapquant_last_boundary(const leapquant_layout* layout, int32_t v_head,
                                              int32_t position);

/* ---- Pools --------------------------------------------------------------------------------- */

/* Flags of leapquant_health.flags. */
enum {
  LEAPQUANT_HEALTH_NON_FINITE = 1,       /* a state entry left the finite range; quantised formats
                                            store such an entry as zero */
  LEAPQUANT_HEALTH_RECORD_SATURATED = 2, /* a correction u passed the FP16 range and was clamped */
  LEAPQUANT_HEALTH_SCALE_SATURATED = 4,  /* a value or smoothing scale passed its type's range */
  LEAPQUANT_HEALTH_COMPENSATOR_SATURATED = 8
};

/* Telemetry of one value head in one slot; written by folds (and flags by decode), 16 bytes. */
typedef struct leapquant_health {
  float residual_max;       /* largest magnitude of the quant_residual at the last fold */
  float compensator_energy; /* share of |S|_F^2 held by the compensators, 0..1 */
  float fold_error;         /* |S_decoded - S|_F / |S|_F of the last fold */
  uint32_t flags;           /* LEAPQUANT_HEALTH_*, sticky until reset */
} leapquant_health;

/* Where the memory of one layer lies. The caller owns it; the library never frees or moves it.
 * States and windows may be two pools, or lie behind one another in one page: only pointers and
 * strides differ. Contents of a slot are undefined until reset, import, load or copy fills it. */
typedef struct leapquant_pool {
  uint32_t struct_size;
  int32_t num_state_slots;
  int32_t num_window_slots;   /* 0 is allowed when the layout is per step */
  void* states;               /* state slot s at states + s * state_stride_bytes; 16-byte aligned */
  int64_t state_stride_bytes; /* >= state_bytes, multiple of 16 */
  void* windows;              /* window slot w at windows + w * window_stride_bytes; 16-aligned */
  int64_t window_stride_bytes; /* >= window_bytes, multiple of 16 */
  int32_t* base;            /* [num_state_slots, num_v_heads]: position each boundary stands for */
  leapquant_health* health; /* [num_state_slots, num_v_heads]; may be null */
} leapquant_pool;

/* ---- Launch: threads or stream, workspace, checks ------------------------------------------- */
/* On a device, whatever a call's structs point to is memory of the device: pool, tensors,
 * parameters, slots, positions, counts, offsets, checkpoints, status and workspace. The structs
 * themselves are the host's. A call puts its work into the stream and does not wait, so that it can
 * be captured in a graph; what it launches depends on sizes only, never on slots or positions.
 * A decode of few sequences is placed while the kernel before it in the stream ends (programmatic
 * dependent launch) and waits for that kernel before it reads anything. So right before a call no
 * kernel may stand that starts its own dependents early (cudaTriggerProgrammaticLaunchCompletion)
 * without waiting for what came before it (cudaGridDependencySynchronize).
 * Codes lie in an order of the device's own; save, load, export and import give canonical ones.
 * Save and load wait; the caller has waited for what wrote the slot. */

typedef void (*leapquant_task)(void* argument, int32_t task, int32_t worker);
/* How a call spreads its work: run must execute task(argument, i, worker) once for every i in
 * 0..num_tasks-1 and return when all are done; worker in 0..num_workers-1, no two tasks at the same
 * time with the same worker. */
typedef struct leapquant_runner {
  void* context;
  int32_t num_workers; /* >= 1 */
  void (*run)(void* context, int32_t num_tasks, leapquant_task task, void* argument);
} leapquant_runner;

typedef enum leapquant_check {
  LEAPQUANT_CHECK_DEFAULT = 0, /* full on the CPU, off on a device */
  LEAPQUANT_CHECK_FULL = 1,    /* slots and positions are verified at the door (nothing changes on
                                  failure); faults of single sequences become the call's status.
                                  On a device only the latter, after waiting for the call */
  LEAPQUANT_CHECK_OFF = 2      /* faults only reach the per-sequence status array */
} leapquant_check;

typedef struct leapquant_launch {
  uint32_t struct_size;
  int32_t check;                  /* leapquant_check */
  const leapquant_runner* runner; /* CPU; null: the calling thread alone */
  void* stream;                   /* CUDA */
  void* workspace;        /* 64-byte aligned, contents undefined, not shared between calls */
  size_t workspace_bytes; /* >= leapquant_workspace_bytes */
} leapquant_launch;

/* Workspace of any operation of this layout with up to num_workers workers and max_batch sequences
 * in a call. 0 on a bad argument. */
LEAPQUANT_API size_t leapquant_workspace_bytes(const leapquant_layout* layout, int32_t num_workers,
                                               int32_t max_batch);

/* ---- Inputs of decode and prefill ---------------------------------------------------------- */

/* A strided view, axes outermost first: sequence (decode only), token, sub-step (k, v, read key and
 * beta only), head, then the contiguous last axis. Strides in bytes; 0 = packed. Elements must be
 * aligned to their type. Aliasing with an output is not allowed. */
typedef struct leapquant_tensor {
  const void* data;
  int32_t type; /* leapquant_type */
  int64_t sequence_stride_bytes;
  int64_t token_stride_bytes;
  int64_t sub_step_stride_bytes;
  int64_t head_stride_bytes;
} leapquant_tensor;

typedef enum leapquant_gate {
  LEAPQUANT_GATE_READY = 0,    /* log_decay holds natural logs of the decay, <= 0, -inf allowed */
  LEAPQUANT_GATE_SOFTPLUS = 1, /* g = -exp(a_log) softplus(x + dt_bias); softplus(x) = x above 20 */
  LEAPQUANT_GATE_BOUNDED = 2   /* g = lower_bound sigmoid(exp(a_log) (x + dt_bias)) */
} leapquant_gate;

typedef enum leapquant_beta {
  LEAPQUANT_BETA_READY = 0,  /* used as given; a null tensor means 1 */
  LEAPQUANT_BETA_SIGMOID = 1 /* beta_scale * sigmoid(x) */
} leapquant_beta;

/* Activations of a call. T: decode max_tokens of the call; prefill: total tokens.
 * n = sub_steps, HK = num_k_heads, HV = num_v_heads, K = head_k_dim, V = head_v_dim. */
typedef struct leapquant_inputs {
  uint32_t struct_size;       /* may be 0: lies inside another struct, whose size counts */
  leapquant_tensor q;         /* [.., T, HK, K] */
  leapquant_tensor k;         /* [.., T, n, HK, K] write keys */
  leapquant_tensor v;         /* [.., T, n, HV, V] */
  leapquant_tensor read_key;  /* [.., T, n, HK, K] b, or data = null for the default (see shape) */
  leapquant_tensor log_decay; /* scalar: [.., T, HV] (heads on the contiguous axis, head stride
                                 unused); vector: [.., T, HV, K]; null for none and constant */
  leapquant_tensor beta;      /* [.., T, n, HV] (heads contiguous), or data = null: 1 */
  int32_t gate;               /* leapquant_gate: what log_decay holds */
  /* The parameters a_log, dt_bias, bonus and skip are finite (a_log may be -inf); the CPU refuses
     a call with others. */
  const float* a_log;   /* [HV]; softplus and bounded */
  const float* dt_bias; /* [HV] scalar decay, [HV, K] vector decay; null: 0 */
  float lower_bound;    /* bounded gate: < 0, usually -5 */
  int32_t beta_kind;    /* leapquant_beta */
  float beta_scale;     /* sigmoid only: 1, or 2 with negative eigenvalues; 0 means 1 */
  int32_t qk_l2norm;    /* 1: q, k and read_key are divided by sqrt(sum x^2 + l2norm_eps) */
  float l2norm_eps;     /* 0 means 1e-6 */
  float q_scale;        /* multiplied onto q after normalisation; 0 means 1 */
  /* Output hooks for what lies outside the general form. */
  int32_t read_before_update; /* 1: o = S_before^T q, decay and update not applied (RWKV6) */
  const float* bonus;         /* [HV, K] or null: o += <q . bonus, k_0> v_0 (RWKV6) */
  const float* skip;          /* [HV] or null: o += skip v_0 (Mamba2 D, v_0 without beta) */
  int64_t reserved[8];        /* zero */
} leapquant_inputs;

/* Output o [.., T, HV, V]; strides as leapquant_tensor. FP16 outputs saturate at 65504. */
typedef struct leapquant_output {
  void* data;
  int32_t type; /* leapquant_type */
  int64_t sequence_stride_bytes;
  int64_t token_stride_bytes;
  int64_t head_stride_bytes;
} leapquant_output;

/* ---- Operations ---------------------------------------------------------------------------- */
/* Common arguments. state_slots [batch] and window_slots [batch] (null: the state's index): a
 * negative state index is a padding row: output zero, nothing else read or written; slot 0 is
 * ordinary. A negative window index of a live row says that the slot has no window, as checkpoints
 * have none: allowed where no record is read or written (position = base of every head, and not in
 * a windowed decode). Layouts per step ignore window slots. positions [batch]: tokens committed
 * before the call. status [batch] receives a leapquant_status per sequence; a faulty sequence gets
 * zero output and no change, its neighbours are unaffected. Passing a smaller position than last
 * time rolls back drafts, down to the largest base of the heads.
 */

typedef struct leapquant_decode_args {
  uint32_t struct_size;
  int32_t batch;  /* >= 0 */
  int32_t tokens; /* T of the tensors, 1..shape.max_tokens */
  const int32_t* state_slots;
  const int32_t* window_slots;
  const int32_t* positions;
  const int32_t* num_tokens; /* [batch] 0..tokens, null: all `tokens` */
  leapquant_inputs inputs;   /* leading axes [batch, tokens] */
  leapquant_output output;   /* [batch, tokens, HV, V]; rows past num_tokens are zero */
  int32_t* status;           /* [batch] */
} leapquant_decode_args;
/* Folds each head up to its last boundary at or below its position, then reads, computes the
 * outputs and appends the records. No commit: the next call's position says how many tokens were
 * kept. */
LEAPQUANT_API leapquant_status leapquant_decode(const leapquant_layout* layout,
                                                const leapquant_pool* pool,
                                                const leapquant_decode_args* args,
                                                const leapquant_launch* launch);

/* A checkpoint to take inside a prefill: the state after `position` tokens, folded into state_slot.
 */
typedef struct leapquant_checkpoint {
  int32_t sequence;
  int32_t position;   /* absolute; > the sequence's start, <= its end */
  int32_t state_slot; /* of the same pool, with an empty window: base = position for every head */
} leapquant_checkpoint;

typedef struct leapquant_prefill_args {
  uint32_t struct_size;
  int32_t batch;
  const int32_t* state_slots;
  const int32_t* window_slots;  /* windows are read (records before positions), then left empty */
  const int32_t* positions;     /* 0 for a fresh slot */
  const int32_t* token_offsets; /* [batch + 1], ascending from 0: sequence i has tokens
                                   token_offsets[i] .. token_offsets[i + 1] - 1 of the packed axis;
                                   an empty sequence is left unchanged */
  leapquant_inputs inputs;      /* leading axis [total tokens] */
  leapquant_output output;      /* [total tokens, HV, V] */
  int32_t num_checkpoints;
  const leapquant_checkpoint* checkpoints; /* sorted by sequence, then position */
  int32_t through; /* 1: the running state continues from each folded checkpoint, so
                      that a later hit equals this run bitwise */
  int32_t* status; /* [batch] */
} leapquant_prefill_args;
/* Chunked parallel form, then one fold per head; base becomes the end position, the ring is empty.
 */
LEAPQUANT_API leapquant_status leapquant_prefill(const leapquant_layout* layout,
                                                 const leapquant_pool* pool,
                                                 const leapquant_prefill_args* args,
                                                 const leapquant_launch* launch);

typedef struct leapquant_fold_args {
  uint32_t struct_size;
  int32_t batch;
  const int32_t* state_slots;
  const int32_t* window_slots;
  const int32_t* positions;
  const int32_t* destination_slots; /* state slots that receive the fold; null: in place */
  int32_t* status;                  /* [batch] */
} leapquant_fold_args;
/* Folds every head up to `position`, wherever its boundaries lie. base of the destination becomes
 * position; the source is unchanged when the destination differs. */
LEAPQUANT_API leapquant_status leapquant_fold(const leapquant_layout* layout,
                                              const leapquant_pool* pool,
                                              const leapquant_fold_args* args,
                                              const leapquant_launch* launch);

typedef enum leapquant_order {
  LEAPQUANT_KV = 0, /* [HV, K, V], value index contiguous */
  LEAPQUANT_VK = 1  /* [HV, V, K], key index contiguous */
} leapquant_order;

typedef struct leapquant_transfer_args {
  uint32_t struct_size;
  int32_t batch;
  const int32_t* state_slots;
  const int32_t* window_slots;
  const int32_t* positions;      /* export: state after so many tokens; import: becomes base */
  void* matrices;                /* [batch, HV, ..] export: written, import: read */
  int32_t type;                  /* LEAPQUANT_FP32 or LEAPQUANT_BF16 */
  int32_t order;                 /* leapquant_order */
  int64_t sequence_stride_bytes; /* 0 = packed */
  int64_t head_stride_bytes;     /* 0 = packed */
  int32_t* status;               /* [batch] */
} leapquant_transfer_args;
/* Writes the state (boundary state and records up to position) as plain matrices. */
LEAPQUANT_API leapquant_status leapquant_export(const leapquant_layout* layout,
                                                const leapquant_pool* pool,
                                                const leapquant_transfer_args* args,
                                                const leapquant_launch* launch);
/* Quantises plain matrices into slots; base = position, empty window. Non-finite matrices fault
 * their sequence and change nothing. */
LEAPQUANT_API leapquant_status leapquant_import(const leapquant_layout* layout,
                                                const leapquant_pool* pool,
                                                const leapquant_transfer_args* args,
                                                const leapquant_launch* launch);

/* Raw copy of state, base, health and (where both window slots are >= 0) the ring, between slots of
 * one pool. Sources may repeat, destinations may not; a slot is not both. Arrays [batch]. A device
 * leaves faulty rows alone; with LEAPQUANT_CHECK_FULL the first of them becomes the call's status.
 */
LEAPQUANT_API leapquant_status leapquant_copy(const leapquant_layout* layout,
                                              const leapquant_pool* pool, int32_t batch,
                                              const int32_t* source_state_slots,
                                              const int32_t* source_window_slots,
                                              const int32_t* destination_state_slots,
                                              const int32_t* destination_window_slots,
                                              const leapquant_launch* launch);
/* Zero state, base = position, health cleared, ring cleared (window_slots null: the state's index;
 * negative: no window). Faulty rows on a device: as leapquant_copy. */
LEAPQUANT_API leapquant_status leapquant_reset(const leapquant_layout* layout,
                                               const leapquant_pool* pool, int32_t batch,
                                               const int32_t* state_slots,
                                               const int32_t* window_slots,
                                               const int32_t* positions,
                                               const leapquant_launch* launch);

/* ---- Saved states (docs/FORMAT.md, "Saved blob") -------------------------------------------- */

typedef struct leapquant_saved_info {
  uint32_t struct_size;
  uint32_t version;
  int32_t position;
  int32_t num_records;   /* tokens in the saved window */
  uint64_t fingerprint;  /* the caller's model fingerprint */
  int64_t blob_bytes;    /* of the whole blob */
  leapquant_shape shape; /* constant_log_decay is null */
  int32_t num_formats;
  leapquant_format formats[8];
} leapquant_saved_info;

/* Exact bytes that leapquant_save will write for this slot at this position. */
LEAPQUANT_API leapquant_status leapquant_saved_bytes(const leapquant_layout* layout,
                                                     const leapquant_pool* pool, int32_t state_slot,
                                                     int32_t window_slot, int32_t position,
                                                     size_t* bytes);
/* Writes one slot as a portable blob (little-endian, canonical order, XXH3 checksums over header,
 * boundary states and window); window_slot < 0: needs base == position for every head. */
LEAPQUANT_API leapquant_status leapquant_save(const leapquant_layout* layout,
                                              const leapquant_pool* pool, int32_t state_slot,
                                              int32_t window_slot, int32_t position,
                                              uint64_t fingerprint, void* buffer, size_t bytes,
                                              size_t* written);
/* Reads a blob into a slot. Everything is verified first; on any failure the slot is unchanged.
 * fingerprint must equal the saved one. *position receives the saved position. Bytes after the
 * blob's end are not looked at, so blobs may follow one another. window_slot < 0: the blob must
 * hold no records. The encoder's choices (second block of leapquant_format) and max_tokens need not
 * match, as long as the ring holds the saved records (SHAPE_MISMATCH otherwise). */
LEAPQUANT_API leapquant_status leapquant_load(const leapquant_layout* layout,
                                              const leapquant_pool* pool, int32_t state_slot,
                                              int32_t window_slot, uint64_t fingerprint,
                                              const void* buffer, size_t bytes, int32_t* position);
/* Verifies a blob and describes it without any pool. info->shape.max_tokens is the smallest with
 * which the saved window fits. head_format [head_format_capacity >= shape.num_v_heads] may be null.
 */
LEAPQUANT_API leapquant_status leapquant_inspect(const void* buffer, size_t bytes,
                                                 leapquant_saved_info* info, uint8_t* head_format,
                                                 int32_t head_format_capacity);

/* ---- Slots: an allocator with a byte budget on top of the raw operations --------------------- */

typedef struct leapquant_slots leapquant_slots;
typedef struct leapquant_slots_usage {
  uint32_t struct_size;
  int64_t budget_bytes;
  int64_t resident_bytes; /* of all live slots, never above the budget */
  int32_t num_sequences;
  int32_t num_checkpoints;
  int64_t num_evictions;
} leapquant_slots_usage;

/* One pool for num_layers equal layers under a budget in bytes: a sequence slot costs state, window
 * and metadata bytes of every layer, a checkpoint slot state and metadata only. Address space for
 * every mix of slots is reserved at creation; pages are taken when a slot is acquired and given
 * back when it is released, so that resident memory follows the live slots. On a device all memory
 * is taken at creation: the budget, and the windows of as many sequences as fit it; acquiring a
 * slot waits for the device. The layout must outlive the slots. Errors: NULL_POINTER,
 * INVALID_ARGUMENT, BUFFER_TOO_SMALL (not even one sequence fits; the sentence says how many bytes
 * one needs), OUT_OF_MEMORY. Thread-safe: every call locks. */
LEAPQUANT_API leapquant_status leapquant_slots_create(const leapquant_layout* layout,
                                                      int32_t num_layers, int64_t budget_bytes,
                                                      leapquant_slots** slots);
LEAPQUANT_API void leapquant_slots_destroy(leapquant_slots* slots);
/* Pool descriptor of one layer, valid until destroy. */
LEAPQUANT_API leapquant_status leapquant_slots_pool(const leapquant_slots* slots, int32_t layer,
                                                    leapquant_pool* pool);
/* Takes a cleared sequence slot (state and window of all layers, as leapquant_reset leaves them at
 * position 0). Evicts checkpoints where needed, oldest use first; live sequences are never touched:
 * POOL_FULL, and nothing evicted, when they alone fill the budget. */
LEAPQUANT_API leapquant_status leapquant_slots_acquire(leapquant_slots* slots, int32_t* state_slot,
                                                       int32_t* window_slot);
/* Takes a checkpoint slot (no window), evicting the least recently used checkpoint when needed.
 * *evicted (may be null) receives the evicted slot or -1. */
LEAPQUANT_API leapquant_status leapquant_slots_acquire_checkpoint(leapquant_slots* slots,
                                                                  int32_t* state_slot,
                                                                  int32_t* evicted);
/* Asks for a checkpoint before using it, and marks it as used now. EMPTY_ENTRY when the slot holds
 * no checkpoint any more: it has been evicted and the lookup is a miss. (A slot that was evicted
 * and taken again is the taker's: whoever receives a slot index forgets what it held before.) */
LEAPQUANT_API leapquant_status leapquant_slots_touch(leapquant_slots* slots, int32_t state_slot);
/* Gives a slot back; scrub = 1 overwrites its bytes with zero at once (they are cleared before the
 * next use in any case). Errors: SLOT_OUT_OF_RANGE, INVALID_ARGUMENT (not live). */
LEAPQUANT_API leapquant_status leapquant_slots_release(leapquant_slots* slots, int32_t state_slot,
                                                       int32_t scrub);
LEAPQUANT_API leapquant_status leapquant_slots_get_usage(const leapquant_slots* slots,
                                                         leapquant_slots_usage* usage);

/* ---- Threads: a small pool for callers without one ------------------------------------------ */

typedef struct leapquant_threads leapquant_threads;
/* num_threads >= 1 workers including the calling thread; 0: all cores available to the process. One
 * call at a time may use its runner. */
LEAPQUANT_API leapquant_status leapquant_threads_create(int32_t num_threads,
                                                        leapquant_threads** threads);
LEAPQUANT_API const leapquant_runner* leapquant_threads_runner(leapquant_threads* threads);
LEAPQUANT_API void leapquant_threads_destroy(leapquant_threads* threads);

#ifdef __cplusplus
}
#endif

#endif /* LEAPQUANT_LEAPQUANT_H_ */

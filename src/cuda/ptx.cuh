// SPDX-License-Identifier: Apache-2.0
//
// All inline PTX of the device code, one instruction a function. No arithmetic of its own.
#pragma once

#include <cstdint>

namespace leapquant::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The device's time, which all multiprocessors share.
__device__ __forceinline__ uint64_t global_nanoseconds() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// ---- Barriers that count bytes, and bulk copies from global to shared memory (sm_90) ----

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "AGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// bytes: a multiple of 16, both addresses 16-byte aligned. What passes through once: the first to
// leave the second cache level.
__device__ __forceinline__ void bulk_copy(uint32_t shared, const void* global, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .b64 once;\n"
      "createpolicy.fractional.L2::evict_first.b64 once, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], once;\n"
      "}\n" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}
// The way back, as a group of its own; the caller has put fence_async_proxy and a barrier between
// the writes of shared memory and it.
__device__ __forceinline__ void bulk_store(void* global, uint32_t shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until shared memory has been read by all bulk stores of this thread.
__device__ __forceinline__ void bulk_stores_wait() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Until all bulk stores of this thread are written.
__device__ __forceinline__ void bulk_stores_done() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
// Brings bytes (a multiple of 16) to the second cache level.
__device__ __forceinline__ void prefetch_bulk(const void* global, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}
// Orders ordinary accesses of this thread before later bulk copies.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

// The same, of shared memory alone.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- Barriers that count arrivals, and copies of 16 bytes (sm_80) ----

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("{.reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0];}" ::"r"(barrier)
               : "memory");
}
// Whether the phase of this parity is over; may be asked again at once.
__device__ __forceinline__ bool barrier_passed(uint32_t barrier, uint32_t parity) {
  uint32_t passed;
  asm volatile(
      "{.reg .pred done; mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2; "
      "selp.u32 %0, 1, 0, done;}"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed != 0;
}
// Until the phase of this parity is over, mostly asleep: warps that ask all the time take the
// others' instruction fetches.
__device__ __forceinline__ void barrier_sleep(uint32_t barrier, uint32_t parity) {
  while (!barrier_passed(barrier, parity)) __nanosleep(200);
}
// Both addresses 16-byte aligned; past the first cache level.
__device__ __forceinline__ void copy_16_async(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
// The same of 4 bytes, through the first cache level.
__device__ __forceinline__ void copy_4_async(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}
// Arrives at a barrier, which counts this thread, once all such copies of it are done.
__device__ __forceinline__ void barrier_arrive_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Waits for all such copies of this thread.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// ---- Launches that overlap (sm_90; before, none does) ----

__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- Registers handed from warp to warp, barriers of some warps (sm_90a) ----

// All four warps of a group; kCount: of a thread from here on, a multiple of 8.
template <int32_t kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int32_t kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
// Barrier `id` (1 to 15) of four warps, alone or telling whether any thread of them says so.
__device__ __forceinline__ void team_barrier(int32_t id) {
  asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}
__device__ __forceinline__ bool team_any(int32_t id, bool mine) {
  uint32_t any;
  asm volatile(
      "{.reg .pred p, q; setp.ne.u32 p, %2, 0; bar.red.or.pred q, %1, 128, p; selp.u32 %0, 1, 0, "
      "q;}"
      : "=r"(any)
      : "r"(id), "r"(static_cast<uint32_t>(mine))
      : "memory");
  return any != 0;
}

// ---- Blocks of a cluster (sm_90) ----

// Blocks of a cluster: this one's rank, their number (1 without one), a barrier of all threads in
// two halves (what was written before the first is seen after the second), and bits set in a word
// that lies at `shared` in the block `rank`.
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ uint32_t cluster_blocks() {
  uint32_t blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void set_bits_in_block(uint32_t shared, uint32_t rank, uint32_t bits) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
  asm volatile("red.relaxed.cluster.shared::cluster.or.b32 [%0], %1;" ::"r"(there), "r"(bits)
               : "memory");
}
__device__ __forceinline__ void fence_cluster() {
  asm volatile("fence.acq_rel.cluster;" ::: "memory");
}
// All threads of all blocks; what was written before is seen behind it.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
// The place of this block's `shared` in block `rank`.
__device__ __forceinline__ uint32_t address_in(uint32_t shared, uint32_t rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}
// Tells another block that shared memory of this one has been read or has arrived: nothing that
// this thread wrote need be seen there.
__device__ __forceinline__ void barrier_arrive_in(uint32_t address) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
}
// Copies shared memory of this block to another's, whose barrier counts the bytes.
__device__ __forceinline__ void bulk_copy_in(uint32_t to, uint32_t shared, uint32_t bytes,
                                             uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "r"(shared), "r"(bytes), "r"(barrier)
      : "memory");
}

// ---- Loads and stores with an order ----

__device__ __forceinline__ int32_t load_acquire(const int32_t* address) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ __forceinline__ void store_release(int32_t* address, int32_t value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// A word, or with `half` 16 bits, through the read-only path: one register and no branch, so that
// nothing waits for the load before its use.
__device__ __forceinline__ uint32_t load_word_or_half(const void* global, bool half) {
  uint32_t result;
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.u16 %0, [%1]; @!p ld.global.nc.u32 %0, "
      "[%1];}"
      : "=r"(result)
      : "l"(global), "r"(static_cast<uint32_t>(half)));
  return result;
}
// A float where `condition`, else 0; likewise.
__device__ __forceinline__ float load_float_if(bool condition, const void* global) {
  float result;
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p, %2, 0; mov.f32 %0, 0f00000000; @p ld.global.f32 %0, [%1];}"
      : "=&f"(result)
      : "l"(global), "r"(static_cast<uint32_t>(condition))
      : "memory");
  return result;
}
// Two words of shared memory; never merged with a neighbour's load.
__device__ __forceinline__ uint2 load_shared_pair(uint32_t shared) {
  uint2 result;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(result.x), "=r"(result.y)
               : "r"(shared)
               : "memory");
  return result;
}
// Four words; the address 16-byte aligned.
__device__ __forceinline__ uint4 load_shared_four(uint32_t shared) {
  uint4 result;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(result.x), "=r"(result.y), "=r"(result.z), "=r"(result.w)
               : "r"(shared)
               : "memory");
  return result;
}
__device__ __forceinline__ void store_shared(uint32_t shared, int32_t word) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(shared), "r"(word) : "memory");
}
// Until `threads` threads (a multiple of 32) have come to barrier `id` (1 to 15) of the block.
__device__ __forceinline__ void sync_threads(int32_t id, int32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Whether `mine` holds in any of the `threads` threads that come to barrier `id`.
__device__ __forceinline__ bool threads_any(int32_t id, int32_t threads, bool mine) {
  uint32_t any;
  asm volatile(
      "{.reg .pred p, q; setp.ne.u32 p, %3, 0; bar.red.or.pred q, %1, %2, p; selp.u32 %0, 1, 0, q;}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(mine))
      : "memory");
  return any != 0;
}
// Tells barrier `id` that this warp has come, without waiting.
__device__ __forceinline__ void arrive_threads(int32_t id, int32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Barriers of a team: the 256 threads of a block that share threadIdx.y. sync_team_or: whether
// `condition` holds in any of them.
__device__ __forceinline__ void sync_team() {
  asm volatile("bar.sync %0, 256;" ::"r"(threadIdx.y + 1) : "memory");
}
__device__ __forceinline__ bool sync_team_or(bool condition) {
  uint32_t any;
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\t"
      "barrier.cta.red.or.pred p, %2, 256, p;\n\tselp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(condition)), "r"(threadIdx.y + 1)
      : "memory");
  return any != 0;
}

// ---- Matrix units ----

// D[16, 8] += A[16, 32] B[32, 8], A signed or unsigned bytes, B signed bytes, exact.
template <bool kSigned>
__device__ __forceinline__ void mma_int8(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  if constexpr (kSigned) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// D[16, 8] += A[16, 16] B[16, 8], FP16 operands, FP32 accumulators.
__device__ __forceinline__ void mma_fp16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same with C of its own.
__device__ __forceinline__ void mma_fp16_from(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                              uint32_t a3, uint32_t b0, uint32_t b1,
                                              const float (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]),
        "f"(c[3]));
}

// D[16, 8] = A[16, 8] B[8, 8] + C, FP16 operands, FP32 accumulators.
__device__ __forceinline__ void mma_fp16_of(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0,
                                            const float (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%7,%8,%9,%10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a0), "r"(a1), "r"(b0), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
// The same with C = D.
__device__ __forceinline__ void mma_fp16_short(float (&d)[4], uint32_t a0, uint32_t a1,
                                               uint32_t b0) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

// D[16, 8] += A[16, 16] B[16, 8], BF16 operands, FP32 accumulators.
__device__ __forceinline__ void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// ---- Products of four warps (sm_90a) ----

// D[64, n] (+)= A[64, 16] B[16, n], BF16 operands, FP32 accumulators; a warp of the group of four
// has 16 rows of A and D in registers, as in mma_bf16; B lies in shared memory, see
// operand_descriptor. kTransposed: as [16][n] there, else as [n][16]. Starts only: registers of A
// and D are the unit's until group_wait; group_fence goes before the first product.
template <bool kTransposed>
__device__ __forceinline__ void group_mma_bf16_64(float (&d)[8][4], const uint32_t (&a)[4],
                                                  uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%"
      "25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, %38;}"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
        "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
        "+f"(d[7][2]), "+f"(d[7][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<uint32_t>(add)),
        "n"(kTransposed ? 1 : 0));
}
// The same with 32 columns.
template <bool kTransposed>
__device__ __forceinline__ void group_mma_bf16_32(float (&d)[4][4], const uint32_t (&a)[4],
                                                  uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p, %21, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1, "
      "%22;}"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<uint32_t>(add)),
        "n"(kTransposed ? 1 : 0));
}
// The same with 16 columns.
template <bool kTransposed>
__device__ __forceinline__ void group_mma_bf16_16(float (&d)[2][4], const uint32_t (&a)[4],
                                                  uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p, %13, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, p, 1, 1, %14;}"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<uint32_t>(add)),
        "n"(kTransposed ? 1 : 0));
}
// Where B lies: a place, which moves by 16 bytes for one, and how it lies there: rows of 128 bytes,
// eight of them in 1,024 bytes, 16-byte pieces exchanged (piece ^ row % 8); or 8 x 8 matrices of
// 128 bytes, `leading` bytes from one to the next along k, `stride` along n.
__device__ __forceinline__ uint32_t operand_place(uint32_t shared, uint32_t leading) {
  return (shared & 0x3ffffu) >> 4 | (leading >> 4) << 16;
}
__device__ __forceinline__ uint64_t swizzled_operand(uint32_t place) {
  return uint64_t{place} | uint64_t{1024 >> 4 | 1u << 30} << 32;
}
__device__ __forceinline__ uint64_t plain_operand(uint32_t place, uint32_t stride) {
  return uint64_t{place} | uint64_t{stride >> 4} << 32;
}
__device__ __forceinline__ void group_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void group_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending committed groups of products are at work.
template <int32_t kPending>
__device__ __forceinline__ void group_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Nothing reads or moves these registers before this place.
template <int32_t kTiles>
__device__ __forceinline__ void hold_registers(float (&d)[kTiles][4]) {
#pragma unroll
  for (int32_t i = 0; i < kTiles; ++i) {
    asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
  }
}
__device__ __forceinline__ void hold_registers(uint32_t (&a)[4]) {
  asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

// Four 8 x 8 matrices of 16-bit entries, transposed; lane l gives the address of row l % 8 of
// matrix l / 8.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

// The same without the transposition.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

// Four 8 x 8 matrices of 16-bit entries to shared memory (sm_90); lane l gives the address of row
// l % 8 of matrix l / 8. Two of them, transposed: lanes 0 .. 15 give addresses.
__device__ __forceinline__ void store_matrices(uint32_t row, uint32_t a, uint32_t b, uint32_t c,
                                               uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}
__device__ __forceinline__ void store_matrices_transposed(uint32_t row, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(row), "r"(a),
               "r"(b)
               : "memory");
}

// An 8 x 8 matrix of 16-bit entries spread over the warp, transposed: lane 4 g + t gives entries
// (g, 2 t) and (g, 2 t + 1) and receives (2 t, g) and (2 t + 1, g).
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t pair) {
  uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

// ---- Arithmetic ----

// Two numbers rounded to BF16, the first in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}
// The same, but what is finite stays so.
__device__ __forceinline__ uint32_t pack_bf16_finite(float low, float high) {
  uint32_t result;
  asm("cvt.rn.satfinite.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}
// Two numbers rounded to FP16, the first in the low half.
__device__ __forceinline__ uint32_t pack_fp16(float low, float high) {
  uint32_t result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}
// Two numbers of a pair of FP16.
__device__ __forceinline__ float2 widen_halves(uint32_t pair) {
  float2 result;
  asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
      : "=f"(result.x), "=f"(result.y)
      : "r"(pair));
  return result;
}
// a - b of two pairs of FP16.
__device__ __forceinline__ uint32_t subtract_halves(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

// The value itself; what is worked out from it is not moved out of a loop (registers are short).
__device__ __forceinline__ int32_t fresh_copy(int32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// This block's place in the grid, asked for anew: registers need not keep it.
__device__ __forceinline__ int32_t block_x() {
  int32_t x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}
__device__ __forceinline__ int32_t block_y() {
  int32_t y;
  asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(y));
  return y;
}

// ---- Special functions ----

// condition ? a : b of two registers. The plain operator on elements of two arrays becomes a choice
// of addresses, and the arrays go to local memory.
__device__ __forceinline__ float select_float(bool condition, float a, float b) {
  float result;
  asm("{.reg .pred p; setp.ne.u32 p, %3, 0; selp.f32 %0, %1, %2, p;}"
      : "=f"(result)
      : "f"(a), "f"(b), "r"(static_cast<uint32_t>(condition)));
  return result;
}

// 1 / sqrt(x) to 2^-22; x a normal number above 0.
__device__ __forceinline__ float rsqrt_fast(float x) {
  float result;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace leapquant::cuda

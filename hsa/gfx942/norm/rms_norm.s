// SPDX-License-Identifier: MIT
// rms_norm for bf16 rows of 4096 or 8192 elements, with an optional residual add in front of it:
//
//   s = input                                  without residual (both pointers null)
//   s = input + residual_in,  residual_out = bf16(s)      with residual; the norm takes the unrounded s
//   out = bf16(s · rsqrt(mean(s²) + epsilon) · weight)
//
//   1. every lane loads all its 16-byte vectors of the row, of the residual and of the weight before it uses the first
//   2. the sum of squares: packed fp32 in the lane, DPP in the wave, 16 bytes of LDS between the four waves
//   3. while the other waves arrive: residual_out, rounded and stored
//   4. scale, multiply by the weight, round to nearest even, store
//
// Tile: 256 work-items take one row; a lane keeps 16 or 32 elements in fp32 from the load to the store, so nothing is
// read twice. 60 or 100 VGPRs: 8 or 4 waves per SIMD, each with 4 to 12 KiB of loads in flight. LDS: 16 bytes.
// Bound: memory. A row moves 4 · hidden bytes (8 · hidden with residual): 16384 rows of 4096 are 268 MB, 51 us at
// 5.3 TB/s. The 8 VALU instructions per element that go with them take 13 us on 304 CUs of 64 lanes at 2.1 GHz.
//
// out may be input, and residual_out may be residual_in: a lane writes only what it has read itself.
// "wait state" below: the hardware does not check these distances, software has to keep them (LLVM's hazard
// recogniser for gfx940 has the list). s_nop N waits N + 1 of them; any instruction in between counts as one.

// SGPRs. s[0:1] kernarg segment, s2 workgroup = row: as the descriptor below asks for.
#define OUT_ROW s[4:5]
#define INPUT_ROW s[6:7]
#define WEIGHT_ROW s[8:9]
#define RESIDUAL_IN_ROW s[10:11]
#define RESIDUAL_OUT_ROW s[12:13]
#define OUT_STRIDE s14                   /* bytes from row to row */
#define INPUT_STRIDE s15
#define EPSILON s16
#define UPPER_HALF s17                   /* 0xffff0000 */
#define TEMP_LOW s18
#define TEMP_HIGH s19
#define IS_NAN_0 s[20:21]
#define IS_NAN_1 s[22:23]
#define ROUNDING s24                     /* 0x7fff: just below half of a bf16's last place */
#define UPPER_HALVES s25                 /* v_perm_b32 selector: the upper halves of two registers */

// VGPRs. T, F, X, W and R are numbers of the first register of a block; RMS_NORM sets the last four.
#define LANE_OFFSET v0                   /* bytes from the row's start to the lane's first vector */
#define NAN v1                           /* a quiet NaN, for ROUNDING */
#define LDS_ADDRESS v2
#define SUM v3
.set T, 12                               // [8] fp32 of the vector at work: residual, weight
// F  [vectors · 8] the lane's elements of s in fp32
// X  [vectors · 4] input as loaded, then out;  W  weight as loaded;  R  residual_in as loaded, then residual_out

// A lane's vectors: wave w has vectors · 1 KiB of the row, and each load of it covers 1 KiB without a gap.
.macro LOAD base, row
  .set i, 0
  .rept vectors
    global_load_dwordx4 v[\base+4*i:\base+4*i+3], LANE_OFFSET, \row offset:1024*i
    .set i, i + 1
  .endr
.endm

// Eight bf16 of v[src…] → fp32 in v[dst…]: a bf16 is the upper half of a float.
.macro UNPACK dst, src
  .set e, 0
  .rept 4
    v_lshlrev_b32_e32 v[\dst+2*e], 16, v[\src+e]
    v_and_b32_e32 v[\dst+2*e+1], UPPER_HALF, v[\src+e]
    .set e, e + 1
  .endr
.endm

// Eight fp32 of v[src…] → bf16 in v[dst…], to nearest even: add 0x7fff and the last bit that stays, cut. A NaN could
// carry over into the sign, so it is replaced. The two compares come first: a VALU that reads a mask which another VALU
// wrote needs 2 wait states.
.macro ROUND dst, src
  .set e, 0
  .rept 4
    v_cmp_u_f32_e64 IS_NAN_0, v[\src+2*e], v[\src+2*e]
    v_cmp_u_f32_e64 IS_NAN_1, v[\src+2*e+1], v[\src+2*e+1]
    v_bfe_u32 v8, v[\src+2*e], 16, 1
    v_bfe_u32 v9, v[\src+2*e+1], 16, 1
    v_add3_u32 v8, v[\src+2*e], v8, ROUNDING
    v_add3_u32 v9, v[\src+2*e+1], v9, ROUNDING
    v_cndmask_b32_e64 v8, v8, NAN, IS_NAN_0
    v_cndmask_b32_e64 v9, v9, NAN, IS_NAN_1
    v_perm_b32 v[\dst+e], v9, v8, UPPER_HALVES
    .set e, e + 1
  .endr
.endm

// v[4:7] += the squares of vector i, two elements per instruction, in two chains that do not wait for one another.
.macro ADD_SQUARES
  .irp pair, 0, 2
    v_pk_fma_f32 v[4:5], v[F+8*i+2*\pair:F+8*i+2*\pair+1], v[F+8*i+2*\pair:F+8*i+2*\pair+1], v[4:5]
    v_pk_fma_f32 v[6:7], v[F+8*i+2*\pair+2:F+8*i+2*\pair+3], v[F+8*i+2*\pair+2:F+8*i+2*\pair+3], v[6:7]
  .endr
.endm

// One kernel: `count` vectors of 8 elements per lane, hidden = 2048 · count; inverse = 1 / hidden as fp32 bits.
.macro RMS_NORM name, count, inverse
.set vectors, \count
.set F, T + 8
.set X, F + 8 * vectors
.set W, X + 4 * vectors
.set R, W + 4 * vectors

.text
.globl \name
.p2align 8
.type \name, @function
\name:
  s_load_dwordx8 s[4:11], s[0:1], 0x0                     // out, input, weight, residual_in
  s_load_dwordx4 s[12:15], s[0:1], 0x20                   // residual_out, out_stride, input_stride
  s_load_dword EPSILON, s[0:1], 0x30
  s_mov_b32 UPPER_HALF, 0xffff0000
  s_movk_i32 ROUNDING, 0x7fff
  s_mov_b32 UPPER_HALVES, 0x07060302
  v_mov_b32_e32 NAN, 0x7fff0000
  v_and_b32_e32 v4, 63, v0
  v_bfe_u32 v5, v0, 6, 2                                  // wave; bits 10… of v0 are the work-item's y and z
  v_lshlrev_b32_e32 v4, 4, v4
  v_lshlrev_b32_e32 LDS_ADDRESS, 2, v5
  v_mul_u32_u24_e32 v5, 1024 * vectors, v5
  v_add_u32_e32 LANE_OFFSET, v4, v5
  s_waitcnt lgkmcnt(0)                                    // scalar loads return out of order: only 0 says anything

  s_mul_i32 TEMP_LOW, s2, INPUT_STRIDE                    // 64-bit row offsets: rows · stride may pass 4 GiB
  s_mul_hi_u32 TEMP_HIGH, s2, INPUT_STRIDE
  s_add_u32 s6, s6, TEMP_LOW
  s_addc_u32 s7, s7, TEMP_HIGH
  LOAD X, INPUT_ROW
  s_mul_i32 TEMP_LOW, s2, OUT_STRIDE
  s_mul_hi_u32 TEMP_HIGH, s2, OUT_STRIDE
  s_add_u32 s4, s4, TEMP_LOW
  s_addc_u32 s5, s5, TEMP_HIGH
  s_cmp_eq_u64 RESIDUAL_IN_ROW, 0
  s_cbranch_scc1 .Lplain_\name

  s_mul_i32 TEMP_LOW, s2, 4096 * vectors                  // the residual is contiguous: 2 · hidden bytes per row
  s_mul_hi_u32 TEMP_HIGH, s2, 4096 * vectors
  s_add_u32 s10, s10, TEMP_LOW
  s_addc_u32 s11, s11, TEMP_HIGH
  s_add_u32 s12, s12, TEMP_LOW
  s_addc_u32 s13, s13, TEMP_HIGH
  LOAD R, RESIDUAL_IN_ROW
  LOAD W, WEIGHT_ROW
  v_mov_b32_e32 v4, 0
  v_mov_b32_e32 v5, 0
  v_mov_b32_e32 v6, 0
  v_mov_b32_e32 v7, 0
  .set i, 0
  .rept vectors
    s_waitcnt vmcnt(2 * vectors - 1 - i)                  // loads return in order: X, R up to i; later R and W fly on
    UNPACK F+8*i, X+4*i
    UNPACK T, R+4*i
    .irp pair, 0, 2, 4, 6
      v_pk_add_f32 v[F+8*i+\pair:F+8*i+\pair+1], v[F+8*i+\pair:F+8*i+\pair+1], v[T+\pair:T+\pair+1]
    .endr
    ADD_SQUARES
    .set i, i + 1
  .endr
  s_branch .Lreduce_\name

.Lplain_\name:
  LOAD W, WEIGHT_ROW
  v_mov_b32_e32 v4, 0
  v_mov_b32_e32 v5, 0
  v_mov_b32_e32 v6, 0
  v_mov_b32_e32 v7, 0
  .set i, 0
  .rept vectors
    s_waitcnt vmcnt(2 * vectors - 1 - i)                  // X up to i
    UNPACK F+8*i, X+4*i
    ADD_SQUARES
    .set i, i + 1
  .endr

.Lreduce_\name:
  v_pk_add_f32 v[4:5], v[4:5], v[6:7]
  v_add_f32_e32 SUM, v4, v5
  // Over the wave without LDS: inside quads, halves and rows of 16 by permutation, then the last lane of a row is
  // broadcast into the next one(s). Lane 63 ends with the total. DPP reads a VGPR 2 wait states after its VALU write.
  s_nop 1
  v_add_f32_dpp SUM, SUM, SUM quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf
  s_nop 1
  v_add_f32_dpp SUM, SUM, SUM quad_perm:[2,3,0,1] row_mask:0xf bank_mask:0xf
  s_nop 1
  v_add_f32_dpp SUM, SUM, SUM row_half_mirror row_mask:0xf bank_mask:0xf
  s_nop 1
  v_add_f32_dpp SUM, SUM, SUM row_mirror row_mask:0xf bank_mask:0xf
  s_nop 1
  v_add_f32_dpp SUM, SUM, SUM row_bcast:15 row_mask:0xa bank_mask:0xf      // rows 1 and 3
  s_nop 1
  v_add_f32_dpp SUM, SUM, SUM row_bcast:31 row_mask:0xc bank_mask:0xf      // rows 2 and 3
  s_brev_b64 exec, 1                                      // lane 63 alone
  ds_write_b32 LDS_ADDRESS, SUM
  s_mov_b64 exec, -1
  s_waitcnt vmcnt(0)                                      // W; before the stores, which count in vmcnt too

  s_cmp_eq_u64 RESIDUAL_IN_ROW, 0
  s_cbranch_scc1 .Lbarrier_\name
  .set i, 0
  .rept vectors
    ROUND R+4*i, F+8*i
    global_store_dwordx4 LANE_OFFSET, v[R+4*i:R+4*i+3], RESIDUAL_OUT_ROW offset:1024*i
    .set i, i + 1
  .endr
.Lbarrier_\name:
  s_waitcnt lgkmcnt(0)
  s_barrier
  v_mov_b32_e32 v8, 0
  ds_read_b128 v[4:7], v8                                 // one address for all lanes: a broadcast, no bank conflict
  s_waitcnt lgkmcnt(0)
  v_add_f32_e32 v4, v4, v5
  v_add_f32_e32 v6, v6, v7
  v_add_f32_e32 v4, v4, v6
  v_mul_f32_e32 v4, \inverse, v4                          // a power of two: exact
  v_add_f32_e32 v4, EPSILON, v4
  // v_rsq_f32 takes no denormals: a mean below 2^-96 is scaled by 2^64, its root by 2^32. The mask again needs 2 wait
  // states, and the result of a transcendental instruction 1 before another unit reads it.
  v_cmp_gt_f32_e32 vcc, 0x0f800000, v4                    // 2^-96
  v_mul_f32_e32 v5, 0x5f800000, v4                        // 2^64
  s_nop 0
  v_cndmask_b32_e32 v4, v4, v5, vcc
  v_rsq_f32_e32 v4, v4
  s_nop 0
  v_mul_f32_e32 v5, 0x4f800000, v4                        // 2^32
  v_cndmask_b32_e32 v4, v4, v5, vcc

  .set i, 0
  .rept vectors
    UNPACK T, W+4*i
    .irp pair, 0, 2, 4, 6
      // op_sel_hi 0 for the second operand: both halves take v4
      v_pk_mul_f32 v[F+8*i+\pair:F+8*i+\pair+1], v[F+8*i+\pair:F+8*i+\pair+1], v[4:5] op_sel_hi:[1,0]
    .endr
    .irp pair, 0, 2, 4, 6
      v_pk_mul_f32 v[F+8*i+\pair:F+8*i+\pair+1], v[F+8*i+\pair:F+8*i+\pair+1], v[T+\pair:T+\pair+1]
    .endr
    ROUND X+4*i, F+8*i
    global_store_dwordx4 LANE_OFFSET, v[X+4*i:X+4*i+3], OUT_ROW offset:1024*i
    .set i, i + 1
  .endr
  s_endpgm
.size \name, . - \name

.rodata
.p2align 6
.amdhsa_kernel \name
  .amdhsa_kernarg_size 52
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_group_segment_fixed_size 16
  .amdhsa_next_free_vgpr R + 4 * vectors
  .amdhsa_accum_offset R + 4 * vectors                    // no AGPRs behind them
  .amdhsa_next_free_sgpr 26
  .amdhsa_float_denorm_mode_32 3                          // denormals are kept
.end_amdhsa_kernel
.endm

RMS_NORM rms_norm_bf16_h4096, 2, 0x39800000               // 2^-12
RMS_NORM rms_norm_bf16_h8192, 4, 0x39000000               // 2^-13

// The runtime reads this before a launch. Both kernels have the same arguments; offsets are those of the loads above.
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.target: amdgcn-amd-amdhsa--gfx942
amdhsa.kernels:
  - .name: rms_norm_bf16_h4096
    .symbol: rms_norm_bf16_h4096.kd
    .kernarg_segment_size: 52
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 16
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 32
    .vgpr_count: 60
    .agpr_count: 0
    .vgpr_spill_count: 0
    .sgpr_spill_count: 0
    .max_flat_workgroup_size: 256
    .args:
      - {.name: out, .offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: input, .offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: weight, .offset: 16, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: residual_in, .offset: 24, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: residual_out, .offset: 32, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: out_stride, .offset: 40, .size: 4, .value_kind: by_value}
      - {.name: input_stride, .offset: 44, .size: 4, .value_kind: by_value}
      - {.name: epsilon, .offset: 48, .size: 4, .value_kind: by_value}
  - .name: rms_norm_bf16_h8192
    .symbol: rms_norm_bf16_h8192.kd
    .kernarg_segment_size: 52
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 16
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 32
    .vgpr_count: 100
    .agpr_count: 0
    .vgpr_spill_count: 0
    .sgpr_spill_count: 0
    .max_flat_workgroup_size: 256
    .args:
      - {.name: out, .offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: input, .offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: weight, .offset: 16, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: residual_in, .offset: 24, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: residual_out, .offset: 32, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.name: out_stride, .offset: 40, .size: 4, .value_kind: by_value}
      - {.name: input_stride, .offset: 44, .size: 4, .value_kind: by_value}
      - {.name: epsilon, .offset: 48, .size: 4, .value_kind: by_value}
...
.end_amdgpu_metadata

# SPDX-License-Identifier: MIT
"""A small kernel for `aiter-like sim run`, with its description. Read by the tests of that command."""

# out[i] = -in[i] - one: a struct by value, a hidden argument of the runtime.
NEGATE = """
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
.globl negate
.p2align 8
.type negate,@function
negate:
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  s_load_dwordx2 s[8:9], s[0:1], 0x10                  // {one, two} by value; then the hidden block count
  s_load_dword s10, s[0:1], 0x18
  v_lshlrev_b32_e32 v0, 2, v0
  s_waitcnt lgkmcnt(0)
  global_load_dword v1, v0, s[6:7]
  s_waitcnt vmcnt(0)
  v_sub_u32_e32 v1, 0, v1
  v_subrev_u32_e32 v1, s8, v1
  v_add_u32_e32 v1, s10, v1
  global_store_dword v0, v1, s[4:5]
  s_endpgm
.rodata
.p2align 6
.amdhsa_kernel negate
  .amdhsa_kernarg_size 28
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_next_free_vgpr 8
  .amdhsa_next_free_sgpr 16
  .amdhsa_accum_offset 8
.end_amdhsa_kernel
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: negate
    .symbol: negate.kd
    .kernarg_segment_size: 28
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 16
    .vgpr_count: 8
    .max_flat_workgroup_size: 64
    .args:
      - {.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.offset: 16, .size: 8, .value_kind: by_value}
      - {.offset: 24, .size: 4, .value_kind: hidden_block_count_x}
...
.end_amdgpu_metadata
"""

BUFFERS = {"data": {"dtype": "i32", "shape": [64], "fill": 5, "output": True},
           "more": {"dtype": "i32", "shape": [65], "fill": "random", "seed": 3, "output": True}}
ARGUMENTS = [{"buffer": "data"}, {"buffer": "more", "offset": 4}, {"hex": "0700000000000000"}]

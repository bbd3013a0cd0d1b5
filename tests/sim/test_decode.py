# SPDX-License-Identifier: MIT
"""Text forms → Inst: what the decoder accepts, and what it refuses with a reason."""

import numpy as np
import pytest
from asm import assemble, run
from hip_program import code_object

from aiter_like.errors import SimulatorError
from aiter_like.sim.library import disassemble

KERNEL = """
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
.text
.p2align 8
.globl probe
.type probe,@function
probe:
{body}
  s_endpgm
.size probe, .-probe
.rodata
.amdhsa_kernel probe
  .amdhsa_next_free_vgpr 128
  .amdhsa_next_free_sgpr 64
  .amdhsa_accum_offset 64
.end_amdhsa_kernel
"""


def decode(*lines: str) -> list[tuple[str, str]]:
    """[(text, error)] of a kernel made of `lines`."""
    listing = disassemble(assemble(KERNEL.format(body="\n".join(lines))))
    return [(text, error) for _, text, error in listing[:len(lines)]]


UNDERSTOOD = """
s_mov_b32 s0, 0xdeadbeef
s_mov_b64 s[2:3], -1
s_mov_b64 exec, s[2:3]
s_cmp_eq_u32 s0, m0
s_waitcnt vmcnt(3) lgkmcnt(2)
s_load_dwordx4 s[4:7], s[0:1], 0x10
s_load_dword s4, s[0:1], s6 offset:0x20
s_getreg_b32 s5, hwreg(HW_REG_MODE, 0, 8)
v_mov_b32_e32 v1, 0.15915494
v_add_f32_e64 v1, -v2, |v3| clamp mul:2
v_add_f32_e64 v1, -|v2|, s3
v_add_f16_e32 v1, 1.0, v2
v_fma_f64 v[2:3], v[4:5], -1.0, v[6:7]
v_cndmask_b32_e64 v1, v2, v3, s[10:11]
v_addc_co_u32_e32 v0, vcc, v1, v2, vcc
v_mov_b32_dpp v1, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xa bound_ctrl:0
v_add_u32_dpp v1, v2, v3 row_shr:4 row_mask:0xf bank_mask:0xf
v_add_u32_sdwa v1, v2, v3 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_1 src1_sel:BYTE_3
v_pk_fma_f32 v[2:3], v[4:5], v[6:7], v[8:9] op_sel_hi:[1,0,1] neg_lo:[0,1,0]
v_mfma_f32_16x16x16_bf16 a[0:3], v[0:1], v[2:3], 0
v_mfma_f32_32x32x8_f16 v[16:31], a[0:1], a[2:3], v[16:31]
v_readfirstlane_b32 s3, v4
v_cmpx_lt_i32_e32 vcc, v1, v2
global_load_dwordx4 v[4:7], v[2:3], off offset:-16 nt
global_store_short_d16_hi v1, v2, s[4:5] offset:8
global_atomic_add_f32 v1, v[2:3], v4, off sc0
global_atomic_add_u32 v[2:3], v4, off
flat_load_dword v1, v[2:3] offset:12
scratch_store_dword off, v1, off offset:4
buffer_load_dwordx2 v[2:3], v4, s[4:7], 0 offen offset:8
buffer_load_dword v2, s[4:7], s8 offen lds
buffer_atomic_add v1, v[4:5], s[4:7], 0 idxen offen sc0
buffer_inv sc1
ds_read_b128 v[4:7], v1 offset:64
ds_read2st64_b32 v[2:3], v1 offset0:1 offset1:2
ds_write2_b64 v1, v[2:3], v[4:5] offset1:3
ds_swizzle_b32 v1, v2 offset:swizzle(SWAP,16)
ds_bpermute_b32 v1, v2, v3
"""


def test_common_forms_are_understood():
    lines = UNDERSTOOD.strip().splitlines()
    lines = [line.replace("global_atomic_add_u32", "global_atomic_add") for line in lines]
    refused = [f"{text}: {error}" for text, error in decode(*lines) if error]
    assert not refused, "\n".join(refused)


@pytest.mark.parametrize("line, reason", [
    ("s_cbranch_g_fork s[0:1], s[2:3]", "'s_cbranch_g_fork' is not implemented"),
    (".long 0xffffffff", "no gfx942 instruction"),
])
def test_a_form_that_is_not_modelled_has_an_error_with_its_reason(line, reason):
    text, error = decode(line)[0]
    assert reason in error, f"{text}: {error!r}"


@pytest.mark.parametrize("line, output, dtype, expected", [
    ("v_mov_b32_e32 v2, 1.0", "v2", np.uint32, 0x3F800000),
    ("v_mov_b32_e32 v2, 0.15915494", "v2", np.uint32, 0x3E22F983),
    ("v_mov_b32_e32 v2, -16", "v2", np.uint32, 0xFFFFFFF0),
    ("v_mov_b32_e32 v2, lit(0x1)", "v2", np.uint32, 1),
    ("v_add_f16_e32 v2, 1.0, v0", "v2", np.uint32, 0x3C00),
    ("v_add_f16_e32 v2, 0x4201, v0", "v2", np.uint32, 0x4201),
    ("v_add_f64 v[2:3], v[0:1], 1.0", "v[2:3]", np.uint64, 0x3FF0000000000000),
    ("v_mul_f64 v[2:3], 0.15915494309189532, v[0:1]", "v[2:3]", np.uint64, 0),
    ("s_mov_b64 s[2:3], -1", "s[2:3]", np.uint64, 0xFFFFFFFFFFFFFFFF),
    ("s_mov_b64 s[2:3], 0x80000000", "s[2:3]", np.uint64, 0x80000000),
    ("s_movk_i32 s2, 0xfffe", "s2", np.uint32, 0xFFFFFFFE),
])
def test_constants_take_the_operands_type(line, output, dtype, expected):
    result = run(line, {"v0": np.zeros(64, np.uint32), "v1": np.zeros(64, np.uint32)}, {output: dtype})
    assert np.all(result[output] == dtype(expected)), hex(int(result[output].flat[0]))


def test_every_instruction_of_compiled_kernels_decodes():
    source = """
    __global__ void softmax(const float* x, float* out, int n) {
      __shared__ float part[4];
      float best = -1e30f;
      for (int i = thread_index(); i < n; i += 256) best = x[i] > best ? x[i] : best;
      part[thread_index() / 64] = best;
      workgroup_barrier();
      for (int i = 0; i < 4; ++i) best = part[i] > best ? part[i] : best;
      for (int i = thread_index(); i < n; i += 256) out[i] = __builtin_expf(x[i] - best) / (1.f + best);
    }
    """
    listing = disassemble(code_object(source))
    assert len(listing) > 50
    assert [line for line in listing if line[2] and line[1] != "<end of function>"] == []


def test_disassembling_garbage_is_an_error():
    with pytest.raises(SimulatorError, match="neither an ELF file nor an offload bundle"):
        disassemble(b"hello, world" * 10)

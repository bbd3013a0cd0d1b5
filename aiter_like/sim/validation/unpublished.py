# SPDX-License-Identifier: MIT
"""Cases that nobody has published and the model has to assume: its figure now, and later a device's."""

from __future__ import annotations

from collections.abc import Iterator

from aiter_like.sim.validation.case import KIB, Case, Slope
from aiter_like.sim.validation.cases import EXP, PACKED, VALU, cases, mfma
from aiter_like.sim.validation.kernels import Kernel

_NONE = "not published"


def all_cases() -> list[Case]:
    """The published ones, then those of this module."""
    return [*cases(), *unpublished()]


def unpublished() -> list[Case]:
    """All of them, by group: issue, matrix beside vector, LDS, memory, barriers."""
    return [*_issue(), *_beside_matrix(), *_lds(), *_memory(), *_barriers()]


def _issue() -> Iterator[Case]:
    for name, body, parameter in (
            ("v_mul_lo_u32", "v_mul_lo_u32 v20, v21, v22", "wide_multiply_clk"),
            ("v_mul_hi_u32", "v_mul_hi_u32 v20, v21, v22", "wide_multiply_clk"),
            ("v_mad_u64_u32", "v_mad_u64_u32 v[20:21], vcc, v22, v23, v[24:25]", "wide_multiply_clk"),
            ("v_fma_f64", "v_fma_f64 v[20:21], v[22:23], v[24:25], v[26:27]", "valu_clk"),
            ("v_pk_mul_f32", "v_pk_mul_f32 v[20:21], v[22:23], v[24:25]", "valu_clk"),
            ("v_pk_add_f32", "v_pk_add_f32 v[20:21], v[22:23], v[24:25]", "valu_clk"),
            ("v_pk_mov_b32", "v_pk_mov_b32 v[20:21], v[22:23], v[24:25]", "valu_clk"),
            ("v_dot2_f32_f16", "v_dot2_f32_f16 v20, v21, v22, v23", "valu_clk"),
            ("v_cvt_pk_fp8_f32", "v_cvt_pk_fp8_f32 v20, v21, v22", "valu_clk"),
            ("v_sqrt_f32", "v_sqrt_f32 v20, v21", "trans_clk"), ("v_sin_f32", "v_sin_f32 v20, v21", "trans_clk"),
            ("v_accvgpr_read_b32", "v_accvgpr_read_b32 v20, a0", "valu_clk"),
            ("v_add_u32 with DPP", "v_add_u32_dpp v20, v21, v22 row_shr:1 row_mask:0xf bank_mask:0xf", "valu_clk"),
            ("a scalar instruction", "s_add_u32 s20, s21, s22", "issue_clk"),
            ("s_nop 0", "s_nop 0", "issue_clk"), ("s_nop 7", "s_nop 7", "issue_clk"),
            ("s_setprio", "s_setprio 0", "internal_clk"),
            ("s_waitcnt that need not wait", "s_waitcnt vmcnt(0)", "internal_clk"),
            ("a branch that is taken", "s_branch 2f\ns_nop 0\n2:", "branch_taken_clk"),
            ("a branch that is not taken", "s_cbranch_execz 2f\n2:", "internal_clk")):
        yield Slope(name, _NONE, None, Kernel(body), parameters=(parameter,))
    yield Slope("VALU and scalar of one wave", _NONE, None, Kernel(f"{VALU}\ns_add_u32 s20, s21, s22"),
                parameters=("issue_clk",))
    yield Slope("VALU of 8 waves of a CU", _NONE, None, Kernel(VALU, waves=8), per=2, parameters=("valu_clk",))


def _beside_matrix() -> Iterator[Case]:
    large = mfma("32x32x8_f16", registers=16)
    for count in (4, 7, 8, 12):
        yield Slope(f"MFMA 32x32x8 and {count} VALU", _NONE, None, Kernel("\n".join([large, *[VALU] * count])),
                    parameters=("valu_clk",))
    for count in (1, 4):
        yield Slope(f"MFMA f32 16x16x4 and {count} VALU", _NONE, None,
                    Kernel("\n".join([mfma("16x16x4_f32", "v2, v3"), *[VALU] * count])), parameters=("valu_clk",))
    for name, body in (("packed f32", PACKED), ("VALU", "\n".join([VALU] * 4)), ("exp", EXP)):
        # The waves of a workgroup go to the SIMDs by turns: waves 0 to 3 do the one, waves 4 to 7 the other.
        lines = "\n".join([mfma(), mfma(first=4)] * 8), "\n".join([body] * 16)
        split = f"s_cbranch_vccz 2f\n{lines[0]}\ns_branch 3f\n2:\n{lines[1]}\n3:"
        yield Slope(f"MFMA of one wave and {name} of another", _NONE, None,
                    Kernel(split, "v_cmp_gt_u32 vcc, 0x100, v1\ns_nop 4", waves=8, unroll=4), per=16,
                    parameters=("valu_clk",))
    for passes, shape, registers in ((4, "16x16x16_f16", 4), (8, "32x32x8_f16", 16)):
        out = f"a[0:{registers - 1}]"
        # Software has to wait for the sum; whether the hardware waits where software does not shows here.
        reads = f"{mfma(shape, registers=registers)}\nv_accvgpr_read_b32 v20, a0"
        yield Slope(f"MFMA of {passes} passes, its sum read at once", _NONE, None, Kernel(reads),
                    parameters=("mfma_result_passes",))
        yield Slope(f"MFMA of {passes} passes into its own sum", _NONE, None,
                    Kernel(f"v_mfma_f32_{shape} {out}, v[2:3], v[4:5], {out}"), parameters=("pass_clk",))


def _lds() -> Iterator[Case]:
    lds = {"lds_bytes": 16 * KIB, "registers": 80}
    prepare = "v_lshlrev_b32 v5, {shift}, v0\nv_mov_b32 v6, 0\nv_mov_b32 v7, 0"
    for name, body, shift in (
            ("ds_read_b64", "ds_read_b64 v[{k}%8*4+12:{k}%8*4+13], v5", 3),
            ("ds_read2_b32", "ds_read2_b32 v[{k}%8*4+12:{k}%8*4+13], v5 offset0:0 offset1:64", 2),
            ("ds_read2_b64", "ds_read2_b64 v[{k}%8*4+12:{k}%8*4+15], v5 offset0:0 offset1:64", 3),
            ("ds_write_b32", "ds_write_b32 v5, v6", 2), ("ds_write_b64", "ds_write_b64 v5, v[6:7]", 3),
            ("ds_write_b128", "ds_write_b128 v5, v[8:11]", 4), ("ds_add_u32", "ds_add_u32 v5, v6", 2),
            ("ds_add_f32", "ds_add_f32 v5, v6", 2), ("ds_bpermute_b32", "ds_bpermute_b32 v[{k}%8+12], v5, v6", 2)):
        for waves in (1, 8):
            of = "one wave" if waves == 1 else "a CU"
            yield Slope(f"{name} of {of}", _NONE, None, Kernel(body, prepare.format(shift=shift), waves=waves, **lds),
                        per=waves, parameters=("lds_return_bytes",))
    yield Slope("ds_add_u32 of a wave to one place", _NONE, None,
                Kernel("ds_add_u32 v5, v6", "v_mov_b32 v5, 0\nv_mov_b32 v6, 1", **lds))
    yield Slope("ds_add_rtn_u32, latency", _NONE, None,
                Kernel("ds_add_rtn_u32 v12, v5, v6\ns_waitcnt lgkmcnt(0)", prepare.format(shift=2), **lds),
                parameters=("lds_latency_clk",))


def _memory() -> Iterator[Case]:
    for waves in (1, 4, 16):
        yield Slope(f"atomic of one place, {waves} waves of a CU, one lane each", _NONE, None,
                    Kernel("global_atomic_add v4, v3, v1, s[4:5] sc0\ns_waitcnt vmcnt(0)",
                           "v_mov_b32 v3, 0\ns_mov_b64 exec, 1", waves=waves), parameters=("atomic_clk",))
    yield Slope("atomic of one place, 64 lanes of a wave", _NONE, None,
                Kernel("global_atomic_add v4, v3, v1, s[4:5] sc0\ns_waitcnt vmcnt(0)", "v_mov_b32 v3, 0"),
                parameters=("collision_clk",))
    yield Slope("atomic of one place, 304 CUs, one lane each", _NONE, None,
                Kernel("global_atomic_add v4, v3, v1, s[4:5] sc0\ns_waitcnt vmcnt(0)",
                       "v_mov_b32 v3, 0\ns_mov_b64 exec, 1"), groups=304, parameters=("atomic_clk",))
    for name, body, shift in (("global_load_dword", "global_load_dword v[{k}%16+12], v2, s[4:5]", 2),
                              ("global_load_dwordx4", "global_load_dwordx4 v[{k}%16*4+12:{k}%16*4+15], v2, s[4:5]", 4),
                              ("global_store_dword", "global_store_dword v2, v3, s[4:5]", 2),
                              ("global_store_dwordx4", "global_store_dwordx4 v2, v[4:7], s[4:5]", 4)):
        yield Slope(f"{name} of a CU, 4 waves at one place", _NONE, None,
                    Kernel(body, f"v_lshlrev_b32 v2, {shift}, v0", waves=4, registers=80), per=4,
                    parameters=("store_data_bytes",) if "store" in name else ("l1_latency_clk",))
    yield Slope("store, until it is done", _NONE, None, Kernel("global_store_dword v3, v1, s[4:5]\ns_waitcnt vmcnt(0)",
                                                               "v_lshlrev_b32 v3, 2, v0"),
                parameters=("l2_latency_clk",))


def _barriers() -> Iterator[Case]:
    for waves in (1, 2, 4, 8, 16):
        yield Slope(f"s_barrier, {waves} waves", _NONE, None, Kernel("s_barrier", waves=waves),
                    parameters=("barrier_clk",))

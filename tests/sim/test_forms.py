# SPDX-License-Identifier: MIT
"""Every vector instruction in every encoding and with every modifier that LLVM assembles, against the row's model.

`test_everything_is_tested` is the gate: it names instructions and modifiers that no test of this file compares.
"""

import importlib
import re

import form_cases
import forms
import numpy as np
import pytest
import test_mfma
import test_smfmac
import test_vop1
import test_vop2
import test_vop3
import test_vop3_media
import test_vop3p
import test_vopc
from asm import launches
from hip_runtime import HipError
from isa_model import Row, field, saturated, table_names, tables

pytestmark = pytest.mark.filterwarnings("ignore:overflow|invalid value|divide by zero")

CMPX = [Row(row.name.replace("v_cmp_", "v_cmpx_"), row.dst, row.src, row.model) for row in test_vopc.ROWS]
FILES = {
    "vop1": test_vop1.ROWS, "vop2": test_vop2.ROWS, "vop3_int": test_vop3.INTEGER_ROWS,
    "vop3_float": test_vop3.FLOAT_ROWS, "vop3_media": test_vop3_media.ROWS, "vopc": test_vopc.ROWS, "vopx": CMPX,
}
ALL = [row for rows in FILES.values() for row in rows]


def limited(function, dtype):
    """Exact on int64 copies, then brought into the range."""
    return lambda *sources: saturated(function(*(source.astype(np.int64) for source in sources)), dtype)


def differences(bits: int, masked: bool = False, shift: int = 0):
    def model(a, b, c):
        total = np.zeros(a.shape, np.int64)
        for first in range(0, 32, bits):
            x, y = field(a, first, bits, False), field(b, first, bits, False)
            total += np.where(masked & (y == 0), 0, np.abs(x - y))
        return saturated((total << shift) + c.astype(np.int64), np.uint32)
    return model


form_cases.CLAMPS |= test_vop2.CLAMPED | test_vop3.CLAMPED | test_vop3_media.CLAMPED | {
    "v_mul_lo_u16": limited(np.multiply, np.uint16), "v_sub_i32": limited(np.subtract, np.int32),
    "v_add_i16": limited(np.add, np.int16), "v_mad_i16": limited(lambda a, b, c: a * b + c, np.int16),
    "v_mad_legacy_u16": limited(lambda a, b, c: a * b + c, np.uint16),
    "v_mad_legacy_i16": limited(lambda a, b, c: a * b + c, np.int16),
    "v_mad_u32_u16": limited(lambda a, b, c: a * b + c, np.uint32),
    "v_mad_i32_i24": lambda a, b, c: saturated(
        field(a, 0, 24, True) * field(b, 0, 24, True) + c.view(np.int32).astype(np.int64), np.int32),
    "v_mad_i32_i16": limited(lambda a, b, c: a * b + c, np.int32), "v_sad_u8": differences(8),
    "v_msad_u8": differences(8, masked=True), "v_sad_hi_u8": differences(8, shift=16), "v_sad_u16": differences(16),
}

# What the assembler takes and no public text defines is refused when it executes.
NO_CLAMP = """v_mov_b32 v_not_b32 v_bfrev_b32 v_ffbh_u32 v_ffbl_b32 v_ffbh_i32 v_sat_pk_u8_i16 v_cvt_rpi_i32_f32
    v_cvt_flr_i32_f32 v_cvt_i16_f16 v_cvt_u16_f16 v_cvt_i32_f32 v_cvt_u32_f32 v_cvt_i32_f64 v_cvt_u32_f64
    v_cvt_norm_i16_f16 v_cvt_norm_u16_f16 v_cvt_pk_f32_fp8 v_cvt_pk_f32_bf8 v_frexp_exp_i16_f16 v_frexp_exp_i32_f32
    v_frexp_exp_i32_f64 v_cndmask_b32 v_add_co_u32 v_sub_co_u32 v_subrev_co_u32 v_addc_co_u32 v_subb_co_u32
    v_subbrev_co_u32 v_mul_i32_i24 v_mul_hi_i32_i24 v_mul_u32_u24 v_mul_hi_u32_u24 v_min_u16 v_max_u16 v_min_i16
    v_max_i16 v_min_u32 v_max_u32 v_min_i32 v_max_i32 v_lshrrev_b32 v_ashrrev_i32 v_lshlrev_b32 v_and_b32 v_or_b32
    v_xor_b32 v_xnor_b32 v_lshlrev_b16 v_lshrrev_b16 v_ashrrev_i16 v_pk_fmac_f16 v_dot2c_i32_i16 v_dot4c_i32_i8
    v_dot8c_i32_i4 v_mad_u64_u32 v_mad_i64_i32 v_min3_u16 v_max3_u16 v_med3_u16 v_min3_i16 v_max3_i16 v_med3_i16
    v_alignbit_b32 v_alignbyte_b32 v_cvt_pknorm_i16_f32 v_cvt_pknorm_u16_f32 v_cvt_pknorm_i16_f16 v_cvt_pknorm_u16_f16
    v_pack_b32_f16 v_cvt_pk_u8_f32 v_cvt_pkaccum_u8_f32 v_cvt_pkrtz_f16_f32""".split()
PACKED = ("v_pk_fmac_f16", "v_dot2c_f32_f16")
HIGH_HALF_OF_32_BITS = {"v_alignbit_b32": (0, 1, 2, 3), "v_alignbyte_b32": (0, 1, 2, 3), "v_mad_u32_u16": (2, 3),
                        "v_mad_i32_i16": (2, 3), "v_cvt_pknorm_i16_f16": (2,), "v_cvt_pknorm_u16_f16": (2,),
                        "v_pack_b32_f16": (2,)}
REFUSALS = {"clamp": "clamp on this operation is not implemented", "omod": "output modifier",
            "neg": "packed operands", "abs": "packed operands", "op_sel": "selects the high half"}


def is_refused(row: Row, unit: str) -> bool:
    kind = re.sub(r"^\w+ |\d$", "", unit)
    if kind == "clamp":
        return row.name in NO_CLAMP or row.name.startswith("v_cmp")
    if kind == "omod":
        return row.dst[0] != "f"
    if kind in ("neg", "abs"):
        return row.name in PACKED
    return kind == "op_sel" and int(unit[-1]) in HIGH_HALF_OF_32_BITS.get(row.name, ())


def refused(rows, units) -> set[tuple[str, str]]:
    return {(row.name, unit) for row in rows for unit in units[row.name] if is_refused(row, unit)}


@pytest.mark.parametrize("name", FILES)
def test_forms(name):
    rows = FILES[name]
    units = forms.accepted(rows)
    left_out = refused(rows, units)
    tested = form_cases.check_forms(rows, units, left_out)
    wanted = {(row.name, unit) for row in rows for unit in units[row.name]}
    assert wanted - left_out - tested == set()           # forms() left a unit out


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2, 22))
@pytest.mark.parametrize("name", FILES)
def test_forms_on_more_operands(name, seed):
    rows = FILES[name]
    units = forms.accepted(rows)
    form_cases.check_forms(rows, units, refused(rows, units), 100_000 * seed)


def test_what_is_not_defined_is_refused():
    units = forms.accepted(ALL)
    left_out = refused(ALL, units)
    todo = [(row, form) for row in ALL for form in forms.candidates(row)
            for unit in [max(form.units(), key=len)] if (row.name, unit) in left_out]
    cases = [form_cases.Prepared(row, [form], 1).case for row, form in todo]
    for (row, form), launch in zip(todo, launches(cases), strict=True):
        unit = re.sub(r"^\w+ |\d$", "", max(form.units(), key=len))
        with pytest.raises(HipError, match=REFUSALS[unit]):
            launch()
            pytest.fail(f"{row.name} runs with {unit}")


# Instructions of the vector tables whose tests are not rows: where they are compared with a model.
ELSEWHERE = {
    "test_vop1.test_swap_exchanges_active_lanes": "v_nop v_clrexcp v_swap_b32",
    "test_vop1.test_readfirstlane": "v_readfirstlane_b32",
    "test_vop2.test_literal_constants": "v_fmamk_f32 v_fmaak_f32 v_madmk_f16 v_madak_f16",
    "test_vop3_media.test_four_sums_of_32_bits": "v_mqsad_u32_u8",
    "test_dpp.test_readlane_and_writelane_ignore_exec": "v_readlane_b32 v_writelane_b32",
    "test_dpp.test_mbcnt": "v_mbcnt_lo_u32_b32 v_mbcnt_hi_u32_b32",
    "test_division.test_division_is_ieee": "v_div_scale_f32 v_div_scale_f64 v_div_fmas_f32 v_div_fmas_f64 "
                                           "v_div_fixup_f32 v_div_fixup_f64",
    "test_division.test_fixup_f16": "v_div_fixup_f16 v_div_fixup_legacy_f16",
    "test_division.test_pack_to_float8": "v_cvt_pk_fp8_f32 v_cvt_pk_bf8_f32",
    "test_division.test_stochastic_rounding": "v_cvt_sr_fp8_f32 v_cvt_sr_bf8_f32",
    "test_vop3p.test_packed_f16": " ".join(test_vop3p.FLOAT_OPS),
    "test_vop3p.test_packed_integers": " ".join(test_vop3p.INTEGER_OPS),
    "test_vop3p.test_packed_f32": " ".join(test_vop3p.F32_OPS),
    "test_vop3p.test_pk_mov_b32": "v_pk_mov_b32",
    "test_vop3p.test_fma_mix": "v_fma_mix_f32 v_fma_mixlo_f16 v_fma_mixhi_f16",
    "test_vop3p.test_dot2_f32_f16": "v_dot2_f32_f16",
    "test_vop3p.test_integer_dot_products": "v_dot2_i32_i16 v_dot2_u32_u16 v_dot4_i32_i8 v_dot4_u32_u8 v_dot8_i32_i4 "
                                            "v_dot8_u32_u4",
    "test_mfma.test_product": " ".join(f"v_mfma_{name}" for name in test_mfma.ALL),
    "test_smfmac.test_product": " ".join(f"v_smfmac_{name}" for name in test_smfmac.SHAPES),
    "test_mfma.test_accumulator_moves": "v_accvgpr_read_b32 v_accvgpr_write_b32 v_accvgpr_mov_b32",
}


def test_everything_is_tested():
    """A new row of the vector tables fails here until it has a model; test_sop.py, test_smem.py and
    test_memory_forms.py have the same test of theirs.
    """
    tested = {row.name for row in ALL}
    for test, names in ELSEWHERE.items():
        module, function = test.split(".")
        assert callable(getattr(importlib.import_module(module), function))
        tested |= set(names.split())
    assert tested == table_names(*(file for file in tables() if file.startswith(("v", "mfma"))))

# SPDX-License-Identifier: MIT
"""Lane permutations: DPP controls, masks and bound_ctrl; SDWA selects; readlane, writelane, mbcnt."""

import numpy as np
import pytest
from asm import LANES, Case, run, run_many
from isa_model import GROUPS, random_exec, unpack_mask, values

pytestmark = pytest.mark.filterwarnings("ignore:overflow|invalid value")
LANE = np.arange(LANES)
ROW, AT = LANE // 16 * 16, LANE % 16


def inside(source, valid):
    return np.where(valid, source, -1)


# Control → the lane each lane reads, -1 for none.
CONTROLS = {
    "quad_perm:[0,0,3,1]": LANE // 4 * 4 + np.array([0, 0, 3, 1])[LANE % 4],
    "quad_perm:[2,3,0,1]": LANE ^ 2,
    **{f"row_shl:{n}": inside(LANE + n, AT + n < 16) for n in (1, 4, 15)},
    **{f"row_shr:{n}": inside(LANE - n, AT >= n) for n in (1, 8, 15)},
    **{f"row_ror:{n}": ROW + (AT - n) % 16 for n in (1, 7, 15)},
    "wave_shl:1": inside(LANE + 1, LANE < 63),
    "wave_rol:1": (LANE + 1) % 64,
    "wave_shr:1": inside(LANE - 1, LANE > 0),
    "wave_ror:1": (LANE - 1) % 64,
    "row_mirror": ROW + 15 - AT,
    "row_half_mirror": LANE // 8 * 8 + 7 - LANE % 8,
    "row_bcast:15": inside(ROW - 1, LANE >= 16),
    "row_bcast:31": inside(np.full(LANES, 31), LANE >= 32),
    **{f"row_newbcast:{n}": ROW + n for n in (0, 9)},
}


@pytest.mark.parametrize("bound_ctrl", [False, True])
@pytest.mark.parametrize("masks", [(15, 15), (10, 15), (15, 5), (7, 12)])
def test_controls(masks, bound_ctrl):
    """By a move; test_forms.py runs every instruction with three of them."""
    x, old, exec_in = values("u32", 1), values("u32", 2), random_exec(3)
    row_mask, bank_mask = masks
    text = f"row_mask:{row_mask:#x} bank_mask:{bank_mask:#x}{' bound_ctrl:0' if bound_ctrl else ''}"
    cases = [Case(f"v_mov_b32_dpp v1, v0 {control} {text}", {"v0": x, "v1": old, "exec": exec_in}, ["v1"])
             for control in CONTROLS]
    for (control, source), result in zip(CONTROLS.items(), run_many(cases), strict=True):
        active = unpack_mask(exec_in)
        valid = (source >= 0) & active[:, np.maximum(source, 0)]
        enabled = (row_mask >> LANE // 16 & 1 == 1) & (bank_mask >> LANE // 4 % 4 & 1 == 1)
        moved = np.where(valid, x[:, np.maximum(source, 0)], 0)
        wanted = np.where(active & enabled & (valid | bound_ctrl), moved, old)
        np.testing.assert_array_equal(result["v1"], wanted, control)


def test_64_bit_broadcast():
    x, old = values("u64", 11), values("u64", 12)
    got = run("v_mov_b64_dpp v[2:3], v[0:1] row_newbcast:9 row_mask:0x5 bank_mask:0xf", {"v[0:1]": x, "v[2:3]": old},
              {"v[2:3]": np.uint64})
    np.testing.assert_array_equal(got["v[2:3]"], np.where(ROW // 16 % 2 == 0, x[:, ROW + 9], old))


# ---- SDWA


SELECTS = {**{f"BYTE_{at}": (8 * at, 8) for at in range(4)}, "WORD_0": (0, 16), "WORD_1": (16, 16), "DWORD": (0, 32)}


def select(x, name, sext=False):
    first, bits = SELECTS[name]
    value = x.astype(np.int64) >> first & (1 << bits) - 1
    return np.where(value >> bits - 1 & 1 == 1, value - (1 << bits), value) if sext else value


def place(result, old, name, unused):
    first, bits = SELECTS[name]
    mask = (1 << bits) - 1
    moved = (result & mask) << first
    if unused == "UNUSED_PRESERVE":
        moved |= old & ~(mask << first)
    elif unused == "UNUSED_SEXT" and first + bits < 32:
        moved |= np.where(result >> bits - 1 & 1 == 1, (1 << 32) - (1 << first + bits), 0)
    return moved & 0xFFFFFFFF


def test_sdwa_integers():
    a, b, old = values("u32", 13), values("u32", 14), values("u32", 15)
    cases, expected = [], []
    for dst in SELECTS:
        for unused in ("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"):
            for index, first in enumerate(SELECTS):
                second, signed = list(SELECTS)[(index + 3) % 7], index % 2 == 1
                source = "sext(v0)" if signed else "v0"
                text = (f"v_add_u32_sdwa v2, {source}, v1 dst_sel:{dst} dst_unused:{unused} "
                        f"src0_sel:{first} src1_sel:{second}")
                cases.append(Case(text, {"v0": a, "v1": b, "v2": old}, ["v2"]))
                total = select(a, first, signed) + select(b, second)
                expected.append(place(total & 0xFFFFFFFF, old.astype(np.int64), dst, unused))
    for case, result, wanted in zip(cases, run_many(cases), expected, strict=True):
        np.testing.assert_array_equal(result["v2"], wanted, case.body)


# ---- single lanes and lane counts


def test_readlane_and_writelane_ignore_exec():
    x, old = values("u32", 21), values("u32", 22)
    lanes = np.arange(GROUPS, dtype=np.uint32) * 13 + 60                    # beyond 63 wraps
    got = run("v_readlane_b32 s10, v0, s8\nv_readlane_b32 s11, v0, 5\ns_mov_b32 m0, s8\nv_writelane_b32 v1, s9, m0\n"
              "v_writelane_b32 v1, 42, 7",
              {"v0": x, "v1": old, "s8": lanes, "s9": lanes * 1000, "exec": 0}, ["s10", "s11", "v1"])
    groups = np.arange(GROUPS)
    np.testing.assert_array_equal(got["s10"], x[groups, lanes % 64])
    np.testing.assert_array_equal(got["s11"], x[:, 5])
    wanted = old.copy()
    wanted[groups, lanes % 64] = lanes * 1000
    wanted[:, 7] = 42
    np.testing.assert_array_equal(got["v1"], wanted)


def test_mbcnt():
    base, exec_in = values("u32", 23), random_exec(24)
    masks = np.random.default_rng(25).integers(0, 1 << 64, GROUPS, np.uint64, endpoint=False)
    got = run("v_mbcnt_lo_u32_b32 v1, s8, v0\nv_mbcnt_hi_u32_b32 v2, s9, v1\nv_mbcnt_hi_u32_b32 v3, -1, 0",
              {"v0": base, "v1": base, "v2": base, "v3": base, "s[8:9]": masks, "exec": exec_in}, ["v1", "v2", "v3"])
    bits, active = unpack_mask(masks).astype(np.uint32), unpack_mask(exec_in)
    below = np.cumsum(bits, axis=1, dtype=np.uint32) - bits
    low = np.where(LANE < 32, below, np.cumsum(bits, axis=1, dtype=np.uint32)[:, 31:32])
    np.testing.assert_array_equal(got["v1"], np.where(active, base + low, base))
    np.testing.assert_array_equal(got["v2"], np.where(active, base + below, base))
    np.testing.assert_array_equal(got["v3"], np.where(active, np.maximum(LANE - 32, 0), base))

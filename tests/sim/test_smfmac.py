# SPDX-License-Identifier: MIT
"""Sparse matrix instructions against NumPy: layouts and index sets from AMD's matrix instruction calculator."""

import numpy as np
import pytest
from asm import run
from hip_runtime import HipError
from test_mfma import GROUPS, LANES, Mfma

SHAPES = [*(f"f32_{shape}_{kind}" for shape in ("16x16x32", "32x32x16") for kind in ("f16", "bf16")),
          *(f"{out}_{shape}_{kinds}" for shape in ("16x16x64", "32x32x32") for out, kinds in (
              ("i32", "i8"), *(("f32", f"{a}_{b}") for a in ("fp8", "bf8") for b in ("fp8", "bf8"))))]


class Smfmac:
    """One instruction: D += A · B, where A keeps two of each four k."""

    def __init__(self, name: str):
        self.name = f"v_smfmac_{name}"
        self.b = Mfma(name)                            # B, D and the value types are those of the dense shape
        self.m, self.k = self.b.m, self.b.k
        self.kept = self.k * self.m // 64 // 2         # elements of A per lane
        self.sets = 16 // self.kept                    # index sets of 2 bits per element in 32

    def operands(self, seed: int):
        """A's and B's registers, index registers, D; then A's kept values, and B's matrix [GROUPS, k, j]."""
        rng = np.random.default_rng(seed)
        a, a_values = self.b.random_input(rng, self.b.kinds[0])
        b, b_values = self.b.random_input(rng, self.b.kinds[1])
        dwords = a.shape[-1] // 2
        b_matrix = self.b.matrices(self.b.input_index(), b_values, self.k)[:, 0].transpose(0, 2, 1)
        index = rng.integers(0, 1 << 32, (GROUPS, 64), dtype=np.uint32)
        return a[..., :dwords], b, index, self.b.random_output(rng), a_values[..., :self.kept], b_matrix

    def dense(self, kept: np.ndarray, index: np.ndarray, which: int) -> np.ndarray:
        """A [GROUPS, i, k]: element e of a lane is in the e/2-th four of the lane's k, where its 2 bits say.

        Two elements of a pair may name the same k: both products count.
        """
        matrix = np.zeros((GROUPS, self.m, self.k), kept.dtype)
        for lane in range(64):
            for e in range(self.kept):
                at = index[:, lane] >> np.uint32(2 * (e + self.kept * which)) & 3
                k = 2 * self.kept * (lane // self.m) + 4 * (e // 2) + at
                matrix[np.arange(GROUPS), lane % self.m, k.astype(int)] += kept[:, lane, e]
        return matrix

    def run(self, a, b, index, d, modifiers="", files="vvvv", exec_mask=None):
        registers = [f"{file}[{first}:{first + count - 1}]" for file, first, count in zip(
            files, (0, 32, 36), (self.b.out_dwords, a.shape[-1], b.shape[-1]))]
        registers.append("v48")
        values = (d.view(np.uint32).reshape(GROUPS, 64, -1), a, b, index)
        inputs = dict(zip(registers, values, strict=True))
        if exec_mask is not None:
            inputs["exec"] = exec_mask
        out = run(f"{self.name} {', '.join(registers)} {modifiers}", inputs, {registers[0]: self.b.out_type})
        return out[registers[0]].reshape(GROUPS, 64, -1)

    def check(self, got, kept, index, which, b_matrix, d) -> None:
        a = self.dense(kept, index, which)
        block = (slice(None), None)
        self.b.check(got, a[block], b_matrix.transpose(0, 2, 1)[block], d)


@pytest.mark.parametrize("name", SHAPES)
def test_product(name):
    op = Smfmac(name)
    a, b, index, d, kept, b_matrix = op.operands(seed=1)
    op.check(op.run(a, b, index, d), kept, index, 0, b_matrix, d)


@pytest.mark.parametrize("name", ["f32_16x16x32_f16", "f32_32x32x16_bf16", "i32_16x16x64_i8", "f32_32x32x32_fp8_bf8"])
def test_index_sets(name):
    """ABID chooses the set; with CBSZ it is the first."""
    op = Smfmac(name)
    a, b, index, d, kept, b_matrix = op.operands(seed=2)
    for which in range(op.sets):
        op.check(op.run(a, b, index, d, f"abid:{which}"), kept, index, which, b_matrix, d)
        op.check(op.run(a, b, index, d, f"cbsz:1 abid:{which}"), kept, index, 0, b_matrix, d)
    with pytest.raises(HipError, match="does not fit into 32 bits"):
        op.run(a, b, index, d, f"abid:{op.sets}")


@pytest.mark.parametrize("files", ["aaaa", "avav", "vava"])
def test_accumulator_registers_and_exec(files):
    op = Smfmac("f32_32x32x16_f16")
    a, b, index, d, kept, b_matrix = op.operands(seed=3)
    masks = np.array([0, 1, 0x5555_0000_FFFF_1234], np.uint64)
    op.check(op.run(a, b, index, d, files=files, exec_mask=masks), kept, index, 0, b_matrix, d)


def test_dropped_elements_of_b_do_not_count():
    """An infinity that no kept element meets leaves D finite."""
    op = Smfmac("f32_16x16x32_f16")
    a, b, index, d, kept, _ = op.operands(seed=4)
    index[:] = 0x44444444                              # every pair keeps k = 0 and 1 of its four
    halves = b.view(np.float16).reshape(GROUPS, 64, 8)
    halves[..., [2, 3, 6, 7]] = np.inf
    got = op.run(a, b, index, d)
    halves[..., [2, 3, 6, 7]] = 0
    np.testing.assert_array_equal(got, op.run(a, b, index, d))
    assert np.isfinite(got).all() and LANES.size == 64

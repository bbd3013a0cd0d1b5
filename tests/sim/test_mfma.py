# SPDX-License-Identifier: MIT
"""MFMA against NumPy: register layouts from AMD's matrix instruction calculator, every element, every shape."""

import re

import numpy as np
import pytest
import torch
from asm import Case, run, run_many
from hip_runtime import HipError

LANES = np.arange(64)[:, None]
GROUPS = 3                                           # workgroups per case, each with its own random matrices

ONE_BLOCK = ["f32_16x16x16_f16", "f32_16x16x16_bf16", "f32_32x32x8_f16", "f32_32x32x8_bf16", "f32_16x16x4_f32",
             "f32_32x32x2_f32", "f32_16x16x8_xf32", "f32_32x32x4_xf32", "i32_16x16x32_i8", "i32_32x32x16_i8",
             *(f"f32_{shape}_{a}_{b}" for shape in ("16x16x32", "32x32x16")
               for a in ("fp8", "bf8") for b in ("fp8", "bf8")), "f64_16x16x4_f64"]
MULTI_BLOCK = [f"{out}_{shape}_{kind}" for out, kind, shapes in (
    ("f32", "f16", ("4x4x4_16b", "16x16x4_4b", "32x32x4_2b")),
    ("f32", "bf16", ("4x4x4_16b", "16x16x4_4b", "32x32x4_2b")),
    ("f32", "f32", ("4x4x1_16b", "16x16x1_4b", "32x32x1_2b")),
    ("i32", "i8", ("4x4x4_16b", "16x16x4_4b", "32x32x4_2b"))) for shape in shapes]
ALL = [*ONE_BLOCK, *MULTI_BLOCK, "f64_4x4x4_4b_f64"]

TORCH_TYPES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fnuz, "bf8": torch.float8_e5m2fnuz}
BITS = {"f16": 16, "bf16": 16, "fp8": 8, "bf8": 8, "i8": 8, "f32": 32, "xf32": 32, "f64": 64}


class Mfma:
    """One instruction: its shape, its layouts as index arrays, random operands, the product in float64 or int64."""

    def __init__(self, name: str):
        shape = re.fullmatch(r"([fi]\d+)_(\d+)x\d+x(\d+)(?:_(\d+)b)?_(\w+)", name)
        self.name = f"v_mfma_{name}"
        self.out, self.m, self.k, self.blocks = shape[1], int(shape[2]), int(shape[3]), int(shape[4] or 1)
        kinds = shape[5].split("_")
        self.kinds = kinds[0], kinds[-1]
        self.in_dwords = -(-BITS[kinds[0]] * self.m * self.k * self.blocks // 64 // 32)
        self.out_dwords = self.m * self.m * self.blocks // 64 * (2 if self.out == "f64" else 1)
        self.out_type = {"f32": np.float32, "f64": np.float64, "i32": np.int32}[self.out]

    def input_index(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Block, row of A (column of B) and k of each [lane, element]."""
        element = np.arange(self.m * self.k * self.blocks // 64)[None, :]
        if self.name.endswith("4x4x4_4b_f64"):
            return LANES // 4 % 4 + 0 * element, LANES % 4 + 0 * element, LANES // 16 + 0 * element
        if self.blocks > 1:
            return LANES // self.m + 0 * element, LANES % self.m + 0 * element, element + 0 * LANES
        return 0 * LANES + 0 * element, LANES % self.m + 0 * element, LANES // self.m * element.size + element

    def output_index(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Block, row and column of D in each [lane, element]."""
        r = np.arange(self.m * self.m * self.blocks // 64)[None, :]
        if self.name.endswith("4x4x4_4b_f64"):
            return LANES // 4 % 4 + 0 * r, LANES // 16 + 0 * r, LANES % 4 + 0 * r
        if self.out == "f64":
            return 0 * LANES + 0 * r, 4 * r + LANES // 16, LANES % 16 + 0 * r
        if self.m == 4:
            return LANES // 4 + 0 * r, r + 0 * LANES, LANES % 4 + 0 * r
        if self.m == 16:
            return r // 4 + 0 * LANES, 4 * (LANES // 16) + r % 4, LANES % 16 + 0 * r
        return r // 16 + 0 * LANES, 8 * (r % 16 // 4) + 4 * (LANES // 32) + r % 4, LANES % 32 + 0 * r

    def random_input(self, rng: np.random.Generator, kind: str) -> tuple[np.ndarray, np.ndarray]:
        """Registers [GROUPS, 64, dwords] u32 and the elements' values [GROUPS, 64, elements]."""
        count = self.m * self.k * self.blocks // 64
        shape = (GROUPS, 64, count)
        if kind == "i8":
            codes = rng.integers(-128, 128, shape).astype(np.int8)
            values = codes.astype(np.int64)
        elif kind in TORCH_TYPES:
            codes = torch.from_numpy(rng.standard_normal(shape)).to(TORCH_TYPES[kind])
            values = codes.double().numpy()
            codes = codes.view(torch.int16 if kind == "bf16" else torch.uint8).numpy()
        else:
            codes = rng.standard_normal(shape).astype({"f16": np.float16, "f64": np.float64}.get(kind, np.float32))
            if kind == "xf32":
                values = (codes.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)
            else:
                values = codes.astype(np.float64)
        return np.ascontiguousarray(codes).view(np.uint32).reshape(GROUPS, 64, -1), values

    def random_output(self, rng: np.random.Generator) -> np.ndarray:
        shape = (GROUPS, 64, self.m * self.m * self.blocks // 64)
        if self.out == "i32":
            return rng.integers(-2**31, 2**31, shape).astype(np.int32)
        return rng.standard_normal(shape).astype(self.out_type)

    def matrices(self, index: tuple, registers: np.ndarray, columns: int) -> np.ndarray:
        """[GROUPS, blocks, m, columns] from what the lanes hold."""
        matrix = np.full((GROUPS, self.blocks, self.m, columns), np.nan if registers.dtype.kind == "f" else 1 << 40,
                         registers.dtype if registers.dtype.kind == "f" else np.int64)
        matrix[:, *index] = registers
        assert not np.any(np.isnan(matrix) if registers.dtype.kind == "f" else matrix == 1 << 40)
        return matrix

    def check(self, d: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        """d against a·b + c; a: [GROUPS, blocks, i, k], b: [GROUPS, blocks, j, k], c as d or a number."""
        exact = np.int64 if self.out == "i32" else np.float64
        c = self.matrices(self.output_index(), np.broadcast_to(c, d.shape).astype(exact), self.m)
        wanted = np.einsum("gbik,gbjk->gbij", a, b) + c
        got = self.matrices(self.output_index(), d.astype(exact), self.m)
        if self.out == "i32":
            np.testing.assert_array_equal(got.astype(np.int32), wanted.astype(np.int32))
            return
        scale = np.einsum("gbik,gbjk->gbij", abs(a), abs(b)) + abs(c)
        epsilon = np.finfo(self.out_type).eps
        np.testing.assert_array_less(abs(got - wanted), (self.k + 1) * epsilon * scale + 1e-300)

    def operands(self, seed: int) -> tuple:
        rng = np.random.default_rng(seed)
        (a, a_values), (b, b_values) = (self.random_input(rng, kind) for kind in self.kinds)
        return a, b, self.random_output(rng), *(self.matrices(self.input_index(), values, self.k)
                                                 for values in (a_values, b_values))

    def registers(self, file: str, first: int, dwords: int) -> str:
        return f"{file}{first}" if dwords == 1 else f"{file}[{first}:{first + dwords - 1}]"


def run_mfma(op: Mfma, a, b, c, *, d_file="v", c_file="v", a_file="v", b_file="v", in_place=True, modifiers="",
             exec_mask=None):
    """D's registers [GROUPS, 64, elements]. c: registers, or the text of a constant."""
    names = {"a": op.registers(a_file, 64, op.in_dwords), "b": op.registers(b_file, 68, op.in_dwords)}
    d = op.registers(d_file, 0, op.out_dwords)
    inputs = {names["a"]: a, names["b"]: b}
    if isinstance(c, str):
        c_text = c
    else:
        c_text = d if in_place else op.registers(c_file, 32, op.out_dwords)
        inputs[c_text] = c.view(np.uint32).reshape(GROUPS, 64, -1)
    if exec_mask is not None:
        inputs["exec"] = exec_mask
    body = f"{op.name} {d}, {names['a']}, {names['b']}, {c_text} {modifiers}"
    out = run(body, inputs, {d: op.out_type})[d]
    return out.reshape(GROUPS, 64, -1)


@pytest.mark.parametrize("name", ALL)
def test_product(name):
    op = Mfma(name)
    a, b, c, a_matrix, b_matrix = op.operands(seed=1)
    op.check(run_mfma(op, a, b, c), a_matrix, b_matrix, c)


@pytest.mark.parametrize("name", ["f32_16x16x16_bf16", "f32_32x32x8_f16", "i32_16x16x32_i8", "f64_16x16x4_f64",
                                  "f32_4x4x4_16b_f16"])
@pytest.mark.parametrize("files", [dict(d_file="a"), dict(a_file="a", b_file="a"), dict(in_place=False),
                                   dict(d_file="a", c_file="a", in_place=False), dict(exec_mask=0x00FF00FF00000001)],
                         ids=["acc_d", "acc_ab", "d_not_c", "acc_d_not_c", "partial_exec"])
def test_operand_places(name, files):
    op = Mfma(name)
    a, b, c, a_matrix, b_matrix = op.operands(seed=2)
    op.check(run_mfma(op, a, b, c, **files), a_matrix, b_matrix, c)


@pytest.mark.parametrize(("name", "text", "value"), [
    ("f32_16x16x16_bf16", "0", 0.0), ("f32_16x16x16_bf16", "-4.0", -4.0), ("f32_32x32x8_bf16", "1.0", 1.0),
    ("i32_32x32x16_i8", "-7", -7), ("f64_16x16x4_f64", "0.5", 0.5), ("f64_4x4x4_4b_f64", "2.0", 2.0)])
def test_constant_accumulator(name, text, value):
    op = Mfma(name)
    a, b, _, a_matrix, b_matrix = op.operands(seed=3)
    op.check(run_mfma(op, a, b, text), a_matrix, b_matrix, value)


@pytest.mark.parametrize("name", MULTI_BLOCK)
def test_broadcast_of_a_blocks(name):
    op = Mfma(name)
    a, b, c, a_matrix, b_matrix = op.operands(seed=4)
    for cbsz in range(1, op.blocks.bit_length()):
        for abid in {0, (1 << cbsz) - 1}:
            source = np.arange(op.blocks) >> cbsz << cbsz | abid
            d = run_mfma(op, a, b, c, modifiers=f"cbsz:{cbsz} abid:{abid}")
            op.check(d, a_matrix[:, source], b_matrix, c)


@pytest.mark.parametrize("name", ["f32_16x16x4_f32", "f32_32x32x2_f32", *MULTI_BLOCK])
def test_lane_groups_of_b(name):
    op = Mfma(name)
    lane = np.arange(64)
    sources = {1: lane % 32, 2: lane % 32 + 32, 3: (lane + 16) % 64, 4: lane % 16, 5: lane % 16 + 16,
               6: lane % 16 + 32, 7: lane % 16 + 48}
    rng = np.random.default_rng(5)
    a, a_values = op.random_input(rng, op.kinds[0])
    b, b_values = op.random_input(rng, op.kinds[1])
    c = op.random_output(rng)
    a_matrix = op.matrices(op.input_index(), a_values, op.k)
    for blgp, source in sources.items():
        b_matrix = op.matrices(op.input_index(), b_values[:, source], op.k)
        op.check(run_mfma(op, a, b, c, modifiers=f"blgp:{blgp}"), a_matrix, b_matrix, c)


@pytest.mark.parametrize("name", ["f64_16x16x4_f64", "f64_4x4x4_4b_f64"])
def test_f64_negation(name):
    op = Mfma(name)
    a, b, c, a_matrix, b_matrix = op.operands(seed=6)
    for bits in range(1, 8):
        signs = [-1 if bits >> at & 1 else 1 for at in range(3)]
        listed = ",".join(str(bits >> at & 1) for at in range(3))
        d = run_mfma(op, a, b, c, modifiers=f"neg:[{listed}]")
        op.check(d, signs[0] * a_matrix, signs[1] * b_matrix, signs[2] * c)


def test_every_code_of_float8():
    """Each of the 256 codes times one: 0x80 is NaN, there is no infinity and no negative zero."""
    op = Mfma("f32_16x16x32_fp8_bf8")
    one = {"fp8": 0x40, "bf8": 0x40}
    for kind, names in (("fp8", "fp8_fp8"), ("bf8", "bf8_bf8")):
        codes = np.zeros((64, 2), np.uint32)
        row, k = op.input_index()[1:]
        wanted = np.zeros((16, 32))
        for lane in range(64):
            for element in range(8):
                code = (row[lane, element] * 32 + k[lane, element]) % 256
                codes[lane, element // 4] |= np.uint32(code << 8 * (element % 4))
        assert torch.tensor([one[kind]], dtype=torch.uint8).view(TORCH_TYPES[kind]).float().item() == 1.0
        table = torch.arange(256, dtype=torch.uint8).view(TORCH_TYPES[kind]).double().numpy()
        cases = []
        for column in range(32):                     # B selects one k: D[i, j] = A[i, column]
            b = np.zeros((64, 2), np.uint32)
            for lane, element in np.argwhere(k == column):
                b[lane, element // 4] |= np.uint32(one[kind] << 8 * (element % 4))
            cases.append(b)
        d = run(f"v_mfma_f32_16x16x32_{names} v[0:3], v[4:5], v[6:7], 0", {"v[4:5]": np.tile(codes, (32, 1, 1)),
                "v[6:7]": np.stack(cases)}, {"v[0:3]": np.float32})["v[0:3]"]
        rows, columns = op.output_index()[1:]
        for column in range(32):
            wanted = table[(rows * 32 + column) % 256]
            nan_rows = np.isnan(table[(np.arange(16)[:, None] * 32 + np.arange(32)[None, :]) % 256]).any(axis=1)[rows]
            np.testing.assert_array_equal(d[column][~nan_rows], wanted[~nan_rows])
            assert np.isnan(d[column][nan_rows]).all()
        assert columns.max() == 15


def test_denormal_inputs_and_results_are_kept():
    op = Mfma("f32_16x16x4_f32")
    a = np.full((GROUPS, 64, 1), 2.0 ** -100, np.float32)
    b = np.full((GROUPS, 64, 1), 2.0 ** -40, np.float32)
    d = run_mfma(op, a.view(np.uint32), b.view(np.uint32), "0")
    np.testing.assert_array_equal(d, np.float32(2.0 ** -138))


def test_accumulator_moves():
    value = np.arange(64, dtype=np.uint32) + 5
    old = np.full(64, 9, np.uint32)
    mask = 0x00000000FFFF0001
    lanes = mask >> np.arange(64, dtype=np.uint64) & np.uint64(1) == 1
    written, copied, read, from_scalar = run_many([
        Case("v_accvgpr_write_b32 a1, v0", {"v0": value, "a1": old, "exec": mask}, ["a1"]),
        Case("v_accvgpr_mov_b32 a2, a1", {"a1": value, "a2": old, "exec": mask}, ["a2"]),
        Case("v_accvgpr_read_b32 v3, a1", {"a1": value, "v3": old, "exec": mask}, ["v3"]),
        Case("v_accvgpr_write_b32 a1, s4\n v_accvgpr_write_b32 a2, 1.0", {"s4": 77}, ["a1", "a2"])])
    for result, name in ((written, "a1"), (copied, "a2"), (read, "v3")):
        np.testing.assert_array_equal(result[name], np.where(lanes, value, old))
    assert (from_scalar["a1"] == 77).all() and (from_scalar["a2"] == 0x3F800000).all()


@pytest.mark.parametrize("modifier", ["cbsz:1", "blgp:1", "abid:1"])
def test_modifiers_that_a_shape_lacks_are_refused(modifier):
    with pytest.raises(HipError, match="does not take these modifiers"):
        run(f"v_mfma_f32_16x16x16_bf16 a[0:3], v[0:1], v[2:3], a[0:3] {modifier}")


def test_block_group_larger_than_the_instruction_is_refused():
    with pytest.raises(HipError, match="cbsz names more blocks"):
        run("v_mfma_f32_32x32x4_2b_f16 a[0:31], v[0:1], v[2:3], a[0:31] cbsz:2")


@pytest.mark.parametrize("shift", (-2, 2))  # register tuples start at even numbers
def test_four_accumulators_may_overlap_partly(shift):
    """Legal for the assembler, and Triton's code has it: all of C is read before D is written."""
    rng = np.random.default_rng(shift + 9)
    a, b = (rng.standard_normal((64, 4)).astype(np.float16) for _ in range(2))
    c = rng.standard_normal((64, 4)).astype(np.float32)
    inputs = {"v[0:1]": a, "v[2:3]": b, "v[8:11]": c}
    apart = run("v_mfma_f32_16x16x16_f16 v[16:19], v[0:1], v[2:3], v[8:11]", inputs, {"v[16:19]": np.float32})
    d = f"v[{8 + shift}:{11 + shift}]"
    overlapping = run(f"v_mfma_f32_16x16x16_f16 {d}, v[0:1], v[2:3], v[8:11]", inputs, {d: np.float32})
    np.testing.assert_array_equal(overlapping[d], apart["v[16:19]"])


def test_overlapping_accumulators_are_refused():
    # v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[4:19], which the assembler rejects.
    with pytest.raises(HipError, match="do not overlap"):
        run(".long 0xD3CC8000, 0x04120500")

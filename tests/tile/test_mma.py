# SPDX-License-Identifier: MIT
"""tile/mma.h against a product in float64: every form, element and width. Small integers: all sums are exact."""

import pytest
import torch
from tile_program import Program

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "fp8": torch.float8_e4m3fnuz, "int8_t": torch.int8}
SUMS = {"int8_t": ("int32_t", torch.int32)}
# name → form, element, left operand, right operand, product
CASES = {
    **{f"ABt_{t}_{width}": ("ABt", t, f"OperandByRow<{16 // DTYPES[t].itemsize}, {width}>",
                            f"OperandByRow<{16 // DTYPES[t].itemsize}, {width}>", f"Product<1, {width}>")
       for t in DTYPES for width in (16, 32)},
    **{f"AtB_{t}": ("AtB", t, f"OperandByColumn<4, {4 if t == 'fp8' else 2}>", "OperandByColumn<4>",
                    f"Product<{4 if t == 'fp8' else 2}>") for t in ("bf16", "f16", "fp8")},
    "AtB_bf16_32": ("AtB", "bf16", "OperandByColumn<4, 1, 32>", "OperandByColumn<4, 1, 32>", "Product<1, 32>"),
    "AB_bf16": ("AB", "bf16", "OperandByRow<8>", "OperandByColumn<8>", "Product<>"),
    "AB_fp8_32": ("AB", "fp8", "OperandByRow<8, 32>", "OperandByColumn<8, 1, 32>", "Product<1, 32>"),
}
M, N, K = 64, 32, 64
program = Program("tile/mma.h", f"""
template <Form FORM, class T, class LEFT, class RIGHT, class PRODUCT, class SUM>
__device__ void product(const T* a, const T* b, SUM* c) {{
  constexpr bool kLeftByRow = FORM != Form::AtB, kRightByRow = FORM == Form::ABt;
  using A = RegTile<T, kLeftByRow ? {M} : {K}, kLeftByRow ? {K} : {M}, LEFT>;
  using B = RegTile<T, kRightByRow ? {N} : {K}, kRightByRow ? {K} : {N}, RIGHT>;
  auto tile = from_memory<RegTile<SUM, {M}, {N}, PRODUCT>>(c);
  mma<FORM>(tile, from_memory<A>(a), from_memory<B>(b));
  to_memory(c, tile);
}}
""" + "".join(f"""
extern "C" __global__ void {name}(const {t}* a, const {t}* b, {SUMS.get(t, ('float',))[0]}* c) {{
  product<Form::{form}, {t}, {left}, {right}, {result}>(a, b, c);
}}""" for name, (form, t, left, right, result) in CASES.items()))


@pytest.mark.parametrize("name", CASES)
def test_against_float64(name):
    form, t, *_ = CASES[name]
    a, b = torch.randint(-8, 8, (M, K)), torch.randint(-8, 8, (K, N))
    sum_dtype = SUMS[t][1] if t in SUMS else torch.float32
    start = torch.randint(-8, 8, (M, N)).to(sum_dtype)
    left, right = a.T if form == "AtB" else a, b.T if form == "ABt" else b
    c = start.clone()
    program(name, left.float().contiguous().to(DTYPES[t]), right.float().contiguous().to(DTYPES[t]), c)
    assert torch.equal(c, (start.double() + a.double() @ b.double()).to(sum_dtype))


def test_int8_products_are_exact_to_32_bits():
    """Each sum near the ends of 32 bits; beyond, it wraps."""
    a = torch.tensor([-128, 127], dtype=torch.int8).repeat_interleave(M // 2)[:, None].expand(M, K).contiguous()
    b = torch.full((N, K), -128, dtype=torch.int8)
    start = torch.tensor([2**31 - 1 - K * 128 * 128, 2**31 - K * 128 * 128, 2**31 - 1, -2**31], dtype=torch.int64)
    c = start.repeat(N // 4).expand(M, N).to(torch.int32).contiguous()
    expected = (c.long() + a.long() @ b.long().T + 2**31) % 2**32 - 2**31
    program("ABt_int8_t_16", a, b, c)
    assert torch.equal(c.long(), expected)

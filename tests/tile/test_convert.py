# SPDX-License-Identifier: MIT
"""tile/convert.h: every rounding on ties and beside them, NaN and infinity, in the layout that it had."""

import math

import pytest
import torch
from tile_program import Program

MODES = {"bf16": (0, 1, 2), "f16": (0, 2), "fp8": (0,)}
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "fp8": torch.float8_e4m3fnuz}
program = Program("tile/convert.h", "".join(f"""
extern "C" __global__ void {t}_{mode}(const float* matrix, {t}* out) {{
  const auto tile = from_memory<RegTile<float, 32, 16, Product<>>>(matrix);
  to_memory(out, convert<{t}, static_cast<Rounding>({mode})>(tile));
}}
extern "C" __global__ void wide_{t}_{mode}(const float* matrix, {t}* out) {{
  const auto tile = from_memory<RegTile<float, 64, 32, Product<1, 32>>>(matrix);
  to_memory(out, convert<{t}, static_cast<Rounding>({mode})>(tile));
}}""" for t, modes in MODES.items() for mode in modes) + "".join(f"""
extern "C" __global__ void neighbours_{t}(const float* x, {t}* out) {{
  const int first = 4 * thread_index();
  const float values[4] = {{x[first], x[first + 1], x[first + 2], x[first + 3]}};
  const Vec<{t}, 4> result = rounded<{t}>(values);
  for (int i = 0; i < 4; ++i) out[first + i] = result[i];
}}""" for t in ("bf16", "f16", "float")))


def rounded(x: torch.Tensor, dtype: torch.dtype, mode: int) -> torch.Tensor:
    """Of finite x, by exact arithmetic in float64: down and up are the neighbours in dtype towards and away from 0."""
    nearest = x.to(dtype)
    if mode == 0:
        return nearest
    bits = nearest.view(torch.int16)
    beyond = nearest.double().abs() > x.double().abs()
    down = torch.where(beyond, bits - 1, bits).view(dtype)
    up = (down.view(torch.int16) + 1).view(dtype)
    if mode == 2:
        return down
    magnitude = x.double().abs()
    return torch.where(magnitude - down.double().abs() >= up.double().abs() - magnitude, up, down)


def values(dtype: torch.dtype, shape: tuple[int, int]) -> torch.Tensor:
    """Numbers of the type, exact ties between neighbours, and what is just above or below of a tie."""
    number = (torch.rand(shape) * 4 + 1).to(dtype)
    integer = torch.int8 if dtype.itemsize == 1 else torch.int16
    step = ((number.view(integer) + 1).view(dtype).float() - number.float()) / 2
    kind = torch.arange(number.numel()).reshape(shape) % 4
    x = number.float() + step * (kind > 0)
    x = torch.where(kind == 2, x * (1 + 2**-22), torch.where(kind == 3, x * (1 - 2**-22), x))
    return x * torch.where(torch.rand(shape) < 0.5, -1.0, 1.0)


@pytest.mark.parametrize("t, mode", [(t, mode) for t, modes in MODES.items() for mode in modes])
def test_rounding(t, mode):
    for kernel, shape in ((f"{t}_{mode}", (32, 16)), (f"wide_{t}_{mode}", (64, 32))):
        x = values(DTYPES[t], shape)
        out = torch.zeros(shape, dtype=DTYPES[t])
        program(kernel, x, out)
        expected = rounded(x, DTYPES[t], mode)
        assert torch.equal(out.float(), expected.float())


def test_nan_stays_nan_and_infinity_infinity():
    x = torch.zeros(32, 16)
    x[3], x[4], x[5] = math.nan, math.inf, -math.inf
    for t, modes in MODES.items():
        x_of_t = x.where(x.abs() < math.inf, math.nan) if t == "fp8" else x  # fp8 has no infinity
        for mode in modes:
            out = torch.zeros(32, 16, dtype=DTYPES[t])
            program(f"{t}_{mode}", x_of_t, out)
            got = out.float()
            assert torch.equal(got.isnan(), x_of_t.isnan()), (t, mode)
            assert torch.equal(got[~got.isnan()], x_of_t[~got.isnan()]), (t, mode)


def test_neighbours_of_any_kind():
    """Also NaNs whose payload is all in the half that bf16 drops, or carries out of it."""
    for t, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16), ("float", torch.float32)):
        x = values(torch.bfloat16 if t == "float" else dtype, (16, 16)).flatten()
        x[:4] = torch.tensor([math.nan, math.inf, -math.inf, 3e38])
        x[4:8].view(torch.int32)[:] = torch.tensor([0x7F800001, 0x7FFFFFFF, -0x7FFFFF, -1], dtype=torch.int32)
        out = torch.zeros(256, dtype=dtype)
        program(f"neighbours_{t}", x, out)
        torch.testing.assert_close(out, x.to(dtype), rtol=0, atol=0, equal_nan=True)

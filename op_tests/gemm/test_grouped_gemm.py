# SPDX-License-Identifier: MIT
"""grouped_gemm: every backend against float64, groups of any sizes, chosen rows, padding, exact sums."""

import functools
import math

import benching
import pytest
import torch
from problem_cases import BACKENDS, SIXTEEN_BITS, compare, fitted, kinds, random

import aiter_like
from aiter_like.dispatch import OPS
from aiter_like.integrations.aiter.gemm import gemm
from aiter_like.ops.gemm import tiles
from aiter_like.testing import strided_like

pytestmark = pytest.mark.rotating

UNTOUCHED = 7.0
SIZES = {"one": (9,), "even": (16, 16, 16), "odd": (1, 0, 17, 3), "empty": (0, 0, 0), "large": (0, 130, 5, 70, 0),
         "many": (1,) * 70, "first and last empty": (0, 0, 40, 0)}


def operands(device, sizes, n, k, dtype=torch.bfloat16, seed=0, tokens=None):
    """a, b, offsets and, of 8 bits, the scales, as the function takes them."""
    generator = torch.Generator().manual_seed(seed + 31 * n + k)
    rows, groups = sum(sizes) if tokens is None else tokens, len(sizes)
    a, b = random(generator, dtype, rows, k).to(device), random(generator, dtype, groups, n, k).to(device)
    scales = [torch.rand(shape, generator=generator).to(device) + 0.01 for shape in ((rows, 1), (groups, n, 1))]
    return a, b, offsets_of(device, sizes), *([] if dtype in SIXTEEN_BITS else scales)


def offsets_of(device, sizes, first=0):
    return torch.tensor([first, *sizes]).cumsum(0).to(device, torch.int32)


def check(out, a, b, offsets, a_scale=None, b_scale=None, bias=None, row_index=None) -> None:
    """Each group's rows against float64, those of none against what `out` was filled with."""
    bounds, is_written = offsets.tolist(), torch.zeros(len(out), dtype=torch.bool, device=out.device)
    for group, (first, end) in enumerate(zip(bounds, bounds[1:])):
        rows = torch.arange(first, end, device=out.device)
        source = rows
        if row_index is not None:
            rows = rows[(row_index[first:end] >= 0) & (row_index[first:end] < len(a))]
            source = row_index[rows].long()
        is_written[rows] = True
        scales = (None, None) if a_scale is None else (a_scale[source].view(-1, 1), b_scale[group].view(1, -1))
        if len(rows):
            compare(out[rows], a[source], b[group], *scales, None if bias is None else bias[group])
    assert (out[~is_written] == UNTOUCHED).all()


def filled(device, rows, n, dtype=torch.bfloat16):
    return torch.full((rows, n), UNTOUCHED, dtype=dtype, device=device)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", range(4), ids=("bf16", "fp16", "fp8", "int8"))
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_sizes(device, run, backend, kind, sizes):
    dtype = kinds(device)[kind]
    n, k = fitted(backend, dtype, 66, 72)
    given = operands(device, sizes, n, k, dtype)
    out = filled(device, sum(sizes), n)
    if sum(sizes) == 0:
        assert aiter_like.grouped_gemm(*given, out=out, backend=backend) is out
    else:
        check(run(backend, aiter_like.grouped_gemm, *given, out=out), *given)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", (0, 2, 3), ids=("bf16", "fp8", "int8"))
@pytest.mark.parametrize("sizes", ((16, 32, 16), (5, 0, 40)), ids=str)
def test_chosen_rows(device, run, backend, kind, sizes):
    """Tokens in any order and more than once, and padding of both kinds, whose rows of `out` are left alone."""
    dtype = kinds(device)[kind]
    a, b, offsets, *scales = operands(device, sizes, *fitted(backend, dtype, 68, 72), dtype, tokens=21)
    index = torch.randint(0, 21, (sum(sizes),), generator=torch.Generator().manual_seed(1))
    index[3:6], index[7] = torch.tensor([-1, 21, 2**31 - 1]), -2**31
    index, bias = index.to(device, torch.int32), torch.randn(len(sizes), b.shape[1], device=device).bfloat16()
    out = run(backend, aiter_like.grouped_gemm, a, b, offsets, *scales, bias=bias, row_index=index,
              out=filled(device, sum(sizes), b.shape[1]))
    check(out, a, b, offsets, *(scales or (None, None)), bias, index)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", (0, 2, 3), ids=("bf16", "fp8", "int8"))
@pytest.mark.parametrize("is_gathered", (False, True), ids=("as they stand", "chosen"))
def test_shuffled_weights(device, run, backend, kind, is_gathered):
    sizes, dtype = (5, 0, 40, 19), kinds(device)[kind]
    a, b, offsets, *scales = operands(device, sizes, 80, 160, dtype, tokens=23 if is_gathered else None)
    chosen = {"row_index": torch.arange(64, dtype=torch.int32, device=device) % 25 - 1} if is_gathered else {}
    shuffled, out = aiter_like.shuffle_weight(b), filled(device, sum(sizes), 80)
    assert not torch.equal(shuffled, b)
    out = run(backend, aiter_like.grouped_gemm, a, shuffled, offsets, *scales, **chosen, out=out)
    check(out, a, b, offsets, *scales, **chosen)


@pytest.mark.parametrize("kind", (0, 2), ids=("bf16", "fp8"))
def test_padded_groups_of_aiter(device, kind):
    """`deepgemm`: of the rows of a group the first few count, and the others of the result stay."""
    groups, most, n, k, counts = 3, 24, 48, 64, (24, 0, 5)
    a, b, _, *scales = operands(device, (most,) * groups, n, k, kinds(device)[kind])
    shuffled = aiter_like.shuffle_weight(b)
    out = filled(device, groups * most, n)
    scales = [scales[0].view(groups, most, 1), scales[1]] if scales else []
    layout = torch.tensor(counts, dtype=torch.int32, device=device)
    for weights in (shuffled, shuffled.clone()):  # a copy has no mark
        y = gemm.deepgemm(a.view(groups, most, k), weights, out.view(groups, most, n), layout, *scales)
        assert y.data_ptr() == out.data_ptr()
        for group, count in enumerate(counts):
            of_group = [scales[0][group, :count], scales[1][group].mT] if scales else []
            if count:
                compare(y[group, :count], a.view(groups, most, k)[group, :count], b[group],
                        *of_group)
            assert (y[group, count:] == UNTOUCHED).all()
        out.fill_(UNTOUCHED)
    with pytest.raises(ValueError, match=r"deepgemm: group_layout must be \[groups\]"):
        gemm.deepgemm(a.view(groups, most, k), shuffled, out.view(groups, most, n), layout[:2], *scales)


def marked(x, layout=(16, 16)):
    """As a result of shuffle_weight is."""
    x = x.detach()
    x.is_shuffled, x.shuffle_layout = True, layout
    return x


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_sizes_are_read_on_the_device(device, run, backend):
    """One plan serves other offsets and indices: what a replayed graph does."""
    a, b, offsets = operands(device, (10, 20, 30), 64, 64)
    index = torch.arange(60, dtype=torch.int32, device=device)
    for sizes in ((10, 20, 30), (0, 60, 0), (59, 0, 1), (7, 7, 7)):
        offsets.copy_(offsets_of(device, sizes))
        index.copy_(index.flip(0))
        out = run(backend, aiter_like.grouped_gemm, a, b, offsets, row_index=index, out=filled(device, 60, 64))
        check(out, a, b, offsets, row_index=index)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_before_and_after_the_groups(device, run, backend):
    a, b, _ = operands(device, (10, 20, 30), 64, 64)
    for first in (1, 23):
        offsets = offsets_of(device, (3, 30), first)
        check(run(backend, aiter_like.grouped_gemm, a, b[:2], offsets, out=filled(device, 60, 64)), a, b[:2], offsets)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_offset_leads_outside(device, backend):
    """Values that no caller may give: the kernels read and write nothing outside of the tensors: the checkers look."""
    if device.type == "cuda" and backend == "ck":
        pytest.skip("an MFMA kernel")
    a, b, offsets = operands(device, (10, 20, 30), 64, 64)
    out = filled(device, 60, 64)
    for values in ((-5, 10, 30, 60), (0, 70, 2**31 - 1, 5), (60, 40, 20, 0), (-2**31, -1, 10**9, -1)):
        offsets.copy_(torch.tensor(values))
        OPS["grouped_gemm"].run(out, a, b, offsets, backend=backend)
        assert out.isfinite().all()


@pytest.mark.parametrize("kind, is_gathered, tile", (
    *((0, False, tile) for tile in tiles.PIPELINED), *((0, True, tile) for tile in tiles.TILES),
    *((3, False, tile) for tile in tiles.PIPELINED[::3]), *((2, True, tile) for tile in tiles.TILES[::3])))
def test_every_tile(device, run, monkeypatch, kind, is_gathered, tile):
    monkeypatch.setattr(tiles, "cheapest", lambda *sizes, **given: (tile, 1))
    OPS["grouped_gemm"].reset()
    sizes = (3, 0, 150, 17)
    given = operands(device, sizes, 68, 208, kinds(device)[kind])
    index = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(1)).to(device, torch.int32)
    chosen = {"row_index": index} if is_gathered else {}
    out = run("ck", aiter_like.grouped_gemm, *given, **chosen, out=filled(device, sum(sizes), 68))
    check(out, *given, **chosen)
    OPS["grouped_gemm"].reset()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", (304, 336))
def test_rows_that_fail_elsewhere(device, run, backend, rows):
    """AITER's fused experts give wrong results at these numbers of rows."""
    given = operands(device, (rows // 2, rows - rows // 2), 64, 64)
    check(run(backend, aiter_like.grouped_gemm, *given, out=filled(device, rows, 64)), *given)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", (0, 2), ids=("bf16", "fp8"))
def test_strides(device, run, backend, kind):
    """Rows and matrices apart; between the rows of `out` nothing is written."""
    a, b, offsets, *scales = operands(device, (7, 12), 36, 80, kinds(device)[kind])
    wide = strided_like(a, (16, 0)), strided_like(b, (16, 32, 0))
    base = filled(device, 19, 50)
    check(run(backend, aiter_like.grouped_gemm, *wide, offsets, *scales, out=base[:, 4:40]), a, b, offsets, *scales)
    assert (base[:, :4] == UNTOUCHED).all() and (base[:, 40:] == UNTOUCHED).all()


def test_transposed_matrices(device, run):
    a, b, offsets = operands(device, (7, 12), 36, 33)
    out = run("triton", aiter_like.grouped_gemm, a.t().contiguous().t(), b.mT.contiguous().mT, offsets,
              out=filled(device, 19, 36))
    check(out, a, b, offsets)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype, bias_dtype", ((torch.float16, torch.float32), (torch.float32, torch.float16)), ids=str)
def test_bias_and_dtype(device, run, backend, dtype, bias_dtype):
    a, b, offsets = operands(device, (7, 12), 36, 64)
    bias = torch.randn(2, 36, device=device).to(bias_dtype)
    out = run(backend, aiter_like.grouped_gemm, a, b, offsets, bias=bias, dtype=dtype)
    assert out.dtype == dtype
    check(out, a, b, offsets, bias=bias)


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(device, run, backend):
    """Infinities and NaN stay in their own rows and groups; the extremes of int8 do not overflow."""
    a, b = torch.ones(5, 16, device=device).bfloat16(), torch.ones(2, 8, 16, device=device).bfloat16()
    a[0, 3], a[1, 5], b[0, 2, 5] = math.inf, math.nan, -math.inf
    out = run(backend, aiter_like.grouped_gemm, a, b, offsets_of(device, (2, 3))).double()
    expected = torch.cat((a[:2].double() @ b[0].double().t(), a[2:].double() @ b[1].double().t()))
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
    low = torch.full((1, 4, 4112), -128, dtype=torch.int8, device=device)
    ones = torch.ones(4, device=device)
    out = run(backend, aiter_like.grouped_gemm, low[0], low, offsets_of(device, (4,)), ones, ones[None],
              dtype=torch.float32)
    assert (out == 4112 * 2.0**14).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_sizes(device, run, backend):
    a, b, offsets = operands(device, (7, 12), 36, 64)
    bias = torch.randn(2, 36, device=device).bfloat16()
    out = run(backend, aiter_like.grouped_gemm, a[:, :0], b[:, :, :0], offsets, bias=bias)
    torch.testing.assert_close(out, bias.repeat_interleave(torch.tensor((7, 12), device=device), 0), rtol=0, atol=0)
    for given, shape in (((a[:0], b, offsets * 0), (0, 36)), ((a, b[:, :0], offsets), (19, 0)),
                         ((a, b[:0], offsets[:1]), (19, 36))):
        assert aiter_like.grouped_gemm(*given, backend=backend).shape == shape
    index = torch.zeros(19, dtype=torch.int32, device=device)
    out = aiter_like.grouped_gemm(a[:0], b, offsets, row_index=index, out=filled(device, 19, 36), backend=backend)
    assert (out == UNTOUCHED).all()  # there is no row to choose


def test_equal_calls_give_equal_results(device):
    given = operands(device, (33, 5), 68, 520)
    assert torch.equal(aiter_like.grouped_gemm(*given), aiter_like.grouped_gemm(*given))


def test_bad_input_is_named(device):
    a, b, offsets = operands(device, (7, 12), 32, 64)
    int8 = operands(device, (7, 12), 32, 64, torch.int8)
    index = torch.zeros(5, dtype=torch.int32, device=device)
    for error, match, args, options in (
            (ValueError, "grouped_gemm: b must have 3 dimensions", (a, b[0], offsets), {}),
            (ValueError, "grouped_gemm: a must not be shuffled", (marked(a), b, offsets), {}),
            (ValueError, "grouped_gemm: b must be shuffled by layout", (a, marked(b, (32, 16)), offsets), {}),
            (ValueError, "grouped_gemm: shuffled, b must be contiguous", (a[:, :24], marked(b[..., :24]), offsets), {}),
            (ValueError, "grouped_gemm: group_offsets must have shape", (a, b, offsets[:2]), {}),
            (ValueError, "grouped_gemm: a_scale must be None", (a, b, offsets, int8[3]), {}),
            (ValueError, "grouped_gemm: a_scale must be given", int8[:3], {}),
            (ValueError, "grouped_gemm: out must have shape", (a, b, offsets), {"out": filled(device, 20, 32)}),
            (TypeError, "grouped_gemm: out must have dtype", (a, b, offsets),
             {"dtype": torch.float32, "out": filled(device, 19, 32)})):
        with pytest.raises(error, match=match):
            aiter_like.grouped_gemm(*args, **options)
    if device.type == "cpu":  # where offsets can be looked at without waiting
        for values in ((0, 7, 20), (-1, 7, 19), (0, 8, 7)):
            with pytest.raises(ValueError, match="group_offsets must ascend from 0 on to at most 19"):
                aiter_like.grouped_gemm(a, b, torch.tensor(values, dtype=torch.int32))
        with pytest.raises(ValueError, match="group_offsets must ascend from 0 on to at most 5"):
            aiter_like.grouped_gemm(a, b, offsets, row_index=index)


def test_the_fp8_of_other_hardware_is_refused(device):
    other, = {torch.float8_e4m3fn, torch.float8_e4m3fnuz} - {*kinds(device)}
    a, b, *others = operands(device, (7, 12), 32, 64, torch.int8)
    for backend in (None, *BACKENDS, "torch"):
        with pytest.raises(TypeError, match="must have the fp8 of this device, fp8 on"):
            aiter_like.grouped_gemm(a.float().to(other), b.float().to(other), *others, backend=backend)


@pytest.mark.parametrize("is_gathered, rows, instruction", ((False, 16384, "HGMMA.64x256x16.F32.BF16"),
                                                            (True, 16384, "HGMMA.64x128x16.F32.BF16"),
                                                            (True, 64, "HGMMA.64x16x16.F32.BF16")))
def test_code_for_hopper(monkeypatch, tmp_path, is_gathered, rows, instruction):
    """The matrix unit, the weights by TMA, chosen rows by copies that do not wait; nothing in local memory."""
    from hopper_code import compiled_for_hopper, disassembled

    from aiter_like.ops.gemm.grouped_gemm import GroupedGemmCall
    from aiter_like.ops.gemm.triton import grouped_gemm

    index = torch.zeros(rows, dtype=torch.int32) if is_gathered else None
    call = GroupedGemmCall(torch.empty(rows, 2048).bfloat16(), torch.empty(rows, 512).bfloat16(),
                           torch.empty(16, 2048, 512).bfloat16(), torch.zeros(17, dtype=torch.int32), row_index=index)
    with compiled_for_hopper(monkeypatch, grouped_gemm) as built:
        grouped_gemm.grouped_gemm(call, "grouped_gemm_hopper")
    code = disassembled(built[0], tmp_path)
    assert instruction in code and "UTMALDG" in code and "LDL" not in code and "STL" not in code
    assert ("LDGSTS" in code) == is_gathered


def bench() -> None:
    """As an even router sends each token to 8 of 128 experts."""
    def peers(call):
        if call.a_scale is not None or not hasattr(torch, "_grouped_mm"):
            return {}
        rows = call.a if call.row_index is None else call.a[call.row_index]  # made first, and not timed
        return {"torch._grouped_mm": functools.partial(torch._grouped_mm, rows, call.b.mT, offs=call.group_offsets[1:])}

    benching.of("grouped_gemm", "rows n k is_gathered dtype", (
        (8 * tokens, *weights, dtype) for weights in ((1536, 2048, 1), (2048, 768, 0))
        for tokens in (1, 16, 256, 4096) for dtype in ("bf16", "fp8", "i8")), beside=peers, groups=128)

# SPDX-License-Identifier: MIT
"""rope: every form of AITER's functions, each backend against float64; bad input."""

from __future__ import annotations

import inspect
import itertools
import math
import re

import pytest
import torch
from rope_cases import check_rope, tables

import aiter_like
from aiter_like import dispatch, sim
from aiter_like.device import target_of
from aiter_like.dispatch import OPS, table
from aiter_like.errors import UnsupportedError
from aiter_like.ops.rope import rope as family
from aiter_like.testing import assert_within, strided_like

BACKENDS = ("hip", "triton", "torch")
PAIRS = ((torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32), (torch.float32, torch.float32))
FLAGS = tuple(itertools.product((0, 1), (True, False), (False, True)))  # style, reuse_freqs_front_part, nope_first
FEW = {PAIRS[0]: FLAGS, PAIRS[1]: FLAGS[:1], PAIRS[2]: FLAGS[-1:]}  # a Triton build per case is most of the time
SINE_ERROR = 2**-23


def randn(*shape: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def angles(rows: int, width: int, largest: float = 50.0, seed: int = 9) -> torch.Tensor:
    return torch.rand(rows, width, generator=torch.Generator().manual_seed(seed)) * largest


@pytest.mark.parametrize("dtypes, flags", [(pair, flags) for pair, found in FEW.items() for flags in found], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_tensors_at_positions(device, run, backend, dtypes, flags):
    dtype, table_dtype = dtypes
    head_dim, rotary = (64, 32) if flags[0] else (80, 80)  # with and without a part that is copied
    x, y = (randn(5, 3, heads, head_dim, dtype=dtype, device=device, seed=heads) for heads in (6, 2))
    (cos, sin), exact = tables(angles(40, rotary // 2 if flags[1] else rotary), table_dtype, device)
    positions = torch.randint(0, 40, (5, 3), generator=torch.Generator().manual_seed(1))
    rows = [table[positions] for table in exact]
    for name, is_backward in (("fwd", False), ("bwd", True)):
        function = getattr(aiter_like, f"rope_cached_positions_2c_{name}")
        outs = run(backend, function, x, y, cos, sin, positions.to(device), *flags)
        for out, source in zip(outs, (x, y), strict=True):
            assert out.is_contiguous() and out.dtype == dtype
            check_rope(out, source, *rows, *flags, is_backward)


@pytest.mark.parametrize("head_dim, width", ((2, 1), (10, 3), (72, 36), (96, 40), (200, 100), (512, 256), (6, 0)))
@pytest.mark.parametrize("backend", BACKENDS)
def test_odd_sizes(device, run, backend, head_dim, width):
    x = randn(3, 1, 3, head_dim, dtype=torch.bfloat16, device=device)
    (cos, sin), exact = tables(angles(3, width), torch.bfloat16, device)
    out = run(backend, aiter_like.rope_cached_fwd, x, cos, sin, 0, True, False)
    check_rope(out, x, *(table[:, None] for table in exact))


@pytest.mark.parametrize("backend", BACKENDS)
def test_strided_views_offsets_and_memory_order(device, run, backend):
    """[b, s] in memory, padded heads, an odd address; positions as a transposed view; offsets of 32 bits."""
    data = randn(2, 7, 4, 64, dtype=torch.bfloat16, device=device)
    (cos, sin), exact = tables(angles(30, 32), torch.bfloat16, device)
    positions = torch.arange(14).view(2, 7).t()  # strides 1, 7
    offsets = torch.randint(-1, 16, (7, 2), generator=torch.Generator().manual_seed(2), dtype=torch.int32).clamp(min=0)
    rows = [table[positions + offsets] for table in exact]
    for view in (data.transpose(0, 1), strided_like(data, (0, 0, 0, 8)).transpose(0, 1),
                 strided_like(data, (1, 0, 2, 3), offset=1).transpose(0, 1)):
        for is_transposed in (False, True):
            out = run(backend, aiter_like.rope_cached_positions_offsets_fwd, view, cos, sin, positions.to(device),
                      offsets.to(device), 0, True, False, is_transposed)
            assert (out.transpose(0, 1) if is_transposed else out).is_contiguous()
            check_rope(out, view, *rows)


@pytest.mark.parametrize("flags", ((0, True, False), (1, True, True)), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_in_place_equals_out_of_place(device, run, backend, flags):
    """Also of a slice of wider heads, whose other elements stay."""
    (cos, sin), _ = tables(angles(6, 16), torch.bfloat16, device)
    x, y = (randn(6, 2, heads, 48, dtype=torch.bfloat16, device=device) for heads in (5, 1))
    expected = run(backend, aiter_like.rope_cached_2c_fwd, x, y, cos, sin, *flags)
    for inputs in ((x.clone(), y.clone()), (strided_like(x, (0, 0, 0, 8)), strided_like(y, (0, 0, 3, 8)))):
        outs = run(backend, aiter_like.rope_cached_2c_fwd_inplace, *inputs, cos, sin, *flags)
        for out, given, wanted in zip(outs, inputs, expected, strict=True):
            assert out is given and torch.equal(out, wanted)
    wide = randn(6, 2, 5, 64, dtype=torch.bfloat16, device=device, seed=3)
    before = wide.clone()
    run(backend, aiter_like.rope_cached_fwd_inplace, wide[..., :48].copy_(x), cos, sin, *flags)
    assert torch.equal(wide[..., :48], expected[0]) and torch.equal(wide[..., 48:], before[..., 48:])


@pytest.mark.parametrize("flags", ((0, True, False), (1, False, True)), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_angles(device, run, backend, flags):
    """Sines and cosines of the operator's own, to a million radians; both directions, one and two tensors."""
    x, y = (randn(9, 2, heads, 64, dtype=torch.float32, device=device) for heads in (3, 1))
    width = 32 if flags[1] else 64
    for largest in (1.0, 1e6):
        freqs = angles(9, width, largest)
        rows = [function(freqs.double())[:, None] for function in (torch.cos, torch.sin)]
        freqs = freqs[:, None, None].to(device)
        check_rope(run(backend, aiter_like.rope_fwd, x, freqs, *flags), x, *rows, *flags, angle_error=SINE_ERROR)
        for out, source in zip(run(backend, aiter_like.rope_2c_bwd, x, y, freqs, *flags), (x, y), strict=True):
            check_rope(out, source, *rows, *flags, True, angle_error=SINE_ERROR)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sine_and_cosine_to_a_billion(device, run, backend):
    """x = (1, 0) shows them: each within 2^-23, or 2^-22 of torch's; infinities and NaN give NaN."""
    generator = torch.Generator().manual_seed(4)
    scale = 2.0 ** torch.randint(-20, 31, (64, 16), generator=generator)
    ends, bad = (0.0, -0.0, -2.0**30, 2.0**30), (math.inf, -math.inf, math.nan, 1.0)
    freqs = torch.cat((torch.rand(64, 16, generator=generator) * scale, torch.tensor([ends * 4]),
                       torch.arange(16)[None] * (math.pi / 2), torch.tensor([bad * 4])))
    x = torch.zeros(67, 1, 1, 32)
    x[..., :16] = 1
    args = (x.to(device), freqs[:, None, None].to(device), 0, True, False)
    out = run(backend, aiter_like.rope_fwd, *args).cpu()[:, 0, 0]
    expected = torch.cat((freqs.double().cos(), freqs.double().sin()), -1)
    limit = torch.full_like(expected, SINE_ERROR if backend != "torch" else 2**-22)
    assert_within("sines", out[:66], expected[:66], limit[:66])
    assert out[66].view(8, 4)[:, :3].isnan().all() and not out[66].view(8, 4)[:, 3].isnan().any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_packed_sequences(device, run, backend):
    """Empty ones among them."""
    starts = [0, 3, 3, 4, 11, 11]
    x = randn(11, 3, 32, dtype=torch.bfloat16, device=device)
    freqs = angles(8, 16)
    where = torch.tensor([0, 1, 2, 0, *range(7)])
    rows = [function(freqs.double())[where] for function in (torch.cos, torch.sin)]
    for dtype in (torch.int32, torch.int64):
        args = (torch.tensor(starts, dtype=dtype, device=device), freqs[:, None, None].to(device), 0, True, False)
        out = run(backend, aiter_like.rope_thd_fwd, x, *args)
        check_rope(out, x, *rows, angle_error=SINE_ERROR)
        check_rope(run(backend, aiter_like.rope_thd_bwd, x, *args), x, *rows, 0, True, False, True,
                   angle_error=SINE_ERROR)
        assert torch.equal(run(backend, aiter_like.rope_thd_fwd_inplace, x.clone(), *args), out)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_and_infinity_stay_in_their_pair(device, run, backend):
    x = randn(3, 1, 2, 40, dtype=torch.bfloat16, device=device)
    x[1, 0, 1, 3], x[2, 0, 0, 39] = math.nan, math.inf
    (cos, sin), exact = tables(angles(3, 16), torch.bfloat16, device)
    out = run(backend, aiter_like.rope_cached_fwd, x, cos, sin, 0, True, False)
    is_bad = torch.zeros(x.shape, dtype=torch.bool, device=device)
    is_bad[1, 0, 1, [3, 19]] = True
    assert torch.equal(out.isnan(), is_bad) and out[2, 0, 0, 39] == math.inf
    clean = x.nan_to_num(0.0, 0.0)
    check_rope(out.masked_fill(is_bad | x.isinf(), 0.0), clean.masked_fill(is_bad, 0.0),
               *(table[:, None] for table in exact))


def test_backward_is_the_transposed_forward(device, run):
    """⟨forward(x), g⟩ = ⟨x, backward(g)⟩, with angles that differ within a pair."""
    x, grads = (randn(4, 2, 3, 24, dtype=torch.float32, device=device, seed=seed) for seed in (0, 1))
    (cos, sin), _ = tables(angles(4, 16), torch.float32, device)
    for flags in ((0, False, True), (1, False, False)):
        forward = aiter_like.rope_cached_fwd(x, cos, sin, *flags)
        backward = aiter_like.rope_cached_bwd(grads, cos, sin, *flags)
        assert (forward * grads).sum().item() == pytest.approx((x * backward).sum().item(), rel=1e-4)


def test_gradient_comes_from_the_reference_only(device):
    x = randn(3, 1, 2, 16, dtype=torch.float32, device=device).requires_grad_()
    (cos, sin), exact = tables(angles(3, 8), torch.float32, device)
    weight = randn(3, 1, 2, 16, dtype=torch.float32, device=device, seed=5)
    (aiter_like.rope_cached_fwd(x, cos, sin, 0, True, False) * weight).sum().backward()
    check_rope(x.grad, weight, *(table[:, None] for table in exact), 0, True, False, True)
    for backend in ("hip", "triton"):
        with pytest.raises(UnsupportedError, match="forward only"):
            aiter_like.rope_cached_fwd(x, cos, sin, 0, True, False, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty(device, run, backend):
    cos, sin = torch.ones(2, 4, 1, 1, 8, device=device)
    for shape in ((0, 2, 3, 16), (4, 0, 3, 16), (4, 2, 0, 16)):
        x = torch.empty(shape, device=device)
        assert aiter_like.rope_cached_fwd(x, cos, sin, 0, True, False, backend=backend).shape == shape
    x, y = randn(4, 1, 2, 16, dtype=torch.float32, device=device), torch.empty(4, 1, 0, 16, device=device)
    out = run(backend, aiter_like.rope_cached_2c_fwd, x, y, cos, sin, 0, True, False)
    assert torch.equal(out[0], run(backend, aiter_like.rope_cached_fwd, x, cos, sin, 0, True, False))


def bad_calls(device: torch.device):
    x = randn(4, 2, 3, 16, dtype=torch.bfloat16, device=device)
    cos, sin = torch.ones(2, 4, 1, 1, 8, dtype=torch.bfloat16, device=device)
    positions = torch.zeros(4, 2, dtype=torch.int64, device=device)
    cached, at, flags = aiter_like.rope_cached_fwd, aiter_like.rope_cached_positions_fwd, (0, True, False)
    yield "input must have 4 dimensions", ValueError, cached, (x[0], cos, sin, *flags)
    yield r"sin must have shape \(4, 1, 1, 8\)", ValueError, cached, (x, cos, sin[:3], *flags)
    yield r"cos must have at least 4 rows, got shape \(3,", ValueError, cached, (x, cos[:3], sin[:3], *flags)
    yield "cos must be a table of rows", ValueError, cached, (x, cos[0, 0, 0], sin[0, 0, 0], *flags)
    yield "cos must be a table of rows", ValueError, cached, (x, cos.view(2, 2, 1, 8), sin.view(2, 2, 1, 8), *flags)
    yield "cos must turn an even number of elements, at most 16, got 32", ValueError, cached, (
        x, cos.repeat(1, 1, 1, 2), sin.repeat(1, 1, 1, 2), *flags)
    yield "cos must turn an even number of elements, at most 16, got 7", ValueError, cached, (
        x, cos[..., :7], sin[..., :7], 0, False, False)
    yield "freqs must have at least 4 rows", ValueError, aiter_like.rope_fwd, (x, cos[:2], *flags)
    yield "rotate_style must be 0 or 1, got int 2", ValueError, cached, (x, cos, sin, 2, True, False)
    yield "transpose_output must be True or False", TypeError, cached, (x, cos, sin, *flags, 1)
    yield "positions must have 2 dimensions", ValueError, at, (x, cos, sin, positions[:, 0], *flags)
    yield r"positions must have shape \(4, 2\)", ValueError, at, (x, cos, sin, positions[:3], *flags)
    yield r"offsets must have shape \(4, 2\)", ValueError, aiter_like.rope_cached_positions_offsets_fwd, (
        x, cos, sin, positions, positions.t(), *flags)
    yield "cu_seqlens must have at least 2", ValueError, aiter_like.rope_thd_fwd, (x[0], positions[:1, 0], cos, *flags)
    yield "input must have 3 dimensions", ValueError, aiter_like.rope_thd_fwd, (x, positions[:, 0], cos, *flags)
    yield "missing 4 required positional arguments: 'sin'", TypeError, cached, (x, cos)
    yield "takes from 6 to 7 positional arguments but 8 were given", TypeError, cached, (x, cos, sin, *flags, False, 1)


def test_bad_arguments_are_named(device):
    for message, error, function, args in bad_calls(device):
        with pytest.raises(error, match=message):
            function(*args)
    with pytest.raises(TypeError, match="unexpected keyword argument 'cos'"):
        aiter_like.rope_fwd(torch.empty(1), torch.empty(1), 0, True, False, cos=1)
    with pytest.raises(UnsupportedError, match="head dimension at most 512, got 514"):
        x, table = torch.empty(1, 1, 1, 514, device=device), torch.ones(1, 4, device=device)
        aiter_like.rope_cached_fwd(x, table, table, 0, True, False, backend="hip")


def test_signatures_and_docstrings():
    """AITER's orders and names; each function documents what it takes."""
    flags = "rotate_style, reuse_freqs_front_part, nope_first"
    for name, expected in (
            ("rope_fwd", f"input, freqs, {flags}, transpose_output"),
            ("rope_cached_positions_offsets_2c_fwd",
             f"input_x, input_y, cos, sin, positions, offsets, {flags}, transpose_output"),
            ("rope_cached_2c_fwd_inplace", f"input_x, input_y, cos, sin, {flags}"),
            ("rope_2c_bwd", f"output_grads_x, output_grads_y, freqs, {flags}, transpose_output"),
            ("rope_thd_bwd", f"output_grads, cu_seqlens, freqs, {flags}"),
            ("rope_2d_fwd", f"input, cos_h, sin_h, cos_w, sin_w, img_height, img_width, {flags}")):
        assert ", ".join(inspect.signature(getattr(aiter_like, name)).parameters) == f"{expected}, backend"
    for name in (*family.__all__, *aiter_like.ops.rope.rope_2d.__all__):
        function = getattr(aiter_like, name)
        assert function.__name__ == name
        for text in ("Args:", "Returns:", "Raises:", "Notes:", "Source:", *inspect.signature(function).parameters):
            assert text in function.__doc__, f"{name}: {text}"


def test_keywords(device):
    x, y = (randn(3, 2, heads, 16, dtype=torch.float32, device=device) for heads in (4, 1))
    cos, sin = (function(angles(8, 8)).to(device)[:, None, None] for function in (torch.cos, torch.sin))
    positions = torch.tensor([[0, 7], [1, 6], [2, 5]], device=device)
    function = aiter_like.rope_cached_positions_2c_fwd
    expected = function(x, y, cos, sin, positions, 0, True, False)
    named = {"sin": sin, "positions": positions, "nope_first": False, "rotate_style": 0, "reuse_freqs_front_part": True}

    def model(x, y):
        return function(x, y, cos, **named)

    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(x, y)
    for got in (function(x, y, cos, **named), compiled):
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_bytes_moved_are_the_least(device, run):
    """Each element is read once and written once in accesses of 16 bytes; a wave loads its tables' rows once."""
    if device.type != "cpu":
        pytest.skip("counters of the simulator")
    x, y = (randn(64, 1, heads, 128, dtype=torch.bfloat16, device=device) for heads in (32, 8))
    (cos, sin), _ = tables(angles(64, 64), torch.bfloat16, device)
    with sim.enabled(checks=False) as session:
        run("hip", aiter_like.rope_cached_positions_2c_fwd, x, y, cos, sin, torch.arange(64)[:, None], 0, True, False)
    counts, = session.counters.values()
    accesses = 2 * 2 * (x.numel() + y.numel()) // (16 * 64)
    assert counts["by_class"]["global"] == accesses + 4 * counts["waves"]  # and a position's halves, cosines, sines
    assert not {"scratch", "flat", "ds"} & set(counts["by_class"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("heads, share", ((1, 1), (1, 16), (4, 4), (4, 8)))
def test_heads_of_a_lane_from_a_user_row(device, monkeypatch, tmp_path, heads, share):
    """The parameters that a tuned row may set; one token, a few, and enough that a lane takes several heads."""
    sizes, target, name = ((1, 1), (3, 40), (4096, 9)), target_of(device), f"bf16_table_bf16_h{heads}_s{share}"
    lines = [",".join(table.columns(OPS["rope"].tune_fields))]
    lines += [f"{target.arch},{target.cu_num},{tokens},{count},0,128,128,bf16,bf16,0,hip,rope[{name}],"
              f"heads={heads};share={share},1,0,compiler,,measured:test" for tokens, count in sizes]
    (tmp_path / "rope.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("AITER_LIKE_TUNED", str(tmp_path / "rope.csv"))
    dispatch.reset()
    try:
        for tokens, count in sizes:
            x = randn(tokens, 1, count, 128, dtype=torch.bfloat16, device=device)
            (cos, sin), exact = tables(angles(tokens, 64), torch.bfloat16, device)
            args = (x, cos, sin, 0, True, False)
            assert aiter_like.explain(aiter_like.rope_cached_fwd, *args).kernel == f"rope[{name}]"
            check_rope(aiter_like.rope_cached_fwd(*args), x, *(each[:, None] for each in exact))
    finally:
        monkeypatch.undo()
        dispatch.reset()


@pytest.mark.parametrize("style", (0, 1))
@pytest.mark.parametrize("heads, kv_heads", ((32, 8), (16, 2)))
def test_triton_code_for_hopper(monkeypatch, heads, kv_heads, style):
    """q and k of a token in one program, 16 bytes per lane and access, pairs exchanged within a lane's registers."""
    from hopper_code import compiled_for_hopper

    from aiter_like.ops.rope.triton import parts
    from aiter_like.ops.rope.triton import rope as kernels

    x, y, out, out_y = (torch.empty(64, 1, count, 128, dtype=torch.bfloat16) for count in (heads, kv_heads) * 2)
    cos, positions = torch.empty(64, 1, 1, 64, dtype=torch.bfloat16), torch.arange(64)[:, None]
    with compiled_for_hopper(monkeypatch, parts, kernels) as built:
        kernels.rope(family.RopeCall(out, out_y, x, y, cos=cos, sin=cos, positions=positions, rotate_style=style))
    (kernel,) = built
    accesses = re.findall(r"(ld|st)\.global[.\w]*?((?:\.v\d)?\.b\d+)", kernel.asm["ptx"])
    tables = {("ld", ".b64")} | ({("ld", ".v2.b32")} if style else set())  # and the position
    assert set(accesses) == {("ld", ".v4.b32"), ("st", ".v4.b32")} | tables
    assert kernel.metadata.shared == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_everything(device, run, backend):
    for head_dim, part, flags, dtype, table_dtype, seed in itertools.product(
            (2, 16, 24, 64, 80, 128, 192, 256), (1, 2), FLAGS, (torch.bfloat16, torch.float16, torch.float32),
            (torch.bfloat16, torch.float16, torch.float32), range(2)):
        rotary = head_dim // part // 2 * 2
        x = randn(1 + 6 * seed, 2, 5, head_dim, dtype=dtype, device=device, seed=seed)
        (cos, sin), exact = tables(angles(x.shape[0], rotary // 2 if flags[1] else rotary), table_dtype, device)
        out = run(backend, aiter_like.rope_cached_fwd, x, cos, sin, *flags)
        check_rope(out, x, *(each[:, None] for each in exact), *flags)


def bench() -> None:
    """q and k of a layer at positions; decode and prefill."""
    import benching

    benching.of("rope", "tokens heads kv_heads head_dim rotary_dim rotate_style", (
        (64, 32, 8, 128, 128, 0), (8192, 32, 8, 128, 128, 0), (8192, 32, 8, 128, 128, 1), (8192, 64, 8, 128, 128, 0),
        (16384, 16, 2, 128, 128, 0)), dtype="bf16", table_dtype="bf16")

# SPDX-License-Identifier: MIT
"""rms_norm: every backend against float64, over dtypes, row lengths, strides; bad input."""

import contextlib
import math

import pytest
import torch
from covering import covering
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aiter_like
from aiter_like import dispatch, sim
from aiter_like.device import target_of
from aiter_like.dispatch import table
from aiter_like.errors import UnsupportedError
from aiter_like.testing import HIDDEN_SIZES, check_rms_norm, strided_like

BACKENDS = ("hip", "triton", "torch")  # asm, which takes few shapes, has tests of its own below
ASM_HIDDEN = (4096, 8192)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
EPSILON = 1e-6


def make(device: torch.device, rows: int, hidden: int, dtype: torch.dtype, weight_dtype: torch.dtype | None = None,
         seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, hidden, generator=generator) * 3
    weight = torch.randn(hidden, generator=generator)
    return x.to(device, dtype), weight.to(device, weight_dtype or dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", HIDDEN_SIZES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, hidden, dtype):
    x, weight = make(device, 5, hidden, dtype, seed=hidden)
    check_rms_norm(run(backend, aiter_like.rms_norm, x, weight, EPSILON), x, weight, EPSILON)


@pytest.mark.parametrize("is_sensitive", (0, 1))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_float32_weight(device, run, backend, dtype, is_sensitive):
    for hidden in (100, 4096):
        x, weight = make(device, 3, hidden, dtype, torch.float32)
        out = run(backend, aiter_like.rms_norm, x, weight, EPSILON, is_sensitive)
        assert out.dtype == dtype
        check_rms_norm(out, x, weight, EPSILON, is_sensitive)


@pytest.mark.parametrize("backend", BACKENDS)
def test_model_sensitive_rounds_before_the_weight(device, run, backend):
    x, _ = make(device, 4, 512, torch.bfloat16)
    weight = torch.full((512,), 3.0, dtype=torch.bfloat16, device=device)
    plain = run(backend, aiter_like.rms_norm, x, torch.ones_like(weight), EPSILON)
    out = run(backend, aiter_like.rms_norm, x, weight, EPSILON, 1)
    assert torch.equal(out, plain * 3)  # one rounding more than ...
    assert not torch.equal(out, run(backend, aiter_like.rms_norm, x, weight, EPSILON))


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_and_shapes(device, run, backend):
    x, weight = make(device, 6, 520, torch.bfloat16)
    wide = strided_like(x, (0, 24))
    odd = strided_like(x, (0, 3), offset=1)
    for view in (wide, odd, x.view(2, 3, 520), x[::2], x[0], wide.view(2, 3, 520), x[:1].expand(4, 520)):
        out = run(backend, aiter_like.rms_norm, view, weight, EPSILON)
        assert out.is_contiguous()
        check_rms_norm(out, view, weight, EPSILON)
        target = strided_like(torch.zeros_like(view), (0,) * (view.ndim - 1) + (5,))
        assert run(backend, aiter_like.rms_norm, view, weight, EPSILON, out=target) is target
        assert torch.equal(target, out)


@pytest.mark.parametrize("has_residual", (False, True), ids=("plain", "residual"))
def test_rows_that_16_bytes_do_not_divide(device, run, has_residual):
    """On gfx942 a lane takes four or two elements at a time where addresses and lengths allow it."""
    accesses = {}
    for hidden, offset in ((2052, 0), (2052, 2), (2052, 1), (2050, 0), (2049, 0)):
        x, weight = make(device, 3, hidden, torch.bfloat16)
        x = strided_like(x, (0, 0), offset=offset)
        residual = torch.zeros_like(x)
        out, summed = torch.empty_like(residual), torch.empty_like(residual)
        with sim.enabled("strict") if device.type == "cpu" else contextlib.nullcontext() as session:
            if has_residual:
                run("hip", aiter_like.rmsnorm2d_fwd_with_add, out, x, residual, summed, weight, EPSILON)
            else:
                run("hip", aiter_like.rms_norm_cu, out, x, weight, EPSILON)
        check_rms_norm(out, x, weight, EPSILON)
        assert not has_residual or torch.equal(summed, x)
        if session is not None:
            (counts,) = session.counters.values()
            accesses[hidden, offset] = counts["by_class"]["global"]
    assert not accesses or (accesses[2052, 0] < accesses[2052, 2] == accesses[2050, 0] < accesses[2052, 1]
                            == accesses[2049, 0]), accesses


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_place(device, run, backend):
    for hidden in (64, 20000):
        x, weight = make(device, 3, hidden, torch.bfloat16)
        expected = run(backend, aiter_like.rms_norm, x, weight, EPSILON)
        assert torch.equal(run(backend, aiter_like.rms_norm, x, weight, EPSILON, out=x), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_and_infinity_stay_in_their_row(device, run, backend):
    x, weight = make(device, 4, 300, torch.bfloat16)
    x[1, 7] = math.nan
    x[2, 299] = math.inf
    out = run(backend, aiter_like.rms_norm, x, weight, EPSILON)
    assert out[1].isnan().all() and out[2, 299].isnan()
    check_rms_norm(out[::3], x[::3], weight, EPSILON)


@pytest.mark.parametrize("backend", BACKENDS)
def test_zeros_and_extremes(device, run, backend):
    weight = torch.ones(256, device=device)
    for value in (0.0, 1e-30, 1e18):
        x = torch.full((2, 256), value, device=device)
        check_rms_norm(run(backend, aiter_like.rms_norm, x, weight, 1e-12), x, weight, 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_repeats_bit_for_bit(device, run, backend):
    x, weight = make(device, 7, 8192, torch.bfloat16)
    first = run(backend, aiter_like.rms_norm, x, weight, EPSILON)
    assert all(torch.equal(first, run(backend, aiter_like.rms_norm, x, weight, EPSILON)) for _ in range(3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty(device, run, backend):
    weight = torch.ones(64, device=device)
    assert aiter_like.rms_norm(torch.empty(0, 64, device=device), weight, EPSILON, backend=backend).shape == (0, 64)
    assert aiter_like.rms_norm(torch.empty(3, 0, device=device), weight[:0], EPSILON, backend=backend).shape == (3, 0)


def bad_calls(device: torch.device):
    x, weight = make(device, 3, 64, torch.bfloat16)
    yield "epsilon must be finite", ValueError, (x, weight, math.nan), {}
    yield "epsilon must be finite", ValueError, (x, weight, math.inf), {}
    yield "epsilon must be at least", ValueError, (x, weight, -1.0), {}
    yield "use_model_sensitive_rmsnorm must be 0 or 1", ValueError, (x, weight, EPSILON, 2), {}
    yield "backend must be one of", ValueError, (x, weight, EPSILON), {"backend": "cuda"}


def test_bad_input_is_named(device):
    for message, kind, args, kwargs in bad_calls(device):
        with pytest.raises(kind, match=message):
            aiter_like.rms_norm(*args, **kwargs)


def test_uneven_rows_are_refused_by_the_kernels(device, run):
    x = torch.randn(3, 5, 2, 64, device=device)[:, :4]
    weight = torch.ones(64, device=device)
    for backend in ("hip", "triton"):
        with pytest.raises(UnsupportedError, match="rows of input are not evenly spaced"):
            aiter_like.rms_norm(x, weight, EPSILON, backend=backend)
    check_rms_norm(aiter_like.rms_norm(x, weight, EPSILON), x, weight, EPSILON)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=st.lists(st.integers(0, 5), min_size=0, max_size=3),
       hidden=st.sampled_from((0, 1, 7, 8, 40, 64, 100, 300)),
       dtype=st.sampled_from((*DTYPES, torch.float64, torch.int32)), weight_dtype=st.sampled_from((*DTYPES, None)),
       padding=st.integers(0, 9), offset=st.integers(0, 9), wrong_weight=st.integers(0, 20),
       epsilon=st.sampled_from((0.0, 1e-6, 1.0, math.nan, -1.0)), sensitive=st.sampled_from((0, 1, 2)),
       backend=st.sampled_from(BACKENDS))
def test_any_call_is_right_or_refused(device, shape, hidden, dtype, weight_dtype, padding, offset, wrong_weight,
                                      epsilon, sensitive, backend):
    x = torch.randn(*shape, hidden).to(dtype).to(device)
    x = strided_like(x, (0,) * len(shape) + (padding,), offset) if dtype.is_floating_point else x
    weight = torch.randn(hidden + (wrong_weight == 0), device=device).to(weight_dtype or dtype)
    try:
        out = aiter_like.rms_norm(x, weight, epsilon, sensitive, backend=backend)
    except (ValueError, TypeError, UnsupportedError) as error:
        assert "rms_norm" in str(error)
        return
    assert out.shape == x.shape
    if epsilon:  # with 0 a row of zeros is NaN
        check_rms_norm(out, x, weight, epsilon, sensitive)


# ---- assembly


@pytest.fixture
def amd(device) -> None:
    """Skips on an NVIDIA GPU."""
    if target_of(device).platform != "hip":
        pytest.skip("assembly for gfx942")


@pytest.mark.parametrize("hidden", ASM_HIDDEN)
def test_assembly_against_float64(amd, device, run, hidden):
    x, weight = make(device, 9, hidden, torch.bfloat16, seed=hidden)
    out = run("asm", aiter_like.rms_norm, x, weight, EPSILON)
    check_rms_norm(out, x, weight, EPSILON)
    padded, other = strided_like(x, (0, 24)), strided_like(torch.zeros_like(x), (0, 8))
    for view in (padded, x.view(3, 3, hidden), x[::2], x[0], x[:1].expand(4, hidden)):
        check_rms_norm(run("asm", aiter_like.rms_norm, view, weight, EPSILON), view, weight, EPSILON)
    assert torch.equal(run("asm", aiter_like.rms_norm, padded, weight, EPSILON, out=other), out)
    assert torch.equal(run("asm", aiter_like.rms_norm, x, weight, EPSILON, out=x), out), "in place"


@pytest.mark.parametrize("hidden", ASM_HIDDEN)
def test_assembly_special_values(amd, device, run, hidden):
    x, weight = make(device, 4, hidden, torch.bfloat16)
    x[1, 7], x[2, hidden - 1] = math.nan, math.inf
    out = run("asm", aiter_like.rms_norm, x, weight, EPSILON)
    assert out[1].isnan().all() and out[2, hidden - 1].isnan() and (out[2, :-1] == 0).all()
    check_rms_norm(out[::3], x[::3], weight, EPSILON)
    for value, epsilon in ((0.0, 1e-12), (1e-30, 1e-12), (1e17, 1e-12), (2.0**-66, 0.0)):  # the last: a denormal mean
        x = torch.full((2, hidden), value, dtype=torch.bfloat16, device=device)
        check_rms_norm(run("asm", aiter_like.rms_norm, x, weight, epsilon), x, weight, epsilon)


def test_assembly_names_its_limits(amd, device):
    x, weight = make(device, 3, 4096, torch.bfloat16)
    for reason, args in (
            ("no assembly kernel for dtype=fp16 hidden=4096; there are: bf16 hidden=4096; bf16 hidden=8192",
             (x.half(), weight.half(), EPSILON)),
            ("no assembly kernel for dtype=bf16 hidden=2048", (x[:, :2048], weight[:2048], EPSILON)),
            ("weight must have the dtype of input, got torch.float32", (x, weight.float(), EPSILON)),
            ("use_model_sensitive_rmsnorm must be 0", (x, weight, EPSILON, 1)),
            ("the rows of input must start at multiples of 16 bytes", (strided_like(x, (0, 4)), weight, EPSILON)),
            ("weight does not begin at a multiple of 16 bytes", (x, strided_like(weight, (0,), offset=1), EPSILON))):
        with pytest.raises(UnsupportedError, match=reason):
            aiter_like.rms_norm(*args, backend="asm")


def test_assembly_checks_the_addresses_of_every_call(amd, device, run):
    x, weight = make(device, 3, 4096, torch.bfloat16)
    run("asm", aiter_like.rms_norm, x, weight, EPSILON)
    with pytest.raises(UnsupportedError, match="asm: input does not begin at a multiple of 16 bytes"):
        aiter_like.rms_norm(strided_like(x, (0, 0), offset=1), weight, EPSILON, backend="asm")


def test_assembly_chosen_by_a_user_row(amd, device, monkeypatch, tmp_path):
    x, weight = make(device, 6, 8192, torch.bfloat16)
    path, values = tmp_path / "rms_norm.csv", f"gfx942,{target_of(device).cu_num},6,8192,bf16,0,asm"
    path.write_text(f"{','.join(table.columns(('rows', 'hidden', 'dtype', 'has_residual')))}\n"
                    f"{values},rms_norm_bf16_h8192,,1.5,0,clang,,measured:test\n")
    assert aiter_like.explain(aiter_like.rms_norm, x, weight, EPSILON).backend == "hip"
    monkeypatch.setenv("AITER_LIKE_TUNED", str(path))
    dispatch.reset()
    try:
        explanation = aiter_like.explain(aiter_like.rms_norm, x, weight, EPSILON)
        assert (explanation.backend, explanation.kernel) == ("asm", "rms_norm_bf16_h8192"), str(explanation)
        assert explanation.source == f"tuned: {path}:2"
        with sim.enabled("strict") if device.type == "cpu" else contextlib.nullcontext() as session:
            check_rms_norm(aiter_like.rms_norm(x, weight, EPSILON), x, weight, EPSILON)
        assert session is None or session.counters["rms_norm_bf16_h8192"]["workgroups"] == 6
        odd = strided_like(x, (0, 0), offset=1)  # another backend's
        check_rms_norm(aiter_like.rms_norm(odd, weight, EPSILON), odd, weight, EPSILON)
    finally:
        monkeypatch.undo()
        dispatch.reset()


@pytest.mark.parametrize("is_in_place", (False, True), ids=("copy", "in_place"))
@pytest.mark.parametrize("backend, hidden", ((*((backend, hidden) for backend in BACKENDS for hidden in (72, 4096)),
                                              *(("asm", hidden) for hidden in ASM_HIDDEN))))
def test_with_residual(device, run, backend, hidden, is_in_place):
    if backend == "asm" and target_of(device).platform != "hip":
        pytest.skip("assembly for gfx942")
    x, weight = make(device, 5, hidden, torch.bfloat16)
    residual = make(device, 5, hidden, torch.bfloat16, seed=1)[0]
    total = x.cpu().double() + residual.cpu().double()
    out, residual_out = (x, residual) if is_in_place else (torch.empty_like(x), torch.empty_like(x))
    run(backend, aiter_like.rmsnorm2d_fwd_with_add, out, x, residual, residual_out, weight, EPSILON)
    check_rms_norm(out, total, weight, EPSILON)
    assert torch.equal(residual_out.cpu(), total.float().bfloat16())
    rounded = aiter_like.rms_norm(residual_out, weight, EPSILON)
    assert not torch.equal(out, rounded), "the norm takes the sum before its rounding"


@pytest.mark.parametrize("backend", BACKENDS)
def test_gemma_multiplies_with_weight_plus_one(device, run, backend):
    x, weight = make(device, 5, 256, torch.bfloat16)
    residual = torch.zeros_like(x)
    for flag in (True, 1):
        out, copy = torch.empty_like(x), torch.empty_like(x)
        run(backend, aiter_like.rmsnorm2d_fwd_with_add, out, x, residual, copy, weight, EPSILON, flag)
        check_rms_norm(out, x, weight.float() + 1, EPSILON)
        assert torch.equal(copy, x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_names_with_outputs_first(device, run, backend):
    x, weight = make(device, 5, 256, torch.bfloat16)
    residual, out = make(device, 5, 256, torch.bfloat16, seed=1)[0], torch.empty_like(x)
    run(backend, aiter_like.rmsnorm, out, x, weight, EPSILON)
    assert torch.equal(out, aiter_like.rms_norm(x, weight, EPSILON, backend=backend))
    run(backend, aiter_like.rmsnorm, out, x, weight, EPSILON, 1)
    check_rms_norm(out, x, weight.float() + 1, EPSILON)
    expected, total = torch.empty_like(x), torch.empty_like(x)
    aiter_like.add_rmsnorm(expected, x, residual, total, weight, EPSILON, backend=backend)
    run(backend, aiter_like.fused_add_rms_norm_cu, x, residual, weight, EPSILON)
    assert torch.equal(x, expected) and torch.equal(residual, total)


@pytest.mark.parametrize("backend, name, hidden, matrices, vectors", (
    *((backend, *form) for backend in ("hip", "triton") for form in (
        ("rms_norm", 4096, 2, 1), ("rmsnorm2d_fwd_with_add", 4096, 4, 1), ("layer_norm", 1024, 2, 2))),
    ("hip", "rmsnorm_quant", 1024, 2, 1)))
def test_moves_each_byte_once(device, run, backend, name, hidden, matrices, vectors):
    """The simulator's counters: a lane's access is 8 elements, 16 bytes of bf16; matrices once, each row's vectors too
    (but for the first row's from the cache); no scratch."""
    if device.type != "cpu":
        pytest.skip("counters of the simulator")
    x, weight = make(device, 16, hidden, torch.bfloat16)
    out, residual, total = torch.empty_like(x), x.clone(), torch.empty_like(x)
    q, scale = torch.empty_like(x, dtype=torch.float8_e4m3fnuz), torch.empty(16, 1, device=device)
    args = {"rms_norm": (x, weight, EPSILON), "rmsnorm2d_fwd_with_add": (out, x, residual, total, weight, EPSILON),
            "layer_norm": (x, weight, weight, EPSILON), "rmsnorm_quant": (q, x, scale, weight, EPSILON)}[name]
    with sim.enabled(checks=False) as session:
        run(backend, getattr(aiter_like, name), *args)
    (counts,) = session.counters.values()
    accesses = sum(counts["by_class"].get(kind, 0) for kind in ("global", "mubuf"))
    scales = 16 if name == "rmsnorm_quant" else 0
    assert 0 < accesses <= 1.05 * (matrices + vectors) * x.numel() // (8 * 64) + scales
    assert not {"scratch", "flat"} & set(counts["by_class"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_everything(device, run, backend, seed):
    """A covering design: each pair of size, dtypes, flag and number of rows."""
    sizes = sorted({*HIDDEN_SIZES, *range(1, 20), 31, 33, 63, 64, 65, 127, 129, 511, 513, 4095, 4097, 16384, 32768,
                    65536})
    factors = {"hidden": sizes, "dtype": DTYPES, "is_float_weight": (0, 1), "sensitive": (0, 1), "rows": (1, 5, 9)}
    for hidden, dtype, is_float_weight, sensitive, rows in map(dict.values, covering(factors, seed)):
        x, weight = make(device, rows, hidden, dtype, torch.float32 if is_float_weight else None, rows)
        check_rms_norm(run(backend, aiter_like.rms_norm, x, weight, EPSILON, sensitive), x, weight, EPSILON, sensitive)


def bench() -> None:
    """rms_norm and its residual form."""
    import benching

    benching.of("rms_norm", "rows hidden has_residual", (
        (*shape, has_residual) for has_residual in (0, 1) for shape in ((8192, 4096), (8192, 8192), (64, 8192))),
        dtype="bf16")

# SPDX-License-Identifier: MIT
"""group_norm: every backend against float64; both layouts, slices, SiLU, bad input."""

import functools
import math

import pytest
import torch
from covering import covering
from norm_cases import BACKENDS, check_layer_norm, double, layer_norm64, vector_like

import aiter_like
from aiter_like import sim
from aiter_like.device import Target, target_of
from aiter_like.dispatch import OPS
from aiter_like.dispatch.plan import plan_of
from aiter_like.dispatch.selection import Candidate
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common import slices
from aiter_like.ops.norm.group_norm import GroupNormCall
from aiter_like.testing import TOLERANCES, assert_within
from aiter_like.traced import Trace

BF16 = torch.bfloat16
EPSILON = 1e-5


def make(device, shape, dtype, is_last=False, mean=0.0, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3 + mean
    return x.to(device, dtype).to(memory_format=torch.channels_last if is_last else torch.contiguous_format)


def factors(device, channels, dtype):
    """Weight and bias."""
    return vector_like(device, channels, dtype), vector_like(device, channels, dtype, seed=200)


def by_group(x, groups, *per_channel):
    """The rows that a layer norm takes, and each factor as one of the same shape."""
    def rows(tensor):
        return tensor.reshape(x.shape[0] * groups, -1)

    def spread(factor):
        return rows(factor.view(-1, *[1] * (x.ndim - 2)).expand(x.shape))

    return rows(x), *(spread(factor) for factor in per_channel)


def check(out, x, groups, weight, bias):
    assert out.stride() == x.stride()
    return check_layer_norm(by_group(out, groups)[0], *by_group(x, groups, weight, bias), epsilon=EPSILON)


def check_silu(out, x, groups, weight, bias, is_rounded_before=False):
    """`is_rounded_before`: SiLU takes a rounded number, as it does where it is an operator of its own."""
    rows, w, b = by_group(x, groups, weight, bias)
    y = layer_norm64(rows, w, b, EPSILON)
    expected = torch.nn.functional.silu(y)
    # The slope of SiLU is at most 1.1; fp32 leaves (8 + √size) ε of |y| and of the factors' magnitudes
    fp32 = 2**-24 * (16 + math.sqrt(rows.shape[-1])) * (8 * double(w).abs() + double(b).abs() + y.abs())
    unit = TOLERANCES[BF16, "rtne"].unit * 1.01
    limit = unit * expected.abs() + 1.1 * (fp32 + is_rounded_before * unit * y.abs()) + 1e-38
    return assert_within("silu", by_group(out, groups)[0], expected, limit)


def number_of_slices(x, groups):
    """By the rule, on the device of `x`."""
    count, size = x.shape[0] * groups, x.numel() // (x.shape[0] * groups)
    return -(-size // slices.default(target_of(x.device), count, size, x.element_size()))


@pytest.mark.parametrize("is_last", (False, True), ids=("nchw", "nhwc"))
@pytest.mark.parametrize("shape, groups, dtype, factor_dtype", (
    ((2, 64, 4, 8), 4, BF16, BF16), ((3, 27, 5, 7), 3, BF16, BF16), ((2, 32, 4, 4), 4, torch.float32, torch.float32)),
    ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, shape, groups, dtype, factor_dtype, is_last):
    weight, bias = factors(device, shape[1], factor_dtype)
    for mean in (0.0, 5.0):
        x = make(device, shape, dtype, is_last, mean)
        out = run(backend, aiter_like.group_norm, x, groups, weight, bias, EPSILON)
        check(out, x, groups, weight, bias)
    assert torch.equal(run(backend, aiter_like.group_norm, x, groups, weight, bias, EPSILON, out=x), out), "in place"


@pytest.mark.parametrize("is_last", (False, True), ids=("nchw", "nhwc"))
@pytest.mark.parametrize("shape, groups", (((3, 32, 4, 4), 4), ((2, 2, 200, 100), 1)), ids=("whole", "slices"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mean_far_from_zero_costs_nothing(device, run, backend, shape, groups, is_last):
    """Σx² − mean² would leave no digit of the variance of every second sample."""
    x, (weight, bias) = make(device, shape, torch.float32, is_last), factors(device, shape[1], torch.float32)
    x[::2] += 1e4
    check(run(backend, aiter_like.group_norm, x, groups, weight, bias, EPSILON), x, groups, weight, bias)


@pytest.mark.parametrize("is_last", (False, True), ids=("nchw", "nhwc"))
@pytest.mark.parametrize("shape, groups", (((2, 16, 52, 52), 1), ((1, 10, 73, 91), 2)), ids=("aligned", "odd"))
@pytest.mark.parametrize("backend", ("hip", "triton"))
def test_slices(device, run, backend, shape, groups, is_last):
    """The last one is short: each adds as much to mean and variance as it has elements."""
    x, (weight, bias) = make(device, shape, BF16, is_last), factors(device, shape[1], BF16)
    ramp = torch.linspace(-3.0, 3.0, shape[1], device=device, dtype=BF16)
    x += ramp.view(-1, 1, 1) + ramp.flip(0)[:1] * torch.linspace(0.0, 1.0, shape[2], device=device, dtype=BF16)[:, None]
    assert number_of_slices(x, groups) > 1 and x.numel() // (shape[0] * groups) % (slices.LEAST_BYTES // 2)
    out = run(backend, aiter_like.group_norm, x, groups, weight, bias, EPSILON)
    check(out, x, groups, weight, bias)
    assert torch.equal(run(backend, aiter_like.group_norm, x, groups, weight, bias, EPSILON), out), "once more"
    y = run(backend, aiter_like.group_norm, x, groups, weight, bias, EPSILON, silu=True)
    check_silu(y, x, groups, weight, bias)
    assert torch.equal(run(backend, aiter_like.group_norm, x, groups, weight, bias, EPSILON, out=x), out), "in place"


@pytest.mark.parametrize("shape, groups", (((1, 33, 57, 97), 3), ((2, 2304, 6, 5), 2), ((1, 72, 1, 4000), 4)), ids=str)
@pytest.mark.parametrize("backend", ("hip", "triton"))
def test_channels_last_in_slices(device, run, backend, shape, groups):
    """Single elements; more channels than a workgroup has lanes for; a NaN and an infinity, each in its group."""
    x, (weight, bias) = make(device, shape, BF16, is_last=True, mean=1.0), factors(device, shape[1], BF16)
    x += torch.linspace(-3.0, 3.0, shape[3], device=device, dtype=BF16)
    check(run(backend, aiter_like.group_norm, x, groups, weight, bias, EPSILON), x, groups, weight, bias)
    x[0, -1, 0, 0], x[-1, 0, -1, -1] = math.nan, math.inf
    out = by_group(run(backend, aiter_like.group_norm, x, groups, weight, bias, EPSILON), groups)[0]
    bad = torch.zeros(len(out), dtype=torch.bool)
    bad[groups - 1] = bad[-groups] = True
    assert out[bad].isnan().all()
    check_layer_norm(out[~bad], *(matrix[~bad] for matrix in by_group(x, groups, weight, bias)), epsilon=EPSILON)


@pytest.mark.parametrize("backend", ("hip", "triton"))
def test_more_slices_than_lanes(device, run, backend):
    """Whose moments are combined in turns: 128 in HIP, 256 in Triton."""
    x, (weight, bias) = make(device, (1, 4, 383, 400), torch.float32), factors(device, 4, torch.float32)
    x[:, :, :100] += 40.0
    if device.type == "cpu":
        assert number_of_slices(x, 1) > 256
    check(run(backend, aiter_like.group_norm, x, 1, weight, bias, EPSILON), x, 1, weight, bias)


@pytest.mark.parametrize("backend, params", (("hip", {"lanes": 128, "slice": 4096}), ("triton", {"slice": 8192})))
def test_slices_of_a_tuned_row(device, backend, params):
    """Of groups that are whole by default; a row may also ask for less than there is room for."""
    x, (weight, bias) = make(device, (2, 4, 50, 101), BF16), factors(device, 4, BF16)
    op, out = OPS["group_norm"], torch.empty_like(x)
    (found,) = (candidate for candidate in op.backends if candidate.name == backend)
    call = GroupNormCall(out, torch.empty(2, 5, 2, device=device), x, weight, bias=bias, num_groups=1, epsilon=EPSILON)

    def launch(call, **params):
        candidate = Candidate(found, backend, params, "test")
        function = found.bind(target_of(device), call, candidate)
        plan_of(op, function, call, Trace(call), device.type == "cpu").first(call)

    assert number_of_slices(x, 1) == 1
    launch(call, **params)
    check(out, x, 1, weight, bias)
    for parts in (None, call.parts[:1]):
        with pytest.raises(ValueError, match="group_norm: parts must"):
            launch(call._replace(parts=parts), **params)
    with pytest.raises(ValueError, match="group_norm: (slice|parts) must"):
        launch(call, **{**params, "slice": 2048})


@pytest.mark.parametrize("backend", ("hip", "triton"))
def test_memory_for_slices_of_positions(device, backend):
    """As many slices as `parts` has room for, one among them; another shape is refused."""
    x, (weight, bias) = make(device, (2, 24, 40, 50), BF16, is_last=True, mean=3.0), factors(device, 24, BF16)
    op, out = OPS["group_norm"], torch.empty_like(x)
    call = GroupNormCall(out, None, x, weight, bias=bias, num_groups=3, epsilon=EPSILON)
    for count in (1, 7, 2000):
        out.fill_(math.nan)
        op(call._replace(parts=torch.empty(2, count + 1, 24, 2, device=device)), backend=backend)
        check(out, x, 3, weight, bias)
    for shape in ((2, 8, 2), (1, 8, 24, 2), (2, 1, 24, 2), (2, 8, 12, 2)):
        with pytest.raises(ValueError, match="group_norm: parts must"):
            op(call._replace(parts=torch.empty(shape, device=device)), backend=backend)


@pytest.mark.parametrize("is_last, positions, is_cut", ((True, 2048, False), (False, 2048, True), (False, 1024, False)))
def test_a_tuner_tries_slices_where_there_is_memory_for_them(device, is_last, positions, is_cut):
    """Channels last, groups of 40 KB are one launch, and nothing else can serve them; else they may be cut."""
    op = OPS["group_norm"]
    call = op.tuning.case({"samples": 2, "channels": 320, "positions": positions, "num_groups": 32, "dtype": "bf16",
                           "channels_last": is_last}, device, 0)
    assert (call.parts is not None) == is_cut
    for backend in op.backends[:2]:
        found = backend.space(target_of(device), *call)
        assert found and any("slice" in params for params in found) == is_cut, backend.name


def test_rule_for_slices():
    """One per group up to 64 KB; else enough for the device, and never more than the public function has room for."""
    h200, mi300x = Target("cuda", "sm_90", 132, 32), Target("hip", "gfx942", 304, 64)
    for target, rows, size, element_size, length in (
            (h200, 64, 10 * 4096, 2, 4096), (h200, 256, 16 * 128**2, 2, 16384), (h200, 32, 4 * 2**20, 2, 16384),
            (h200, 128, 2**16, 2, 8192), (h200, 64, 2**16, 4, 4096), (h200, 1, 2**15, 2, 2**15),
            (mi300x, 64, 40960, 2, 4096), (mi300x, 256, 16 * 128**2, 2, 16384)):
        assert slices.default(target, rows, size, element_size) == length, (target.arch, rows, size)
    for samples, positions, channels, count in ((1, 2**20, 128, 528), (8, 2**14, 512, 66), (2, 4096, 320, 160),
                                                (1, 3, 4, 1), (3000, 64, 64, 1), (1, 2, 2**20, 2)):
        assert slices.of_positions(h200, samples, positions, 2 * channels) == count, (samples, positions, channels)
    for size in (1, 2**13, 2**14 + 1, 2**15, 2**15 + 1, 2**16 + 1, 10**6 + 7):
        for element_size in (2, 4):
            lengths = [slices.default(target, rows, size, element_size)
                       for target in (h200, mi300x) for rows in (1, 100, 5000)]
            for length in (*lengths, *slices.space(size, element_size)):
                assert -(-size // length) <= slices.most(size, element_size)


@pytest.mark.parametrize("is_last", (False, True), ids=("nchw", "nhwc"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_silu(device, run, backend, is_last):
    x, (weight, bias) = make(device, (2, 64, 4, 8), BF16, is_last), factors(device, 64, BF16)
    out = run(backend, aiter_like.group_norm, x, 4, weight * 20, bias, EPSILON, silu=True)
    check_silu(out, x, 4, weight * 20, bias)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_position_one_channel_and_no_factors(device, run, backend):
    for shape, groups in (((3, 64), 4), ((2, 4, 30), 4), ((2, 1, 1, 1), 1)):
        x = make(device, shape, BF16)
        ones, zeros = torch.ones(shape[1], device=device), torch.zeros(shape[1], device=device)
        check(run(backend, aiter_like.group_norm, x, groups, None, None, EPSILON), x, groups, ones, zeros)


@pytest.mark.parametrize("plane", ((4, 8), (52, 52)), ids=("whole", "slices"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_and_infinity_stay_in_their_group(device, run, backend, plane):
    x, (weight, bias) = make(device, (2, 64, *plane), BF16), factors(device, 64, BF16)
    x[0, 17, 0, 0], x[1, 63, -1, -1] = math.nan, math.inf
    rows = by_group(run(backend, aiter_like.group_norm, x, 4, weight, bias, EPSILON), 4)[0]
    assert rows[1].isnan().all() and rows[7].isnan().all()
    rest = [0, 2, 3, 4, 5, 6]
    check_layer_norm(rows[rest], *(matrix[rest] for matrix in by_group(x, 4, weight, bias)), epsilon=EPSILON)


def test_same_arguments_as_torch(device):
    x, (weight, bias) = make(device, (2, 64, 4, 8), torch.float32), factors(device, 64, torch.float32)
    expected = torch.nn.functional.group_norm(x, 4, weight, bias, 1e-3)
    torch.testing.assert_close(aiter_like.group_norm(x, 4, weight, bias, 1e-3, backend="torch"), expected)
    x.requires_grad_()
    aiter_like.group_norm(x, 4, weight, bias).sum().backward()
    assert x.grad.shape == x.shape


def test_empty_and_bad_input(device):
    x, (weight, bias) = make(device, (2, 6, 4, 4), BF16), factors(device, 6, BF16)
    assert aiter_like.group_norm(x[:0], 3).shape == (0, 6, 4, 4)
    for error, args, text in (
            (ValueError, (x[0, 0, 0], 1), "at least 2 dimensions"),
            (ValueError, (x, 4), "num_groups must divide the 6 channels, got 4"),
            (ValueError, (x, 0), "num_groups must be"), (ValueError, (x, 3, weight[:5]), "weight must have shape"),
            (TypeError, (x, 3, weight, bias.float()), "bias must have dtype"),
            (ValueError, (x, 3, weight, bias, -1.0), "eps must be")):
        with pytest.raises(error, match=f"group_norm: .*{text}"):
            aiter_like.group_norm(*args)
    with pytest.raises(UnsupportedError, match="must both be contiguous, or channels-last; input has strides"):
        aiter_like.group_norm(x[..., ::2], 3, backend="hip")


@pytest.mark.parametrize("is_last", (False, True), ids=("nchw", "nhwc"))
def test_moves_each_byte_once(device, run, is_last):
    """The simulator's counters: 16 bytes of a lane in, out, and one access each for weight and bias; no scratch."""
    if device.type != "cpu":
        pytest.skip("counters of the simulator")
    x, (weight, bias) = make(device, (2, 64, 4, 8), BF16, is_last), factors(device, 64, BF16)
    with sim.enabled(checks=False) as session:
        run("hip", aiter_like.group_norm, x, 4, weight, bias, EPSILON)
    (counts,) = session.counters.values()
    assert counts["by_class"]["global"] == 4 * x.numel() // (8 * 64)
    assert not {"scratch", "flat"} & set(counts["by_class"])


def test_slices_are_read_twice_and_written_once(device, run):
    """The simulator's counters: as above, the input once more, and two numbers of each slice, written and read."""
    if device.type != "cpu":
        pytest.skip("counters of the simulator")
    x, (weight, bias) = make(device, (2, 16, 64, 64), BF16), factors(device, 16, BF16)
    with sim.enabled(checks=False) as session:
        run("hip", aiter_like.group_norm, x, 1, weight, bias, EPSILON)
    for (name, counts), part, wide in zip(session.counters.items(), ("parts", "slices"), (1, 2), strict=True):
        assert f"group_norm_{part}_kernel" in name
        moved = {name: count for name, count in counts["accesses"].items() if name.endswith("dwordx4")}
        assert sum(moved.values()) * 8 * 64 == wide * x.numel()
        others = sum(counts["accesses"].values()) - sum(moved.values())
        assert others <= 2 * x.numel() // (8 * 64) + 4 * counts["waves"], "weight and bias; parts"
        assert not {"scratch", "flat"} & set(counts["by_class"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_everything(device, run, backend, seed):
    """Groups whole and in slices, aligned or not. A covering design: each pair of shape, layout and dtypes."""
    sizes = ((2, 32, 16, 16, 4), (1, 12, 37, 41, 2), (1, 64, 64, 64, 4), (2, 128, 33, 33, 2), (3, 24, 3, 3, 24),
             (1, 8, 256, 64, 4), (1, 6, 157, 173, 1), (40, 64, 34, 32, 1), (2, 16, 301, 299, 2), (1, 1, 1024, 513, 1),
             (2, 20, 42, 38, 5), (1, 12, 122, 98, 2), (1, 10, 73, 91, 2))
    design = {"size": sizes, "is_last": (False, True), "dtype": (BF16, torch.float16, torch.float32),
              "wide": (0, 1)}
    for (*shape, groups), is_last, dtype, wide in map(dict.values, covering(design, seed)):
        x = make(device, shape, dtype, is_last, mean=2.0)
        weight, bias = factors(device, shape[1], torch.float32 if wide else dtype)
        check(run(backend, aiter_like.group_norm, x, groups, weight, bias, EPSILON), x, groups, weight, bias)


def bench() -> None:
    """UNet and decoder of image models: also with SiLU and channels-last, beside torch."""
    import benching

    def peers(call):
        def aten():
            y = torch.nn.functional.group_norm(call.input, call.num_groups, call.weight, call.bias, call.epsilon)
            return torch.nn.functional.silu(y) if call.silu else y

        return {"aten": aten, "torch.compile": benching.compiled(aten)}

    for silu, shapes in ((False, ((2, 320, 4096, 0), (8, 512, 16384, 0), (1, 128, 1048576, 0), (1, 128, 1048576, 1),
                                  (2, 1280, 256, 0))), (True, ((2, 320, 4096, 0),))):
        benching.of("group_norm", "samples channels positions channels_last", shapes, beside=peers, num_groups=32,
                    dtype="bf16", changed=functools.partial(GroupNormCall._replace, silu=silu))

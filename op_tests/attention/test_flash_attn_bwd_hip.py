# SPDX-License-Identifier: MIT
"""flash_attn_bwd by backends "hip" and "ck": ends of tiles, divided tasks, chains of turns, rounding, NaN. What holds
for every backend is in test_flash_attn_bwd.py.
"""

import itertools
import math
import re

import pytest
import torch
from attention_bwd_cases import BF16, FP16, again, make, rare

from aiter_like import sim
from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention.flash_attn_bwd import flash_attn_bwd
from aiter_like.ops.attention.flash_attn_bwd_hip import HEAD_DIMS
from aiter_like.testing import strided_like
from aiter_like.testing.attention_bwd import check_attention_gradients, check_rounding_errors, fill_forward

KEYS = {64: 256, 80: 128, 96: 192, 128: 192, 192: 128, 256: 64}
"""Keys of a workgroup by the widest head dimension, scores being plain."""
MASKS = {"none": ((-1, -1),), "mask": ((-1, 0), (40, 0), (7, 9), (-1, 3), (5, -1))}
ALONE = 304
"""Empty sequences beside one: with as many columns as CUs all key blocks of a sequence are one chain."""


def check(run, backend, call):
    run(backend, flash_attn_bwd, call)
    check_attention_gradients(call)
    return call


def beside_empty(lengths, count=ALONE):
    """Packed lengths of sequences, and `count` empty ones behind them."""
    return tuple((*part, *[0] * count) for part in zip(*lengths))


def builds():
    """(backend, head dimensions, dtype, mask) of each build without features, few of them not exhaustive."""
    for head_dims in (*HEAD_DIMS, (80, 72), (96, 96), (256, 256)):
        for dtype, mask in itertools.product((BF16, FP16), MASKS):
            case = "hip" if head_dims in HEAD_DIMS else "ck", head_dims, dtype, mask
            is_shared = case[0] == "hip" and dtype == BF16 and (mask == "mask" or head_dims == (64, 64))
            yield case if is_shared else rare(*case)


@pytest.mark.parametrize("backend, head_dims, dtype, mask", [*builds()], ids=str)
def test_ends_of_tiles(device, run, backend, head_dims, dtype, mask):
    """Sequences that end within tiles of rows and of keys, and beside them; without rows, without keys."""
    block = KEYS[max(head_dims)]
    rows, keys = (0, 1, 31, 32, 33, 65), (0, 1, block - 1, block, block + 1)
    packed = tuple(zip(*itertools.product(rows, keys)))
    for window in MASKS[mask]:
        check(run, backend, make(device, packed=packed, heads=(2, 1), head_dims=head_dims, window=window, dtype=dtype))


def launched(run, backend, call):
    """Kernels of a call and their counts, after the comparison; only the simulator counts."""
    if call.q.device.type != "cpu":
        check(run, backend, call)
        pytest.skip("counted on the simulator")
    with sim.enabled("strict", counters=True) as session:
        check(run, backend, call)
    return {re.search(r"flash_attn_bwd_(\w*?)_?kernel", launch["kernel"])[1]: launch for launch in session.launches}


def sums_read(launch):
    """Bytes of dQ that workgroups which are not the first of their chain have read."""
    return sum(one.get("global_bytes", 0) for one in launch["instructions"]
               if "load_dwordx4" in one["text"] and "sc1" in one["text"])


@pytest.mark.parametrize("heads, lengths, window, is_divided", (
    ((1, 1), (300, 300), (-1, 0), True), ((4, 1), (96, 300), (-1, 0), True),   # parts end within a head and at its end
    ((1, 1), (250, 300), (-1, 0), False), ((2, 2), (40, 600), (-1, 0), False),
    ((4, 1), (130, 300), (-1, -1), True), ((1, 1), (600, 70), (-1, -1), True), ((3, 1), (64, 300), (-1, -1), False),
    ((264, 1), (64, 10), (-1, 0), True)), ids=str)  # more parts than there may be
def test_divided_tasks(device, run, heads, lengths, window, is_divided):
    call = make(device, lengths=lengths, heads=heads, window=window)
    kernels = launched(run, "hip", call)
    assert ("parts" in kernels) == is_divided
    first = again(call)
    run("hip", flash_attn_bwd, first)
    assert all(torch.equal(one, other) for one, other in zip(first.gradients, call.gradients))


@pytest.mark.parametrize("empty", (0, 151, ALONE))
@pytest.mark.parametrize("window, sink_size", (((-1, 0), 0), ((300, 0), 0), rare((100, 20), 300)), ids=str)
def test_chains(device, run, window, sink_size, empty):
    """Key blocks by fewer and fewer chains: the longer a chain, the more of its workgroups go on with another's sum."""
    call = make(device, packed=beside_empty(((70, 300), (900, 1300)), empty), heads=(2, 1), window=window,
                sink_size=sink_size)
    kernels = launched(run, "ck" if sink_size else "hip", call)
    read = sums_read(kernels[""])
    assert (read > 0) == (empty > 0)
    if empty == ALONE and window == (-1, 0):  # each block of 32 rows is read by all key blocks but the first
        blocks = [range(32 * block, 32 * block + 32) for block in range(29)]
        turns = sum((min(rows[-1], 899) + 400) // 256 for rows in blocks) + 3 * ((69 + 230) // 256)
        assert read == 2 * turns * 32 * 64 * 4


def spread(call, kind):
    """The call with other scores: "peaked" has one key per row that takes nearly all, "ties" keys that are alike."""
    if kind == "peaked":
        call = call._replace(q=call.q * 6)
    if kind == "ties":
        call = call._replace(k=call.k[:, :1].expand_as(call.k).contiguous(), v=call.v.sign())
    return fill_forward(call)


@pytest.mark.parametrize("kind", ("normal", "peaked", "ties"))
@pytest.mark.parametrize("head_dims, dtype, window", (
    ((64, 64), BF16, (-1, 0)), ((128, 128), BF16, (-1, 0)), rare((128, 128), FP16, (-1, 0)),
    rare((128, 128), BF16, (-1, -1)), ((192, 128), BF16, (-1, 0)), ((64, 64), BF16, (-1, -1))), ids=str)
def test_errors_are_those_of_the_roundings(device, run, head_dims, dtype, window, kind):
    """Against float64 at most 1.2 times those of the same algorithm in torch, in the mean and at most."""
    call = spread(make(device, lengths=(288, 385), heads=(2, 2), head_dims=head_dims, window=window, dtype=dtype), kind)
    check(run, "hip", call)
    check_rounding_errors(call)


def check_order(run, call, orders):
    """Calls by hip in several orders of workgroups and waves give the same bits; how often waves slept in all of them.
    """
    run("hip", flash_attn_bwd, call)
    sleeps = 0
    for fuzz, threads in orders:
        repeat = again(call)
        with sim.enabled(False, fuzz=fuzz, threads=threads, counters=threads == 1) as session:
            run("hip", flash_attn_bwd, repeat)
        assert all(torch.equal(one, other) for one, other in zip(repeat.gradients, call.gradients)), (fuzz, threads)
        if threads == 1:
            sleeps += sum(one["executed"] for launch in session.launches for one in launch["instructions"]
                          if one["text"].startswith("s_sleep"))
    return sleeps


def one_chain(device, **options):
    """Two KV heads, whose six key blocks add to each block of dQ one after another."""
    return make(device, packed=beside_empty(((40, 1500),), ALONE // 2), **{"heads": (2, 2), **options})


@pytest.mark.parametrize("runs", (8, rare(50)))
def test_each_run_gives_the_same_bits(device, run, runs):
    """Whatever the order of workgroups: in some their turn has not come, and they wait."""
    call = one_chain(device, window=(-1, 0))
    if device.type != "cpu":
        run("hip", flash_attn_bwd, call)
        for _ in range(runs):
            repeat = again(call)
            run("hip", flash_attn_bwd, repeat)
            assert all(torch.equal(one, other) for one, other in zip(repeat.gradients, call.gradients))
        return
    orders = [(seed, (1, 2, 3, 8)[seed % 4]) for seed in range(runs)]
    assert check_order(run, call, orders) > 0
    check_attention_gradients(call)


@pytest.mark.parametrize("head_dims", ((64, 64), (128, 128)), ids=str)
def test_a_turn_that_never_comes(device, run, head_dims):
    """Sequences that overlap, which cu_seqlens must not say, share a block of dQ: who comes second there waits for a
    turn that is over. The wait ends, and the block is NaN, no wrong number; what the other one gives is not told."""
    if device.type != "cpu":
        pytest.skip("both write the same rows of dq")
    call = make(device, packed=((96, 0, 0), (100, 0, 100)), heads=(1, 1), head_dims=head_dims, window=(-1, 3))
    starts = torch.tensor([0, 96, 0, 96], dtype=torch.int32, device=device)
    with sim.enabled(False):  # a hundred thousand polls
        run("hip", flash_attn_bwd, call._replace(cu_seqlens_q=starts))
    assert call.dq[:32].isnan().all() and call.dq[32:64].isfinite().all()
    assert call.dk.isfinite().all() and call.dv.isfinite().all()


@pytest.mark.parametrize("dtype", (BF16, rare(FP16)), ids=str)
def test_turns_race_with_nothing(device, run, dtype):
    """By every checker, global_race among them, in two orders of workgroups."""
    call = one_chain(device, window=(-1, 0), dtype=dtype, head_dims=(128, 128))
    for fuzz in (0, 3):
        if device.type == "cpu":
            with sim.enabled("all", fuzz=fuzz):
                run("hip", flash_attn_bwd, call)
    check(run, "hip", call)


@pytest.mark.parametrize("head_dims, dtype, window", (
    ((64, 64), FP16, (-1, 0)), rare((64, 64), BF16, (-1, 0)), rare((128, 128), BF16, (-1, -1))), ids=str)
def test_atomics_in_place_of_turns(device, run, head_dims, dtype, window):
    """Equal within the bound; the order of the sums is nobody's."""
    for packed in (beside_empty(((100, 600), (65, 3))), ((300, 100, 0, 1), (300, 500, 3, 1))):
        call = make(device, packed=packed, heads=(2, 1), head_dims=head_dims, window=window, dtype=dtype)
        check(run, "hip", call._replace(deterministic=False))


def test_what_nobody_sees(device, run):
    """Keys that no row sees get zeros, rows that see no key, too, whatever is there; whole workgroups have no row."""
    call = make(device, lengths=(70, 900), heads=(4, 2), window=(100, 0), dlse=True)
    hidden = 900 - 70 - 100
    call.k[:, :hidden], call.v[:, :hidden] = math.nan, math.inf
    check_zeros(run, call, [(tensor, hidden) for tensor in (call.dk, call.dv)])
    call = make(device, lengths=(700, 90), heads=(4, 2), window=(-1, 0))
    hidden = 700 - 90
    call.dout[:, :hidden], call.q[:, :hidden], call.out[:, :hidden] = math.nan, math.inf, math.nan
    check_zeros(run, call, [(call.dq, hidden)])


@pytest.mark.parametrize("window", ((-1, -1), (-1, 0)), ids=str)
def test_scores_far_below_zero(device, run, window):
    """Keys past the end would have a score of 0 and the probability Inf, of which no zero makes a 0."""
    call = make(device, lengths=(70, 200), heads=(2, 1), window=window)
    check(run, "hip", fill_forward(call._replace(q=call.q.abs() * 8, k=-call.k.abs() * 8)))


def check_zeros(run, call, zeros):
    """The first rows of some gradients are exactly 0, and everything else is a number, not all of them 0."""
    run("hip", flash_attn_bwd, call)
    assert all(gradient.isfinite().all() for gradient in call.gradients)
    for gradient, count in zeros:
        assert not gradient[:, :count].any() and gradient[:, count:].any()


@pytest.mark.parametrize("dtype, bias_dtype, others", (
    (BF16, BF16, {"alibi": 2, "dropout_p": 0.2}), rare(BF16, torch.float32, {}), rare(BF16, BF16, {}),
    rare(FP16, FP16, {})), ids=str)
def test_bias_of_every_shape(device, run, dtype, bias_dtype, others):
    """For all sequences or one, all heads or one; rows apart, keys apart; packed."""
    generator = torch.Generator().manual_seed(1)
    options = {"heads": (4, 2), "window": (-1, 0), "dtype": dtype, **others}
    call = make(device, lengths=(65, 150), batch=2, **options)
    for shape in itertools.product((1, 2), (1, 4)):
        bias = torch.randn(*shape, 65, 150, generator=generator).to(device, bias_dtype)
        for view in (bias, strided_like(bias, (1, 0, 3, 0), 1), bias.mT.contiguous().mT):
            check(run, "ck", fill_forward(again(call)._replace(bias=view)))
    packed = make(device, packed=((5, 0, 63), (40, 3, 150)), bias="shared", **options)
    check(run, "ck", fill_forward(packed._replace(bias=packed.bias.to(bias_dtype))))


def test_what_is_refused(device):
    def refused(call, backend, reason):
        with pytest.raises(UnsupportedError, match=reason):
            flash_attn_bwd(call, backend=backend)

    options = {"lengths": (5, 7)}
    if device.type == "cpu":
        refused(make(device, head_dims=(80, 80), **options), "hip", r"head dimensions must be one of .*got \(80, 80\)")
        refused(make(device, head_dims=(72, 68), **options), "ck", "multiples of 8, at most 256, got 68")
        refused(make(device, head_dims=(264, 264), **options), "ck", "multiples of 8, at most 256, got 264")
        refused(make(device, softcap=1.0, bias="heads", **options), "hip", "no softcap, bias")
        call = make(device, **options)
        refused(call._replace(k=strided_like(call.k, (0, 0, 0, 4))), "ck", "strides of k must be multiples of 8")

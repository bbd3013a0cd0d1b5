# SPDX-License-Identifier: MIT
"""reshape_and_cache_with_pertoken_quant: every byte of caches and scales against a plain model; bad input."""

import functools
import itertools
import math

import benching
import pytest
import torch
from kv_cache_cases import make, runs_of_slots, slots_of, tokens_of

import aiter_like
from aiter_like import dtypes, sim
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common import paged_cache
from aiter_like.testing import strided_like

BACKENDS = ("hip", "torch")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
function = aiter_like.reshape_and_cache_with_pertoken_quant


def cache_dtype_of(device, kind: str) -> torch.dtype:
    return torch.int8 if kind == "int8" else dtypes.fp8_of(target_of(device).arch)


def quantise(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [tokens, heads, dims] and their scales [tokens, heads]: the rule of quant.h, written out."""
    largest = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    x = x.float()
    amax = x.abs().amax(-1)
    scale = torch.where(amax < 2.0**-110, 2.0**-110, amax) / amax.new_tensor(largest)
    y = x * (1 / scale)[..., None]
    if dtype == torch.int8:
        return torch.where(y.isnan(), 0.0, y.clamp(-127, 127).round()).to(dtype), scale
    return y.clamp(-largest, largest).to(dtype), scale


def check_write(device, run, backend, layout, heads, dims, dtype, kind, page_size=16, tokens=None, seed=0,
                slots=None) -> None:
    """7 tokens, one in a negative slot, one just beyond the cache; scales in a wider matrix."""
    cache_dtype, num_blocks = cache_dtype_of(device, kind), 3 if slots is None else 240 // page_size
    caches = make(device, layout, num_blocks, page_size, heads, dims, cache_dtype)
    before = caches.storage.clone()
    if slots is None:
        slots = slots_of(device, 7, num_blocks * page_size, seed, (-1, num_blocks * page_size))
    key, value = tokens_of(device, len(slots), heads, dims, dtype, seed) if tokens is None else tokens
    shape = (num_blocks, heads, page_size) if layout == "shuffled" else (heads, num_blocks * page_size + 5)
    stored = [strided_like(torch.full(shape, 7.0 + i, device=device), (0,) * (len(shape) - 1) + (3,)) for i in (0, 1)]
    expected = [made.clone() for made in stored]
    run(backend, function, key, value, *caches.views(caches.storage), *stored, slots, layout == "shuffled")
    rows = []
    for x, made in zip((key, value), expected, strict=True):
        quantised, scale = quantise(x, cache_dtype)
        rows.append(quantised)
        for token, slot in enumerate(slots.tolist()):
            if 0 <= slot < num_blocks * page_size:
                if layout == "shuffled":
                    made[slot // page_size, :, slot % page_size] = scale[token]
                else:
                    made[:, slot] = scale[token]
    caches.check(before, rows, slots)
    for made, wanted in zip(stored, expected, strict=True):
        torch.testing.assert_close(made, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", ("fp8", "int8"))
@pytest.mark.parametrize("layout", ("columns", "shuffled"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_model(device, run, backend, layout, kind):
    for heads, dims in ((2, (64, 64)), (3, (48, 50)), (1, (16, 1)), (9, (32, 64))):
        check_write(device, run, backend, layout, heads, dims, BF16, kind)
    check_write(device, run, backend, layout, 2, (64, 64), BF16, kind, page_size=64)
    if layout == "columns":
        check_write(device, run, backend, layout, 2, (32, 32), BF16, kind, page_size=3)


@pytest.mark.parametrize("layout, kind, dims, page_size", (
    ("columns", "fp8", (64, 50), 16), ("columns", "int8", (64, 64), 48), ("shuffled", "int8", (48, 128), 16),
    ("columns", "fp8", (32, 32), 12)))
def test_runs_of_neighbouring_slots(device, run, layout, kind, dims, page_size):
    check_write(device, run, "hip", layout, 3, dims, BF16, kind, page_size, slots=runs_of_slots().to(device))


@pytest.mark.parametrize("layout", ("columns", "shuffled"))
def test_moves_each_byte_once_in_wide_accesses(device, run, layout):
    """Of 64 tokens loads and stores of 16 bytes; for each tile a wave's look at the slots, and the scales."""
    if device.type != "cpu":
        pytest.skip("counts of the simulator")
    caches = make(device, layout, 5, 16, 2, (128, 128), torch.int8)
    shape = (5, 2, 16) if layout == "shuffled" else (2, 80)
    made, rows = [torch.zeros(shape, device=device) for _ in "kv"], tokens_of(device, 64, 2, (128, 128), BF16)
    with sim.enabled(checks=False) as session:
        run("hip", function, *rows, *caches.views(caches.storage), *made, torch.arange(16, 80), layout == "shuffled")
    (counts,) = session.counters.values()
    waves, tiles = 2 * 64 * 2 * 128 // (16 * 64), 4
    assert counts["by_class"]["global"] == 3 * waves + 2 * tiles, counts


@pytest.mark.parametrize("backend", BACKENDS)
def test_heads_of_more_lanes_than_a_wave(device, run, backend):
    check_write(device, run, backend, "columns", 1, (1024, 1000), BF16, "fp8")


@pytest.mark.parametrize("backend", BACKENDS)
def test_strided_tokens(device, run, backend):
    qkv = tokens_of(device, 7, 8, (32, 1), BF16)[0]
    odd = strided_like(qkv[:, 2:4], (0, 1, 3), offset=1)
    for key, value in ((qkv[:, 4:6], qkv[:, 6:]), (odd, qkv[:, 6:])):
        check_write(device, run, backend, "shuffled", 2, (32, 32), BF16, "fp8", tokens=(key, value))


@pytest.mark.parametrize("kind", ("fp8", "int8"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values_stay_in_their_head(device, run, backend, kind):
    """Zeros, NaN, infinity, the smallest and largest numbers; other heads of the token are as without them."""
    key, value = tokens_of(device, 7, 2, (32, 32), BF16)
    key[2, 0], key[3, 1, 5], key[4, 0, 31], key[5, 1], value[6, 0, 0] = 0.0, math.nan, -math.inf, 1e-38, 3e38
    check_write(device, run, backend, "columns", 2, (32, 32), BF16, kind, tokens=(key, value))


@pytest.mark.parametrize("slot_dtype", (torch.int32, torch.int64), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_slots_outside_the_cache_are_skipped(device, run, backend, slot_dtype):
    outside = [-1, 48, 2**31 - 1, -(2**31)] + ([2**40, -(2**40), 2**32 + 3] if slot_dtype == torch.int64 else [])
    slots = torch.tensor(outside, dtype=slot_dtype, device=device)
    caches = make(device, "shuffled", 3, 16, 2, (32, 32), torch.int8)
    before, made = caches.storage.clone(), torch.zeros(2, 3, 2, 16, device=device)
    key, value = tokens_of(device, len(outside), 2, (32, 32), BF16)
    run(backend, function, key, value, *caches.views(caches.storage), made[0], made[1], slots, True)
    assert torch.equal(caches.storage, before) and not made.any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty(device, backend):
    for tokens, num_blocks in ((0, 3), (4, 0)):
        caches = make(device, "shuffled", num_blocks, 16, 2, (32, 32), torch.int8)
        key, value = tokens_of(device, tokens, 2, (32, 32), BF16)
        made = torch.zeros(2, num_blocks, 2, 16, device=device)
        function(key, value, *caches.views(caches.storage), made[0], made[1],
                 torch.zeros(tokens, dtype=torch.int64, device=device), True, backend=backend)
        assert not made.any()


def test_bad_input_is_named(device):
    key, value = tokens_of(device, 4, 2, (32, 32), BF16)
    caches, slots = make(device, "shuffled", 3, 16, 2, (32, 32), torch.int8), slots_of(device, 4, 48)
    kc, vc = caches.key, caches.value
    flat, made = make(device, "columns", 3, 16, 2, (32, 32), torch.int8).value, torch.zeros(3, 2, 16, device=device)
    row = torch.zeros(2, 48, device=device)
    other = torch.float8_e4m3fn if target_of(device).platform == "hip" else torch.float8_e4m3fnuz
    for message, kind, args in (
            ("key_cache must have dtype", TypeError, (key, value, kc.short(), vc, made, made, slots, True)),
            ("key_cache: fp8 on .* is", TypeError, (key, value, kc.to(other), vc, made, made, slots, True)),
            ("value_cache must have dtype", TypeError, (key, value, kc, vc.short(), made, made, slots, True)),
            ("value_cache must have 4 dimensions", ValueError, (key, value, kc, vc, row, row, slots, False)),
            (r"k_dequant_scales must have shape \(3, 2, 16\)", ValueError, (key, value, kc, vc, row, row, slots, True)),
            (r"v_dequant_scales must have a column for each of 48 slots, got shape \(2, 47\)", ValueError,
             (key, value, kc, flat, row, row[:, :47], slots, False)),
            ("asm_layout must be True or False", TypeError, (key, value, kc, vc, made, made, slots, 1))):
        with pytest.raises(kind, match=f"reshape_and_cache_with_pertoken_quant: {message}"):
            function(*args)
    long = torch.zeros(1, 1, 8208, dtype=BF16, device=device)
    caches = make(device, "columns", 1, 16, 1, (8208, 8208), torch.int8)
    with pytest.raises(UnsupportedError, match="heads of at most 8192 elements, got 8208"):
        function(long, long, caches.key, caches.value, row[:1], row[:1], slots[:1], False, backend="hip")


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype, kind", tuple(itertools.product((BF16, FP16, FP32), ("fp8", "int8"))), ids=str)
@pytest.mark.parametrize("layout", ("columns", "shuffled"))
def test_against_model_everywhere(device, run, layout, dtype, kind):
    sizes = ((1, (128, 128)), (8, (128, 128)), (3, (80, 96)), (2, (16, 256)), (2, (512, 512)))
    for (heads, dims), page_size, seed in itertools.product(sizes, (16, 64), range(2)):
        check_write(device, run, "hip", layout, heads, dims, dtype, kind, page_size, seed=seed)


def bench() -> None:
    """Writes of 8 heads of 128 from bf16; needs a GPU."""
    for layout, kind in itertools.product(("columns", "shuffled"), ("fp8", "int8")):
        make_case = functools.partial(_bench_case, layout, cache_dtype_of(torch.device("cuda"), kind))
        benching.table(f"reshape_and_cache_with_pertoken_quant {layout} bf16 → {kind}, 8 heads of 128",
                       (benching.rotating(functools.partial(make_case, tokens)) for tokens in (1, 64, 8192, 32768)))


def _bench_case(layout: str, cache_dtype: torch.dtype, tokens: int, seed: int) -> benching.Case:
    device, num_blocks = torch.device("cuda"), 2 * tokens // 16 + 4
    caches = make(device, layout, num_blocks, 16, 8, (128, 128), cache_dtype)
    before, (key, value) = caches.storage.clone(), tokens_of(device, tokens, 8, (128, 128), BF16, seed)
    blocks = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed))[:-(-tokens // 16)]
    slots = (blocks[:, None] * 16 + torch.arange(16)).flatten()[:tokens].to(device)  # whole pages: prefill
    shape = (num_blocks, 8, 16) if layout == "shuffled" else (8, num_blocks * 16)
    made = [torch.zeros(shape, device=device) for _ in range(2)]
    rows = [quantise(x, cache_dtype)[0] for x in (key, value)]

    def check(_result) -> float:
        expected = before.clone()
        paged_cache.put(*caches.views(expected), *rows, slots)
        assert torch.equal(caches.storage, expected)
        caches.storage.copy_(before)  # the next contender has to write it again
        return 0.0

    args = (key, value, *caches.views(caches.storage), *made, slots, layout == "shuffled")
    return benching.Case(f"{tokens} tokens", tokens * 8 * (256 * 3 + 8) + 8 * tokens,
                         benching.by_backend(function, *args, backends=BACKENDS), check)

# SPDX-License-Identifier: MIT
"""indexer_k_quant_and_cache: every byte of the cache against a plain model, over groups, layouts, scales; bad input."""

import functools
import itertools
import math

import benching
import pytest
import torch
from kv_cache_cases import indexer_key_at, slots_of

import aiter_like
from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.testing import strided_like

BACKENDS = ("hip", "torch")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
function = aiter_like.indexer_k_quant_and_cache


def keys(device, tokens: int, head_dim: int, dtype=BF16, seed: int = 0) -> torch.Tensor:
    return (torch.randn(tokens, head_dim, generator=torch.Generator().manual_seed(seed)) * 3).to(device, dtype)


def random_cache(device, num_blocks: int, page_size: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(width)
    return torch.randint(0, 256, (num_blocks, page_size, width), dtype=torch.uint8, generator=generator).to(device)


def put(cache: torch.Tensor, k: torch.Tensor, slots: torch.Tensor, size: int, scale_fmt: str, preshuffle: bool) -> None:
    """The layout, byte by byte; scales in float64 arithmetic on their exponent."""
    num_blocks, page_size, width = cache.shape
    kind, head_dim = dtypes.fp8_of(target_of(k.device).arch), k.shape[1]
    largest, groups = torch.finfo(kind).max, head_dim // size
    for token, slot in enumerate(slots.tolist()):
        if not 0 <= slot < num_blocks * page_size:
            continue
        block, offset = divmod(slot, page_size)
        flat = cache[block].view(-1)
        for group in range(groups):
            x = k[token, group * size:(group + 1) * size].float()
            scale = x.abs().amax().clamp(min=2.0**-110) / x.new_tensor(largest)
            if scale_fmt == "ue8m0" and math.isfinite(scale.item()):
                mantissa, exponent = math.frexp(scale.item())
                scale = torch.tensor(2.0**(exponent - (mantissa == 0.5)), device=k.device)
            stored = (x * (1 / scale)).clamp(-largest, largest).to(kind).view(torch.uint8)
            where = [indexer_key_at(offset, group * size + dim, head_dim, preshuffle) for dim in range(size)]
            flat[torch.tensor(where, device=k.device)] = stored
            start = page_size * head_dim + 4 * (offset * groups + group)
            flat[start:start + 4] = scale.view(1).view(torch.uint8)


def check_write(device, run, backend, k, size, scale_fmt="ue8m0", preshuffle=False, page_size=16, extra=0) -> None:
    """Two of the tokens have no slot."""
    width = k.shape[1] + 4 * k.shape[1] // size + extra
    cache = random_cache(device, 3, page_size, width)
    slots = slots_of(device, len(k), 3 * page_size, skip=(-1, 3 * page_size))
    expected = cache.clone()
    put(expected, k, slots, size, scale_fmt, preshuffle)
    run(backend, function, k, cache, slots, size, scale_fmt, preshuffle)
    assert torch.equal(cache, expected)


@pytest.mark.parametrize("preshuffle", (False, True), ids=("rows", "tiles"))
@pytest.mark.parametrize("scale_fmt", ("ue8m0", ""))
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_model(device, run, backend, scale_fmt, preshuffle):
    check_write(device, run, backend, keys(device, 7, 128), 128, scale_fmt, preshuffle)
    check_write(device, run, backend, keys(device, 7, 256), 128, scale_fmt, preshuffle, page_size=64, extra=12)
    check_write(device, run, backend, keys(device, 7, 192), 96, scale_fmt, preshuffle)
    check_write(device, run, backend, strided_like(keys(device, 7, 112), (0, 5), offset=1), 112, scale_fmt, preshuffle)


@pytest.mark.parametrize("backend", BACKENDS)
def test_odd_sizes(device, run, backend):
    for head_dim, size, page_size in ((146, 73, 2), (100, 100, 1), (252, 84, 3)):
        check_write(device, run, backend, keys(device, 3, head_dim), size, "", page_size=page_size)


@pytest.mark.parametrize("scale_fmt", ("ue8m0", ""))
@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values_stay_in_their_group(device, run, backend, scale_fmt):
    """Zeros, NaN, infinity; amax whose scale is a power of two, and the next number above and below."""
    k, largest = keys(device, 9, 256), torch.finfo(dtypes.fp8_of(target_of(device).arch)).max
    k[2, :128], k[3, 5], k[4, 200], k[5] = 0.0, math.nan, math.inf, 1e-38
    for token, amax in ((6, largest / 4), (7, largest / 4 * (1 + 2**-7)), (8, largest / 4 * (1 - 2**-8))):
        k[token] = k[token].clamp(-amax / 2, amax / 2)
        k[token, 3] = amax
    check_write(device, run, backend, k, 128, scale_fmt)


@pytest.mark.parametrize("backend", BACKENDS)
def test_fp8_cache_with_blocks_apart(device, run, backend):
    """A view of blocks in larger ones, slots of int32, tokens without a slot at the end."""
    k, storage = keys(device, 7, 128), random_cache(device, 3, 40, 132)
    expected, slots = storage.clone(), slots_of(device, 5, 48).int()
    put(expected[:, :16], k, slots, 128, "ue8m0", False)
    run(backend, function, k, storage.view(dtypes.fp8_of(target_of(device).arch))[:, :16], slots, 128, "ue8m0", False)
    assert torch.equal(storage, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_slots_outside_the_cache_and_empty(device, run, backend):
    cache = random_cache(device, 3, 16, 132)
    before, outside = cache.clone(), torch.tensor([-1, 48, 2**40, -(2**40), 2**32 + 1], device=device)
    run(backend, function, keys(device, 5, 128), cache, outside, 128, "ue8m0")
    function(keys(device, 0, 128), cache, outside[:0], 128, "ue8m0", backend=backend)
    function(keys(device, 5, 128), cache[:0], outside, 128, "ue8m0", backend=backend)
    assert torch.equal(cache, before)


def test_bad_input_is_named(device):
    k, cache, slots = keys(device, 4, 128), random_cache(device, 3, 16, 132), slots_of(device, 4, 48)
    other = torch.float8_e4m3fn if target_of(device).platform == "hip" else torch.float8_e4m3fnuz
    for message, kind, args in (
            ("kv_cache must have dtype", TypeError, (k, cache.float(), slots, 128, "ue8m0")),
            ("kv_cache: fp8 on .* is", TypeError, (k, cache.view(other), slots, 128, "ue8m0")),
            ("kv_cache must have at least 136 bytes per token, for 128 elements and 2 scales, got 132", ValueError,
             (k, cache, slots, 64, "ue8m0")),
            ("kv_cache must be contiguous within a block", ValueError,
             (k, random_cache(device, 3, 16, 264)[:, :, :132], slots, 128, "ue8m0")),
            ("kv_cache must have scales at multiples of 4 bytes", ValueError,
             (keys(device, 4, 130), random_cache(device, 3, 1, 134), slots, 130, "ue8m0")),
            ("quant_block_size must divide the head_dim 128, got 100", ValueError, (k, cache, slots, 100, "ue8m0")),
            ("quant_block_size must be between", ValueError, (k, cache, slots, 0, "ue8m0")),
            ("scale_fmt must be 'ue8m0' or ''", ValueError, (k, cache, slots, 128, "e8m0")),
            ("preshuffle needs a page size and head_dim", ValueError,
             (k, random_cache(device, 3, 8, 132), slots, 128, "ue8m0", True)),
            ("preshuffle needs a quant_block_size", ValueError,
             (k, random_cache(device, 3, 16, 192), slots, 8, "ue8m0", True)),
            ("slot_mapping must have at most 4", ValueError, (k, cache, slots.repeat(2), 128, "ue8m0"))):
        with pytest.raises(kind, match=f"indexer_k_quant_and_cache: {message}"):
            function(*args)
    with pytest.raises(UnsupportedError, match="groups of at most 8192 elements, got 16384"):
        function(keys(device, 1, 16384), random_cache(device, 3, 1, 16388), slots[:1], 16384, "", backend="hip")


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", (BF16, FP16, FP32), ids=str)
def test_against_model_everywhere(device, run, dtype):
    for (head_dim, size), preshuffle, scale_fmt, seed in itertools.product(
            ((128, 128), (256, 64), (512, 256), (64, 16), (1536, 512)), (False, True), ("ue8m0", ""), range(2)):
        check_write(device, run, "hip", keys(device, 9, head_dim, dtype, seed), size, scale_fmt, preshuffle)


def bench() -> None:
    """Writes of DeepSeek-V3.2's 128 elements in pages of 64; needs a GPU. Up to 64 tokens are checked."""
    benching.table("indexer_k_quant_and_cache bf16, 128 elements, one scale",
                   (benching.rotating(functools.partial(_bench_case, tokens)) for tokens in (1, 64, 8192, 65536)))


def _bench_case(tokens: int, seed: int) -> benching.Case:
    device = torch.device("cuda")
    k, cache = keys(device, tokens, 128), random_cache(device, 2 * tokens // 64 + 1, 64, 132)
    before, expected, slots = cache.clone(), cache.clone(), torch.arange(tokens, device=device)
    if tokens <= 64 and seed == 0:
        put(expected, k, slots, 128, "ue8m0", False)

    def check(_result) -> float:
        assert tokens > 64 or torch.equal(cache, expected)
        cache.copy_(before)  # the next contender has to write it again
        return 0.0

    return benching.Case(f"{tokens} tokens", tokens * (3 * 128 + 12),
                         benching.by_backend(function, k, cache, slots, 128, "ue8m0", backends=BACKENDS), check)

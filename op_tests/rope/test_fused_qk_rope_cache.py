# SPDX-License-Identifier: MIT
"""fused_qk_rope_cache: q, k, v and every byte of the caches, over layouts, dtypes, norm, partial rotation, skipped
slots; both public functions; bad input.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math

import pytest
import torch
from covering import covering
from kv_cache_cases import LAYOUTS, Caches, make, runs_of_slots
from rope_cases import rope_float64, tables

import aiter_like
from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common.paged_cache import as_bytes
from aiter_like.testing import TOLERANCES, assert_within, strided_like

BACKENDS = ("hip", "triton", "torch")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
EPSILON = 1e-6
HEADS, KV_HEADS, TOKENS, BLOCKS, PAGE = 4, 2, 7, 3, 16


def randn(*shape: int, device: torch.device, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2).to(device, dtype)


def slots_of(device: torch.device, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Places in three blocks; two tokens have none."""
    slots = torch.randperm(BLOCKS * PAGE, generator=torch.Generator().manual_seed(1))[:TOKENS]
    slots[2], slots[4] = -1, BLOCKS * PAGE
    return slots.to(device, dtype)


def written(caches: Caches, slots: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Tokens that have a slot, and the K and V rows that are there now."""
    key, value = caches.key, caches.value
    tokens = [i for i, slot in enumerate(slots.tolist()) if 0 <= slot < BLOCKS * PAGE]
    rows: list[list[torch.Tensor]] = [[], []]
    for token in tokens:
        block, offset = divmod(int(slots[token]), PAGE)
        rows[0].append(key[block, offset] if key.ndim == 4 else key[block, :, :, offset].flatten(1))
        x = value.shape[-1]
        rows[1].append(value[block, :, offset // x, :, offset % x] if value.ndim == 5 else
                       value[block, offset] if key.ndim == 4 else value[block, :, :, offset])
    return torch.tensor(tokens), [torch.stack(each) for each in rows]


def expected(x: torch.Tensor, weight: torch.Tensor | None, cos, sin, *flags) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 result and what its fp32 error scales with."""
    x = x.detach().cpu().double()
    if weight is not None:
        x = x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weight.cpu().double()
    return rope_float64(x, cos, sin, *flags)


def check(name: str, out: torch.Tensor, value: torch.Tensor, magnitude: torch.Tensor, scale: float = 1.0) -> None:
    """One rounding to the dtype of `out`, plus fp32's error of norm and rotation."""
    if out.dtype.itemsize == 1:
        unit, smallest = 2**-4, 2**-10
        limit = torch.finfo(out.dtype).max
        value, magnitude = (value / scale).clamp(-limit, limit), magnitude / scale
    else:
        unit, smallest = TOLERANCES[out.dtype, "rtne"].unit, TOLERANCES[out.dtype, "rtne"].smallest
        value, magnitude = value / scale, magnitude / scale
    fp32 = 2**-24 * (12 + math.sqrt(out.shape[-1]))
    assert_within(name, out.float(), value, unit * (1 + unit) * value.abs() + fp32 * magnitude + smallest)


def pages(device, layout: str, head_dim: int, dtype: torch.dtype) -> tuple[Caches, torch.Tensor]:
    caches = make(device, layout, BLOCKS, PAGE, KV_HEADS, (head_dim, head_dim), dtype)
    return caches, caches.storage.clone()


def check_caches(caches: Caches, before, slots, key, value, scales=(1.0, 1.0)) -> None:
    """`key` and `value` are (expected, magnitude); nothing but their slots has changed."""
    tokens, rows = written(caches, slots)
    for name, row, (wanted, magnitude), scale in zip("kv", rows, (key, value), scales, strict=True):
        check(f"cache of {name}", row, wanted[tokens], magnitude[tokens], scale)
    caches.check(before, rows, slots[tokens.to(slots.device)])


@pytest.mark.parametrize("backend, layout, is_fp8", (
    *itertools.product(("hip", "torch"), LAYOUTS, (False, True)), ("triton", "padded", False),
    ("triton", "columns", False), ("triton", "shuffled", True)))  # a Triton build per case is most of the time
def test_rope_and_cache(device, run, backend, layout, is_fp8):
    cache_dtype = dtypes.fp8_of(target_of(device).arch) if is_fp8 else BF16
    (cos, sin), exact = tables(torch.rand(40, 32, generator=torch.Generator().manual_seed(2)) * 50, BF16, device)
    positions, offsets = torch.arange(TOKENS) * 3, torch.arange(TOKENS) % 4
    rows = [table[positions + offsets] for table in exact]
    q, k, v = (randn(TOKENS, count, 64, device=device, seed=count + 5) for count in (HEADS, KV_HEADS, KV_HEADS))
    scales = (0.05, 1.7) if is_fp8 else (0.5, 2.0)
    for is_neox in (True, False):
        caches, before = pages(device, layout, 64, cache_dtype)
        slots = slots_of(device, torch.int64 if is_neox else torch.int32)
        outs = run(backend, aiter_like.fused_qk_rope_reshape_and_cache, q, k, v, caches.key, caches.value, slots,
                   positions.to(device), cos, sin, *(torch.tensor([s], device=device) for s in scales), is_neox,
                   caches.key.ndim == 4, offs=offsets.to(device))
        flags = (0 if is_neox else 1, True)
        key = expected(k, None, *rows, *flags)
        check("q_out", outs[0], *expected(q, None, *rows, *flags))
        check("k_out", outs[1], *key)
        check_caches(caches, before, slots, key, (v.cpu().double(), v.cpu().double().abs()), scales)
        assert len(outs) == 5 and outs[4].shape == q.shape and not outs[4].any()


@pytest.mark.parametrize("layout, is_fp8", (("columns", False), ("shuffled", False), ("shuffled", True)))
def test_runs_of_neighbouring_slots(device, run, layout, is_fp8):
    """What tiles of tokens write is what single tokens write to rows."""
    slots, cache_dtype = runs_of_slots(), dtypes.fp8_of(target_of(device).arch) if is_fp8 else BF16
    (cos, sin), _ = tables(torch.rand(40, 32, generator=torch.Generator().manual_seed(2)) * 50, BF16, device)
    q, k, v = (randn(len(slots), count, 64, device=device, seed=count + 5) for count in (HEADS, KV_HEADS, KV_HEADS))
    scale, rows = torch.tensor([0.5], device=device), []
    for each in ("nhd", layout):
        caches = make(device, each, 15, PAGE, KV_HEADS, (64, 64), cache_dtype)
        before = caches.storage.clone()
        run("hip", aiter_like.fused_qk_rope_reshape_and_cache, q, k, v, caches.key, caches.value, slots.to(device),
            (torch.arange(len(slots)) % 40).to(device), cos, sin, scale, scale, True, each == "nhd")
        places = slots.clamp(0).to(device)
        rows = rows or [as_bytes(cache).flatten(0, 1)[places].view(cache_dtype) for cache in (caches.key, caches.value)]
    caches.check(before, rows, slots)


@pytest.mark.parametrize("backend, is_fp8, layout", (
    *((backend, is_fp8, layout) for backend in ("hip", "torch") for is_fp8 in (False, True)
      for layout in ("packed", "shuffled")), ("triton", False, "nhd"), ("triton", True, "shuffled")))
def test_norm_rope_and_cache(device, run, backend, is_fp8, layout):
    """All of a head or half of it rotated, both styles; k and v returned or not; caches given by rows of blocks."""
    cache_dtype = dtypes.fp8_of(target_of(device).arch) if is_fp8 else BF16
    x = 16 // cache_dtype.itemsize
    qkv = randn(TOKENS, (HEADS + 2 * KV_HEADS) * 64, device=device)
    q, k, v = qkv.view(TOKENS, -1, 64).split((HEADS, KV_HEADS, KV_HEADS), 1)
    qw, kw = (randn(64, device=device, seed=seed) for seed in (1, 2))
    positions, scales, slots = torch.arange(TOKENS) * 5, (0.04, 0.5) if is_fp8 else (1.0, 1.0), slots_of(device)
    for rotary_dim, is_neox, return_kv in ((0, True, True), (32, False, False), (32, True, True)):
        width = rotary_dim or 64
        angles = torch.rand(40, width // 2, generator=torch.Generator().manual_seed(2)) * 50
        (cos, sin), exact = tables(angles, BF16, device)
        rows = [table[positions] for table in exact]
        caches, before = pages(device, layout, 64, cache_dtype)
        key, value = caches.key, caches.value
        if key.ndim == 5 and is_neox:  # the same bytes under the shape of whole rows
            key, value = (plane.reshape(BLOCKS, PAGE, KV_HEADS, 64) for plane in (key, value))
        q_out = torch.empty(TOKENS, HEADS * 64, dtype=BF16, device=device)
        k_out, v_out = (torch.full((TOKENS, KV_HEADS, 64), 7.0, dtype=BF16, device=device) for _ in range(2))
        place = device if return_kv else "cpu"  # AITER reads scales on the host
        run(backend, aiter_like.fused_qk_norm_rope_cache_pts_quant_shuffle, qkv, qw, kw,
            torch.cat((cos, sin), -1)[:, 0, 0].contiguous(), positions.to(device), TOKENS, HEADS, KV_HEADS, KV_HEADS,
            64, is_neox, EPSILON, q_out, key, value, slots, *(torch.tensor(s, device=place) for s in scales), k_out,
            v_out, return_kv, layout == "shuffled", PAGE, x, rotary_dim)
        flags = (0 if is_neox else 1, True)
        key = expected(k, kw, *rows, *flags)
        check("q_out", q_out.view(TOKENS, HEADS, 64), *expected(q, qw, *rows, *flags))
        check_caches(caches, before, slots, key, (v.cpu().double(), v.cpu().double().abs()), scales)
        if return_kv:
            check("k_out", k_out, *key)
            assert torch.equal(v_out, v)
        else:
            assert (k_out == 7).all() and (v_out == 7).all()


@pytest.mark.parametrize("layout, head_dim, rotary_dim, tokens", (
    ("packed", 128, 128, 2300), ("shuffled", 128, 128, 2300), ("packed", 64, 62, 1200)), ids=str)
def test_several_heads_of_a_lane(device, run, layout, head_dim, rotary_dim, tokens):
    """With enough tokens a lane takes two heads, four where it accesses single elements; 11 of q are no multiple."""
    heads, slots = 11, torch.full((tokens,), -1)
    slots[-TOKENS:] = slots_of(torch.device("cpu"))
    qkv = randn(tokens, (heads + 2 * KV_HEADS) * head_dim, device=device)
    q, k, v = qkv.view(tokens, -1, head_dim).split((heads, KV_HEADS, KV_HEADS), 1)
    qw, kw = (randn(head_dim, device=device, seed=seed) for seed in (1, 2))
    positions = torch.arange(tokens) % 40
    angles = torch.rand(40, rotary_dim // 2, generator=torch.Generator().manual_seed(2)) * 50
    (cos, sin), exact = tables(angles, BF16, device)
    rows = [table[positions] for table in exact]
    caches, before = pages(device, layout, head_dim, BF16)
    q_out, one = torch.empty(tokens, heads * head_dim, dtype=BF16, device=device), torch.tensor(1.0, device=device)
    run("hip", aiter_like.fused_qk_norm_rope_cache_pts_quant_shuffle, qkv, qw, kw,
        torch.cat((cos, sin), -1)[:, 0, 0].contiguous(), positions.to(device), tokens, heads, KV_HEADS, KV_HEADS,
        head_dim, True, EPSILON, q_out, caches.key, caches.value, slots.to(device), one, one, None, None, False,
        layout == "shuffled", PAGE, 8, rotary_dim)
    check("q_out", q_out.view(tokens, heads, head_dim), *expected(q, qw, *rows, 0, True))
    check_caches(caches, before, slots, expected(k, kw, *rows, 0, True), (v.cpu().double(), v.cpu().double().abs()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_dtypes_in_place_and_slots_without_blocks(device, run, backend):
    """fp32 heads of 32 with a value per element of fp32 tables; q and k written in place, strided."""
    (cos, sin), exact = tables(torch.rand(9, 32, generator=torch.Generator().manual_seed(2)) * 50, FP32, device)
    rows = [table[:5] for table in exact]
    q, k, v = (strided_like(randn(5, 2, 32, device=device, dtype=FP32, seed=seed), (0, 1, 4)) for seed in range(3))
    given = [tensor.clone() for tensor in (q, k, v)]
    caches = [torch.zeros(6, 1, 2, 32, device=device) for _ in "kv"]
    slots = torch.tensor([5, 0, 1, 2], device=device)  # the last token has none
    outs = run(backend, aiter_like.fused_qk_rope_reshape_and_cache, q, k, v, *caches, slots,
               torch.arange(5, device=device), cos, sin, None, None, True, True, False, q_out=q, k_out=k,
               output_zeros=False)
    assert len(outs) == 4 and outs[0] is q and outs[1] is k and outs[2] is caches[0]
    for out, x in zip((q, k), given):
        check("in place", out, *expected(x, None, *rows, 0, False))
    assert torch.equal(caches[0][slots, 0], k[:4]) and torch.equal(caches[1][slots, 0], v[:4])
    assert not caches[0][[3, 4]].any()


@pytest.mark.parametrize("head_dim, rotary_dim, padding", (
    pytest.param(80, 80, 0, marks=pytest.mark.exhaustive), (100, 36, 2)), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_heads_of_other_sizes(device, run, backend, head_dim, rotary_dim, padding):
    """Not a power of two; a rotated part of 18 pairs, heads at multiples of 4 bytes: lanes idle, accesses are short."""
    is_shared, generator = rotary_dim == head_dim, torch.Generator().manual_seed(2)
    angles = torch.rand(TOKENS, rotary_dim // 2 if is_shared else rotary_dim, generator=generator) * 50
    (cos, sin), exact = tables(angles, BF16, device)
    qkv = randn(TOKENS, HEADS + 2 * KV_HEADS, head_dim, device=device)
    if padding:
        qkv = strided_like(qkv, (1, 0, padding))
    q, k, v = qkv.split((HEADS, KV_HEADS, KV_HEADS), 1)
    caches, before = pages(device, "nhd", head_dim, BF16)
    slots, positions = slots_of(device), torch.arange(TOKENS, device=device)
    for is_neox in (True, False):
        outs = run(backend, aiter_like.fused_qk_rope_reshape_and_cache, q, k, v, caches.key, caches.value, slots,
                   positions, cos, sin, None, None, is_neox, True, output_zeros=False)
        flags = (0 if is_neox else 1, is_shared)
        key = expected(k, None, *exact, *flags)
        check("q_out", outs[0], *expected(q, None, *exact, *flags))
        check("k_out", outs[1], *key)
        check_caches(caches, before, slots, key, (v.cpu().double(), v.cpu().double().abs()))


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_norm_of_heads_of_many_sizes(device, run, backend, seed):
    """A covering design: each pair of head size, rotated part and dtype."""
    factors = {"head_dim": (2, 6, 40, 80, 96, 100, 128, 192, 256), "rotary_dim": (0, 2, 36, 80), "dtype": (BF16, FP32)}
    for head_dim, rotary_dim, dtype in map(dict.values, covering(
            factors, seed, lambda head_dim, rotary_dim, **_: rotary_dim <= head_dim <= 128 + 128 * (rotary_dim != 2))):
        width = rotary_dim or head_dim
        qkv = randn(TOKENS, (HEADS + 2 * KV_HEADS) * head_dim, device=device, dtype=dtype)
        q, k, v = qkv.view(TOKENS, -1, head_dim).split((HEADS, KV_HEADS, KV_HEADS), 1)
        qw, kw = (randn(head_dim, device=device, dtype=dtype, seed=index) for index in (1, 2))
        (cos, sin), exact = tables(torch.rand(TOKENS, width // 2) * 50, dtype, device)
        caches, before = pages(device, "nhd", head_dim, dtype)
        slots, one = slots_of(device), torch.ones((), device=device)
        q_out = torch.empty(TOKENS, HEADS * head_dim, dtype=dtype, device=device)
        run(backend, aiter_like.fused_qk_norm_rope_cache_pts_quant_shuffle, qkv, qw, kw,
            torch.cat((cos, sin), -1)[:, 0, 0].contiguous(), torch.arange(TOKENS, device=device), TOKENS, HEADS,
            KV_HEADS, KV_HEADS, head_dim, True, EPSILON, q_out, caches.key, caches.value, slots, one, one, None, None,
            False, False, PAGE, 16 // dtype.itemsize, rotary_dim)
        check("q_out", q_out.view(TOKENS, HEADS, head_dim), *expected(q, qw, *exact, 0, True))
        check_caches(caches, before, slots, expected(k, kw, *exact, 0, True), (v.cpu().double(),
                                                                               v.cpu().double().abs()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_stays_in_its_head(device, run, backend):
    qkv = randn(2, 3 * 64, device=device)
    qkv[1, 64 + 3] = math.nan
    one, weight = torch.ones((), device=device), torch.ones(64, dtype=BF16, device=device)
    caches = [torch.zeros(4, 1, 64, dtype=BF16, device=device) for _ in "kv"]
    q_out = torch.empty(2, 1, 64, dtype=BF16, device=device)
    cos_sin = torch.ones(2, 64, dtype=BF16, device=device)
    index = torch.arange(2, device=device)
    run(backend, aiter_like.fused_qk_norm_rope_cache_pts_quant_shuffle, qkv, weight, weight, cos_sin, index, 2, 1, 1, 1,
        64, True, EPSILON, q_out, *caches, index, one, one, None, None, False, False, 0, 0)
    assert caches[0][1].isnan().all() and not caches[0][[0, 2, 3]].isnan().any()
    assert not q_out.isnan().any() and torch.equal(caches[1][:2, 0], qkv[:, 128:])


def test_bad_arguments_are_named(device):
    q, k = (randn(3, count, 64, device=device) for count in (4, 2))
    cos = sin = torch.ones(9, 32, dtype=BF16, device=device)
    cache, index = torch.zeros(2, 16, 2, 64, dtype=BF16, device=device), torch.arange(3, device=device)
    good = [q, k, k, cache, cache.clone(), index, index, cos, sin, None, None, True, True]
    right_fp8 = dtypes.fp8_of(target_of(device).arch)
    wrong_fp8 = torch.float8_e4m3fn if right_fp8 == torch.float8_e4m3fnuz else torch.float8_e4m3fnuz
    for message, error, changes in (
            ("key_cache must have shape", ValueError, {3: cache[:, :, :1]}),
            ("key_cache must have dtype", TypeError, {3: cache.half(), 4: cache.half()}),
            ("key_cache: fp8 on", TypeError, {3: cache.to(wrong_fp8), 4: cache.to(wrong_fp8)}),
            ("slot_mapping must have dtype", TypeError, {5: index.float()}),
            ("cos must turn an even number of elements, at most 64, got 66", ValueError,
             {7: torch.ones(9, 66, dtype=BF16, device=device)}),
            ("sin must have shape", ValueError, {8: sin[:4]}),
            ("k_scale must have 1 element", ValueError, {9: torch.ones(2, device=device)}),
            ("flash_layout is False, but key_cache has shape", ValueError, {12: False})):
        with pytest.raises(error, match=message):
            aiter_like.fused_qk_rope_reshape_and_cache(*(changes.get(i, arg) for i, arg in enumerate(good)))
    most = 16 * target_of(device).wave_size
    for head_dim, message in ((63, "must be even, got 63"), (1056, f"at most {most} where")):
        heads = [torch.zeros(*tensor.shape[:-1], head_dim, dtype=BF16, device=device) for tensor in good[:5]]
        with pytest.raises(UnsupportedError, match=f"head dimension {message}"):
            aiter_like.fused_qk_rope_reshape_and_cache(*heads, *good[5:], backend="hip")
    with pytest.raises(ValueError, match="qkv must be a view of"):
        aiter_like.fused_qk_norm_rope_cache_pts_quant_shuffle(
            q, cos, cos, cos, index, 3, 4, 1, 1, 64, True, 1e-6, q, cache, cache, index, cos, cos, None, None, False,
            False, 16, 8)


def test_signatures_and_empty(device):
    assert ", ".join(inspect.signature(aiter_like.fused_qk_norm_rope_cache_pts_quant_shuffle).parameters) == (
        "qkv, qw, kw, cos_sin, positions, num_tokens, num_heads_q, num_heads_k, num_heads_v, head_size, is_neox_style, "
        "eps, q_out, k_cache, v_cache, slot_mapping, per_tensor_k_scale, per_tensor_v_scale, k_out, v_out, return_kv, "
        "use_shuffle_layout, block_size, x, rotary_dim, backend")
    q, k, cos = (randn(*shape, device=device) for shape in ((3, 4, 64), (3, 2, 64), (9, 32)))
    cache, index = torch.zeros(2, 16, 2, 64, dtype=BF16, device=device), torch.arange(3, device=device)
    outs = aiter_like.fused_qk_rope_reshape_and_cache(q[:0], k[:0], k[:0], cache, cache, index[:0], index[:0], cos, cos,
                                                      None, None, True, True)
    assert outs[0].shape == (0, 4, 64)


def bench() -> None:
    """Decode and prefill of an 8B model's layer; the parts one after the other beside it."""
    import benching

    device = torch.device("cuda")

    def case(tokens, is_fp8, is_packed, seed):
        generator = torch.Generator(device).manual_seed(seed)
        qkv = torch.randn(tokens, 48 * 128, device=device, dtype=BF16, generator=generator)
        weight = torch.ones(128, device=device, dtype=BF16)
        (cos, sin), _ = tables(torch.rand(tokens, 64, generator=torch.Generator().manual_seed(seed)) * 50, BF16, device)
        cos_sin = torch.cat((cos, sin), -1)[:, 0, 0].contiguous()
        dtype = dtypes.fp8_of(target_of(device).arch) if is_fp8 else BF16
        x, blocks = 16 // dtype.itemsize, tokens // 16
        packed, rows = ((blocks, 8, 128 // x, 16, x), (blocks, 8, 16 // x, 128, x)), ((blocks, 16, 8, 128),) * 2
        caches = [torch.zeros(shape, device=device, dtype=dtype) for shape in (packed if is_packed else rows)]
        index, one = torch.arange(tokens, device=device), torch.ones((), device=device)
        q_out = torch.empty(tokens, 32, 128, device=device, dtype=BF16)
        args = (qkv, weight, weight, cos_sin, index, tokens, 32, 8, 8, 128, True, EPSILON, q_out, *caches, index,
                one, one, None, None, False, is_packed, 16, x)
        q, k, v = qkv.view(tokens, 48, 128).split((32, 8, 8), 1)
        even = q.contiguous(), k.contiguous()  # as rms_norm's kernels want them

        def parts():
            turned = [aiter_like.rms_norm(x, weight, EPSILON) for x in even]
            aiter_like.rope_cached_positions_2c_fwd_inplace(*(x.unsqueeze(1) for x in turned), cos, sin,
                                                            index[:, None], 0, True, False)
            write = aiter_like.reshape_and_cache if is_packed else aiter_like.reshape_and_cache_flash
            write(turned[1], v, *caches, index, "fp8" if is_fp8 else "auto", one, one, *([True] * is_packed))
            return turned[0]

        def whole(backend):
            aiter_like.fused_qk_norm_rope_cache_pts_quant_shuffle(*args, backend=backend)
            return q_out

        first = slice(0, 64)
        wanted = expected(q[first], weight, *(table.cpu()[first, 0, 0].double() for table in (cos, sin)), 0, True)

        def checked(out):
            limit = 2**-6 * wanted[0].abs() + 2**-7 * wanted[1]  # the parts round three times
            return assert_within("q", out[first], wanted[0], limit)

        return benching.Case(
            f"{tokens}x32+8+8x128{' fp8' * is_fp8}{' packed' * is_packed}",
            tokens * 128 * (2 * (48 + 32) + 16 * dtype.itemsize),
            {"hip": functools.partial(whole, "hip"), "triton": functools.partial(whole, "triton"), "three ops": parts},
            checked)

    shapes = ((64, False, False), (4096, False, False), (16384, False, False), (16384, False, True),
              (16384, True, False), (16384, True, True))
    benching.table("q/k norm, rope, cache write, bf16",
                   (benching.rotating(functools.partial(case, *shape)) for shape in shapes))

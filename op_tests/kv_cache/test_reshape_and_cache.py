# SPDX-License-Identifier: MIT
"""reshape_and_cache, reshape_and_cache_flash and concat_and_cache_mla: every byte of the storage against a plain model,
over layouts, strides, dtypes, page sizes, skipped slots; bad input.
"""

import functools
import itertools
import math

import bench_peers
import benching
import pytest
import torch
from kv_cache_cases import LAYOUTS, Caches, make, put, runs_of_slots, slots_of, to_fp8, tokens_of

import aiter_like
from aiter_like import dtypes, sim
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common import paged_cache
from aiter_like.testing import strided_like

BACKENDS = ("hip", "torch")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
OUTSIDE = (-1, -(2**40), 2**40)  # and the first slot beyond the cache, which the tests add


def write(run, backend, caches: Caches, key, value, slots, kind="auto", k_scale=None, v_scale=None) -> None:
    """The public function of the caches' layout."""
    key_cache, value_cache = caches.views(caches.storage)
    if key_cache.ndim == 4:
        run(backend, aiter_like.reshape_and_cache_flash, key, value, key_cache, value_cache, slots, kind, k_scale,
            v_scale)
    else:
        run(backend, aiter_like.reshape_and_cache, key, value, key_cache, value_cache, slots, kind, k_scale, v_scale,
            value_cache.ndim == 5)


def check_write(device, run, backend, layout, heads, dims, dtype, kind, page_size=16, seed=0) -> None:
    """7 tokens, one in a negative slot and one just beyond the cache."""
    num_blocks = 3 if page_size > 8 else 20
    cache_dtype = dtype if kind == "auto" else dtypes.fp8_of(target_of(device).arch)
    caches = make(device, layout, num_blocks, page_size, heads, dims, cache_dtype)
    before = caches.storage.clone()
    rows = key, value = tokens_of(device, 7, heads, dims, dtype, seed)
    slots = slots_of(device, 7, num_blocks * page_size, seed, (-1, num_blocks * page_size))
    scales = [torch.tensor([scale], device=device) for scale in (0.03, 1.7)]
    if kind != "auto":
        rows = [to_fp8(x, scale.item()) for x, scale in zip(rows, scales, strict=True)]
    write(run, backend, caches, key, value, slots, kind, *scales)
    caches.check(before, rows, slots)


@pytest.mark.parametrize("dtype, kind", ((BF16, "auto"), (BF16, "fp8")), ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_model(device, run, backend, layout, dtype, kind):
    for heads, dims in ((2, (64, 64)), (3, (48, 80)), (1, (16, 48))):
        check_write(device, run, backend, layout, heads, dims, dtype, kind)


@pytest.mark.parametrize("dtype, kind", ((FP16, "auto"), (FP32, "fp8_e4m3")), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_other_dtypes(device, run, backend, dtype, kind):
    for layout in ("packed", "columns", "shuffled"):
        check_write(device, run, backend, layout, 3, (48, 80), dtype, kind)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_and_strides_that_need_single_elements(device, run, backend):
    for kind, (heads, dims) in itertools.product(("auto", "fp8"), ((5, (7, 7)), (2, (33, 1)), (1, (1, 72)))):
        for layout in ("nhd", "packed"):
            check_write(device, run, backend, layout, heads, dims, BF16, kind)
    check_write(device, run, backend, "columns", 3, (16, 11), BF16, "auto")
    check_write(device, run, backend, "shuffled", 3, (32, 5), BF16, "fp8")


@pytest.mark.parametrize("page_size", (1, 64))
@pytest.mark.parametrize("backend", BACKENDS)
def test_page_sizes(device, run, backend, page_size):
    for layout in LAYOUTS if page_size > 1 else LAYOUTS[:-1]:
        check_write(device, run, backend, layout, 2, (32, 32), BF16, "fp8", page_size)


@pytest.mark.parametrize("layout", ("packed", "columns"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_strided_tokens(device, run, backend, layout):
    """Slices of one projection, a batch with gaps, an odd start; tokens beyond the slots are padding."""
    heads, dim = 2, 32
    qkv = tokens_of(device, 9, 4 * heads, (dim, 1), BF16)[0]
    key, value = qkv[:, 2 * heads:3 * heads], qkv[:, 3 * heads:]
    odd = strided_like(key, (0, 1, 3), offset=1)
    for k, v in ((key, value), (odd, value), (key[::2], value[::2]), (key[:1].expand(7, heads, dim), value[:7])):
        caches = make(device, layout, 3, 16, heads, (dim, dim), BF16)
        before, slots = caches.storage.clone(), slots_of(device, 5, 48)
        write(run, backend, caches, k, v, slots)
        caches.check(before, [k, v], slots)


@pytest.mark.parametrize("slot_dtype", (torch.int32, torch.int64), ids=str)
@pytest.mark.parametrize("layout", ("hnd", "shuffled"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_slots_outside_the_cache_are_skipped(device, run, backend, layout, slot_dtype):
    """Wherever they point; the simulator's bounds checker watches every access as well."""
    outside = [slot for slot in (*OUTSIDE, 48, 49, 2**31 - 1, -(2**31)) if torch.iinfo(slot_dtype).min <= slot
               <= torch.iinfo(slot_dtype).max]
    if slot_dtype == torch.int64:
        outside += [2**32 + 5, 2**63 - 1, -(2**63)]
    slots = torch.tensor([*outside, 5, 47, 0], dtype=slot_dtype, device=device)
    caches = make(device, layout, 3, 16, 2, (32, 32), BF16)
    before, rows = caches.storage.clone(), tokens_of(device, len(slots), 2, (32, 32), BF16)
    write(run, backend, caches, *rows, slots)
    caches.check(before, rows, slots)
    written, nothing = caches.storage.clone(), slots[:len(outside)]
    write(run, backend, caches, *rows, nothing)
    assert torch.equal(caches.storage, written)


@pytest.mark.parametrize("backend", BACKENDS)
def test_fp8_of_special_values(device, run, backend):
    """Saturation, NaN, infinities, ties, zeros, subnormals; scale 0, infinite and NaN; the cache as bytes."""
    values = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e30, -1e30, 1e-30, 17.0, 19.0, 2.0**-9, 2.0**-11, -(2.0**-12)]
    x = torch.tensor(values + [1.0] * 3, device=device).to(BF16).view(1, 1, 16)
    for scale in (1.0, 0.5, 0.0, math.inf, math.nan, 2.0**-130):
        caches = make(device, "nhd", 2, 4, 1, (16, 16), torch.uint8)
        before, slots = caches.storage.clone(), torch.tensor([3], device=device)
        write(run, backend, caches, x, x, slots, "fp8", torch.tensor(scale, device=device), None)
        caches.check(before, [to_fp8(x, scale), to_fp8(x, 1.0)], slots)


@pytest.mark.parametrize("backend", BACKENDS)
def test_offsets_of_more_than_32_bits(device, run, backend):
    """Blocks 2^31 + 512 elements apart; only the pages that are written become memory."""
    stride = 2**31 + 512
    for kind, dtype in (("auto", BF16), ("fp8", dtypes.fp8_of(target_of(device).arch))):
        if device.type == "cuda" and torch.cuda.mem_get_info()[0] < 3 * stride * dtype.itemsize:
            pytest.skip("not enough memory")
        storage = torch.empty(2 * stride + 2 * 4096, dtype=dtype, device=device)
        planes = [storage.as_strided((3, 4, 2, 32), (stride, 64, 32, 1), start) for start in (0, 4096)]
        for plane in planes:
            plane.view(torch.uint8).fill_(0x55)
        expected = [plane.clone() for plane in planes]
        rows = key, value = tokens_of(device, 3, 2, (32, 32), BF16)
        slots = torch.tensor([9, 2, 4], device=device)
        write(run, backend, Caches(storage, lambda _, planes=planes: tuple(planes)), key, value, slots, kind)
        put(*expected, *(rows if kind == "auto" else [to_fp8(x, 1.0) for x in rows]), slots)
        for plane, copy in zip(planes, expected, strict=True):
            assert torch.equal(plane.contiguous().view(torch.uint8), copy.view(torch.uint8))


@pytest.mark.parametrize("layout", ("nhd", "shuffled"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_empty(device, run, backend, layout):
    for tokens, num_blocks in ((0, 3), (4, 0)):
        caches = make(device, layout, num_blocks, 16, 2, (32, 32), BF16)
        before = caches.storage.clone()
        key, value = tokens_of(device, tokens, 2, (32, 32), BF16)
        key_cache, value_cache = caches.views(caches.storage)
        call = aiter_like.reshape_and_cache_flash if layout == "nhd" else aiter_like.reshape_and_cache
        slots = torch.zeros(tokens, dtype=torch.int64, device=device)
        layout_args = () if layout == "nhd" else (True,)
        call(key, value, key_cache, value_cache, slots, "auto", None, None, *layout_args, backend=backend)
        assert torch.equal(caches.storage, before)


@pytest.mark.parametrize("kind", ("auto", "fp8"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_mla(device, run, backend, kind):
    for (rank, rope), page_size in itertools.product(((512, 64), (96, 32), (5, 3)), (1, 16)):
        cache_dtype = BF16 if kind == "auto" else dtypes.fp8_of(target_of(device).arch)
        caches = make(device, "packed", 6, page_size, 1, (rank, rope), cache_dtype)
        before, scale = caches.storage.clone(), torch.tensor([0.25], device=device)
        latent, rotated = tokens_of(device, 5, 1, (rank, rope), BF16)
        slots = slots_of(device, 5, 6 * page_size, skip=(-1, 6 * page_size))
        whole = caches.storage.view(cache_dtype).view(6, page_size, rank + rope)
        for cache, k_pe in ((whole, rotated[:, 0]), (whole.unsqueeze(2), rotated)):
            caches.storage.copy_(before)
            run(backend, aiter_like.concat_and_cache_mla, latent[:, 0], k_pe, cache, slots, kind, scale)
            rows = latent, rotated
            caches.check(before, [to_fp8(x, 0.25) for x in rows] if kind == "fp8" else rows, slots)


def bad_flash_calls(device):
    key, value = tokens_of(device, 4, 2, (32, 48), BF16)
    caches = make(device, "nhd", 3, 16, 2, (32, 48), BF16)
    kc, vc, slots = caches.key, caches.value, slots_of(device, 4, 48)
    other = torch.float8_e4m3fn if target_of(device).platform == "hip" else torch.float8_e4m3fnuz
    foreign = torch.zeros(kc.shape, dtype=other, device=device)
    one = torch.ones(1, device=device)
    yield "key_cache must have 4 dimensions", ValueError, (key, value, kc[0], vc, slots, "auto", None, None)
    yield r"key_cache must have shape \(3, 16, 2, 32\)", ValueError, (key, value, vc, vc, slots, "auto", None, None)
    yield r"value_cache must have shape \(3, 16, 2, 48\)", ValueError, (key, value, kc, vc[:, :8], slots, "auto",
                                                                        None, None)
    yield "key_cache must have dtype torch.bfloat16", TypeError, (key, value, kc.half(), vc, slots, "auto", None, None)
    yield "value_cache must have dtype torch.bfloat16", TypeError, (key, value, kc, vc.half(), slots, "auto", None,
                                                                    None)
    yield "key_cache must have dtype torch.float8", TypeError, (key, value, kc, vc, slots, "fp8", one, one)
    yield "key_cache: fp8 on .* is", TypeError, (key, value, foreign, vc.to(other), slots, "fp8", one, one)
    yield "key: fp8 on .* is", TypeError, (key.to(other), value.to(other), foreign, vc.to(other), slots, "auto", None,
                                           None)
    yield "kv_cache_dtype must be 'auto', 'fp8' or", ValueError, (key, value, kc, vc, slots, "int8", None, None)
    yield "slot_mapping must have at most 4", ValueError, (key, value, kc, vc, slots.repeat(2), "auto", None, None)
    yield "k_scale must have 1 element", ValueError, (key, value, kc, vc, slots, "auto", one.repeat(2), one)
    yield "v_scale must have dtype", TypeError, (key, value, kc, vc, slots, "auto", one, one.half())
    yield "value_cache must be on", ValueError, (key, value, kc, vc.to("meta"), slots, "auto", None, None)


def test_bad_input_is_named(device):
    for message, kind, args in bad_flash_calls(device):
        with pytest.raises(kind, match=message):
            aiter_like.reshape_and_cache_flash(*args)
    key, value = tokens_of(device, 4, 2, (32, 32), BF16)
    caches, slots = make(device, "shuffled", 3, 16, 2, (32, 32), BF16), slots_of(device, 4, 48)
    kc, vc = caches.key, caches.value
    for message, kind, args in (
            ("asm_layout must be True or False", TypeError, (kc, vc, slots, "auto", None, None, 1)),
            ("value_cache must have 4 dimensions", ValueError, (kc, vc, slots, "auto", None, None, False)),
            ("key_cache must have 5 dimensions", ValueError, (kc[0], vc, slots, "auto", None, None, True)),
            ("last dimension of key_cache must be a power of two", ValueError,
             (kc.reshape(3, 2, 1, 16, 32)[..., :24], vc, slots, "auto", None, None, True)),
            ("last dimension of value_cache must be a power of two", ValueError,
             (kc[:, :, :, :12], vc, slots, "auto", None, None, True)),
            (r"key_cache must have shape \(3, 2, 4, 16, 8\)", ValueError,
             (kc[:, :, :3], vc, slots, "auto", None, None, True))):
        with pytest.raises(kind, match=message):
            aiter_like.reshape_and_cache(key, value, *args)


def test_bad_mla_input_is_named(device):
    latent, rotated = (x[:, 0] for x in tokens_of(device, 4, 1, (32, 16), BF16))
    cache, slots = torch.zeros(3, 16, 48, dtype=BF16, device=device), slots_of(device, 4, 48)
    for message, kind, args in (
            ("kv_c must have 2 dimensions", ValueError, (latent[None], rotated, cache, slots, "auto", None)),
            ("kv_cache must have 3 or 4 dimensions", ValueError, (latent, rotated, cache[0], slots, "auto", None)),
            (r"kv_cache\[..., kv_lora_rank:\] must have shape \(3, 16, 1, 16\), got", ValueError,
             (latent, rotated, cache[..., :40], slots, "auto", None)),
            (r"kv_cache\[..., :kv_lora_rank\] must have dtype", TypeError,
             (latent, rotated, cache.half(), slots, "auto", None)),
            ("slot_mapping must have at most 4", ValueError,
             (latent, rotated, cache, slots.repeat(2), "auto", None)),
            ("scale must have 1 element", ValueError,
             (latent, rotated, cache, slots, "auto", torch.ones(2, device=device)))):
        with pytest.raises(kind, match=f"concat_and_cache_mla: {message}"):
            aiter_like.concat_and_cache_mla(*args)


def test_too_much_for_a_launch_is_refused(device):
    key = torch.empty(1, 1, 16, dtype=BF16, device=device).expand(2**27, 1, 16)
    cache = torch.empty(1, 1, 1, 16, dtype=BF16, device=device)
    slots = torch.empty(1, dtype=torch.int32, device=device)
    with pytest.raises(UnsupportedError, match="elements of key or value fit one launch"):
        aiter_like.reshape_and_cache_flash(key, key, cache, cache, torch.empty(2**27, dtype=torch.int32, device=device),
                                           "auto", None, None, backend="hip")
    with pytest.raises(UnsupportedError, match="a cache has at most 2147483647 slots"):
        large = cache.expand(2**16, 2**15, 1, 16)
        aiter_like.reshape_and_cache_flash(key[:1], key[:1], large, large, slots, "auto", None, None, backend="hip")


@pytest.mark.parametrize("layout, kind, page_size", (
    ("columns", "auto", 16), ("columns", "fp8", 64), ("columns", "auto", 12), ("shuffled", "auto", 16),
    ("shuffled", "fp8", 16)))
def test_runs_of_neighbouring_slots(device, run, layout, kind, page_size):
    heads, dims, slots = 3, (32, 48), runs_of_slots()
    caches = make(device, layout, 20, page_size, heads, dims,
                  BF16 if kind == "auto" else dtypes.fp8_of(target_of(device).arch))
    before, rows = caches.storage.clone(), tokens_of(device, len(slots), heads, dims, BF16)
    write(run, "hip", caches, *rows, slots.to(device), kind)
    caches.check(before, rows if kind == "auto" else [to_fp8(x, 1.0) for x in rows], slots)


@pytest.mark.parametrize("layout", ("columns", "shuffled"))
def test_of_tokens_with_one_slot_one_stays(device, run, layout):
    """Within what would leave in 16 bytes, and beside it."""
    slots = torch.tensor([*range(16), 3, 3, *range(16, 24)])
    caches = make(device, layout, 2, 16, 2, (32, 32), BF16)
    before, rows = caches.storage.clone(), tokens_of(device, len(slots), 2, (32, 32), BF16)
    write(run, "hip", caches, *rows, slots.to(device))
    possible = [torch.zeros_like(before) for _ in range(3)]
    for token, expected in zip((3, 16, 17), possible):
        expected.copy_(before)
        put(*caches.views(expected), *rows, slots)
        put(*caches.views(expected), *(x[token:token + 1] for x in rows), slots[3:4])
    assert torch.stack([caches.storage == expected for expected in possible]).any(0).all()


@pytest.mark.parametrize("kind, loads, pack", (("auto", 1, 8), ("fp8", 2, 16)))
@pytest.mark.parametrize("layout", ("packed", "columns", "shuffled"))
def test_moves_each_byte_once_in_wide_accesses(device, run, layout, kind, loads, pack):
    """A load of 16 bytes per lane, its store, the token's slot, of which copied rows load the halves one by one; in V's
    tiles stores of 16 bytes, slots of a wave."""
    if device.type != "cpu":
        pytest.skip("counts of the simulator")
    caches = make(device, layout, 5, 16, 8, (128, 128), BF16 if kind == "auto" else torch.uint8)
    rows, slots = tokens_of(device, 64, 8, (128, 128), BF16), slots_of(device, 64, 80)
    if layout != "packed":
        slots = torch.arange(16, 80)
    with sim.enabled(checks=False) as session:
        write(run, "hip", caches, *rows, slots, kind)
    counts = next(iter(session.counters.values()))
    elements, tiles = 64 * 8 * 128, 8 * 128 // (8 * pack)
    key = (4 if (layout, kind) == ("packed", "auto") else 3) * elements // (8 * 64)
    value = key if layout == "packed" else (loads + 1) * elements // (pack * 64) + tiles
    assert counts["by_class"]["global"] == key + value, counts


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype, kind", tuple(itertools.product((BF16, FP16, FP32), ("auto", "fp8"))), ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_against_model_everywhere(device, run, layout, dtype, kind):
    sizes = ((1, (128, 128)), (8, (128, 128)), (3, (80, 96)), (2, (16, 256)), (7, (48, 48)))
    for (heads, dims), page_size, seed in itertools.product(sizes, (16, 64), range(3)):
        check_write(device, run, "hip", layout, heads, dims, dtype, kind, page_size, seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_fp8_as_it_is(device, run, layout):
    check_write(device, run, "hip", layout, 3, (48, 80), dtypes.fp8_of(target_of(device).arch), "auto")


def bench() -> None:
    """Writes of Llama-3 8B's (8 heads of 128) and DeepSeek's (512 + 64) caches; needs a GPU."""
    for layout, kind in itertools.product(("nhd", "packed", "columns", "shuffled", "mla"), ("auto", "fp8")):
        make_case = functools.partial(_bench_case, layout, kind)
        benching.table(f"reshape_and_cache {layout} bf16 → {kind}, pages of 16",
                       (benching.rotating(functools.partial(make_case, tokens)) for tokens in (1, 64, 8192, 32768)))


def _bench_case(layout: str, kind: str, tokens: int, seed: int) -> benching.Case:
    device, num_blocks = torch.device("cuda"), 2 * tokens // 16 + 4
    cache_dtype = BF16 if kind == "auto" else dtypes.fp8_of(target_of(device).arch)
    heads, dims = (1, (512, 64)) if layout == "mla" else (8, (128, 128))
    caches = make(device, layout.replace("mla", "packed"), num_blocks, 16, heads, dims, cache_dtype)
    before, (key, value) = caches.storage.clone(), tokens_of(device, tokens, heads, dims, BF16, seed)
    blocks = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed))[:-(-tokens // 16)]
    slots = (blocks[:, None] * 16 + torch.arange(16)).flatten()[:tokens].to(device)  # whole pages: prefill
    scale, rows = torch.ones(1, device=device), [x if kind == "auto" else to_fp8(x, 1.0) for x in (key, value)]
    args, peer = (key, value, caches.key, caches.value, slots), "reshape_and_cache_flash"
    function, last = aiter_like.reshape_and_cache_flash, (scale, scale)
    if layout == "mla":
        function, peer, last = aiter_like.concat_and_cache_mla, "concat_and_cache_mla", (scale,)
        args = (key[:, 0], value[:, 0], caches.storage.view(cache_dtype).view(num_blocks, 16, -1), slots)
    elif layout in ("columns", "shuffled"):
        function, peer, last = aiter_like.reshape_and_cache, "reshape_and_cache", (scale, scale, layout == "shuffled")

    def check(_result) -> float:
        expected = before.clone()
        paged_cache.put(*caches.views(expected), *rows, slots)
        assert torch.equal(caches.storage, expected)
        caches.storage.copy_(before)  # the next contender has to write it again
        return 0.0

    calls = benching.by_backend(function, *args, kind, *last, backends=BACKENDS if layout != "packed" else ("hip",))
    if kind == "auto" and layout in ("nhd", "columns", "mla"):
        calls |= bench_peers.calls(peer, *args)
    return benching.Case(f"{tokens} tokens", tokens * heads * sum(dims) * (2 + cache_dtype.itemsize) + 8 * tokens,
                         calls, check)

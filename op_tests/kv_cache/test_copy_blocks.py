# SPDX-License-Identifier: MIT
"""copy_blocks and swap_blocks: every byte of the storage against a plain model, over layouts, dtypes and word sizes."""

import functools

import benching
import pytest
import torch
from kv_cache_cases import LAYOUTS, make

import aiter_like
from aiter_like import sim
from aiter_like.dispatch import OPS
from aiter_like.errors import UnsupportedError
from aiter_like.ops.kv_cache.copy_blocks import CopyBlocksCall, copy_each

BACKENDS = ("hip", "torch")
PAIRS = ((0, 3), (5, 1), (-1, 4), (4, -1), (6, 4), (4, 6), (2**40, 2), (2, -(2**40)))
DTYPES = (torch.bfloat16, torch.float8_e4m3fnuz)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def apply(source: torch.Tensor, target: torch.Tensor, pairs) -> None:
    source, target = as_bytes(source), as_bytes(target)
    for here, there in pairs:
        if 0 <= here < source.shape[0] and 0 <= there < target.shape[0]:
            target[there] = source[here]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_copy_against_model(device, backend, layout):
    """Blocks outside the cache are skipped; nothing but the target blocks changes."""
    for dtype in DTYPES:
        caches = [make(device, layout, 6, 16, 3, (32, 48), dtype) for _ in range(2)]
        caches[1].storage.add_(1)
        expected = [layer.storage.clone() for layer in caches]
        for layer, storage in zip(caches, expected, strict=True):
            for cache in layer.views(storage):
                apply(cache.clone(), cache, PAIRS)
        aiter_like.copy_blocks([layer.key for layer in caches], [layer.value for layer in caches],
                               torch.tensor(PAIRS, device=device), backend=backend)
        assert all(torch.equal(layer.storage, storage) for layer, storage in zip(caches, expected, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_number_of_caches(device, backend):
    """One, and more than a launch takes; caches of other shapes and dtypes and at odd addresses among them."""
    for count in (1, 2, 300):
        storage = torch.randint(0, 256, (count, 6 * 40 + 2), dtype=torch.uint8).to(device)
        odd = [row[1:241].view(6, 40) for row in storage[::2]]
        even = [row[2:242].view(torch.bfloat16).view(6, 4, 5) for row in storage[1::2]]
        expected = storage.clone()
        for row in expected[::2]:
            apply(row[1:241].view(6, 40).clone(), row[1:241].view(6, 40), PAIRS)
        for row in expected[1::2]:
            apply(row[2:242].view(6, 40).clone(), row[2:242].view(6, 40), PAIRS)
        caches = [*odd, *even]
        half = (count + 1) // 2
        aiter_like.copy_blocks(caches[:half], caches[half:] + caches[:2 * half - count],
                               torch.tensor(PAIRS, device=device), backend=backend)
        assert torch.equal(storage, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_odd_sizes_and_int32_pairs(device, backend):
    """One byte, an odd number of bytes, more than a workgroup's part; rank 1 to 5; blocks that start anywhere."""
    for shape in ((6,), (6, 1), (6, 7), (6, 5000, 3), (6, 2, 3, 5, 7)):
        for dtype in (torch.uint8, torch.bfloat16, torch.float32):
            storage = torch.randint(0, 256, (torch.Size(shape).numel() * 4 + 16,), dtype=torch.uint8).to(device)
            start = dtype.itemsize
            cache = storage[start:start + torch.Size(shape).numel() * dtype.itemsize].view(dtype).view(shape)
            expected, pairs = storage.clone(), torch.tensor(PAIRS[:6], dtype=torch.int32, device=device)
            apply(cache.clone(), expected[start:start + cache.nbytes].view(dtype).view(shape), PAIRS[:6])
            OPS["copy_blocks"](CopyBlocksCall(cache, None, pairs), backend=backend)
            assert torch.equal(storage, expected), (shape, dtype)


@pytest.mark.parametrize("backend", BACKENDS)
def test_swap_between_layouts(device, run, backend):
    """Blocks of [bs, H, D] into caches with other strides and another number of blocks, and back."""
    for source_layout, target_layout in (("nhd", "packed"), ("padded", "hnd"), ("hnd", "hnd")):
        source, target = (make(device, layout, blocks, 16, 3, (32, 32), torch.bfloat16)
                          for layout, blocks in ((source_layout, 6), (target_layout, 9)))
        pairs = ((5, 8), (0, 0), (3, 2), (6, 1), (1, 9))
        expected = target.storage.clone()
        apply(source.key, target.views(expected)[0], pairs)
        run(backend, aiter_like.swap_blocks, source.key, target.key, torch.tensor(pairs, device=device))
        assert torch.equal(target.storage, expected)


def test_swap_with_the_host(device):
    """Between devices, or with the pairs on the host: a copy for each pair; the same result."""
    source, target = (make(device, "nhd", blocks, 4, 2, (16, 16), torch.bfloat16) for blocks in (5, 7))
    expected, pairs = target.key.cpu().clone(), torch.tensor([[0, 6], [4, 1]])
    apply(source.key.cpu(), expected, pairs.tolist())
    host = target.key.cpu().clone()
    copy_each(source.key, host, pairs)
    if device.type == "cuda":
        torch.cuda.synchronize()
        aiter_like.swap_blocks(source.key, target.key, pairs)
        assert torch.equal(target.key.cpu().view(torch.int16), expected.view(torch.int16))
    assert torch.equal(host.view(torch.int16), expected.view(torch.int16))
    for bad in ([[5, 0]], [[0, 7]], [[-1, 0]]):
        with pytest.raises(ValueError, match="swap_blocks: block_mapping must name blocks below 5 and 7"):
            copy_each(source.key, host, torch.tensor(bad))
    with pytest.raises(TypeError, match="swap_blocks: src must have dtype"):
        copy_each(source.key.float(), host, pairs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty(device, backend):
    cache, pairs = torch.zeros(3, 8, device=device), torch.zeros(0, 2, dtype=torch.int64, device=device)
    aiter_like.copy_blocks([], [], pairs, backend=backend)
    aiter_like.copy_blocks([cache], [cache[:0]], pairs, backend=backend)
    aiter_like.swap_blocks(cache[:0], cache, pairs, backend=backend)
    aiter_like.swap_blocks(cache[:0], cache, torch.zeros(1, 2, dtype=torch.int64, device=device), backend=backend)
    assert not cache.any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_offsets_of_more_than_32_bits(device, run, backend):
    stride = 2**31 + 64
    if device.type == "cuda" and torch.cuda.mem_get_info()[0] < 6 * stride:
        pytest.skip("not enough memory")
    storage = torch.empty(2 * stride + 4096, dtype=torch.bfloat16, device=device)
    cache = storage.as_strided((3, 8, 32), (stride, 32, 1))
    for block in range(3):
        cache[block] = block
    run(backend, aiter_like.swap_blocks, cache[:2], cache[2:], torch.tensor([[1, 0]], device=device))
    assert (cache[2] == 1).all() and (cache[1] == 1).all() and (cache[0] == 0).all()


def test_bad_input_is_named(device):
    cache, pairs = torch.zeros(3, 8, 4, device=device), torch.zeros(1, 2, dtype=torch.int64, device=device)
    for message, kind, args in (
            ("key_caches must be a list of tensors, got Tensor", TypeError, (cache, [cache], pairs)),
            ("value_caches must have 1 layers like key_caches, got 0", ValueError, ([cache], [], pairs)),
            ("key_caches must be a tensor", TypeError, ([None], [cache], pairs))):
        with pytest.raises(kind, match=f"copy_blocks: {message}"):
            aiter_like.copy_blocks(*args)
    good = cache.index_fill(0, torch.tensor(0, device=device), 1.0)
    for last, kind in ((good.int()[:, :, ::2], UnsupportedError), (good[0, 0, 0], ValueError)):
        first = good.clone()
        with pytest.raises(kind):  # a later layer's cache is refused: the first is not written either
            aiter_like.copy_blocks([first, last], [good.clone(), last], pairs + 1 - pairs.new_tensor([1, 0]),
                                   backend="hip")
        assert torch.equal(first, good)
    with pytest.raises(ValueError, match=r"src must have shape \(\*, 8, 4\)"):
        aiter_like.swap_blocks(cache[:, :4], cache, pairs)
    for message, target in (("at most 5 dimensions", cache[:, None, None, None]),
                            ("must not be expanded", cache[:1].expand(3, 8, 4)),
                            ("must have contiguous elements", cache[:, :, ::2])):
        with pytest.raises(UnsupportedError, match=message):
            aiter_like.copy_blocks([target], [target], pairs, backend="hip")


@pytest.mark.parametrize("backend", BACKENDS)
def test_caches_that_overlap(device, backend):
    """… in part, one another or the mapping, are refused before a write; the same cache twice is harmless."""
    storage, pairs = torch.arange(400, dtype=torch.int32, device=device), torch.tensor([[0, 2], [3, 1]], device=device)
    cache, apart, before = storage[:64].view(4, 16), storage[64:128].view(4, 16), storage.clone()
    inner = storage[200:360].view(4, 40)  # beside one another in each block, as layers of one tensor
    for _ in range(2):
        for other in (storage[1:65].view(4, 16), storage[63:127].view(4, 16), storage[:64].view(4, 4, 4),
                      storage[60:92].view(torch.int16).view(4, 16), storage[:48].view(3, 16)):
            for caches in (([cache], [other]), ([other, apart], [apart, cache]), ([cache, other], [apart, apart])):
                with pytest.raises(ValueError, match="copy_blocks: key_caches and value_caches must not overlap one"):
                    aiter_like.copy_blocks(*caches, pairs, backend=backend)
        with pytest.raises(ValueError, match="copy_blocks: key_caches and value_caches must not overlap one another"):
            aiter_like.copy_blocks([inner[:, :16]], [inner[:, 15:31]], pairs, backend=backend)
        for caches in (([apart], [cache]), ([cache], [apart]), ([cache, apart], [apart.view(2, 32), cache])):
            with pytest.raises(ValueError, match="copy_blocks: key_caches and value_caches must not overlap"):
                aiter_like.copy_blocks(*caches, storage[56:60].view(2, 2), backend=backend)
        assert torch.equal(storage, before)
    for caches in (([cache], [cache]), ([cache, apart], [apart, cache.view(4, 16)]),
                   ([inner[:, :16]], [inner[:, 16:32]])):
        aiter_like.copy_blocks(*caches, pairs, backend=backend)
        for each in (*caches[0], *caches[1]):
            old = before.as_strided(each.shape, each.stride(), each.storage_offset())
            assert torch.equal(each[2], old[0]) and torch.equal(each[1], old[3]) and torch.equal(each[3], old[3])


def test_moves_each_byte_once_in_wide_accesses(device):
    if device.type != "cpu":
        pytest.skip("counts of the simulator")
    cache = torch.zeros(4, 16, 8, 128, dtype=torch.bfloat16)
    with sim.enabled(checks=False) as session:
        aiter_like.copy_blocks([cache], [cache], torch.tensor([[0, 2], [3, 1]]), backend="hip")
    counts = next(iter(session.counters.values()))
    words = 2 * 2 * cache[0].nbytes // 16
    assert counts["by_class"]["global"] == 2 * words // 64, counts
    assert not counts["by_class"].get("scratch"), counts


def test_one_launch_for_all_layers(device):
    """80 layers: a launch, each byte once; a cache of another shape has a launch of its own."""
    if device.type != "cpu":
        pytest.skip("counts of the simulator")
    caches = [torch.zeros(4, 16, 8, 64, dtype=torch.bfloat16) for _ in range(160)]
    other = torch.zeros(4, 16, 8, 32, dtype=torch.bfloat16)
    pairs = torch.tensor([[0, 2], [3, 1]])
    with sim.enabled(checks=False) as session:
        aiter_like.copy_blocks(caches[:80], caches[80:], pairs, backend="hip")
    (counts,) = session.counters.values()
    words = len(caches) * len(pairs) * 2 * caches[0][0].nbytes // 16
    assert counts["launches"] == 1 and counts["by_class"]["global"] == words // 64, counts
    assert not counts["by_class"].get("scratch"), counts
    with sim.enabled(checks=False) as session:
        aiter_like.copy_blocks([*caches[:80], other], [*caches[80:], other], pairs, backend="hip")
    assert sum(counts["launches"] for counts in session.counters.values()) == 2


def test_graph(device):
    """The addresses are in the graph, so that it can run after the lists are gone."""
    if device.type != "cuda":
        pytest.skip("graphs need a GPU")
    caches = [torch.randint(0, 256, (5, 300), dtype=torch.uint8, device=device) for _ in range(130)]
    pairs = torch.tensor([[0, 3], [1, 4]], device=device)
    aiter_like.copy_blocks(caches[:65], caches[65:], pairs, backend="hip")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        aiter_like.copy_blocks(caches[:65], caches[65:], pairs, backend="hip")
    for cache in caches:
        cache[:3].random_(0, 256)
    graph.replay()
    assert all(torch.equal(cache[3:], cache[:2]) for cache in caches)


def bench() -> None:
    """Copies of Llama-3 8B's blocks of 16 tokens within one cache; needs a GPU."""
    benching.table("copy_blocks of 32 KiB",
                   (benching.rotating(functools.partial(_bench_case, count)) for count in (1, 64, 4096, 16384)))


def _bench_case(count: int, seed: int) -> benching.Case:
    device = torch.device("cuda")
    cache = torch.randn(2 * count, 16 * 8 * 128, device=device).bfloat16().view(2 * count, 16, 8, 128)
    order = torch.randperm(2 * count, generator=torch.Generator().manual_seed(seed)).to(device)
    pairs = order.view(count, 2).contiguous()

    def check(_result) -> float:
        assert torch.equal(cache[pairs[:, 1]], cache[pairs[:, 0]])
        cache[pairs[:, 1]] = 0.0  # the next contender has to copy again
        return 0.0

    calls = benching.by_backend(OPS["copy_blocks"], CopyBlocksCall(cache, None, pairs), backends=BACKENDS)
    return benching.Case(f"{count} blocks", 2 * count * cache[0].nbytes, calls, check)

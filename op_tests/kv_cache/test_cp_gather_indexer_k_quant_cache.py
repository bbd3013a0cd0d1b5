# SPDX-License-Identifier: MIT
"""cp_gather_indexer_k_quant_cache: every byte of keys and scales against a plain model; bad tables; bad input."""

import functools

import benching
import pytest
import torch
from kv_cache_cases import indexer_key_at

import aiter_like
from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError

BACKENDS = ("hip", "torch")
function = aiter_like.cp_gather_indexer_k_quant_cache


def random_bytes(device, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(device)


def gather(cache, table, starts, keys, scales, preshuffle: bool) -> None:
    """Row by row, byte by byte; rows without a block keep what they have."""
    num_blocks, page_size, _ = cache.shape
    head_dim, width = keys.shape[1], scales.shape[1]
    for sequence, (start, stop) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
        for row in range(start, min(stop, len(keys))):
            column, offset = divmod(row - start, page_size)
            if column >= table.shape[1] or not 0 <= table[sequence, column] < num_blocks:
                continue
            flat = cache[int(table[sequence, column])].reshape(-1)
            where = [indexer_key_at(offset, dim, head_dim, preshuffle) for dim in range(head_dim)]
            keys[row] = flat[torch.tensor(where, device=flat.device)]
            at = page_size * head_dim + offset * width
            scales[row] = flat[at:at + width]


def check_gather(device, run, backend, starts, table, head_dim=128, groups=1, page_size=16, preshuffle=False,
                 tokens=None, as_float=False) -> None:
    table = torch.tensor(table, dtype=torch.int32, device=device)
    cache = random_bytes(device, 5, page_size, head_dim + 4 * groups)
    tokens = starts[-1] if tokens is None else tokens
    keys, scales = random_bytes(device, tokens, head_dim), random_bytes(device, tokens, 4 * groups)
    expected = keys.clone(), scales.clone()
    gather(cache, table, starts, *expected, preshuffle)
    run(backend, function, cache, keys, scales.view(torch.float32) if as_float else scales, table,
        torch.tensor(starts, dtype=torch.int32, device=device), preshuffle)
    assert torch.equal(keys, expected[0]) and torch.equal(scales, expected[1])


@pytest.mark.parametrize("preshuffle", (False, True), ids=("rows", "tiles"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_model(device, run, backend, preshuffle):
    """Sequences of 20, 0, 16, 1 and 33 tokens."""
    starts, table = [0, 20, 20, 36, 37, 70], [[4, 0, 9], [0, 0, 0], [2, -1, 0], [3, 0, 0], [1, 2, 0]]
    for head_dim, groups, as_float in ((128, 1, True), (64, 4, False), (16, 1, False), (144, 3, True)):
        check_gather(device, run, backend, starts, table, head_dim, groups, preshuffle=preshuffle, as_float=as_float)


@pytest.mark.parametrize("backend", BACKENDS)
def test_odd_sizes(device, run, backend):
    for head_dim, groups, page_size in ((20, 1, 3), (6, 2, 2), (4, 1, 1), (8, 2, 64)):
        check_gather(device, run, backend, [0, 1, 3], [[4, 2], [0, 3]], head_dim, groups, page_size)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_without_a_block_stay(device, run, backend):
    """Blocks outside the cache, sequences longer than their table, rows before and after all sequences."""
    check_gather(device, run, backend, [3, 20, 60], [[-1, 4], [5, 2**31 - 1]], tokens=70)
    check_gather(device, run, backend, [0, 40, 45], [[1], [-(2**31)]], tokens=45)
    check_gather(device, run, backend, [0, 0, 0], [[1], [2]], tokens=4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_sequences(device, run, backend):
    lengths = [(7 * i) % 5 for i in range(67)]
    starts = [sum(lengths[:i]) for i in range(68)]
    check_gather(device, run, backend, starts, [[i % 5] for i in range(67)], head_dim=16, page_size=4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty(device, backend):
    table, starts = (torch.zeros(*shape, dtype=torch.int32, device=device) for shape in ((2, 1), (3,)))
    cache, keys, scales = (random_bytes(device, *shape) for shape in ((5, 16, 132), (4, 128), (4, 4)))
    before = keys.clone()
    function(cache, keys[:0], scales[:0], table, starts, backend=backend)
    function(cache[:0], keys, scales, table, starts, backend=backend)
    function(cache, keys, scales, table[:0], starts[:1], backend=backend)
    assert torch.equal(keys, before)


def test_reads_back_what_was_written(device):
    """Through both functions: key · scale is the key, to fp8's accuracy."""
    k = torch.randn(50, 128, generator=torch.Generator().manual_seed(0)).to(device, torch.bfloat16)
    kind = dtypes.fp8_of(target_of(device).arch)
    cache = torch.zeros(4, 16, 132, dtype=kind, device=device)
    for preshuffle in (False, True):
        aiter_like.indexer_k_quant_and_cache(k, cache, torch.arange(50, device=device), 128, "ue8m0", preshuffle)
        keys, scales = torch.zeros(50, 128, dtype=kind, device=device), torch.zeros(50, 1, device=device)
        function(cache, keys, scales, torch.arange(4, dtype=torch.int32, device=device)[None],
                 torch.tensor([0, 50], dtype=torch.int32, device=device), preshuffle)
        assert ((keys.float() * scales - k.float()).abs() <= k.float().abs() / 16 + 2.0**-9 * scales).all()


def test_bad_input_is_named(device):
    table, starts = (torch.zeros(*shape, dtype=torch.int32, device=device) for shape in ((2, 1), (3,)))
    cache, keys, scales = (random_bytes(device, *shape) for shape in ((5, 16, 132), (4, 128), (4, 4)))
    other = torch.float8_e4m3fn if target_of(device).platform == "hip" else torch.float8_e4m3fnuz
    for message, kind, args in (
            ("dst_k must have 2 dimensions", ValueError, (cache, keys[0], scales, table, starts)),
            ("dst_k must have dtype", TypeError, (cache, keys.float(), scales, table, starts)),
            ("dst_scale must have whole fp32 numbers", ValueError, (cache, keys, scales[:, :3], table, starts)),
            ("kv_cache must have at least 136 bytes", ValueError,
             (cache, keys, random_bytes(device, 4, 8), table, starts)),
            ("kv_cache: fp8 on .* is", TypeError, (cache.view(other), keys, scales, table, starts)),
            (r"cu_seq_lens must have shape \(3,\)", ValueError, (cache, keys, scales, table, starts[:2])),
            ("preshuffle needs a page size", ValueError, (cache[:, :15], keys, scales, table, starts, True))):
        with pytest.raises(kind, match=f"cp_gather_indexer_k_quant_cache: {message}"):
            function(*args)
    odd = random_bytes(device, 4, 6)[:, :4]
    with pytest.raises(UnsupportedError, match="the rows of dst_scale must start at multiples of 4 bytes"):
        function(cache, keys, odd, table, starts, backend="hip")


def bench() -> None:
    """Gathers of 16 sequences from pages of 64; needs a GPU."""
    benching.table("cp_gather_indexer_k_quant_cache, 128 elements, one scale",
                   (benching.rotating(functools.partial(_bench_case, tokens)) for tokens in (1024, 16384, 262144)))


def _bench_case(tokens: int, seed: int) -> benching.Case:
    device = torch.device("cuda")
    cache = random_bytes(device, tokens // 64, 64, 132)
    order = torch.randperm(tokens // 64, generator=torch.Generator().manual_seed(seed))
    table = order.int().view(16, -1).to(device)
    starts = torch.arange(0, tokens + 1, tokens // 16, dtype=torch.int32, device=device)
    keys, scales = random_bytes(device, tokens, 128), random_bytes(device, tokens, 4)

    def check(_result) -> float:
        blocks = cache.view(len(cache), -1)[table.flatten().long()]
        assert torch.equal(keys, blocks[:, :64 * 128].reshape(keys.shape))
        assert torch.equal(scales, blocks[:, 64 * 128:].reshape(scales.shape))
        keys.zero_(), scales.zero_()  # the next contender has to write them again
        return 0.0

    calls = benching.by_backend(function, cache, keys, scales, table, starts, backends=BACKENDS)
    return benching.Case(f"{tokens} tokens", 2 * tokens * 132, calls, check)

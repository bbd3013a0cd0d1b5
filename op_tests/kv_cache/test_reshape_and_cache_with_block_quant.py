# SPDX-License-Identifier: MIT
"""reshape_and_cache_with_block_quant: every byte of caches and scales against a plain model, over several calls."""

import functools
import itertools
import math

import benching
import pytest
import torch
from kv_cache_cases import make, tokens_of

import aiter_like
from aiter_like import dtypes, sim
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common import quant_rule

BACKENDS = ("hip", "torch")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
function = aiter_like.reshape_and_cache_with_block_quant


def cache_dtype_of(device, kind: str) -> torch.dtype:
    return torch.int8 if kind.startswith("int8") else dtypes.fp8_of(target_of(device).arch)


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.int8:
        return torch.where(x.isnan(), 0.0, x.clamp(-127, 127).round()).to(dtype)
    return x.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype)


class Model:
    """The cache as numbers [block, head, offset, dim] and scales [block, head], for keys or for values."""

    def __init__(self, rows: torch.Tensor, initial: torch.Tensor, is_truncated: bool = False):
        self.rows, self.scales, self.is_truncated = rows.clone(), initial.clone(), is_truncated

    def _settled(self, x: torch.Tensor) -> torch.Tensor:
        return rounded(x.trunc() if self.is_truncated else x, self.rows.dtype)

    def write(self, x: torch.Tensor, slots: list[int]) -> None:
        """One sequence [tokens, heads, dims]."""
        largest = 127.0 if self.rows.dtype == torch.int8 else torch.finfo(self.rows.dtype).max
        num_blocks, heads, page_size, _ = self.rows.shape
        block_of = [slot // page_size if 0 <= slot < num_blocks * page_size else -1 for slot in slots]
        start = 0
        for block, group in itertools.groupby(block_of):
            count = len([*group])
            run, start = range(start, start + count), start + count
            for head in range(heads if block >= 0 else 0):
                new, first = x[run.start:run.stop, head].float(), slots[run.start] % page_size
                scale = quant_rule.divided(new.abs().amax().clamp(min=2.0**-110), largest)
                old = self.scales[block, head].clone()
                if first and not scale > old and not scale.isnan():
                    scale = old
                elif first:
                    before = self.rows[block, head, :first].float() * (old / scale)
                    self.rows[block, head, :first] = self._settled(before)
                self.scales[block, head] = scale
                for token in run:
                    quantised = self._settled(x[token, head].float() * (1 / scale))
                    self.rows[block, head, slots[token] % page_size] = quantised


def rows_of(cache: torch.Tensor, is_key: bool) -> torch.Tensor:
    """[block, head, offset, dim] of a cache's layout."""
    if cache.ndim == 4:
        return cache.transpose(2, 3)
    order = cache.permute(0, 1, 3, 2, 4) if is_key else cache.permute(0, 1, 2, 4, 3)
    return order.flatten(3) if is_key else order.flatten(2, 3)


def joined(rows: torch.Tensor, pages: int) -> torch.Tensor:
    """[block, head, offset, dim], of blocks that are so many pages."""
    return rows.unflatten(0, (-1, pages)).transpose(1, 2).flatten(2, 3)


def check_calls(device, run, backend, layout, kind, calls, heads=2, dims=(32, 48), dtype=BF16, page_size=16,
                num_blocks=6, change=None, pages=1) -> None:
    """Each call: the slots of its sequences. Scales start as 1, caches as random numbers. `pages` share a scale."""
    cache_dtype, is_asm = cache_dtype_of(device, kind), layout == "shuffled"
    caches = make(device, layout, num_blocks, page_size, heads, dims, cache_dtype)
    caches.storage.copy_(torch.where((caches.storage == 0x80) | ((caches.storage & 0x7F) == 0x7F), 1, caches.storage))
    shape = num_blocks // pages, heads
    made = [torch.ones(shape if is_asm else shape[::-1], device=device) for _ in range(2)]
    views = caches.views(caches.storage)
    options = {"is_truncated": True} if kind == "int8 truncated" else {}
    models = [Model(joined(rows_of(view, not i), pages), initial if is_asm else initial.T, **options)
              for i, (view, initial) in enumerate(zip(views, made, strict=True))]
    for seed, sequences in enumerate(calls):
        length = max(map(len, sequences))
        slots = [slot for sequence in sequences for slot in sequence + [-1] * (length - len(sequence))]
        key, value = (x.unflatten(0, (len(sequences), length)) * (seed + 1) ** 2
                      for x in tokens_of(device, len(slots), heads, dims, dtype, seed))
        if change is not None:
            change(key, value)
        arguments = key, value, *views, *made, torch.tensor(slots, device=device), is_asm
        if pages == 1:
            run(backend, function, *arguments, **options)
        else:
            run(backend, aiter_like.reshape_and_cache_with_block_quant_for_asm_pa, *arguments, pages * page_size,
                **options)
        for x, model in zip((key, value), models, strict=True):
            for i in range(len(sequences)):
                model.write(x[i], slots[i * length:(i + 1) * length])
        for i, (view, stored, model) in enumerate(zip(views, made, models, strict=True)):
            torch.testing.assert_close(stored if is_asm else stored.T, model.scales, rtol=0, atol=0, equal_nan=True)
            got, wanted = (rows.contiguous().view(torch.uint8)
                           for rows in (joined(rows_of(view, not i), pages), model.rows))
            assert torch.equal(got, wanted), [(*at, got[*at], wanted[*at]) for at in (got != wanted).nonzero()[:5]]


def prompt(first: int, count: int) -> list[int]:
    return [*range(first, first + count)]


CALLS = (  # a prompt of three blocks and one within a block; each grows; one token each; a prompt after a gap
    [prompt(16, 37), prompt(3, 5)], [prompt(53, 1), prompt(8, 1)], [prompt(54, 12), prompt(9, 3)],
    [prompt(12, 1), prompt(66, 1), [-1], [6 * 16]], [prompt(80, 4) + [-1, 2**40] + prompt(70, 2)])


@pytest.mark.parametrize("kind", ("fp8", "int8", "int8 truncated"))
@pytest.mark.parametrize("layout", ("columns", "shuffled"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_model(device, run, backend, layout, kind):
    check_calls(device, run, backend, layout, kind, CALLS)


@pytest.mark.parametrize("layout", ("columns", "shuffled"))
def test_workgroups_do_not_conflict(device, run, layout):
    """Each block and head is one workgroup's; two runs of a call in one block, which no case has, would be reported."""
    if device.type != "cpu":
        pytest.skip("a checker of the simulator")
    with sim.enabled(checks=("global_race", "lds_race", "bounds", "strict")):
        check_calls(device, run, "hip", layout, "int8", CALLS)


@pytest.mark.parametrize("layout", ("columns", "shuffled"))
def test_blocks_of_more_tokens_and_elements_than_a_tile(device, run, layout):
    """Of 80 tokens and 160 elements; the second prompt goes on amid a block."""
    check_calls(device, run, "hip", layout, "fp8", ([prompt(3, 200)], [prompt(203, 90)]), 1, (16, 160), page_size=80)


@pytest.mark.parametrize("layout", ("columns", "shuffled"))
def test_prefill_stores_values_in_16_bytes(device, run, layout):
    """128 tokens of a head of 128: loads twice, K in halves, V in 16 bytes; slots and scales of each block."""
    if device.type != "cpu":
        pytest.skip("counts of the simulator")
    caches = make(device, layout, 8, 16, 1, (128, 128), torch.int8)
    made = [torch.ones(8, 1, device=device) if layout == "shuffled" else torch.ones(1, 8, device=device) for _ in "kv"]
    rows = (x[None] for x in tokens_of(device, 128, 1, (128, 128), BF16))
    with sim.enabled(checks=False) as session:
        run("hip", function, *rows, *caches.views(caches.storage), *made, torch.arange(128), layout == "shuffled")
    (counts,) = session.counters.values()
    waves = 2 * 128 * 128 * 2 // (16 * 64)  # loads of 16 bytes, a wave each
    assert counts["by_class"]["global"] <= 2 * waves + waves // 2 + waves // 4 + 16 * 20, counts


@pytest.mark.parametrize("backend", BACKENDS)
def test_odd_sizes_and_other_pages(device, run, backend):
    check_calls(device, run, backend, "columns", "int8", CALLS[:3], heads=3, dims=(16, 5))
    check_calls(device, run, backend, "columns", "fp8", [[prompt(0, 3)], [prompt(3, 2)]], page_size=1, num_blocks=7)
    check_calls(device, run, backend, "shuffled", "fp8", [[prompt(70, 300)], [prompt(370, 3)]], heads=1, page_size=512,
                num_blocks=2)


@pytest.mark.parametrize("layout", ("columns", "shuffled"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_pages_that_share_a_scale(device, run, backend, layout):
    """Three of 16 tokens, and of 8, which no pack of values fits; prompts begin and end amid pages and blocks."""
    calls = [prompt(50, 61)], [prompt(111, 1)], [prompt(5, 3), prompt(144, 12)], [prompt(8, 33)]
    check_calls(device, run, backend, layout, "fp8", calls, num_blocks=12, pages=3)
    if layout == "columns":
        check_calls(device, run, backend, layout, "int8 truncated", calls, num_blocks=24, page_size=8, pages=3)


@pytest.mark.parametrize("kind", ("fp8", "int8"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values_stay_in_their_block_and_head(device, run, backend, kind):
    def change(key, value):
        key[0, 2, 0], key[0, 20, 1, 3], value[0, 30, 0, 1], value[0, :, 1] = 0.0, math.nan, -math.inf, 0.0

    check_calls(device, run, backend, "columns", kind, [[prompt(5, 37)]], change=change)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strided_tokens_and_int32_slots(device, run, backend):
    qkv = tokens_of(device, 8, 6, (32, 1), BF16)[0].view(2, 4, 6, 32)
    slots = torch.tensor([0, 1, 2, 3, 20, 21, 22, 23], dtype=torch.int32, device=device)
    outcomes = []
    for key, value in ((qkv[:, :, 2:4], qkv[:, :, 4:]), (qkv[:, :, 2:4].contiguous(), qkv[:, :, 4:].contiguous())):
        caches = make(device, "shuffled", 3, 16, 2, (32, 32), torch.int8)
        made = torch.ones(2, 3, 2, device=device)
        run(backend, function, key, value, *caches.views(caches.storage), made[0], made[1], slots, True)
        outcomes.append((caches.storage, made))
    assert all(torch.equal(*pair) for pair in zip(*outcomes, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_and_skipped(device, backend):
    for tokens, num_blocks in ((0, 3), (4, 0), (4, 3)):
        caches = make(device, "shuffled", num_blocks, 16, 2, (32, 32), torch.int8)
        before, made = caches.storage.clone(), torch.zeros(2, num_blocks, 2, device=device)
        key, value = (x[None] for x in tokens_of(device, tokens, 2, (32, 32), BF16))
        slots = torch.full((tokens,), -1, device=device)
        function(key, value, *caches.views(caches.storage), made[0], made[1], slots, True, backend=backend)
        assert torch.equal(caches.storage, before) and not made.any()


def test_bad_input_is_named(device):
    key, value = (x[None] for x in tokens_of(device, 4, 2, (32, 32), BF16))
    caches, slots = make(device, "shuffled", 3, 16, 2, (32, 32), torch.int8), torch.arange(4, device=device)
    kc, vc = caches.views(caches.storage)
    flat, made = make(device, "columns", 3, 16, 2, (32, 32), torch.int8).value, torch.zeros(3, 2, device=device)
    for message, kind, args in (
            ("key_cache must have dtype", TypeError, (key, value, kc.short(), vc, made, made, slots, True)),
            ("value_cache must have dtype", TypeError, (key, value, kc, vc.short(), made, made, slots, True)),
            (r"k_dequant_scales must have shape \(3, 2\)", ValueError,
             (key, value, kc, vc, made.T, made, slots, True)),
            (r"k_dequant_scales must have shape \(2, 3\)", ValueError,
             (key, value, kc, flat, made, made, slots, False)),
            ("slot_mapping must have at most 4", ValueError, (key, value, kc, vc, made, made, slots.repeat(2), True)),
            ("asm_layout must be True or False", TypeError, (key, value, kc, vc, made, made, slots, None))):
        with pytest.raises(kind, match=f"reshape_and_cache_with_block_quant: {message}"):
            function(*args)
    for message, blocks in (("ori_block_size must be a multiple of the page size, 16, got 24", 24),
                            ("key_cache must have a multiple of 2 pages", 32)):
        with pytest.raises(ValueError, match=f"reshape_and_cache_with_block_quant_for_asm_pa: {message}"):
            aiter_like.reshape_and_cache_with_block_quant_for_asm_pa(key, value, kc, vc, made, made, slots, True,
                                                                     blocks)
    fp8 = make(device, "shuffled", 3, 16, 2, (32, 32), cache_dtype_of(device, "fp8"))
    with pytest.raises(ValueError, match="is_truncated must be False unless key_cache has dtype torch.int8"):
        function(key, value, fp8.key, fp8.value, made, made, slots, True, is_truncated=True)
    with pytest.raises(UnsupportedError, match="less than 8388608 heads of tokens fit one launch, got 8388608"):
        many = torch.full((2**22,), -1, dtype=torch.int32, device=device)
        function(key[:, :1].expand(1, 2**22, 2, 32), value[:, :1].expand(1, 2**22, 2, 32), kc, vc, made, made, many,
                 True, backend="hip")


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype, kind", tuple(itertools.product((BF16, FP16, FP32), ("fp8", "int8", "int8 truncated"))),
                         ids=str)
@pytest.mark.parametrize("layout", ("columns", "shuffled"))
def test_against_model_everywhere(device, run, layout, dtype, kind):
    for heads, dims in ((1, (128, 128)), (8, (64, 64)), (3, (80, 96))):
        check_calls(device, run, "hip", layout, kind, CALLS, heads, dims, dtype)


def bench() -> None:
    """Prompts of 2048 tokens, and one token each, of 8 heads of 128; needs a GPU. Scales are checked here."""
    for layout, kind in itertools.product(("columns", "shuffled"), ("fp8", "int8")):
        make_case = functools.partial(_bench_case, layout, cache_dtype_of(torch.device("cuda"), kind))
        benching.table(f"reshape_and_cache_with_block_quant {layout} bf16 → {kind}, 8 heads of 128",
                       (benching.rotating(functools.partial(make_case, *shape))
                        for shape in ((1, 2048), (16, 2048), (64, 1))))


def _bench_case(layout: str, cache_dtype: torch.dtype, batch: int, length: int, seed: int) -> benching.Case:
    device, pages = torch.device("cuda"), -(-length // 16)
    caches = make(device, layout, batch * pages, 16, 8, (128, 128), cache_dtype)
    key, value = (x.unflatten(0, (batch, length))
                  for x in tokens_of(device, batch * length, 8, (128, 128), BF16, seed))
    slots = (torch.arange(batch)[:, None] * 16 * pages + torch.arange(length)).flatten().to(device)
    made = torch.zeros(2, batch * pages, 8, device=device)
    stored = made if layout == "shuffled" else made.transpose(1, 2)

    def check(_result) -> float:
        rows = key.float().unflatten(1, (pages, -1)).abs().amax((2, 4)).flatten(0, 1)  # [block, head]
        largest = 127.0 if cache_dtype == torch.int8 else torch.finfo(cache_dtype).max
        assert torch.equal(made[0], quant_rule.divided(rows, largest))
        return 0.0

    args = (key, value, *caches.views(caches.storage), stored[0], stored[1], slots, layout == "shuffled")
    calls = benching.by_backend(function, *args, backends=("hip",))
    return benching.Case(f"{batch}×{length} tokens", batch * length * 8 * 256 * 3, calls, check)

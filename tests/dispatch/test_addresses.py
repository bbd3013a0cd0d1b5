# SPDX-License-Identifier: MIT
"""Outputs that share memory with themselves or with another argument are refused; what only lies interleaved is not."""

from __future__ import annotations

import gc
import inspect
import itertools
import random
import weakref

import pytest
import torch
import toys
from damages import bits
from public_calls import call_of, tensors

import aiter_like
from aiter_like.dispatch import OPS, Backend
from aiter_like.dispatch.addresses import meet, overlaps_itself
from aiter_like.errors import UnsupportedError

BF16 = torch.bfloat16


def places(tensor: torch.Tensor, begin: int = 0) -> list[int]:
    """The bytes of every index."""
    found = [begin]
    for size, step in zip(tensor.shape, tensor.stride()):
        found = [place + index * step * tensor.element_size() for place in found for index in range(size)]
    return [place + byte for place in found for byte in range(tensor.element_size())]


def view(draw: random.Random, dtype: torch.dtype) -> torch.Tensor:
    """Any shape and strides, nested or not."""
    shape = [draw.randint(0 if draw.random() < 0.05 else 1, 4) for _ in range(draw.randint(0, 4))]
    steps = [draw.choice((0, 1, 1, 2, 3, 4, 5, 8, 12, 16)) for _ in shape]
    return torch.empty(2048, dtype=dtype).as_strided(shape, steps)


@pytest.mark.parametrize("seed", range(4))
def test_against_all_indices(seed):
    draw = random.Random(seed)
    for _ in range(400):
        one, other = (view(draw, draw.choice((torch.int8, BF16, torch.float32))) for _ in range(2))
        every = places(one)
        assert overlaps_itself(one) == (len(set(every)) < len(every))
        distance = draw.randint(-60, 60)
        assert meet(one, other, distance) == bool(set(every) & {*places(other, distance)})


def test_large_views_need_no_enumeration():
    """Keys and values of one cache, in every other row or half a head: nothing is shared."""
    cache = torch.empty(1 << 16, 2, 16, 8, 128, dtype=BF16, device="meta")
    keys, values = cache[:, 0], cache[:, 1]
    assert not overlaps_itself(cache) and not meet(keys, values, 32768)
    assert meet(keys, values, 32766) and meet(keys, keys[..., 64:], 128)
    assert not meet(keys[..., :64], keys[..., 64:], 128)


def test_toy_operator(machine):
    """Both ways of an operator: through a plan that exists, and deciding anew."""
    ran = []

    def kernel(out, x, factor, flag=0):
        toys.scale_ref(out, x, factor, flag)
        ran.append(1)  # not where a decision's stand-ins end it

    op = toys.make_op(Backend("triton", kernel))
    memory = torch.arange(64, dtype=torch.float32)
    apart = memory[:16].view(4, 4), memory[32:48].view(4, 4)
    for run in (op.run, op.prepare, op.run):
        run(*apart, 2.0)
        run(apart[0], apart[0], 1.0)  # in place
        before = memory.clone()
        count = len(ran)
        for out, x in ((memory[4:20].view(4, 4), apart[0]), (memory[1:17].view(4, 4), apart[0]),
                       (memory[:32].view(4, 8)[:, :4], memory[2:34].view(4, 8)[:, :4])):
            with pytest.raises(ValueError, match="out must not overlap x, got two that begin -?[0-9]+ bytes"):
                run(out, x, 2.0)
        assert torch.equal(memory, before) and len(ran) == count
        wide = memory.view(8, 8)
        run(wide[:, :4], wide[:, 4:], 1.0)  # interleaved


def over(out: torch.Tensor, arg: torch.Tensor, apart: int = 16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(memory, a view like `out`, a view with the values of `arg`), the former `apart` bytes behind the latter."""
    extents = [tensor.element_size() * (1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride())))
               for tensor in (out, arg)]
    memory = torch.zeros(sum(extents) + 32, dtype=torch.uint8)
    moved, target = (memory[begin:begin + extent].view(tensor.dtype).as_strided(
                        tensor.shape, tensor.stride(), begin // tensor.element_size())
                     for begin, extent, tensor in ((0, extents[1], arg), (apart, extents[0], out)))
    return memory, target, moved.copy_(arg)


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_operator_refuses_to_write_into_its_inputs(name):
    """Each output, laid 16 bytes behind the begin of each argument that is long enough."""
    op = OPS[name]
    for case in [*op.cases(torch.device("cpu")).values()][:2]:
        tensors = [index for index, arg in enumerate(case) if isinstance(arg, torch.Tensor) and arg.numel()]
        for index, other in itertools.permutations(tensors, 2):
            if index not in op.write_indices:
                continue
            memory, target, moved = over(case[index], case[other])
            if not meet(target, moved, moved.data_ptr() - target.data_ptr()):
                continue
            args = list(case)
            args[index], args[other] = target, moved
            before = memory.clone()
            with pytest.raises(ValueError, match="must not overlap"):
                op(op.call(*args), backend="torch")
            assert torch.equal(memory, before)


def alike(op):
    """(case, output, input) where a case has an input like an output."""
    for case in op.cases(torch.device("cpu")).values():
        for out, other in itertools.product(op.write_indices, range(len(case))):
            pair = case[out], case[other]
            if (other not in op.write_indices and all(isinstance(one, torch.Tensor) and one.numel() for one in pair)
                    and pair[0].shape == pair[1].shape and pair[0].dtype == pair[1].dtype
                    and ((out, other) in op.in_place or pair[0].stride() == pair[1].stride())):
                yield case, out, other


@pytest.mark.parametrize("name", sorted(OPS))
def test_an_output_is_an_input_only_where_the_operator_says_so(name):
    """Every output in place of every input that is like it; the public functions' own tests force each backend."""
    op, seen = OPS[name], set()
    for case, out, other in alike(op):
        if (out, other) in op.in_place:
            seen.add((out, other))
            continue
        args = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in case]
        args[out] = args[other]
        before = args[other].clone()
        with pytest.raises(ValueError, match=f"{op.call._fields[out]} must not overlap .*, got the same memory"):
            op(op.call(*args), backend="torch")
        assert same_bits(args[other], before)
    assert seen == op.in_place, "no case has such an input"


@pytest.mark.parametrize("name, backend", [
    pytest.param(name, backend.name, marks=[pytest.mark.exhaustive] * (backend.name != "torch"))
    for name in sorted(OPS) for backend in OPS[name].backends if OPS[name].in_place and backend.name != "vendor"])
def test_in_place_gives_the_same(name, backend):
    op = OPS[name]
    for case, out, other in alike(op):
        if (out, other) not in op.in_place:
            continue
        apart, together = ([arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in case] for _ in range(2))
        try:
            op(op.call(*apart), backend=backend)
        except UnsupportedError:
            continue
        together[out] = together[other]
        op(op.call(*together), backend=backend)
        for index in op.result_indices:
            if isinstance(apart[index], torch.Tensor):
                assert same_bits(apart[index], together[index]), (op.call._fields[out], op.call._fields[other])


def test_in_the_words_of_the_public_function():
    x = torch.zeros(600, dtype=BF16)
    with pytest.raises(ValueError, match="rms_norm: out must not overlap input"):
        aiter_like.rms_norm(x[:512].view(2, 256), torch.ones(256, dtype=BF16), 1e-6, out=x[8:520].view(2, 256))


@pytest.mark.parametrize("name, written, others", [
    ("get_mla_metadata_v1", "work_metadata_ptrs", ("work_indptr", "work_info_set", "reduce_indptr",
                                                   "reduce_final_map", "reduce_partial_map")),
    ("get_pa_metadata_v1", "work_metadata_ptrs", ("work_indptr", "work_info", "reduce_indptr", "reduce_final_map",
                                                  "reduce_partial_map")),
    ("fused_qk_rope_reshape_and_cache", "zeros_out", ("q_out", "k_out", "key_cache", "value_cache"))])
def test_what_a_function_writes_beside_its_operators_overlaps_nothing_else(name, written, others):
    """It is written behind the others: their results were gone."""
    for other in others:
        function, args = call_of(name)
        given = inspect.signature(function).bind(*args).arguments
        given.setdefault("q_out", torch.zeros(given["q"].shape, dtype=BF16)) if "q" in given else None
        given.setdefault("k_out", torch.zeros(given["k"].shape, dtype=BF16)) if "k" in given else None
        given.setdefault(written, torch.zeros(32, dtype=BF16))
        _, given[written], given[other] = over(given[written], given[other], 8)
        before = [*map(bits, tensors([*given.values()]))]
        with pytest.raises(ValueError, match=f"{name}: {written} must not overlap {other}"):
            function(**given, backend="torch")
        assert [*map(bits, tensors([*given.values()]))] == before


@pytest.mark.parametrize("name", sorted(OPS))
def test_elements_between_their_places_are_refused(name):
    """Each argument one byte behind where its elements could lie, as torch.frombuffer can make one."""
    op = OPS[name]
    case = next(iter(op.cases(torch.device("cpu")).values()))
    for index, arg in enumerate(case):
        if not isinstance(arg, torch.Tensor) or not arg.numel() or arg.element_size() == 1:
            continue
        extent = arg.element_size() * (1 + sum((size - 1) * step for size, step in zip(arg.shape, arg.stride())))
        memory = torch.frombuffer(bytearray(extent + 1), dtype=arg.dtype, offset=1)
        moved = memory.as_strided(arg.shape, arg.stride())
        moved.copy_(arg)
        if moved.data_ptr() % arg.element_size() == 0:  # the buffer itself lay at an odd address
            continue
        args = list(case)
        args[index] = moved
        before = [arg.clone() for arg in args if isinstance(arg, torch.Tensor)]
        with pytest.raises(ValueError, match=f"{op.call._fields[index]} must lie at a multiple of its elements' size"):
            op(op.call(*args), backend="torch")
        after = [arg for arg in args if isinstance(arg, torch.Tensor)]
        assert all(map(same_bits, after, before))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def test_plans_keep_no_tensor_alive(machine):
    op = toys.make_op(Backend("triton", toys.scale_ref))
    x = torch.ones(2, 4)
    seen = weakref.ref(x)
    toys.run(op, x)
    del x
    gc.collect()
    assert seen() is None


def test_expanded_starts_are_refused_at_once():
    starts = torch.zeros(1, dtype=torch.int32).expand(2**31 - 1)
    q = torch.zeros(4, 2, 64, dtype=BF16)
    with pytest.raises(ValueError, match="flash_attn_varlen_func: cu_seqlens_q must have at most 1048577 elements"):
        aiter_like.flash_attn_varlen_func(q, q, q, starts, starts, 4, 4)
    with pytest.raises(ValueError, match="rope_thd_fwd: cu_seqlens must have at most 1048577 elements"):
        aiter_like.rope_thd_fwd(q, starts, torch.ones(4, 1, 1, 32), 0, True, False)


def test_tensors_without_memory_are_not_compared():
    """Those of the device "meta" all have the address 0."""
    x = torch.empty(4, 64, dtype=torch.bfloat16, device="meta")
    assert aiter_like.rms_norm(x, x[0], 1e-6).shape == x.shape

# SPDX-License-Identifier: MIT
"""Memory that no result may depend on, of every operator: NaN, infinity and numbers of no page there change no bit.

Pages that a window has left, the rest of a last page, keys between the sink tokens and the window, scales of such keys,
rows behind packed sequences, entries of tables behind a sequence's end. Engines hand such memory to other requests, or
never write it.
"""

import functools
import math

import pytest
import torch
from hidden_memory import Scene, backward, dense, equal, hidden_of, latent, paged, put, results, tree, unified, wrong

import aiter_like
from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.dispatch import OPS
from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention.flash_attn_bwd_hip import HEAD_DIMS

LONG = ((3, 300), (2, 90))
SCENES = {
    "pages before a window": lambda device, seed: unified(device, ((40, 208),), left=130, seed=seed),
    "pages behind the sink tokens": lambda device, seed: unified(device, ((40, 208), (7, 150)), left=60, sink=5,
                                                                 seed=seed),
    "decoding": lambda device, seed: unified(device, ((1, 300), (1, 90)), left=130, seed=seed),
    "latent, several queries": lambda device, seed: latent(device, "tokens"),
    "pages in parts": lambda device, seed: paged(device, LONG, left=130, seed=seed),
    "shuffled pages and their scales": lambda device, seed: paged(
        device, LONG, left=130, layout="shuffled", dtype=dtypes.fp8_of(target_of(device).arch), by_token=True,
        seed=seed),
    "a cache before a window": lambda device, seed: dense(device, ((40, 208), (40, 90)), left=60, is_cache=True,
                                                          seed=seed),
    "packed keys before a window": lambda device, seed: dense(device, ((40, 208), (70, 190)), left=60, seed=seed),
    "packed keys behind the sink tokens": lambda device, seed: dense(device, ((40, 208), (70, 190)), left=60, sink=5,
                                                                     seed=seed)}
TREES = {
    "rows": lambda device, seed: tree(device, ((8, 100), (7, 41)), left=50, seed=seed)}
FURTHER_TREES = {
    "no window": lambda device, seed: tree(device, ((20, 300), (17, 41)), seed=seed),
    "packed": lambda device, seed: tree(device, ((8, 100), (7, 41)), "packed", seed=seed),
    "shuffled": lambda device, seed: tree(device, ((8, 100), (7, 41)), "shuffled", left=50, seed=seed),
    "rows of fp8 and their scales": lambda device, seed: tree(
        device, ((8, 100), (7, 41)), dtype=dtypes.fp8_of(target_of(device).arch), by_token=True, seed=seed),
    "packed int8 and its scales": lambda device, seed: tree(device, ((8, 100), (7, 41)), "packed", dtype=torch.int8,
                                                            by_token=True, seed=seed)}
FURTHER = {
    "latent": lambda device, seed: latent(device, "split"),
    "latent of fp8": lambda device, seed: latent(device, "fp8 queries"),
    "whole tiles": lambda device, seed: unified(device, ((150, 460), (70, 70)), 64, left=130, seed=seed),
    "pages of two tiles": lambda device, seed: unified(device, ((33, 460), (70, 70)), 128, left=100, seed=seed),
    "both sides": lambda device, seed: unified(device, ((40, 208), (7, 150)), left=30, right=30, seed=seed),
    "softcap": lambda device, seed: unified(device, ((40, 208), (7, 150)), left=30, softcap=3.0, seed=seed),
    "pages of fp8": lambda device, seed: unified(device, ((40, 208), (7, 150)), left=100, seed=seed,
                                                 dtype=dtypes.fp8_of(target_of(device).arch)),
    "shuffled pages": lambda device, seed: unified(device, ((40, 208), (7, 150)), left=100, is_shuffled=True,
                                                   seed=seed),
    "decoding beside sink tokens": lambda device, seed: unified(device, ((1, 700), (1, 90)), left=130, sink=3,
                                                                seed=seed),
    "packed pages": lambda device, seed: paged(device, LONG, left=130, layout="packed", seed=seed),
    "rows of fp8 and their scales": lambda device, seed: paged(
        device, LONG, left=130, dtype=dtypes.fp8_of(target_of(device).arch), by_token=True, seed=seed),
    "packed int8 and its scales": lambda device, seed: paged(device, LONG, left=130, layout="packed",
                                                             dtype=torch.int8, by_token=True, seed=seed),
    "no window": lambda device, seed: paged(device, LONG, dtype=dtypes.fp8_of(target_of(device).arch), by_token=True,
                                            seed=seed),
    "a long cache": lambda device, seed: dense(device, ((300, 700), (300, 310)), left=60, dim=128, is_cache=True,
                                               seed=seed),
    "one query": lambda device, seed: dense(device, ((1, 208), (1, 90)), left=60, is_cache=True, seed=seed),
    "head dimension 96": lambda device, seed: dense(device, ((40, 208), (70, 190)), left=60, dim=96, seed=seed),
    "packed, both sides": lambda device, seed: dense(device, ((40, 208), (70, 190)), left=10, right=10, seed=seed)}

BACKWARD = {
    "keys before a window": {"lengths": ((40, 208), (70, 190)), "left": 60},
    "queries before the keys": {"lengths": ((130, 40),) * 2, "is_packed": False},
    "both, and sink tokens": {"lengths": ((40, 208), (90, 30), (10, 0), (70, 190)), "left": 30, "sink": 5}}
FURTHER_BACKWARD = {
    "dense": {"lengths": ((40, 208),) * 2, "left": 60, "is_packed": False},
    "both sides": {"lengths": ((40, 208), (170, 80)), "left": 10, "right": 10},
    "a far right side": {"lengths": ((40, 208), (170, 80)), "left": 10, "right": 60},
    "no mask": {"lengths": ((40, 208), (17, 0), (170, 80)), "right": -1},
    "one key": {"lengths": ((70, 208), (170, 80)), "left": 0},
    "one head of keys": {"lengths": ((40, 208), (90, 30)), "left": 60, "heads": (6, 1), "dims": (128, 128)},
    "two head dimensions": {"lengths": ((40, 208), (90, 30)), "left": 60, "dims": (96, 32), "dtype": torch.float16},
    "head dimension 256": {"lengths": ((40, 208), (90, 30)), "left": 60, "dims": (256, 256)},
    "many tiles": {"lengths": ((300, 700), (500, 200)), "left": 60, "sink": 3},
    "many dense tiles": {"lengths": ((500, 200),), "is_packed": False},
    "learned sinks": {"lengths": ((40, 208), (90, 30), (10, 0)), "left": 60, "with_sink": True},
    "bias": {"lengths": ((40, 208), (90, 30)), "left": 60, "with_bias": True},
    "dense bias, softcap": {"lengths": ((90, 30),), "is_packed": False, "with_bias": True, "softcap": 3.0}}


def of_derivatives(device, dims=(64, 64), sink=0, with_bias=False, softcap=0.0, **_) -> set[str]:
    """The backends that serve such a call of flash_attn_bwd."""
    if device.type == "cuda":
        return {"triton", "torch"}
    is_plain = dims in HEAD_DIMS and not (sink or with_bias or softcap)
    return {"ck", "triton", "torch", *(["hip"] if is_plain else [])}


def check(scene: Scene) -> list[str]:
    """Each backend that serves the call writes the same bytes whatever is hidden; their names."""
    op, call, hidden = scene
    fields, served = {op.call._fields.index(name): mask for name, mask in hidden.items()}, []

    def filled(values: dict[int, float]) -> list:
        return [put(arg, fields[index], values[index]) if index in fields else arg for index, arg in enumerate(call)]

    for backend in op.backends:
        try:
            expected = results(op, filled(dict.fromkeys(fields, 0)), backend.name)
        except UnsupportedError:
            continue
        served.append(backend.name)
        for turn in range(2):
            values = {index: wrong(call[index])[turn % len(wrong(call[index]))] for index in fields}
            assert equal(expected, results(op, filled(values), backend.name)), (op.name, backend.name, values)
    return served


@pytest.mark.parametrize("name", SCENES)
def test_attention_does_not_depend_on_what_no_query_sees(device, name):
    assert {"triton", "torch"} <= set(check(SCENES[name](device, 0)))


@pytest.mark.parametrize("name", TREES)
def test_a_mask_of_queries_hides_keys(device, name):
    assert {"triton", "torch"} <= set(check(TREES[name](device, 0)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", {**TREES, **FURTHER_TREES})
def test_masks_of_queries_of_further_layouts(device, seed, name):
    assert {"triton", "torch"} <= set(check({**TREES, **FURTHER_TREES}[name](device, seed % 2**31)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", {**SCENES, **FURTHER})
def test_attention_of_further_layouts(device, seed, name):
    assert {"triton", "torch"} <= set(check({**SCENES, **FURTHER}[name](device, seed % 2**31)))


@pytest.mark.parametrize("name", BACKWARD)
def test_derivatives_do_not_depend_on_what_no_query_sees(device, name):
    assert of_derivatives(device, **BACKWARD[name]) == set(check(backward(device, **BACKWARD[name])))


@pytest.mark.parametrize("lengths", ((40, 208), (90, 30)), ids=("keys", "queries"))
def test_derivatives_that_autograd_takes_of_the_reference(device, lengths):
    _, call, hidden = backward(device, (lengths,), left=60, is_packed=False)
    found = []
    for value in (0.0, math.nan, math.inf):
        q, k, v, dout = (put(getattr(call, name), hidden[name], value) for name in ("q", "k", "v", "dout"))
        inputs = [tensor.requires_grad_() for tensor in (q, k, v)]
        out = aiter_like.flash_attn_func(*inputs, causal=True, window_size=(60, 0), backend="torch")
        found.append((out, *torch.autograd.grad(out, inputs, dout)))
    assert all(torch.equal(got, expected) for others in found[1:] for got, expected in zip(others, found[0]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", {**BACKWARD, **FURTHER_BACKWARD})
def test_derivatives_of_further_calls(device, seed, name):
    options = {**BACKWARD, **FURTHER_BACKWARD}[name]
    assert of_derivatives(device, **options) == set(check(backward(device, **options, seed=seed % 2**31)))


@pytest.mark.parametrize("dim", (64, 128, 256))
def test_hopper_does_not_depend_on_keys_before_a_window(device, dim):
    """The kernel whose tiles come whole from memory, which few rows would not get by themselves."""
    if target_of(device).arch != "sm_90":
        pytest.skip("a kernel for Hopper")
    from aiter_like.jit.triton_launch import Launcher
    from aiter_like.ops.attention.triton.flash_attn_fwd import flash_attn_fwd

    for is_cache in (False, True):
        _, call, hidden = dense(device, ((300, 700), (300, 310)), left=60, dim=dim, is_cache=is_cache)
        found = []
        for value in (0.0, math.nan, math.inf):
            filled = call._replace(**{name: put(getattr(call, name), mask, value) for name, mask in hidden.items()})
            Launcher(functools.partial(flash_attn_fwd, kernel="flash_attn_fwd_hopper"))(filled)
            found.append((filled.out.clone(), filled.lse.clone()))
        for out, lse in found[1:]:
            assert torch.equal(out, found[0][0]) and torch.equal(lse, found[0][1])


MEANT = {  # (operator, case): numbers that count, although other finite ones give the same result
    ("paged_attention", "several parts"),  # weights of seen keys that are 0 in fp32
    ("penalties", "two"),  # factors of logits that are 0
    ("sample", "given, whole"), ("sample", "made, whole"),  # temperatures of rows with one likely token
    ("sampling_from_probs", "all, whole"), ("verify_chain", "probabilities"), ("verify_tree", "by chance")}


def check_cases(name: str, device: torch.device) -> int:
    """Of an operator's own cases; the number of arguments of which something is hidden."""
    op, count = OPS[name], 0
    for title, case in op.cases(device).items():
        if (name, title) in MEANT:
            continue
        inputs = [index for index in range(len(case)) if index not in op.write_indices]
        found = {op.call._fields[index]: hidden_of(op, case, index) for index in inputs}
        found = {field: hidden for field, hidden in found.items() if hidden is not None}
        count += len(found)
        assert not found or "torch" in check((op, case, found))
    return count


@pytest.mark.parametrize("name", ("row_quant", "moe_sum"))
def test_rows_that_do_not_count(device, name):
    assert check_cases(name, device) > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(OPS))
def test_what_no_result_depends_on_in_any_case(device, name):
    check_cases(name, device)

# SPDX-License-Identifier: MIT
"""What a caller may have set in torch changes no result: the default dtype, as engines set it while they load a model,
the default device, and autocast. Over every operator's cases and every public function.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from damages import bits
from public_calls import call_of, public_names, sampled, tensors

import aiter_like
from aiter_like import use_backend
from aiter_like.dispatch import OPS, self_check

pytestmark = pytest.mark.usefixtures("simulated")

CPU = torch.device("cpu")


@contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


SETTINGS = {"default bf16": lambda: default_dtype(torch.bfloat16), "default fp64": lambda: default_dtype(torch.float64),
            "default meta": lambda: torch.device("meta"), "autocast": lambda: torch.autocast("cpu", torch.bfloat16)}


def copies(args):
    return [arg.clone() if isinstance(arg, torch.Tensor) else [*map(torch.clone, arg)] if tensors(arg) else arg
            for arg in args]


def results(op, args):
    return [*map(bits, tensors([args[index] for index in op.result_indices]))]


OPERATORS = sampled(OPS.names())


@pytest.mark.parametrize("name", OPERATORS)
def test_cases_have_the_same_tensors(name):
    op = OPS[name]
    expected = op.cases(CPU)
    inputs = [index for index in range(len(op.call._fields)) if index not in op.write_indices]
    for setting in ("default bf16", "default meta"):
        with SETTINGS[setting]():
            given = op.cases(CPU)
        for case, args in given.items():
            for one, other in zip(tensors(args), tensors(expected[case]), strict=True):
                assert (one.dtype, one.device, one.shape) == (other.dtype, other.device, other.shape)
            assert all(bits(one) == bits(other) for index in inputs
                       for one, other in zip(tensors(args[index]), tensors(expected[case][index]), strict=True))


@pytest.mark.parametrize("name", OPERATORS)
def test_references(name):
    op = OPS[name]
    for case, args in op.cases(CPU).items():
        expected = copies(args)
        op(expected, backend="torch")
        for setting, under in SETTINGS.items():
            given = copies(args)
            with under():
                op(given, backend="torch")
            assert results(op, given) == results(op, expected), (case, setting)


@pytest.mark.parametrize("name", sampled(public_names()))
def test_public_functions(name):
    with use_backend("torch"):
        function, args = call_of(name)
        expected = [*map(bits, tensors([function(*args), args]))]
        for setting, under in SETTINGS.items():
            function, args = call_of(name)
            with under():
                got = function(*args)
            assert [*map(bits, tensors([got, args]))] == expected, setting


@pytest.mark.parametrize("name", OPERATORS)
def test_tensors_of_inference_mode_are_written_outside_of_it(name):
    """As kernels write them, which torch's own in-place operations refuse."""
    op = OPS[name]
    for case, args in op.cases(CPU).items():
        expected = copies(args)
        op(expected, backend="torch")
        with torch.inference_mode():
            given = copies(args)
        op(given, backend="torch")
        with torch.inference_mode():
            assert results(op, given) == results(op, expected), case


@pytest.mark.parametrize("name", ["rms_norm", "moe_sum", "gemm_a8w8_blockscale"])
def test_the_self_check_passes(name):
    op = OPS[name]
    for under in SETTINGS.values():
        with under():
            for args in op.cases(CPU).values():
                error, tolerance = self_check.compare(op, op.reference, args)
                assert error <= tolerance


def test_functions_make_their_own_tensors():
    q, k = torch.randn(2, 1, 2, 64).bfloat16(), torch.randn(2, 9, 2, 64).bfloat16()
    x, weight = torch.randn(3, 256).bfloat16(), torch.randn(128, 256).to(torch.float8_e4m3fnuz)
    scale = torch.ones(1, 2)
    calls = (lambda: aiter_like.flash_attn_with_kvcache(q, k, k, return_softmax_lse=True)[1],
             lambda: aiter_like.gemm_a8w8_blockscale(x, weight, None, scale))
    with use_backend("torch"):
        for call in calls:
            expected = call()
            for under in SETTINGS.values():
                with under():
                    assert bits(call()) == bits(expected)


def test_the_default_dtype_is_the_callers_again():
    """Also where two threads make cases at once."""
    with default_dtype(torch.bfloat16):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(OPS["rms_norm"].cases, [CPU] * 4))
        assert torch.get_default_dtype() is torch.bfloat16

# SPDX-License-Identifier: MIT
"""Tensors that are not what their metadata says: lazily negated and conjugated views, nested and sparse tensors, over
every operator's cases. A plain call of the same shape comes first, so that a plan is there to be taken wrongly.
"""

import pytest
import torch
from damages import bits
from public_calls import SEQUENCES, call_of, public_names, tensors
from torch import Tensor

from aiter_like import rms_norm, use_backend
from aiter_like.dispatch import OPS
from aiter_like.dispatch.op import Op
from aiter_like.errors import UnsupportedError

LAZY = (torch.bfloat16, torch.float16, torch.float32)


def _copy(args: tuple) -> list:
    return [arg.clone() if isinstance(arg, Tensor) else arg for arg in args]


def _negated(tensor: Tensor) -> Tensor:
    return torch._neg_view(tensor.neg())


def _conjugated(tensor: Tensor) -> Tensor:
    """The imaginary part of a conjugate, which torch negates where it is read."""
    return torch.complex(torch.zeros(tensor.shape), tensor.neg()).conj().imag


def _first_case(name: str) -> tuple[Op, tuple]:
    op = OPS[name]
    return op, next(iter(op.cases(torch.device("cpu")).values()))


@pytest.mark.parametrize("name", sorted(OPS))
def test_a_lazily_negated_tensor_is_the_negated_one(name):
    op, case = _first_case(name)
    expected = _copy(case)
    op(expected, backend="torch")
    for index, arg in enumerate(case):
        if isinstance(arg, Tensor) and arg.dtype in LAZY:
            args = _copy(case)
            args[index] = _negated(args[index])
            assert args[index].is_neg()
            op(args, backend="torch")
            for written in op.write_indices:
                if isinstance(expected[written], Tensor):
                    assert torch.equal(args[written].resolve_neg().nan_to_num(7) if args[written].dtype in LAZY
                                       else args[written].view(torch.uint8),
                                       expected[written].nan_to_num(7) if args[written].dtype in LAZY
                                       else expected[written].view(torch.uint8)), op.call._fields[index]


@pytest.mark.parametrize("backend", ["hip", "triton"])
@pytest.mark.parametrize("view", [_negated, _conjugated])
def test_a_kernel_reads_and_writes_lazily_negated_tensors(backend, view):
    x, weight = torch.randn(3, 64), torch.rand(64)
    expected = rms_norm(x, weight, 1e-6, backend=backend)
    out = view(torch.zeros(3, 64))
    assert out.is_neg() and rms_norm(view(x), weight, 1e-6, out=out, backend=backend) is out
    assert torch.equal(out, expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("name", sorted(OPS))
def test_nested_and_sparse_tensors_are_refused_and_nothing_is_written(name):
    op, case = _first_case(name)
    op(_copy(case), backend="torch")
    for index, arg in enumerate(case):
        if not isinstance(arg, Tensor):
            continue
        for strange in (torch.nested.nested_tensor([torch.zeros(3, 4), torch.zeros(2, 4)], dtype=arg.dtype),
                        torch.zeros(arg.shape).to_sparse()):
            args = _copy(case)
            args[index] = strange
            before = _copy(case)
            named = rf"^{name}: .*{op.call._fields[index]}"
            with pytest.raises((ValueError, TypeError, UnsupportedError), match=named):
                op(args, backend="torch")
            for written in op.write_indices:
                if written != index and isinstance(case[written], Tensor):
                    assert bits(args[written]) == bits(before[written])


@pytest.mark.parametrize("name", sorted(OPS))
def test_negative_views_that_torch_cannot_read_are_refused_and_nothing_is_written(name):
    op, case = _first_case(name)
    for index, arg in enumerate(case):
        if isinstance(arg, Tensor) and (arg.dtype is torch.bool or arg.is_floating_point() and arg.itemsize == 1):
            args = _copy(case)
            args[index] = torch._neg_view(args[index])
            with pytest.raises(TypeError, match=rf"^{name}: {op.call._fields[index]} must not be a negative view of "):
                op(args, backend="torch")
            for written in op.write_indices:
                if written != index and isinstance(case[written], Tensor):
                    assert bits(args[written]) == bits(case[written])


@pytest.mark.parametrize("name", sorted(OPS))
def test_tensors_whose_memory_was_given_back_are_refused_and_nothing_is_written(name):
    """As FSDP gives back that of parameters; views of them have addresses that are offsets alone."""
    op, case = _first_case(name)
    op(_copy(case), backend="torch")
    for index, arg in enumerate(case):
        if isinstance(arg, Tensor) and arg.numel():
            for begin in (0, 5):
                args = _copy(case)
                memory = torch.zeros(arg.numel() + begin, dtype=arg.dtype)
                args[index] = memory[begin:].view(arg.shape)
                memory.untyped_storage().resize_(0)
                with pytest.raises(ValueError, match=rf"^{name}: {op.call._fields[index]} must have memory, got "):
                    op(args, backend="torch")
                for written in op.write_indices:
                    if written != index and isinstance(case[written], Tensor):
                        assert bits(args[written]) == bits(case[written])


def test_zeros_without_memory_are_refused():
    with pytest.raises(ValueError, match="rms_norm: input must have memory"):
        rms_norm(torch._efficientzerotensor((3, 64)), torch.rand(64), 1e-6, backend="hip")


@pytest.mark.parametrize("name", public_names())
def test_public_functions_take_lazily_negated_tensors(name, simulated):
    """Those that torch does not negate are refused by name."""
    with use_backend("torch"):
        function, args = call_of(name)
        expected = [*map(bits, tensors([function(*args), args]))]
        for index, arg in enumerate(call_of(name)[1]):
            if not isinstance(arg, Tensor) or arg.dtype in (torch.uint8, torch.uint64):  # memory
                continue
            function, args = call_of(name)
            is_taken = arg.dtype is not torch.bool and not (arg.is_floating_point() and arg.itemsize == 1)
            args[index] = _negated(arg) if is_taken else torch._neg_view(arg)
            if is_taken:
                got = tensors([function(*args), args])
                assert [bits(one.resolve_neg()) for one in got] == expected, f"argument {index}"
            else:
                with pytest.raises(TypeError, match=rf"^{name}: .* a (conjugate or )?negative view of torch"):
                    function(*args)


@pytest.mark.parametrize("name", public_names())
def test_tensors_of_the_device_meta_say_what_results_look_like(name, simulated):
    """An error is one in the function's words: fp8 has the format of a device, which they are not on."""
    with use_backend("torch"):
        function, args = call_of(name)
        expected = tensors([function(*args)])
        function, args = call_of(name)
    if name == "get_rope":  # whose tables are made where its caller is
        return
    args = [[one.to("meta") for one in arg] if isinstance(arg, list) else arg.to("meta") if isinstance(arg, Tensor)
            else arg for arg in args]
    try:
        got = tensors([function(*args)])
    except (ValueError, TypeError) as refusal:
        assert name in SEQUENCES or str(refusal).startswith(f"{name}: ")
        assert "float8" in str(refusal) or "must have memory" in str(refusal)
        return
    for one, other in zip(got, expected, strict=True):
        assert one.is_meta and one.shape == other.shape and one.itemsize == other.itemsize

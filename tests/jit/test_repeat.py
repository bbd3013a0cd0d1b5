# SPDX-License-Identifier: MIT
"""jit/repeat.py: what is repeated for other tensors, and what is not. Launches are stand-ins that note arguments."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from aiter_like.jit import repeat


@dataclass
class Box:
    """A descriptor, as Triton has them."""

    base: torch.Tensor
    shape: list[int]


@dataclass
class Kernel:
    """Notes the arguments of its launches, tensors and boxes as addresses."""

    got: list[tuple] = field(default_factory=list)

    def start(self, *arguments):
        self.got.append(tuple(_address(argument) for argument in arguments))

    def launch(self, *arguments):
        self.start(*arguments)
        repeat.tell(self.start, arguments)


def _address(argument):
    if isinstance(argument, (Box, torch.Tensor)):
        return (argument.base if isinstance(argument, Box) else argument).data_ptr()
    return argument


class Function:
    """Counts its calls; `body` of a kernel and of tensors launches."""

    def __init__(self, body):
        self.body, self.kernel, self.calls = body, Kernel(), 0
        self.repeated = repeat.Repeated(self)

    def __call__(self, *tensors):
        self.calls += 1
        self.body(self.kernel, *tensors)

    def served(self, *tensors):
        """What the kernel gets in a call, and whether the function was called for it."""
        calls, self.kernel.got = self.calls, []
        self.repeated(*tensors)
        return self.kernel.got, self.calls > calls


def _pair():
    return torch.empty(8, 64), torch.empty(8, 64)


def _recorded(body, *tensors):
    function = Function(body)
    for _ in range(2):
        assert function.served(*tensors)[1]
    return function


def test_a_launch_is_repeated_with_the_addresses_of_other_tensors():
    def body(kernel, out, x):
        kernel.launch(out, x.view(-1)[16:], None, 3, (1, 2), Box(x[2:], [6, 64]))
        kernel.launch(x, out)

    function, (out, x) = _recorded(body, *_pair()), _pair()
    at = x.data_ptr()
    assert function.served(out, x) == (
        [(out.data_ptr(), at + 64, None, 3, (1, 2), at + 512), (at, out.data_ptr())], False)


def test_no_tensor_is_kept():
    import weakref

    tensors = _pair()
    function = _recorded(lambda kernel, out, x: kernel.launch(out, Box(x, [8])), *tensors)
    seen = [weakref.ref(tensor) for tensor in tensors]
    del tensors
    function.kernel.got.clear()
    assert [tensor() for tensor in seen] == [None, None]


def test_memory_of_the_call_is_allocated_anew():
    def body(kernel, out, x):
        first, second = torch.empty(3, 5), x.new_empty(7)
        kernel.launch(out, first[1:], second)

    function, (out, x) = _recorded(body, *_pair()), _pair()
    ((_, first, second),), is_called = function.served(out, x)
    assert not is_called and second - first == 256 - 20, "both lie in one allocation, the first one from its second row"


def _fills(kernel, out, x):
    out.fill_(1)
    kernel.launch(out, x)


def _computes(kernel, out, x):
    kernel.launch(out, x + 1)


def _reads(kernel, out, x):
    kernel.launch(out, x, x.view(-1)[0].item())


def _launches_nothing(kernel, out, x):
    pass


_MEMORY = torch.empty(64)


def _keeps_memory(kernel, out, x):
    kernel.launch(out, x, _MEMORY)


def _hides_a_tensor(kernel, out, x):
    kernel.launch(out, (1, (x,)))


@pytest.mark.parametrize("body", (_fills, _computes, _reads, _launches_nothing, _keeps_memory, _hides_a_tensor))
def test_what_else_a_function_does_is_not_left_out(body):
    tensors = torch.ones(8, 64), torch.ones(8, 64)
    function = _recorded(body, *tensors)
    for _ in range(3):
        assert function.served(*tensors)[1]


@pytest.mark.parametrize("read", (
    torch.Tensor.tolist, lambda x: x.numpy().tolist(), lambda x: np.asarray(x).tolist(), lambda x: [*map(int, x)],
    lambda x: np.from_dlpack(x).tolist(), lambda x: x.cpu().tolist(), lambda x: list(bytes(x.untyped_storage()))[::8],
    lambda x: [x[0].item()], lambda x: [int(str(x)[8])]), ids=(
        "tolist", "numpy", "array", "int", "dlpack", "cpu", "storage", "item", "text"))
def test_numbers_that_a_function_reads_are_those_of_each_call(read):
    """Values 1, 2, 3, 4 arrive as such, though the metadata are the same."""
    function = Function(lambda kernel, out, x: kernel.launch(out, *read(x)))
    out = torch.empty(8)
    for value in (1, 2, 3, 4):
        (launched,), is_called = function.served(out, torch.tensor([value]))
        assert launched == (out.data_ptr(), value) and is_called


def test_fields_in_one_memory_are_told_apart_where_they_begin():
    both = torch.empty(8, 128)

    def body(kernel, out, q, k):
        kernel.launch(out, q.view(8, 4, 16), k.view(8, 4, 16))

    function = _recorded(body, torch.empty(8, 64), both[:, :64], both[:, 64:])
    out, other, apart = torch.empty(8, 64), torch.empty(8, 256)[:, :64], torch.empty(8, 192)[:, 64:128]
    assert function.served(out, other, apart) == ([(out.data_ptr(), other.data_ptr(), apart.data_ptr())], False)
    unknown = _recorded(lambda kernel, out, q, k: kernel.launch(out, q[1:], k), out, both[:, :64], both[:, 64:])
    assert unknown.served(out, both[:, :64], both[:, 64:])[1], "whose view begins in the middle"


def test_other_alignment_is_recorded_anew():
    function = _recorded(lambda kernel, out, x: kernel.launch(out, x, x.data_ptr() % 16 == 0), *_pair())
    out, odd = torch.empty(8, 64), torch.empty(8 * 64 + 1)[1:].view(8, 64)
    expected = [(out.data_ptr(), odd.data_ptr(), False)]
    assert function.served(out, odd) == (expected, True)
    assert function.served(out, odd) == (expected, False)
    for _ in range(3):
        for tensors, is_aligned in ((_pair(), True), ((out, odd), False)):
            ((*_, got),), _ = function.served(*tensors)
            assert got == is_aligned


def test_tensors_that_coincide_are_told_from_others():
    function = _recorded(lambda kernel, out, x: kernel.launch(out, x, out.data_ptr() == x.data_ptr()), *_pair())
    one, (out, x) = torch.empty(8, 64), _pair()
    assert function.served(one, one) == ([(one.data_ptr(), one.data_ptr(), True)], True)
    assert function.served(one, one) == ([(one.data_ptr(), one.data_ptr(), True)], False)
    assert function.served(out, x) == ([(out.data_ptr(), x.data_ptr(), False)], True)


def test_an_error_ends_the_recording():
    def body(kernel, out, x):
        kernel.launch(out, x)
        if out[0, 0] < 0:
            raise ValueError("negative")

    function = Function(body)
    function.served(torch.ones(8, 64), torch.ones(8, 64))
    with pytest.raises(ValueError, match="negative"):
        function.served(-torch.ones(8, 64), torch.ones(8, 64))
    assert not repeat.is_recording() and torch._C._len_torch_dispatch_stack() == 0


def test_recording_imports_no_compiler():
    """That of torch takes seconds to import."""
    code = """
import sys, torch
from aiter_like.jit import repeat
x = torch.empty(8, 8)
with repeat.Recording() as recording:
    x.view(64), torch.empty(3), x[1:]
    recording.started.append(repeat.Started(print, (x,)))
assert recording.repeat((x,), print) is not None
print("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"

# SPDX-License-Identifier: MIT
"""No kernel for CUDA too loads or stores at an address that its type does not allow: gfx942 takes any, CUDA faults.

The simulator sees it in builds that stop there: load_vec and store_vec by CHECK_ALIGNMENT, all other accesses by
clang's alignment sanitizer. Every tensor of a call begins one element into its storage, or as few as the call takes.
"""

import dataclasses

import pytest
import torch

from aiter_like import dispatch
from aiter_like.device import target_of
from aiter_like.dispatch import OPS
from aiter_like.modules import recipe
from aiter_like.tuning import judge

FLAGS = ("-DCHECK_ALIGNMENT", "-Xclang", "-fsanitize=alignment", "-Xclang", "-fsanitize-trap=alignment")


def portable() -> list[str]:
    return [name for name, op in OPS.items()
            for backend in op.backends if backend.name == "hip" and "cuda" in backend.function.platforms]


def shifted(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """A copy that begins so many elements into a storage of its own, with the same strides."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    storage = torch.zeros(extent + elements, dtype=tensor.dtype, device=tensor.device)
    return storage.as_strided(tensor.shape, tensor.stride(), elements).copy_(tensor)


@pytest.fixture
def checked_builds(device, monkeypatch):
    """The simulated device, with builds that stop; nothing of them is left behind."""
    if device.type != "cpu":
        pytest.skip("a misaligned access on a GPU ends the process")
    make = recipe._hip_steps
    monkeypatch.setattr(recipe, "_hip_steps", lambda spec, toolchain: make(
        dataclasses.replace(spec, flags=(*spec.flags, *FLAGS)), toolchain))
    functions = [backend.function for op in OPS.values() for backend in op.backends if backend.name == "hip"]
    for function in functions:
        monkeypatch.setattr(function, "_bound", {})
    dispatch.reset()
    yield
    monkeypatch.undo()
    dispatch.reset()


def check(name: str, device: torch.device) -> None:
    """Right, and never at an address that is not a multiple of an access's size; a call may ask for aligned tensors."""
    op = OPS[name]
    if op.cases is None:
        pytest.skip(f"{name} has no cases yet")
    (backend,) = (one for one in op.backends if one.name == "hip")
    served = [case for case in op.cases(device).values()
              if backend.refusal is None or backend.refusal(target_of(device), *case) is None]
    assert served, f"{name}: backend hip serves none of the cases"
    for case in served:
        expected = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in case]
        op.reference(*expected)
        for elements in (1, 2, 4, 8, 16):
            args = tuple(shifted(arg, elements) if isinstance(arg, torch.Tensor) else arg for arg in case)
            try:
                op(args, backend="hip")
                break
            except ValueError as refusal:
                assert elements < 16 and ("multiple" in str(refusal) or "aligned" in str(refusal)), refusal
        for index in op.result_indices:
            if args[index] is not None:
                error, fault = judge.difference(args[index], expected[index], 1e-3)
                assert fault is None, f"{name}: argument {index}: {fault} ({error})"


@pytest.mark.parametrize("name", ("pack_int4", "copy_blocks"))
def test_odd_addresses(checked_builds, device, name):
    check(name, device)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", portable())
def test_odd_addresses_of_every_kernel(checked_builds, device, name):
    check(name, device)

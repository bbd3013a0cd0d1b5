# SPDX-License-Identifier: MIT
"""The host side of Triton's AMD driver without its C extension: loading and launching on the simulator by ctypes.

Triton compiles that extension on a machine's first launch, which needs a C compiler. What it takes and returns is
Triton's interface (triton/backends/amd/driver.py): it is kept to the letter. Read by triton.py.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from triton.backends.amd import driver as _amd

_ARCH = "gfx942:sramecc+:xnack-"
_REGISTERS, _LOCAL_BYTES, _MAX_THREADS = 4, 3, 0  # hipFuncAttribute
_ATTRIBUTES = {"max_shared_mem": 74, "max_num_regs": 71, "multiprocessor_count": 63, "sm_clock_rate": 5,
               "mem_clock_rate": 60, "mem_bus_width": 59, "warpSize": 87, "max_threads_per_sm": 57,
               "cooperativeLaunch": 10}  # hipDeviceAttribute_t
_LAUNCH_FAILURE = 719  # hipErrorLaunchFailure
_CELLS: dict[str, Callable[[Any], Any]] = {
    "i1": ctypes.c_int32, "i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32, "i64": ctypes.c_int64,
    "u1": ctypes.c_uint32, "u8": ctypes.c_uint8, "u16": ctypes.c_uint16, "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64, "fp32": ctypes.c_float, "f32": ctypes.c_float, "fp64": ctypes.c_double,
    "fp16": lambda value: ctypes.c_uint16(int.from_bytes(struct.pack("<e", value), "little")),
    "bf16": lambda value: ctypes.c_uint16(int.from_bytes(struct.pack("<f", value), "little") >> 16),
}


class Argument(NamedTuple):
    """An argument of a kernel in the form of Triton: its own fields, and its constructor's names."""

    nested_tuple: list[Argument] | None
    type: int


_CONSTEXPR, _KERNEL, _TUPLE = range(3)


def is_usable() -> bool:
    """Whether this Triton has the interface below; an older one compiles a launcher for each kernel."""
    return all(hasattr(_amd, name) for name in ("annotate_arguments", "make_kernel_signature", "make_tensordesc_arg"))


class HostUtils:
    """Triton's "utils" of a driver."""

    def __init__(self, library: ctypes.CDLL):
        self._library = library
        # The names that Triton's own HIPUtils puts there.
        _amd.PyKernelArg, _amd.ARG_CONSTEXPR, _amd.ARG_KERNEL, _amd.ARG_TUPLE = Argument, _CONSTEXPR, _KERNEL, _TUPLE

    def load_binary(self, name: str, code_object: bytes, shared_bytes: int, device: int) -> tuple:
        """(module, function, registers, spills, largest block)."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._library.hipModuleLoadData(ctypes.byref(module), code_object))
        self._check(self._library.hipModuleGetFunction(ctypes.byref(function), module, name.encode()))
        numbers = []
        for which in (_REGISTERS, _LOCAL_BYTES, _MAX_THREADS):
            value = ctypes.c_int()
            self._library.hipFuncGetAttribute(ctypes.byref(value), which, function)
            numbers.append(value.value)
        return module.value, function.value, numbers[0], numbers[1] // 4, numbers[2]

    def unload_module(self, module: int) -> None:
        """Modules stay loaded (triton.py)."""

    def get_device_properties(self, number: int) -> dict[str, Any]:
        """Facts of the simulated device, by Triton's names."""
        return {name: self._attribute(which, number) for name, which in _ATTRIBUTES.items()} | {"arch": _ARCH}

    def create_tdm_descriptor(self, *args: Any) -> None:
        """Tensor data movers are gfx1250's."""
        raise RuntimeError("gfx942 has no tensor data mover")

    def build_signature_metadata(self, signature: Sequence[str]) -> tuple[Callable[[Any], Any], ...]:
        """For each argument that reaches the kernel, what makes its bytes."""
        return tuple(self._pointer if kind.startswith("*") else _CELLS[kind] for kind in signature)

    def launch(self, *given: Any) -> None:
        """Launches a kernel with Triton's 16 positional arguments; its last two are the scratch buffers."""
        (cooperative, *grid, stream, function, global_scratch, profile_scratch, (num_warps, num_ctas, shared), metadata,
         enter, leave, warp_size, annotations, signature, args) = given
        if num_ctas > 1:
            raise RuntimeError("gfx942 has no clusters: num_ctas must be 1")
        if enter is not None:
            enter(metadata)
        if len(args) < len(annotations):
            raise TypeError(f"a launch of this kernel takes {len(annotations)} arguments, constants included, got "
                            f"{len(args)}")
        cells = [make(value) for make, value in zip(signature, _reaching(annotations, args), strict=True)]
        cells += [self._pointer(global_scratch), self._pointer(profile_scratch)]
        params = (ctypes.c_void_p * len(cells))(*map(ctypes.addressof, cells))
        start = self._library.hipModuleLaunchCooperativeKernel if cooperative else self._library.hipModuleLaunchKernel
        if all(grid):
            numbers = map(ctypes.c_uint32, (*grid, num_warps * warp_size, 1, 1, shared))
            self._check(start(ctypes.c_void_p(function), *numbers, ctypes.c_void_p(stream or None), params, None))
        if leave is not None:
            leave(metadata)

    def _pointer(self, value: Any) -> ctypes.c_void_p:
        if value is None or isinstance(value, int):
            return ctypes.c_void_p(value)
        try:
            return ctypes.c_void_p(value.data_ptr())
        except AttributeError:
            raise TypeError("Pointer argument must be either uint64 or have data_ptr method") from None

    def _attribute(self, which: int, number: int) -> int:
        value = ctypes.c_int()
        self._check(self._library.hipDeviceGetAttribute(ctypes.byref(value), which, number))
        return value.value

    def _check(self, code: int) -> None:
        if code:
            text = self._library.hipGetErrorString(code).decode()
            if code == _LAUNCH_FAILURE:  # the simulator says what has failed, and programs look for HIP's own words
                text = f"unspecified launch failure: {text}"
            raise RuntimeError(f"Triton Error [HIP]:  Code: {code}, Messsage: {text}")


def _reaching(annotations: list[Argument], args: Sequence[Any]) -> Iterator[Any]:
    """The arguments that reach the kernel: tuples flattened, constants left out."""
    for annotation, value in zip(annotations, args):
        if annotation.type == _TUPLE:
            yield from _reaching(annotation.nested_tuple or [], value)
        elif annotation.type == _KERNEL:
            yield value

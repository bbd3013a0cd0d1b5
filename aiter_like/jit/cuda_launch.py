# SPDX-License-Identifier: MIT
"""Starts compiled Triton kernels by the CUDA driver: one packing of numbers and one call.

Triton's own launcher walks the arguments in Python and encodes each tensor's descriptor again, which costs the host
longer than small kernels run. What it passes is the same in both: addresses and numbers in the order of the kernel's
signature, a descriptor's 128 bytes followed by its shape and strides, and two addresses of scratch memory, which are
null here.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch
from triton import knobs
from triton.compiler import CompiledKernel

_FORMATS = {"i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "B", "u8": "B", "u16": "H", "u32": "I",
            "u64": "Q", "fp32": "f", "f32": "f", "fp64": "d"}
_SIZES = {"b": 1, "h": 2, "i": 4, "q": 8, "B": 1, "H": 2, "I": 4, "Q": 8, "f": 4, "d": 8, "128s": 128}
_CONFIG = "<7I4xQQI4x"  # CUlaunchConfig: grid, block, shared memory, stream, attributes and their number
_STARTS_EARLY = ctypes.create_string_buffer(struct.pack("<I4xi60x", 6, 1))  # the attribute of launch_pdl
_MOST_SHARED = 228 << 10  # bytes; more takes an attribute that Triton's launcher knows
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: of a thread that has used no GPU yet
_MOST_DESCRIPTORS = 1 << 12  # kept for one argument: weights, and activations that the allocator places again
_NO_INTERLEAVE, _PROMOTES_128_BYTES = 0, 2  # Triton's launcher asks for these
_HOST_TYPES = {8: 10, 9: 8, 10: 9}  # CUtensorMapDataType where the compiler counts otherwise


def parameters(compiled: CompiledKernel) -> list[str | dict[str, Any]]:
    """A kernel's signature, tuples opened: types, "constexpr", and what the compiler says of each descriptor."""
    descriptors = iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
    return list(_opened(compiled.src.signature.values(), descriptors))


def _opened(signature: Iterable[Any], descriptors: Iterator[Any]) -> Iterator[str | dict[str, Any]]:
    for each in signature:
        if isinstance(each, tuple):
            yield from _opened(each, descriptors)
        else:
            yield next(descriptors, None) or each if each.startswith("tensordesc") else each


def starter(compiled: CompiledKernel, parameters: list[str | dict[str, Any]]) -> Callable[..., None] | None:
    """Makes a function that starts a compiled kernel on the current device and stream. It takes the grid's three counts
    and the arguments that are no constexpr, a descriptor's shape and strides behind it. None where only Triton's
    launcher knows how: clusters, cooperative grids, scratch memory, half-precision numbers.

    Raises, when called:
        RuntimeError: the driver refuses.
    """
    meta = compiled.metadata
    formats = [format for each in parameters if each != "constexpr" for format in _formats(each)]
    is_plain = meta.num_ctas == 1 and meta.shared <= _MOST_SHARED and not (
        meta.launch_cooperative_grid or meta.global_scratch_size or meta.profile_scratch_size or
        getattr(meta, "instrumentation_mode", ""))
    if None in formats or not is_plain:
        return None
    return _start(_driver(), compiled, formats)


def _formats(parameter: str | dict[str, Any]) -> tuple[str | None, ...]:
    if isinstance(parameter, str):
        return ("Q" if parameter[0] == "*" else _FORMATS.get(parameter),)
    rank = len(parameter["block_size"])
    return ("128s", *["i"] * rank, *["q"] * rank)


def descriptor_maker(meta: dict[str, Any], traced: Any) -> Callable[..., bytes] | None:
    """Makes a function that encodes descriptors like `traced` from an address, a shape and strides, and keeps the
    latest ones. None for a kind that only Triton's launcher encodes.
    """
    if meta["fp4_padded"] or meta.get("is_im2col") or getattr(traced, "round_f32_to_tf32", False):
        return None
    encode, made = _driver().encode, {}
    kind, size = _HOST_TYPES.get(meta["elem_type"], meta["elem_type"]), meta["elem_size"]
    rank, fills_nan = len(meta["block_size"]), int(traced.padding == "nan")
    box, steps = (ctypes.c_uint32 * rank)(*reversed(meta["block_size"])), (ctypes.c_uint32 * rank)(*[1] * rank)

    def make(*key: int) -> bytes:
        found = made.get(key)
        if found is None:
            if len(made) >= _MOST_DESCRIPTORS:
                made.clear()
            address, sizes, strides = key[0], key[1:rank + 1], key[rank + 1:]
            memory = (ctypes.c_char * 192)()  # 128 bytes from a multiple of 64
            start = -(-ctypes.addressof(memory) // 64) * 64
            shape = (ctypes.c_uint64 * rank)(*reversed(sizes))
            pitches = (ctypes.c_uint64 * rank)(*[size * each for each in reversed(strides[:-1])])
            _check(encode(start, kind, rank, address, shape, pitches, box, steps, _NO_INTERLEAVE, meta["swizzle"],
                          _PROMOTES_128_BYTES, fills_nan), f"a descriptor of shape {sizes} and strides {strides}")
            found = made[key] = ctypes.string_at(start, 128)
        return found

    return make


class _Room:
    """Memory of one launch under way: configuration, arguments, and the addresses of these."""

    __slots__ = ("addresses", "config", "memory", "of_addresses")

    def __init__(self, formats: list[str]):
        places = [struct.calcsize(_CONFIG)]
        for each in formats:
            places.append(places[-1] + _SIZES[each])
        self.memory = (ctypes.c_char * (places[-1] + 8))()  # the last 8: scratch memory of Triton's, none
        self.config = ctypes.addressof(self.memory)
        addresses = [self.config + place for place in (*places, places[-1])]
        self.addresses = (ctypes.c_void_p * len(addresses))(*addresses)
        self.of_addresses = ctypes.addressof(self.addresses)


def _start(driver: _Driver, compiled: CompiledKernel, formats: list[str]) -> Callable[..., None]:
    launch, function, meta = driver.launch, compiled.function, compiled.metadata
    fixed = (32 * meta.num_warps, 1, 1, meta.shared)
    attributes = (ctypes.addressof(_STARTS_EARLY), 1) if meta.launch_pdl else (0, 0)
    pack, rooms = struct.Struct(_CONFIG + "".join(formats)).pack_into, []
    device_of, stream_of, runtime = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream, knobs.runtime
    hooks = (runtime.launch_enter_hook, runtime.launch_exit_hook)

    def start(x: int, y: int, z: int, *arguments: Any) -> None:
        if not x * y * z:
            return
        stream = stream_of(device_of())
        try:
            room = rooms.pop()
        except IndexError:
            room = _Room(formats)
        pack(room.memory, 0, x, y, z, *fixed, stream, *attributes, *arguments)
        enter, leave = asked = (runtime.launch_enter_hook, runtime.launch_exit_hook)
        is_watched = asked != hooks or enter.calls or leave.calls  # profilers add themselves to Triton's chains
        if is_watched:
            told = compiled.launch_metadata((x, y, z), stream)
            enter(told)
        code = launch(room.config, function, room.of_addresses, None)
        if code == _NO_CONTEXT:
            driver.enter_context(device_of())
            code = launch(room.config, function, room.of_addresses, None)
        if is_watched:
            leave(told)
        rooms.append(room)
        if code:
            _check(code, compiled.name)

    return start


class _Driver:
    """The three functions of the CUDA driver that a launch needs, and the context of a new thread."""

    def __init__(self, library: ctypes.CDLL):
        self._library = library
        pointer, u32 = ctypes.c_void_p, ctypes.c_uint32
        self.launch, self.encode = library.cuLaunchKernelEx, library.cuTensorMapEncodeTiled
        self.launch.argtypes = (pointer, pointer, pointer, pointer)
        self.encode.argtypes = (pointer, u32, u32, pointer, pointer, pointer, pointer, pointer, u32, u32, u32, u32)

    def enter_context(self, device: int) -> None:
        """Makes the device's context, which torch has made, the calling thread's."""
        context = ctypes.c_void_p()
        _check(self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "a context")
        _check(self._library.cuCtxSetCurrent(context), "a context")

    def message(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        return (text.value or b"unknown error").decode()


@cache
def _driver() -> _Driver:
    return _Driver(ctypes.CDLL("libcuda.so.1"))


def _check(code: int, what: str) -> None:
    if code:
        raise RuntimeError(f"{what}: the CUDA driver says: {_driver().message(code)} ({code})")

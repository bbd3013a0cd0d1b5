# SPDX-License-Identifier: MIT
"""Registers, LDS, scratch and memory of a launch that has stopped: csrc/sim/debug/control.cpp."""

import ctypes
from collections.abc import Sequence

from aiter_like.errors import DebuggerError
from aiter_like.sim import library

LANES = 64
SCALARS = {"vcc": (106, 2), "m0": (124, 1), "exec": (126, 2), "scc": (128, 1), "flat_scratch": (102, 2),
           "xnack_mask": (104, 2)}
"""Name of scalar registers with one → place in the scalar file, dwords."""
FIRST_AGPR = 256


class Machine:
    """The stopped launch. Calls are right only while it waits at a stop."""

    def __init__(self):
        self._library = library.load_debug()

    def launch(self) -> dict:
        """Kernel, sizes, arguments and registers of the running launch."""
        return library.json_of(self._library.aiter_like_sim_debug_launch())

    def code(self) -> dict:
        """Its code: kernels, variables, instructions."""
        return library.json_of(self._library.aiter_like_sim_debug_code())

    def stop(self) -> dict:
        """Why it has stopped."""
        return library.json_of(self._library.aiter_like_sim_debug_stop())

    def groups(self) -> list[dict]:
        """Workgroups that run or wait to go on, with their waves."""
        return library.json_of(self._library.aiter_like_sim_debug_groups())

    def section(self, name: str) -> bytes:
        """A debug section of its code, empty where there is none."""
        size = ctypes.c_uint64()
        address = self._library.aiter_like_sim_debug_dwarf(f".{name}".encode(), ctypes.byref(size))
        return ctypes.string_at(address, size.value) if address else b""

    def vectors(self, group: int, wave: int, row: int, count: int = 1) -> list[list[int]]:
        """Rows of vector registers, 64 dwords each: v0 is row 0, a0 is FIRST_AGPR, but see `agpr_row`."""
        data = (ctypes.c_uint32 * (LANES * count))()
        done = self._library.aiter_like_sim_debug_rows(group, wave, row, count, data, 0)
        self._require(done, f"vector registers of wave {wave} of workgroup {group}")
        return [list(data[LANES * n:LANES * (n + 1)]) for n in range(count)]

    def set_vector(self, group: int, wave: int, row: int, values: Sequence[int]) -> None:
        """Writes one row, 64 dwords."""
        data = (ctypes.c_uint32 * LANES)(*[value & 0xffffffff for value in values])
        done = self._library.aiter_like_sim_debug_rows(group, wave, row, 1, data, 1)
        self._require(done, f"vector registers of wave {wave} of workgroup {group}")

    def scalars(self, group: int, wave: int, first: int, count: int = 1) -> list[int]:
        """Dwords of the scalar file; `SCALARS` has its names."""
        data = (ctypes.c_uint32 * count)()
        done = self._library.aiter_like_sim_debug_scalars(group, wave, first, count, data, 0)
        self._require(done, f"scalar registers of wave {wave} of workgroup {group}")
        return list(data)

    def set_scalars(self, group: int, wave: int, first: int, values: Sequence[int]) -> None:
        """Writes dwords of the scalar file."""
        data = (ctypes.c_uint32 * len(values))(*[value & 0xffffffff for value in values])
        done = self._library.aiter_like_sim_debug_scalars(group, wave, first, len(values), data, 1)
        self._require(done, f"scalar registers of wave {wave} of workgroup {group}")

    def lds(self, group: int, offset: int, size: int, data: bytes | None = None) -> bytes:
        """Bytes of a workgroup's LDS; `data`: writes them."""
        buffer = ctypes.create_string_buffer(data or b"", size)
        done = self._library.aiter_like_sim_debug_lds(group, offset, size, buffer, data is not None)
        self._require(done, f"LDS bytes {offset} to {offset + size - 1} of workgroup {group}")
        return buffer.raw

    def scratch(self, group: int, wave: int, lane: int, offset: int, size: int, data: bytes | None = None) -> bytes:
        """Bytes of a lane's scratch; `data`: writes them."""
        buffer = ctypes.create_string_buffer(data or b"", size)
        done = self._library.aiter_like_sim_debug_scratch(group, wave, lane, offset, size, buffer, data is not None)
        self._require(done, f"scratch bytes {offset} to {offset + size - 1} of lane {lane}, wave {wave}")
        return buffer.raw

    def memory(self, address: int, size: int, data: bytes | None = None) -> bytes:
        """Bytes of memory; `data`: writes them."""
        buffer = ctypes.create_string_buffer(data or b"", size)
        done = self._library.aiter_like_sim_debug_memory(address, size, buffer, data is not None)
        if done != size:
            raise DebuggerError(f"memory at {address + done:#x} cannot be {'read' if data is None else 'written'}")
        return buffer.raw

    @staticmethod
    def _require(done: int, what: str) -> None:
        if not done:
            raise DebuggerError(f"there are no {what}")


def agpr_row(launch: dict, number: int) -> int:
    """The row of an accumulation register: kernels with one file have them behind their v registers."""
    return (launch["accum_offset"] if launch["one_file"] else FIRST_AGPR) + number


class Watched(ctypes.Structure):
    """`Watch` of csrc/sim/debug/debugger.h."""

    _fields_ = [("number", ctypes.c_uint64), ("space", ctypes.c_uint32), ("kinds", ctypes.c_uint32),
                ("begin", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("group", ctypes.c_uint64),
                ("wave", ctypes.c_uint32), ("lanes", ctypes.c_uint64)]

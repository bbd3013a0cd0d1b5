# SPDX-License-Identifier: MIT
"""Code objects: containers, kernels and their resources, variables, relocations, and what is refused."""

import struct
import sys
from pathlib import Path

import pytest
from damage import places
from hip_program import code_object

from aiter_like import sim
from aiter_like.errors import SimulatorError

SOURCE = """
__device__ int table[4] = {1, 2, 3, 4};
__device__ int* pointer_to_table = table + 1;      // a relocation
extern "C" __global__ void gather(const int* index, int* out) {
  __shared__ int part[256];
  part[thread_index()] = index[thread_index()];
  workgroup_barrier();
  out[thread_index()] = table[part[255 - thread_index()] & 3] + pointer_to_table[0];
}
extern "C" __global__ __launch_bounds__(64) void second(int* out) { out[thread_index()] = 7; }
"""


def test_kernels_and_their_resources():
    kernels = sim.inspect(code_object(SOURCE))
    assert set(kernels) == {"gather", "second"}
    assert kernels["gather"]["lds_bytes"] == 1024 and kernels["gather"]["kernarg_bytes"] >= 16
    assert kernels["second"]["max_block"] == 64 and kernels["second"]["lds_bytes"] == 0
    assert all(kernel["vgpr_spills"] == 0 and kernel["private_bytes"] == 0 for kernel in kernels.values())


@pytest.mark.parametrize("flags", [("--no-gpu-bundle-output",), ("--gpu-bundle-output",)])
def test_bare_elf_and_bundle_are_the_same(flags):
    code = code_object(SOURCE, *flags)
    assert code.startswith(b"\x7fELF" if flags == ("--no-gpu-bundle-output",) else b"__CLANG_OFFLOAD_BUNDLE__")
    assert sim.inspect(code) == sim.inspect(code_object(SOURCE))


def test_a_compressed_bundle_is_unpacked():
    code = code_object(SOURCE, "--gpu-bundle-output", "--offload-compress")
    assert code.startswith(b"CCOB")
    assert sim.inspect(code) == sim.inspect(code_object(SOURCE))
    with pytest.raises(SimulatorError, match="compressed code object is damaged"):
        sim.inspect(code[:24] + bytes(16) + code[40:])
    with pytest.raises(SimulatorError, match="unknown version 9"):
        sim.inspect(b"CCOB" + struct.pack("<HH", 9, 1) + code[8:])


def bundle(*entries: tuple[str, bytes]) -> bytes:
    """An offload bundle with these ids and contents."""
    header = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(entries))
    size = len(header) + sum(24 + len(name) for name, _ in entries)
    body = b""
    for name, content in entries:
        header += struct.pack("<QQQ", size + len(body), len(content), len(name)) + name.encode()
        body += content
    return header + body


def test_the_gfx942_entry_of_a_bundle_is_found():
    code = code_object(SOURCE)
    for name in ("hip-amdgcn-amd-amdhsa--gfx942", "hipv4-amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-"):
        assert sim.inspect(bundle(("host-x86_64-unknown-linux-gnu-", b""), (name, code)))
    with pytest.raises(SimulatorError, match="no code object for gfx942, only: hipv4-amdgcn-amd-amdhsa--gfx90a"):
        sim.inspect(bundle(("hipv4-amdgcn-amd-amdhsa--gfx90a", code)))


def test_other_machines_are_refused():
    code = code_object(SOURCE)
    with pytest.raises(SimulatorError, match="no AMD GPU code object"):
        sim.inspect(Path(sys.executable).resolve().read_bytes())
    gfx90a = code[:48] + struct.pack("<I", 0x3F) + code[52:]
    with pytest.raises(SimulatorError, match="not for gfx942"):
        sim.inspect(gfx90a)


def test_a_bundle_that_contains_itself_is_refused():
    name = b"hipv4-amdgcn-amd-amdhsa--gfx942"
    itself = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<QQQQ", 1, 0, 56 + len(name), len(name)) + name
    with pytest.raises(SimulatorError, match="neither an ELF file nor an offload bundle"):
        sim.inspect(itself)


def field(code: bytes, structure: str, record: int, offset: int, layout: str, value: int) -> bytes:
    """The code object with another value in a field of a record."""
    start, size = places(code)[structure][0]
    at = start + {"segments": 56, "symbols": 24}[structure] * record + offset
    assert at < start + size
    return code[:at] + struct.pack(layout, value) + code[at + struct.calcsize(layout):]


def test_segments_that_overlap_are_refused():
    code = code_object(SOURCE)
    start, size = places(code)["segments"][0]
    loads = [index for index in range(size // 56) if struct.unpack_from("<I", code, start + 56 * index)[0] == 1]
    with pytest.raises(SimulatorError, match="overlap or are out of order"):
        sim.inspect(field(code, "segments", loads[1], 16, "<Q", 0))


def test_a_variable_beyond_the_image_is_refused():
    """Copies to and from symbols trust the size."""
    code = code_object(SOURCE)
    start, size = places(code)["symbols"][0]
    objects = [index for index in range(size // 24)
               if code[start + 24 * index + 4] & 15 == 1 and code[start + 24 * index + 16] != 64]
    with pytest.raises(SimulatorError, match="exceeds the code object's image"):
        sim.inspect(field(code, "symbols", objects[0], 16, "<Q", 1 << 30))


@pytest.mark.parametrize("size", [1, 40, 63, 64, 1000])
def test_a_truncated_file_says_what_is_missing(size):
    with pytest.raises(SimulatorError, match="truncated|neither an ELF file"):
        sim.inspect(code_object(SOURCE)[:size])

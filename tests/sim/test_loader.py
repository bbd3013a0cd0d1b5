# SPDX-License-Identifier: MIT
"""Code objects: containers, kernels and their resources, variables, relocations, and damaged files."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
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


# Runs in a child, so that a crash is a failed test and not the end of the run. Every image is launched as `gather`,
# with all checks on (a damaged kernel may store anywhere) and few instructions.
CHILD = """
import ctypes, sys
hip = ctypes.CDLL(sys.argv[1])
hip.aiter_like_sim_configure(15, 1, ctypes.c_uint64(0), 0, ctypes.c_uint64(20000))
hip.aiter_like_sim_inspect.restype = ctypes.c_void_p
index, out = ctypes.c_void_p(), ctypes.c_void_p()
for pointer in (index, out):
    assert hip.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(1024)) == 0
    assert hip.hipMemset(pointer, 0, ctypes.c_size_t(1024)) == 0
arguments = (ctypes.c_void_p * 2)(ctypes.addressof(index), ctypes.addressof(out))
for path in sys.argv[2:]:
    data = open(path, "rb").read()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    if hip.aiter_like_sim_inspect(data, ctypes.c_uint64(len(data))) is None:
        continue
    assert hip.hipModuleLoadData(ctypes.byref(module), data) == 0
    if hip.hipModuleGetFunction(ctypes.byref(function), module, b"gather") == 0:
        hip.hipModuleLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, None, arguments, None)
    hip.hipModuleUnload(module)
print("survived")
"""


def survives(tmp_path: Path, images: list[bytes]) -> None:
    """Every image is loaded or refused; no crash, no hang."""
    files = []
    for number, image in enumerate(images):
        files.append(tmp_path / f"{number}.bin")
        files[-1].write_bytes(image)
    done = subprocess.run([sys.executable, "-c", CHILD, sim.load()._name, *map(str, files)], capture_output=True,
                          text=True, timeout=120, check=False)
    assert done.returncode == 0 and "survived" in done.stdout, done.stderr


def test_truncated_files_do_not_crash(tmp_path):
    code = code_object(SOURCE)
    wrapped = bundle(("hipv4-amdgcn-amd-amdhsa--gfx942", code))
    sizes = random.Random(1).sample(range(1, len(code)), 60)
    packed = code_object(SOURCE, "--gpu-bundle-output", "--offload-compress")
    survives(tmp_path, [b"", *(code[:size] for size in sizes), *(wrapped[:size] for size in sizes[:20]),
                        *(packed[:size] for size in range(1, len(packed), 97))])


def test_flipped_bits_do_not_crash(tmp_path):
    code, rng, images = code_object(SOURCE), random.Random(2), []
    for _ in range(200):
        image = bytearray(code)
        for _ in range(rng.randrange(1, 8)):
            # Mostly where structure is: headers, notes, symbols at the start, section headers at the end.
            at = rng.choice((rng.randrange(2048), rng.randrange(len(image)), len(image) - 1 - rng.randrange(1500)))
            image[at] ^= 1 << rng.randrange(8)
        images.append(bytes(image))
    survives(tmp_path, images)

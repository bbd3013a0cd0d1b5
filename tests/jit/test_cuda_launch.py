# SPDX-License-Identifier: MIT
"""jit/cuda_launch.py, by a CUDA driver that notes what it is asked for."""

import ctypes
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from jit_project import real_clang

pytest.importorskip("triton")
from triton import knobs

from aiter_like.jit import cuda_launch

_DRIVER = r"""
#include <stdatomic.h>
#include <string.h>

struct Config { unsigned grid[3], block[3], shared; void* stream; void* attributes; unsigned num_attributes; };
struct Launch { struct Config config; void* function; unsigned attribute[18]; unsigned char arguments[8][128]; };

struct Launch launches[16];
int sizes[8], answers[16], contexts;
atomic_int num_launches, arrived, awaited;

int cuLaunchKernelEx(const struct Config* config, void* function, void** arguments, void** extra) {
    atomic_fetch_add(&arrived, 1);
    while (arrived < awaited) {}  // until so many launches are under way
    int number = atomic_fetch_add(&num_launches, 1);
    struct Launch* launch = &launches[number];
    launch->config = *config;
    launch->function = function;
    if (config->num_attributes) memcpy(launch->attribute, config->attributes, sizeof launch->attribute);
    for (int each = 0; each < 8; ++each) memcpy(launch->arguments[each], arguments[each], sizes[each]);
    return answers[number];
}

int cuTensorMapEncodeTiled(unsigned* out, unsigned type, unsigned rank, void* address, unsigned long long* shape,
                           unsigned long long* strides, unsigned* box, unsigned* steps, unsigned interleave,
                           unsigned swizzle, unsigned promotion, unsigned fill) {
    if ((unsigned long long)out % 64 || (unsigned long long)address % 16) return 1;
    unsigned all[] = {type, rank, shape[0], shape[1], strides[0], box[0], box[1], steps[0], steps[1], interleave,
                      swizzle, promotion, fill};
    memset(out, 0, 128);
    memcpy(out, all, sizeof all);
    return 0;
}

int cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)(long)(100 + device); return 0; }
int cuCtxSetCurrent(void* context) { contexts = (int)(long)context; return 0; }
int cuGetErrorString(int code, const char** text) { *text = code == 700 ? "illegal address" : 0; return !*text; }
"""
_DESCRIBED = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [64, 32], "fp4_padded": False}


class _Config(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), ("shared", ctypes.c_uint32),
                ("stream", ctypes.c_uint64), ("attributes", ctypes.c_uint64), ("num_attributes", ctypes.c_uint32)]


class _Launch(ctypes.Structure):
    _fields_ = [("config", _Config), ("function", ctypes.c_uint64), ("attribute", ctypes.c_uint32 * 18),
                ("arguments", ctypes.c_uint8 * 128 * 8)]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    subprocess.run([real_clang(), "-x", "c", "-shared", "-fPIC", "-O1", "-o", path, "-"], input=_DRIVER.encode(),
                   check=True)
    return path


@pytest.fixture
def driver(library, monkeypatch, tmp_path):
    copy = tmp_path / "libcuda.so.1"  # its variables are this test's
    copy.write_bytes(library.read_bytes())
    found = ctypes.CDLL(copy)
    made = cuda_launch._Driver(found)
    monkeypatch.setattr(cuda_launch, "_driver", lambda: made)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 2, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 70 + device, raising=False)
    return found


def _kernel(*signature, **facts):
    of_compiler = {"num_warps": 4, "num_ctas": 1, "shared": 512, "launch_pdl": False, "launch_cooperative_grid": False,
                   "global_scratch_size": 0, "profile_scratch_size": 0, "tensordesc_meta": None} | facts
    names = [f"a{number}" for number in range(len(signature))]
    return SimpleNamespace(name="planted", function=0x1234, metadata=SimpleNamespace(**of_compiler),
                           src=SimpleNamespace(signature=dict(zip(names, signature))),
                           launch_metadata=lambda grid, stream: (grid, stream))


def _starter(driver, kernel, sizes=(8,) * 8):
    (ctypes.c_int * 8).in_dll(driver, "sizes")[:] = [*sizes, *[0] * 8][:8]
    return cuda_launch.starter(kernel, cuda_launch.parameters(kernel))


def _launches(driver):
    count = ctypes.c_int.in_dll(driver, "num_launches").value
    return list((_Launch * 16).in_dll(driver, "launches"))[:count]


def test_numbers_arrive_in_their_widths(driver):
    kernel = _kernel("*bf16", "i32", "constexpr", ("i64", "constexpr", "fp32"), "i1", "u64", launch_pdl=True)
    start = _starter(driver, kernel, (8, 4, 8, 4, 1, 8, 8, 8))
    start(3, 2, 1, 2**63 + 16, -5, -2**40, 0.25, True, 2**64 - 1)
    launch, = _launches(driver)
    config = launch.config
    assert [*config.grid, *config.block, config.shared, config.stream] == [3, 2, 1, 128, 1, 1, 512, 72]
    assert (config.num_attributes, launch.attribute[0], launch.attribute[2], launch.function) == (1, 6, 1, 0x1234)
    written = [bytes(each) for each in launch.arguments]
    expected = ("<Q", 2**63 + 16), ("<i", -5), ("<q", -2**40), ("<f", 0.25), ("<?", True), ("<Q", 2**64 - 1), ("<Q", 0)
    for bytes_of, (form, value) in zip(written, (*expected, ("<Q", 0))):  # the last two: no scratch memory
        assert struct.unpack_from(form, bytes_of)[0] == value


def test_a_grid_of_nothing_starts_nothing(driver):
    start = _starter(driver, _kernel("i32"), (4,))
    start(1, 0, 5, 7)
    assert not _launches(driver)


def test_launches_under_way_together_have_memory_of_their_own(driver):
    start = _starter(driver, _kernel("i32"), (4,))
    ctypes.c_int.in_dll(driver, "awaited").value = 4
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: start(1, 1, 1, number), range(4)))
    assert sorted(launch.arguments[0][0] for launch in _launches(driver)) == [0, 1, 2, 3]
    start(1, 1, 1, 9)
    assert _launches(driver)[4].arguments[0][0] == 9


def test_profilers_hear_of_launches(driver, monkeypatch):
    start, heard = _starter(driver, _kernel("i32"), (4,)), []
    enter, leave = (lambda told: heard.append(("enter", told)), lambda told: heard.append(("leave", told)))
    knobs.runtime.launch_enter_hook.add(enter)
    try:
        start(1, 2, 3, 4)
    finally:
        knobs.runtime.launch_enter_hook.remove(enter)
    assert heard == [("enter", ((1, 2, 3), 72))]
    monkeypatch.setattr(knobs.runtime, "launch_exit_hook", leave)  # in the place of Triton's chain
    start(1, 2, 3, 4)
    assert heard[1:] == [("leave", ((1, 2, 3), 72))]


def test_what_the_driver_refuses(driver):
    start, answers = _starter(driver, _kernel("i32"), (4,)), (ctypes.c_int * 16).in_dll(driver, "answers")
    answers[0], answers[2], answers[3] = 201, 700, 5
    start(1, 1, 1, 1)  # by a thread without a context, which gets torch's
    assert (len(_launches(driver)), ctypes.c_int.in_dll(driver, "contexts").value) == (2, 102)
    with pytest.raises(RuntimeError, match=r"^planted: the CUDA driver says: illegal address \(700\)$"):
        start(1, 1, 1, 1)
    with pytest.raises(RuntimeError, match=r"unknown error \(5\)"):
        start(1, 1, 1, 1)


def test_descriptors(driver, monkeypatch):
    kernel = _kernel("tensordesc<bf16[64, 32]>", "i32", tensordesc_meta=[_DESCRIBED])
    start = _starter(driver, kernel, (128, 4, 4, 8, 8, 4))
    make = cuda_launch.descriptor_maker(_DESCRIBED, SimpleNamespace(padding="nan"))
    start(1, 1, 1, make(64, 100, 40, 48, 1), 100, 40, 48, 1, 7)
    arguments = [bytes(each) for each in _launches(driver)[0].arguments]
    assert struct.unpack_from("<13I", arguments[0]) == (9, 2, 40, 100, 96, 32, 64, 1, 1, 0, 3, 2, 1)
    assert [struct.unpack_from(form, each)[0] for form, each in zip("iiqqi", arguments[1:])] == [100, 40, 48, 1, 7]
    assert make(64, 100, 40, 48, 1) is make(64, 100, 40, 48, 1), "encoded once"
    assert make(64, 101, 40, 48, 1) != make(64, 100, 40, 48, 1)
    monkeypatch.setattr(cuda_launch, "_MOST_DESCRIPTORS", 3)
    kept = [make(16 * number, 100, 40, 48, 1) for number in range(1, 9)]
    assert set(kept) == {make(64, 100, 40, 48, 1)}, "encoded anew where too many were kept"
    with pytest.raises(RuntimeError, match=r"a descriptor of shape \(100, 40\) and strides \(48, 1\): the CUDA driver"):
        make(8, 100, 40, 48, 1)


@pytest.mark.parametrize(("signature", "facts"), (
    (("i32",), {"num_ctas": 2}), (("i32",), {"launch_cooperative_grid": True}), (("i32",), {"global_scratch_size": 8}),
    (("i32",), {"profile_scratch_size": 8}), (("i32",), {"shared": 229 << 10}), (("bf16",), {}),
    (("i32",), {"instrumentation_mode": "gsan"}),
    (("tensordesc<bf16[64, 32]>",), {}), (("tensordesc<bf16[64, 32]>",), {"tensordesc_meta": [None]})))
def test_what_only_tritons_launcher_starts(driver, signature, facts):
    assert _starter(driver, _kernel(*signature, **facts)) is None


@pytest.mark.parametrize(("facts", "traced"), (({"fp4_padded": True}, {}), ({"is_im2col": True}, {}),
                                               ({}, {"round_f32_to_tf32": True})))
def test_descriptors_that_only_tritons_launcher_encodes(driver, facts, traced):
    assert cuda_launch.descriptor_maker(_DESCRIBED | facts, SimpleNamespace(padding="zero", **traced)) is None

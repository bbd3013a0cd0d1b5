# SPDX-License-Identifier: MIT
"""hipLink* and hiprtcLink*: bitcode of several programs (data, files, bundles, archives) becomes one code object."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path

import numpy as np
import pytest
from hip_calls import address, call, made
from hip_runtime import HipError, runtime
from jit_project import real_clang

from aiter_like import sim
from aiter_like.sim import rocm

BITCODE, BUNDLE, ARCHIVE = 100, 101, 102
CALLER = """__attribute__((device)) extern "C" int f(int);
extern "C" __attribute__((global)) void k(int* x) {
  int i = __builtin_amdgcn_workitem_id_x();
  x[i] = f(x[i]);
}
"""
CALLED = '__attribute__((device)) extern "C" int f(int x) { return 3 * x + 41; }\n'
INVALID_VALUE, INVALID_IMAGE, NOT_FOUND, INVALID_HANDLE = 1, 200, 301, 400

PROGRAM = r"""
#include <hip/hip_runtime.h>
#include <hip/hiprtc.h>
#include <cstdio>
#include <vector>
static std::vector<char> bitcode(const char* source) {
  hiprtcProgram program;
  const char* options[] = {"-fgpu-rdc"};
  size_t bytes = 0;
  if (hiprtcCreateProgram(&program, source, "part", 0, nullptr, nullptr) ||
      hiprtcCompileProgram(program, 1, options) || hiprtcGetBitcodeSize(program, &bytes)) return {};
  std::vector<char> code(bytes);
  if (hiprtcGetBitcode(program, code.data()) || hiprtcDestroyProgram(&program)) return {};
  return code;
}
int main() {
  std::vector<char> parts[] = {
      bitcode("extern \"C\" __device__ int f(int); extern \"C\" __global__ void k(int* x) {"
              " x[threadIdx.x] = f(x[threadIdx.x]); }"),
      bitcode("extern \"C\" __device__ int f(int x) { return 3 * x + 41; }")};
  const char* words[] = {"-mllvm", "-inline-threshold=1"};
  hiprtcJIT_option options[] = {HIPRTC_JIT_IR_TO_ISA_OPT_EXT, HIPRTC_JIT_IR_TO_ISA_OPT_COUNT_EXT,
                                HIPRTC_JIT_OPTIMIZATION_LEVEL};
  void* values[] = {words, reinterpret_cast<void*>(size_t{2}), reinterpret_cast<void*>(size_t{1})};
  hiprtcLinkState rtc;
  hipLinkState_t link;
  void* code[2];
  size_t bytes[2];
  int bad = hiprtcLinkCreate(3, options, values, &rtc) || hipLinkCreate(3, options, values, &link);
  for (auto& part : parts) {
    bad += hiprtcLinkAddData(rtc, HIPRTC_JIT_INPUT_LLVM_BITCODE, part.data(), part.size(), "", 0, nullptr, nullptr);
    bad += hipLinkAddData(link, hipJitInputLLVMBitcode, part.data(), part.size(), "", 0, nullptr, nullptr);
  }
  bad += hiprtcLinkComplete(rtc, &code[0], &bytes[0]) || hipLinkComplete(link, &code[1], &bytes[1]);
  for (int i = 0; i < 2 && !bad; ++i) {
    hipModule_t module;
    hipFunction_t k;
    int* x;
    std::vector<int> host(64, i);
    bad += hipModuleLoadData(&module, code[i]) || hipModuleGetFunction(&k, module, "k") || hipMalloc(&x, 256) ||
           hipMemcpy(x, host.data(), 256, hipMemcpyHostToDevice);
    void* arguments[] = {&x};
    bad += hipModuleLaunchKernel(k, 1, 1, 1, 64, 1, 1, 0, nullptr, arguments, nullptr) ||
           hipMemcpy(host.data(), x, 256, hipMemcpyDeviceToHost) || hipModuleUnload(module) || hipFree(x);
    for (int value : host) bad += value != 3 * i + 41;
  }
  bad += hiprtcLinkDestroy(rtc) || hipLinkDestroy(link);
  std::printf("%d\n", bad);
  return bad != 0;
}
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> list[bytes]:
    """Bitcode of a kernel, and of the function that it calls."""
    folder = tmp_path_factory.mktemp("parts")
    command = [str(real_clang()), "-x", "hip", "--offload-arch=gfx942", "--offload-device-only", "-nogpuinc",
               "-nogpulib", "--no-gpu-bundle-output", "-fgpu-rdc", "-emit-llvm", "-c", "-O1"]
    for name, text in (("caller", CALLER), ("called", CALLED)):
        (folder / f"{name}.hip").write_text(text)
        subprocess.run([*command, str(folder / f"{name}.hip"), "-o", str(folder / f"{name}.bc")], check=True)
    return [(folder / f"{name}.bc").read_bytes() for name in ("caller", "called")]


def bundle(code: bytes) -> bytes:
    """A bundle whose first entry is the host's, which is empty."""
    entries = [(b"host-x86_64-unknown-linux-gnu-", b""), (b"hip-amdgcn-amd-amdhsa-unknown-gfx942", code)]
    head, at, body = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 2), 4096, b""
    for name, part in entries:
        head += struct.pack("<QQQ", at + len(body), len(part), len(name)) + name
        body += part
    return head.ljust(at, b"\0") + body


def archive(*members: bytes) -> bytes:
    """As `ar` makes one of files with names of more than 15 letters: a table of names, then the files."""
    def entry(name: str, data: bytes) -> bytes:
        head = f"{name:<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(data):<10}`\n".encode()
        return head + data + b"\n" * (len(data) % 2)

    return b"!<arch>\n" + entry("//", b"a_name_of_many_letters.o/\n") + b"".join(entry("/0", data) for data in members)


class Link:
    """A link of the runtime's."""

    def __init__(self, options: dict[int, int] | None = None):
        options, self.handle = options or {}, c_void_p()
        call("hipLinkCreate", c_uint(len(options)), (c_int * len(options))(*options),
             (c_void_p * len(options))(*options.values()), byref(self.handle))

    def add(self, kind: int, data: bytes) -> None:
        call("hipLinkAddData", self.handle, kind, data, c_size_t(len(data)), b"a part", c_uint(0), None, None)

    def add_file(self, kind: int, path: Path) -> None:
        call("hipLinkAddFile", self.handle, kind, str(path).encode(), c_uint(0), None, None)

    def complete(self) -> bytes:
        code, size = c_void_p(), c_size_t()
        call("hipLinkComplete", self.handle, byref(code), byref(size))
        return ctypes.string_at(code, size.value)


def run(code: bytes) -> np.ndarray:
    pointer, back = made("hipMalloc", c_size_t(256)), np.arange(64, dtype=np.int32)
    call("hipMemcpy", pointer, address(back), c_size_t(256), 1)
    with sim.enabled(checks=True), runtime().module(code) as module:
        runtime().launch(module.function("k"), 1, 64, 0, [pointer.value])
    call("hipMemcpy", address(back), pointer, c_size_t(256), 2)
    call("hipFree", pointer)
    return back


@pytest.mark.parametrize("how", ["data", "file", "bundles", "archive of bundles", "archive and data"])
def test_every_kind_of_input(parts, tmp_path, how):
    link = Link({7: 1})
    if how == "archive of bundles":
        link.add(ARCHIVE, archive(*map(bundle, parts)))
    elif how == "archive and data":
        (tmp_path / "lib.a").write_bytes(archive(bundle(parts[1])))
        link.add(BITCODE, parts[0])
        link.add_file(ARCHIVE, tmp_path / "lib.a")
    else:
        for part in parts:
            if how == "file":
                (tmp_path / "part.bc").write_bytes(part)
                link.add_file(BITCODE, tmp_path / "part.bc")
            else:
                link.add(*((BUNDLE, bundle(part)) if how == "bundles" else (BITCODE, part)))
    np.testing.assert_array_equal(run(link.complete()), 3 * np.arange(64) + 41)
    call("hipLinkDestroy", link.handle)


def test_text_of_llvm_comes_first(parts):
    """clang takes text as the first input, and bitcode alone after it."""
    link = Link()
    link.add(BITCODE, b'target triple = "amdgcn-amd-amdhsa"\ndefine i32 @f(i32 %x) {\n  ret i32 5\n}\n')
    link.add(BITCODE, parts[0])
    np.testing.assert_array_equal(run(link.complete()), np.full(64, 5))


def test_what_does_not_link_or_is_no_bitcode(parts, tmp_path):
    link = Link()
    refused = [(lambda: link.complete(), INVALID_VALUE, "there is nothing to link"),
               (lambda: link.add(1, parts[0]), INVALID_VALUE, "kind 1 of what is to be linked"),
               (lambda: link.add(BITCODE, b"text"), INVALID_IMAGE, "a part: this is no LLVM bitcode"),
               (lambda: link.add(BUNDLE, bundle(parts[0])[:5000]), INVALID_IMAGE, "no LLVM bitcode"),
               (lambda: link.add(ARCHIVE, archive(parts[0])[:-9]), INVALID_IMAGE, "no LLVM bitcode"),
               (lambda: link.add(BITCODE, b""), INVALID_IMAGE, "nothing to link"),
               (lambda: link.add_file(BITCODE, tmp_path / "none"), NOT_FOUND, "cannot read"),
               (lambda: Link({7: 9}), INVALID_VALUE, "level of optimisation")]
    for action, code, text in refused:
        with pytest.raises(HipError, match=f"{code}: .*{text}"):
            action()
    link.add(BITCODE, parts[0])
    with pytest.raises(HipError, match=f"{INVALID_IMAGE}: (?s:.*)undefined (?s:.*)f"):
        link.complete()
    call("hipLinkDestroy", link.handle)
    with pytest.raises(HipError, match=f"{INVALID_HANDLE}: this is not a live"):
        call("hipLinkDestroy", link.handle)
    with pytest.raises(HipError, match=f"{INVALID_HANDLE}: this is not a live"):
        link.add(BITCODE, parts[0])


def test_options_of_hiprtcs_linker():
    rtc, link, words = sim.load_rtc(), c_void_p(), (c_char_p * 1)(b"-no-such-option")
    assert rtc.hiprtcLinkCreate(1, (c_int * 1)(7), (c_void_p * 1)(9), byref(link)) == 5, "no level"
    assert rtc.hiprtcLinkCreate(1, (c_int * 1)(10001), (c_void_p * 1)(1), byref(link)) == 5, "no words"
    assert rtc.hiprtcLinkCreate(1, None, None, byref(link)) == 3
    values = (c_void_p * 2)(ctypes.addressof(words), 1)
    assert rtc.hiprtcLinkCreate(2, (c_int * 2)(10000, 10001), values, byref(link)) == 0
    assert rtc.hiprtcLinkDestroy(link) == 0


def test_a_program_links_by_both_interfaces(tmp_path):
    real_clang()
    (tmp_path / "links.hip").write_text(PROGRAM)
    subprocess.run([rocm.folder() / "bin/hipcc", "-O1", str(tmp_path / "links.hip"), "-o", str(tmp_path / "links")],
                   check=True)
    done = subprocess.run([tmp_path / "links"], env=os.environ | {"AITER_LIKE_SIM": "check"}, capture_output=True,
                          text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stdout + done.stderr

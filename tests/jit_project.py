# SPDX-License-Identifier: MIT
"""A small project and compilers for the JIT's tests: a fake one that copies, and counting wrappers around clang."""

import shutil
import stat
from pathlib import Path

import pytest

from aiter_like import paths
from aiter_like.modules import cache, toolchain
from aiter_like.modules.recipe import ModuleSpec

# Copies its source to the output and names the quoted includes in the depfile: a compiler as far as the JIT can tell.
_FAKE_COMPILER = r"""#!/bin/sh
if [ "$1" = --version ]; then
  echo "fake clang version {version}"; echo "InstalledDir: {folder}"; exit
fi
echo run >> "{log}"
sources=
while [ $# -gt 0 ]; do
  case "$1" in
    -o) out=$2; shift ;;
    -MF) dep=$2; shift ;;
    -I*) include=${{1#-I}} ;;
    *.cpp|*.o) sources="$sources $1" ;;
  esac
  shift
done
if grep -n '#error' $sources >&2; then exit 1; fi
cat $sources > "$out"
if [ "$dep" ]; then
  echo "$out: $sources" $(sed -n "s|^#include \"\(.*\)\"|$include/\1|p" $sources) > "$dep"
fi
"""

# Counts the compilations (not the questions for the version), then runs the real compiler. It and its children share a
# lock of the folder while they run, orphans too: whoever gets the folder's lock alone knows that all have ended.
_WRAPPER = """#!/bin/sh
exec 9< "{folder}"; flock -s 9
if [ "$1" = --version ]; then {banner}exec "{compiler}" --version; fi
case "$*" in *-emit-pch*) echo binding >> "{log}" ;; *--offload-device-only*|*" -c "*) echo run >> "{log}" ;; esac
exec "{compiler}" "$@"
"""


class Compiler:
    """An executable that counts its compilations."""

    def __init__(self, path: Path, text: str, **fields: str):
        self.path, self.log = path, path.with_name(f"{path.name}.log")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(folder=path.parent, log=self.log, **fields))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def runs(self, *, of_binding: bool = False) -> int:
        """Compilations of modules or, of_binding, of the binding's header for all of them."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return sum((line == "binding") == of_binding for line in lines)


def forget():
    """What a new process would not know."""
    toolchain._candidates.cache_clear()
    cache._private_root.cache_clear()


def fake_compiler(folder: Path) -> Compiler:
    return Compiler(folder / "clang++", _FAKE_COMPILER, version="22.0.0")


def real_clang() -> str:
    """A clang++ that builds for gfx942; the test is skipped where there is none."""
    for major in range(toolchain.CLANG_MAX, toolchain.CLANG_MIN[0] - 1, -1):
        if found := shutil.which(f"clang++-{major}"):
            return found
    pytest.skip("needs clang++ >= 19")


def counting_clang(folder: Path) -> Compiler:
    return Compiler(folder / "clang++", _WRAPPER, compiler=real_clang(), banner="")


def stand_in_hipcc(folder: Path, version: str = "6.4.43482-0f2d60242") -> Compiler:
    """A stand-in for ROCm's hipcc: a script of that name around clang, which prints hipcc's first version line."""
    return Compiler(folder / "hipcc", _WRAPPER, compiler=real_clang(), banner=f'echo "HIP version: {version}"; ')


class Project:
    """A source tree like csrc/: one source, one header that it includes, one that it does not."""

    def __init__(self, root: Path):
        self.root = root
        self.source, self.header = root / "op" / "tiny.cpp", root / "include" / "used.h"
        for path, text in ((self.source, '#include "used.h"\nextern "C" int tiny() { return VALUE; }\n'),
                           (self.header, "#define VALUE 1\n"), (root / "include" / "unused.h", "\n")):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def spec(self, **fields) -> ModuleSpec:
        fields = {"name": "op/tiny", "sources": ("op/tiny.cpp",), "kind": "host", "root": self.root} | fields
        return ModuleSpec(**fields)


# The HIP runtime of a test module, in the module itself: every launch is accepted and nothing runs. A library of its
# own, loaded for the whole process, would be in the way of the simulator.
_VOID_RUNTIME = """
#include "aiter_like/ffi.h"
#if AITER_LIKE_HOST_PASS
#pragma clang optimize off  // else the registration, which does nothing, is removed with all kernels
extern "C" {
int launches = 0;
void** __hipRegisterFatBinary(const void*) { static void* handle; return &handle; }
void __hipUnregisterFatBinary(void**) {}
void __hipRegisterFunction(void**, const void*, char*, const char*, unsigned, void*, void*, void*, void*, int*) {}
int __hipPushCallConfiguration(dim3, dim3, size_t, hipStream_t) { return 0; }
int __hipPopCallConfiguration(dim3*, dim3*, size_t*, hipStream_t*) { return 0; }
int hipLaunchKernel(const void*, dim3, dim3, void**, size_t, hipStream_t) { ++launches; return 0; }
int hipGetLastError() { return launches > 100; }
const char* hipGetErrorString(int) { return "tired"; }
}
#pragma clang optimize on
#endif
"""

# scale(x, weight, factor, times, is_on, name): x[0] *= factor on the host, and `times` launches.
TINY_HIP = """
#include "aiter_like/gpu.h"
#include "void_runtime.h"

namespace {  // a kernel without linkage: both passes must give it one name
__global__ void scale_kernel(float* x, float factor) { x[aiter_like::lane_index()] *= factor; }
}

void launch_scale(float* x, float factor, aiter_like::Stream stream) {
  scale_kernel<<<1, 64, 0, stream>>>(x, factor);
  aiter_like::check_launch("scale_kernel");
}

#if AITER_LIKE_HOST_PASS
namespace ffi = aiter_like::ffi;
void scale(ffi::Tensor x, ffi::OptionalTensor weight, double factor, int64_t times, bool is_on, ffi::String name) {
  ffi::Match match("scale");
  float* data = match.take<float>(x, {ffi::at_least(1)}, "x");
  for (int64_t i = 0; i < times; ++i) launch_scale(data, factor, ffi::stream_of(x));
  if (is_on) data[0] *= factor * (weight.has_value() ? 2 : 1);
}
AITER_LIKE_EXPORT(scale, scale);
#endif
"""


def make_hip_project(root: Path) -> Path:
    """A csrc/ with this package's headers and op/scale.hip."""
    shutil.copytree(paths.csrc() / "include", root / "include")
    (root / "include" / "void_runtime.h").write_text(_VOID_RUNTIME)
    (root / "op").mkdir()
    (root / "op" / "scale.hip").write_text(TINY_HIP)
    return root

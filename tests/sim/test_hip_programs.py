# SPDX-License-Identifier: MIT
"""`aiter-like sim compile` and the headers that it compiles with: everyday HIP programs by clang alone, CMake, and what
is said when something does not compile."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jit_project import real_clang

from aiter_like import cli
from aiter_like.cli.sim import compile as sim_compile
from aiter_like.modules import toolchain
from aiter_like.sim import rocm

SAMPLES, CMAKE_EXAMPLE = Path(__file__).parent / "hip_samples", Path(__file__).parent / "cmake_example"


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    """The clang of this machine; mathematical functions need Triton's wheel."""
    real_clang()
    pytest.importorskip("triton")


@pytest.fixture(scope="module")
def everyday(tmp_path_factory) -> Path:
    """The samples as one object, of which a program is linked, and a library beside it."""
    program = tmp_path_factory.mktemp("samples") / "everyday"
    source, compiled = SAMPLES / "everyday.hip", program.with_suffix(".o")
    assert cli.main(["sim", "compile", str(source), "-o", str(compiled), "-O1", "--", "-Werror", "-fPIC"]) == 0
    for output in (program, program.with_suffix(".so")):
        assert cli.main(["sim", "compile", str(compiled), "-o", str(output)]) == 0
    return program


@pytest.mark.parametrize("settings", ["check=all", "fuzz=5,defer"])
def test_everyday_samples_and_all_that_the_headers_offer(everyday, settings):
    done = subprocess.run([str(everyday)], env=os.environ | {"AITER_LIKE_SIM": settings}, capture_output=True,
                          text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    names = [line.partition(":")[0] for line in done.stdout.splitlines() if ": 0 of " in line]
    assert names == ["vector_add", "reduction", "transpose", "matrix_multiply", "histogram", "prefix_sum", "stencil",
                     "lanes", "values", "atomics", "whole_grid", "numbers", "parts", "managed", "host", "clients",
                     "clients on the host", "pairs", "lists", "libraries"]
    linked = subprocess.run(["ldd", str(everyday)], capture_output=True, text=True, check=True).stdout
    assert f"libamdhip64.so => {rocm.library_path()}" in linked


def test_the_same_as_a_library(everyday):
    program = f"import ctypes; raise SystemExit(ctypes.CDLL({str(everyday.with_suffix('.so'))!r}).main(1, None))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.count(": 0 of ") == 20, done.stdout + done.stderr


def test_macros_of_programs_do_not_meet_names_of_the_headers(tmp_path):
    """Sizes are often macros of one letter. HIP's own headers have templates of a T and a U, so that those are free."""
    names = ["hip_runtime", "hip_fp16", "hip_bf16", "hip_fp8", "hip_complex", "hip_cooperative_groups", "hip_ext"]
    (tmp_path / "a.hip").write_text("".join(f"#include <hip/{name}.h>\n" for name in names))
    macros = [f"-D{letter}=16" for letter in "ABCDEFGHIJKLMNOPQRSVWXYZ"]
    done = subprocess.run([rocm.folder() / "bin/hipcc", "-fsyntax-only", *macros, str(tmp_path / "a.hip")],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("standard", ["c++11", "c++14", "c++20", "c++23"])
def test_headers_compile_in_every_standard(tmp_path, standard):
    """Makefiles of older programs ask for C++11."""
    names = sorted(path.stem for path in rocm.include_folder().glob("hip/*.h"))
    (tmp_path / "a.hip").write_text("".join(f"#include <hip/{name}.h>\n" for name in names) + """
        __global__ void k(float4* x, uchar3* y, int3* z, __half* h, __hip_bfloat16* b) {
          x[0] += -x[1] * 2.f - x[2] / x[3];
          if (++x[0] == 1.f && z[0] != z[1]) z[1] <<= ~z[0];
          h[0] = h[1] * h[2] + __float2half(1.f);
          b[0] = b[1] + b[2];
          y[0] = make_uchar3(1, 2, y[1] == y[0]);
          z[0] = int3{1, 2, 3};
        }""")
    done = subprocess.run([rocm.folder() / "bin/hipcc", f"-std={standard}", "-fsyntax-only", "-Wall", "-Werror",
                           str(tmp_path / "a.hip")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_programs_call_wrongly(everyday):
    done = subprocess.run([str(everyday), "misuse"], env=os.environ | {"AITER_LIKE_SIM": "check"}, capture_output=True,
                          text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "misuse: 0 of 3 wrong\n"), done.stdout + done.stderr
    assert "block 65x1x1 has more work-items than the kernel was compiled for (64)" in done.stderr


@pytest.mark.parametrize(("source", "words", "said"), [
    ("__global__ void f(int* x) { x[0] = y; }", ["a.hip"], ["a.hip: does not compile\n", "use of undeclared identifier",
                                                            "a.hip:1:36: error: "]),
    ("#include <hip/hip_runtimes.h>", ["a.hip"], ["is no hip/hip_runtimes.h here (did you mean hip/hip_runtime.h"]),
    ("#include <hip/hip_runtime.h>\nint main() { return hipBindTexture(nullptr, nullptr, nullptr, nullptr, 0); }",
     ["a.hip"], ["there is no hipBindTexture here; csrc/sim/hip/README.md", "use of undeclared identifier"]),
    ("", ["b.hip"], ["b.hip: no such file\n"]),
    ("", ["."], [".: not a kind of source that is known; there are: .hip .cpp"]),
    ("", ["a.hip", "a.hip"], ["a.co: a .co file is made of one HIP source"]),
    ("", ["a.hip", "--", "--offload-arch=gfx90a"], ["the simulated device is gfx942, got --offload-arch=gfx90a\n"]),
], ids=["error", "header", "refused function", "no file", "folder", "two sources", "architecture"])
def test_what_does_not_compile_says_why(tmp_path, monkeypatch, capsys, source, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.hip").write_text(source)
    at = words.index("--") if "--" in words else len(words)
    assert cli.main(["sim", "compile", *words[:at], "-o", "a.co", *words[at:]]) == 1
    told = capsys.readouterr().err
    assert told.startswith("aiter-like sim: ") and all(text in told for text in said), told
    assert not (tmp_path / "a.co").exists()


def test_what_both_passes_warn_of_is_told_once(tmp_path, capfd):
    (tmp_path / "a.h").write_text("inline __host__ __device__ int two() { int unused; return 2; }\n#warning read\n")
    (tmp_path / "a.hip").write_text('#include <hip/hip_runtime.h>\n#include "a.h"\n'
                                    "__global__ void f(int* x) { int nobody; *x = two(); }\n"
                                    "int main() { int host_only; f<<<1, 1>>>(nullptr); }\n")
    sim_compile.compile_program([tmp_path / "a.hip"], tmp_path / "a.o", ["-Wall"])
    told = capfd.readouterr().err
    assert [told.count(text) for text in ("'unused'", "'nobody'", "'host_only'", "warning: read")] == [1] * 4, told
    assert "generated" not in told


def test_libraries_of_rocm_are_not_there():
    said = sim_compile.hint("a.hip:1:10: fatal error: 'hipcub/hipcub.hpp' file not found")
    assert said.startswith(": there is no hipcub/hipcub.hpp here; headers of HIP: hip/device_functions.h, ")
    assert said.endswith("ROCm's libraries are not part of the simulator")


def test_without_the_device_library_the_function_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    rocm.folder.cache_clear()
    (tmp_path / "a.hip").write_text('#include <hip/hip_runtime.h>\n__global__ void f(float* x) { x[0] = sinf(x[0]); }')
    try:
        assert cli.main(["sim", "compile", str(tmp_path / "a.hip"), "-o", str(tmp_path / "a.co")]) == 1
    finally:
        rocm.folder.cache_clear()
    assert "it needs __ocml_sin_f32 of the device library. Triton's wheel brings it: pip" in capsys.readouterr().err
    old = dataclasses.replace(toolchain.find("hip"), name="clang", version=(19, 1, 7))
    monkeypatch.setattr(toolchain, "find", lambda platform: old)
    assert "for clang 20 or later, and this is clang 19.1.7" in rocm.device_libraries()[1]


def test_where_things_are(capsys):
    for word, file in (("library", ""), ("include", "hip/hip_runtime.h"), ("rocm", "share/hip/version")):
        assert cli.main(["sim", word]) == 0
        assert Path(capsys.readouterr().out.strip(), file).is_file()
    scripts = rocm.folder() / "bin"
    for words, text in ((["hipconfig", "--rocmpath"], str(rocm.folder())), (["hipconfig", "--platform"], "amd"),
                        (["rocm_agent_enumerator"], "gfx942\n")):
        done = subprocess.run([scripts / words[0], *words[1:]], capture_output=True, text=True, check=True)
        assert done.stdout == text
    done = subprocess.run([scripts / "hipconfig", "--else"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "knows: --path" in done.stderr


def test_cmake_builds_hip_and_a_program_that_is_linked_to_the_simulator(tmp_path):
    """CMake's own language HIP, and find_package(hip) for plain C++, as with ROCm."""
    cmake = shutil.which("cmake") or pytest.fail("needs cmake: apt-get install cmake")
    environment = os.environ | {"ROCM_PATH": str(rocm.folder()), "PATH": f"{rocm.folder()}/bin:{os.environ['PATH']}"}
    build = tmp_path / "build"
    for words in ([cmake, "-S", CMAKE_EXAMPLE, "-B", build, "-G", "Ninja",
                   f"-DCMAKE_HIP_COMPILER={toolchain.find('hip').host_compiler}",
                   f"-DCMAKE_MAKE_PROGRAM={toolchain.find_ninja()}"], [cmake, "--build", build]):
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    module = tmp_path / "axpy.co"
    hipcc = [rocm.folder() / "bin/hipcc", "--genco", CMAKE_EXAMPLE / "axpy.hip", "-o", module]
    subprocess.run(hipcc, check=True, env=os.environ)
    for program in (["axpy"], ["load_axpy", module]):
        done = subprocess.run([build / program[0], *program[1:]], env=os.environ | {"AITER_LIKE_SIM": "check"},
                              capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, f"{program[0]}: 0 of 1000 wrong\n"), done.stdout + done.stderr


# Printed by a program of each set of headers: ours, and the public ones that Triton's wheel brings.
LAYOUT = """
#include <hip/hip_runtime_api.h>
#include <cstddef>
#include <cstdio>
#define S(type) std::printf("%%s %%d\\n", #type, int(sizeof(type)));
#define F(type, field) std::printf("%%s %%d\\n", #type "." #field, int(offsetof(type, field)));
#define V(name) std::printf("%%s %%d\\n", #name, int(name));
int main() {
  S(hipDeviceProp_t) S(hipPointerAttribute_t) S(hipFuncAttributes) S(hipIpcMemHandle_t) S(hipMemPoolProps)
  F(hipDeviceProp_t, totalGlobalMem) F(hipDeviceProp_t, maxGridSize) F(hipDeviceProp_t, multiProcessorCount)
  F(hipDeviceProp_t, surfaceAlignment) F(hipDeviceProp_t, l2CacheSize) F(hipDeviceProp_t, managedMemory)
  F(hipDeviceProp_t, cooperativeLaunch) F(hipDeviceProp_t, memoryPoolsSupported) F(hipDeviceProp_t, ipcEventSupported)
  F(hipDeviceProp_t, gcnArchName) F(hipDeviceProp_t, clockInstructionRate) F(hipDeviceProp_t, asicRevision)
  F(hipPointerAttribute_t, devicePointer) F(hipPointerAttribute_t, allocationFlags) F(hipFuncAttributes, numRegs)
  S(hipLaunchAttribute) S(hipLaunchConfig_t) S(HIP_LAUNCH_CONFIG) S(hipTextureDesc) S(hipResourceDesc)
  %s
}
"""
VALUES = """hipErrorInvalidValue hipErrorNoBinaryForGpu hipErrorAssert hipErrorLaunchFailure hipErrorNotSupported
hipErrorStreamCaptureImplicit hipErrorGraphExecUpdateFailure hipErrorInvalidTexture hipErrorRuntimeOther hipErrorTbd
hipMemcpyDefault hipMemcpyDeviceToDeviceNoCU hipMemoryTypeUnified hipFuncAttributeMaxDynamicSharedMemorySize
HIP_FUNC_ATTRIBUTE_NUM_REGS HIP_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT hipMemAdviseSetCoarseGrain
hipMemPoolAttrUsedMemHigh hipGraphNodeTypeMemcpyToSymbol hipGraphExecUpdateErrorUnsupportedFunctionChange
hipStreamNonBlocking hipEventDisableTiming hipHostMallocNonCoherent hipHostRegisterReadOnly hipDeviceMallocUncached
hipDeviceLmemResizeToMax hipEventReleaseToSystem hipInvalidDeviceId hipMemAttachSingle
hipDeviceAttributeEccEnabled hipDeviceAttributeMaxThreadsPerBlock hipDeviceAttributeMultiprocessorCount
hipDeviceAttributePciDomainID hipDeviceAttributeWarpSize hipDeviceAttributeMemoryPoolSupportedHandleTypes
hipDeviceAttributeClockInstructionRate hipDeviceAttributeIsLargeBar hipDeviceAttributePciChipId
hipMemLocationTypeHostNumaCurrent hipMemAllocationTypeUncached
hipMemHandleTypeWin32Kmt HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE hipLaunchAttributeMax
hipSyncPolicyBlockingSync hipGraphInstantiateFlagUseNodePriority
hipJitOptionNumOptions hipJitOptionIRtoISAOptCountExt hipLimitRange""".split()


def test_layouts_and_values_are_those_of_the_public_headers(tmp_path):
    public = Path(sys.modules["triton"].__file__).parent / "backends/amd/include"
    (tmp_path / "layout.cpp").write_text(LAYOUT % "\n  ".join(f"V({name})" for name in VALUES))
    told = []
    for number, folder in enumerate((rocm.include_folder(), public)):
        program = tmp_path / f"layout{number}"
        command = ["c++", "-D__HIP_PLATFORM_AMD__", "-w", f"-I{folder}", tmp_path / "layout.cpp", "-o", program]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        told.append(subprocess.run([program], capture_output=True, text=True, check=True).stdout)
    assert told[0] == told[1] and told[0].count("\n") == len(VALUES) + 25

# SPDX-License-Identifier: MIT
"""hipRTC: programs as text, compiled by the clang that is found and run on the simulated device."""

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p

import numpy as np
import pytest
from hip_calls import address, call, made
from hip_runtime import runtime

from aiter_like import sim

NO_PROGRAM, NO_OPTION, COMPILATION, AFTER, BEFORE, NO_NAME, INTERNAL = 4, 5, 6, 8, 9, 10, 11

PROGRAM = """
#include "scale.h"
template <class T, int N> __global__ void weighted(T* x, int n) {
  __shared__ T part[64];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  part[threadIdx.x] = i < n ? x[i] * T(SCALE * N) : T(0);
  __syncthreads();
  if (i < n) x[i] = part[threadIdx.x] + T(gridDim.x);
}
#include <hip/hip_fp16.h>
extern "C" __global__ void total(const float* x, float* out, int n) {
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += fmaf(powf(x[i], 0.5f), __half(1), 0.f);
  for (int mask = 32; mask; mask /= 2) sum += __shfl_xor(sum, mask);
  if (threadIdx.x == 0) atomicAdd(out, sum);
}
"""


@pytest.fixture(scope="module")
def rtc() -> ctypes.CDLL:
    library = sim.load_rtc()
    library.hiprtcGetErrorString.restype = c_char_p
    return library


class Program:
    """A program, until the test ends."""

    def __init__(self, library: ctypes.CDLL, source: str, headers: dict[str, str] | None = None):
        self.library, self.handle, headers = library, c_void_p(), headers or {}
        texts = (c_char_p * len(headers))(*(text.encode() for text in headers.values()))
        names = (c_char_p * len(headers))(*(name.encode() for name in headers))
        assert library.hiprtcCreateProgram(byref(self.handle), source.encode(), b"weighted.hip", len(headers), texts,
                                           names) == 0

    def compile(self, *options: str) -> int:
        return self.library.hiprtcCompileProgram(self.handle, len(options),
                                                 (c_char_p * len(options))(*(text.encode() for text in options)))

    def name(self, expression: str) -> int:
        return self.library.hiprtcAddNameExpression(self.handle, expression.encode())

    def lowered(self, expression: str) -> tuple[int, str]:
        found = c_char_p()
        result = self.library.hiprtcGetLoweredName(self.handle, expression.encode(), byref(found))
        return result, (found.value or b"").decode()

    def log(self) -> str:
        size = c_size_t()
        assert self.library.hiprtcGetProgramLogSize(self.handle, byref(size)) == 0
        text = ctypes.create_string_buffer(size.value + 1)
        assert self.library.hiprtcGetProgramLog(self.handle, text) == 0
        return text.value.decode()

    def code(self) -> bytes:
        size = c_size_t()
        assert self.library.hiprtcGetCodeSize(self.handle, byref(size)) == 0
        code = ctypes.create_string_buffer(size.value)
        assert self.library.hiprtcGetCode(self.handle, code) == 0
        return code.raw


def test_a_program_with_a_header_templates_and_options(rtc):
    program = Program(rtc, PROGRAM, {"scale.h": "#pragma once\n#define SCALE (FACTOR * 1)\n"})
    expressions = ["weighted<float, 3>", "weighted<int, 2>"]
    assert [program.name(text) for text in expressions] == [0, 0]
    assert program.lowered(expressions[0])[0] == BEFORE
    assert program.compile("-DFACTOR=5", "--gpu-architecture=gfx942:sramecc+:xnack-") == 0, program.log()
    assert program.name("total") == AFTER and program.lowered("weighted<char, 1>")[0] == NO_NAME

    x = np.random.default_rng().uniform(0, 9, 150).astype(np.float32)
    pointer, out, back = made("hipMalloc", c_size_t(600)), made("hipMalloc", c_size_t(4)), np.zeros_like(x)
    call("hipMemcpy", pointer, address(x), c_size_t(600), 1)
    call("hipMemset", out, 0, c_size_t(4))
    with sim.enabled(checks=True), runtime().module(program.code()) as module:
        runtime().launch(module.function("total"), 1, 64, 0, [pointer.value, out.value, 150])
        result, name = program.lowered(expressions[0])
        assert result == 0 and name.startswith("_Z8weightedIfLi3E")
        runtime().launch(module.function(name), 3, 64, 0, [pointer.value, 150])
        assert program.lowered(expressions[1])[1] in sim.inspect(program.code())
    call("hipMemcpy", address(back), pointer, c_size_t(600), 2)
    np.testing.assert_array_equal(back, x * np.float32(15) + np.float32(3))
    total = np.zeros(1, np.float32)
    call("hipMemcpy", address(total), out, c_size_t(4), 2)
    np.testing.assert_allclose(total[0], np.sqrt(x.astype(np.float64)).sum(), rtol=1e-5)
    assert rtc.hiprtcDestroyProgram(byref(program.handle)) == 0


def test_a_mistake_is_in_the_log_with_its_line(rtc):
    program = Program(rtc, "__global__ void broken() {\n  undeclared = 1;\n}\n")
    assert program.compile() == COMPILATION
    assert "weighted.hip:2:3: error: use of undeclared identifier 'undeclared'" in program.log()
    assert rtc.hiprtcGetCodeSize(program.handle, byref(c_size_t())) == NO_PROGRAM
    assert rtc.hiprtcGetErrorString(COMPILATION) == b"HIPRTC_ERROR_COMPILATION"


@pytest.mark.parametrize("bounds", ["0", "-1", "128, -1", "1.5", "128, 1.5"])
def test_launch_bounds_that_are_no_count(rtc, bounds):
    program = Program(rtc, f"__launch_bounds__({bounds}) __global__ void k(int* x) {{ *x = 1; }}")
    assert program.compile() == COMPILATION and "error:" in program.log()


def test_launch_bounds_of_templates(rtc):
    program = Program(rtc, """
        template <int N> struct Twice { static constexpr int value = 2 * N; };
        template <int N, int W> __launch_bounds__(Twice<N>::value, W) __global__ void k(int* x) { *x = 1; }
        template __global__ void k<96, 2>(int*);
    """)
    assert program.compile("-std=c++11", "-hip-pch") == 0, program.log()
    (name,), most = sim.inspect(program.code()), c_int()
    with runtime().module(program.code()) as module:
        call("hipFuncGetAttribute", byref(most), 0, module.function(name))
    assert most.value == 192


def test_headers_stay_in_their_folder(rtc):
    handle = c_void_p()
    for name in (b"../outside.h", b"/tmp/outside.h", b"a/../../outside.h"):
        assert rtc.hiprtcCreateProgram(byref(handle), b"", b"", 1, (c_char_p * 1)(b"text"), (c_char_p * 1)(name)) == 2


def test_handles_that_are_none(rtc):
    assert rtc.hiprtcCompileProgram(c_void_p(8), 0, None) == NO_PROGRAM
    assert rtc.hiprtcVersion(byref(c_int()), None) == 3


def test_rocms_bindings_compile_and_run(rtc):
    """hip-python's own module for it, which looks for libhiprtc.so."""
    hiprtc = pytest.importorskip("hip", reason="needs hip-python").hiprtc
    source = b"extern \"C\" __global__ void add(int* x) { x[threadIdx.x] += 7; }"
    error, program = hiprtc.hiprtcCreateProgram(source, b"add", 0, None, None)
    assert int(error) == 0
    (error,) = hiprtc.hiprtcCompileProgram(program, 1, [b"--offload-arch=gfx942"])
    assert int(error) == 0
    error, size = hiprtc.hiprtcGetCodeSize(program)
    code = bytearray(size)
    assert int(hiprtc.hiprtcGetCode(program, code)[0]) == 0
    assert "add" in sim.inspect(bytes(code))


def test_links_of_bitcode_refuse(rtc, capfd):
    program = Program(rtc, "__device__ int f(int x) { return x; }")
    assert program.compile("-fgpu-rdc") == NO_OPTION and "not simulated: links of bitcode" in program.log()
    for name in ("hiprtcGetBitcode", "hiprtcLinkCreate", "hiprtcLinkCreate"):
        assert getattr(rtc, name)() == INTERNAL
    assert capfd.readouterr().err.count("hiprtcLinkCreate is not simulated: links of bitcode") <= 1


def test_what_libraries_take_where_there_is_no_standard_library(rtc):
    """rocWMMA's types, its number of 16 bits, and the test that tells it that a vector's base may be specialised."""
    program = Program(rtc, """
        using number = hip_bfloat16;
        static_assert(__hip_internal::is_standard_layout<number>{} && __hip_internal::is_trivial<int>::value);
        using namespace __hip_internal;
        static_assert(is_same<__hip_internal::int8_t, signed char>{} && sizeof(__hip_internal::uint64_t) == 8);
        static_assert(conditional<false, int, enable_if<true, long>>::type::type(3) == 3);
        template <> struct HIP_vector_base<number, 8> { using Native_vec_ = number[8]; Native_vec_ data; };
        __global__ void k(HIP_vector_type<number, 8>* x, float4* y) { x->data[threadIdx.x % 8] = number(y->data[3]); }
    """)
    assert program.compile() == 0, program.log()


def test_names_of_variables_and_in_namespaces(rtc):
    program = Program(rtc, "namespace a { __device__ int g; __global__ void k(int* x) { *x = g; } }")
    expressions = ["&a::g", "a::k", " & a::k"]
    assert [program.name(text) for text in expressions] == [0] * 3 and program.compile() == 0, program.log()
    assert [program.lowered(text)[1] for text in expressions] == ["_ZN1a1gE", "_ZN1a1kEPi", "_ZN1a1kEPi"]

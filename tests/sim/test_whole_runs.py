# SPDX-License-Identifier: MIT
"""AITER_LIKE_SIM on whole processes: C++ programs that know the simulator as their HIP library only, and Python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hip_program import PRELUDE, _compiled

from aiter_like import sim

SOURCE = """
#include <cstdio>
extern "C" int hipMalloc(void**, size_t);
extern "C" int hipGetDeviceCount(int*);
extern "C" int hipGetLastError();
extern "C" const char* hipGetErrorName(int);
extern "C" const char* hipGetErrorString(int);
extern "C" __global__ void early(const float* x, float* out) {
  float y;
  asm volatile("global_load_dword %0, %1, off" : "=&v"(y) : "v"(x + thread_index()));
  out[thread_index()] = y;                                     // planted: no wait
}
extern "C" __global__ void clean(float* out) { out[thread_index()] = 1; }
int main() {
  void *x, *out;
  int devices = 0;
  hipMalloc(&x, 256);
  hipMalloc(&out, 256);
  hipGetDeviceCount(&devices);
  clean<<<1, 64, 0, nullptr>>>(static_cast<float*>(x));
  const int first = hipGetLastError();
  early<<<1, 64, 0, nullptr>>>(static_cast<float*>(x), static_cast<float*>(out));
  const int second = hipGetLastError();
  std::printf("%d %s %s\\n", devices, hipGetErrorName(first), hipGetErrorString(second));
}
"""
PLANTED = 1 + (PRELUDE + SOURCE).split("planted")[0].count("\n")


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    output, library = tmp_path_factory.mktemp("program") / "program", Path(sim.load()._name)
    with _compiled(SOURCE, ("-c", "-gline-tables-only")) as obj:
        subprocess.run(["c++", "-x", "none", str(obj), "-o", str(output), str(library),
                        f"-Wl,-rpath,{library.parent}"], check=True)
    return output


@pytest.mark.parametrize("setting, stdout, stderr", [
    ("", "1 hipSuccess no error", ""),
    ("devices=3, check=bounds+uninit, fuzz=4, threads=2, limit=1000", "3 hipSuccess no error", ""),
    ("dry,check", "1 hipSuccess no error", ""),
    ("check", "1 hipSuccess kernel early: the checkers reported something (see stderr)", "wait"),
    ("check=all", "1 hipSuccess kernel early: the checkers reported something (see stderr)", "wait"),
    ("limit=2", "1 hipErrorLaunchFailure kernel clean wg(0,0,0)", ""),  # what fails first stays the device's error
    ("chek", "1 hipErrorLaunchFailure kernel early: AITER_LIKE_SIM: 'chek' is not one of check, check=wait+", "chek"),
    ("check=waits", "1 hipErrorLaunchFailure kernel early: AITER_LIKE_SIM: 'check=waits' is not", "check=waits"),
    ("devices=0", "0 hipErrorLaunchFailure kernel early: AITER_LIKE_SIM: 'devices=0' is not", "devices=0"),
])
def test_a_program_without_python(program, setting, stdout, stderr):
    done = subprocess.run([program], env={**os.environ, "AITER_LIKE_SIM": setting}, capture_output=True, text=True,
                          check=False)
    assert done.stdout.startswith(stdout), done.stdout + done.stderr
    if stderr and stderr != "wait":  # said even where the program asks for no error
        assert done.stderr.startswith(f"AITER_LIKE_SIM: '{stderr}' is not one of check, check=wait+lds_race+")
        assert done.stderr.endswith("dry, defer, gpu; no kernel will run\n") and done.stderr.count("\n") == 1
    elif stderr:
        assert done.stderr.startswith("[sim:wait] early wg(0,0,0) wave 0 lanes 0xffffffffffffffff pc 0x")
        assert f"program.hip:{PLANTED}): global_store" in done.stderr and "which pc 0x" in done.stderr
    else:
        assert done.stderr == ""


def test_failed_launches_are_listed_with_the_checkers_reports(program):
    done = subprocess.run([program], env={**os.environ, "AITER_LIKE_SIM": "check,limit=2"}, capture_output=True,
                          text=True, check=False)
    assert done.stdout.startswith("1 hipErrorLaunchFailure")
    assert done.stderr.count("[sim:launch] kernel clean ") == 1 and "executed more than 2 instructions" in done.stderr


def in_python(code: str, setting: str) -> subprocess.CompletedProcess:
    folder = Path(__file__).parent
    path = os.pathsep.join([str(folder.parent.parent), str(folder)])
    return subprocess.run([sys.executable, "-c", "import torch\nfrom aiter_like import sim\n" + code],
                          env={**os.environ, "AITER_LIKE_SIM": setting, "PYTHONPATH": path}, capture_output=True,
                          text=True, check=False)


def test_operators_under_the_variable():
    done = in_python("""
import aiter_like
aiter_like.rms_norm(torch.randn(4, 256, dtype=torch.bfloat16), torch.ones(256, dtype=torch.bfloat16), 1e-6)
assert sim.checking() and sim.counters()
""", "check")
    assert done.returncode == 0 and "[sim:" not in done.stderr, done.stderr


def test_a_report_is_an_error_in_triton():
    pytest.importorskip("triton")
    code = """
from line_kernels import double
sim.enable_triton()
double[(1,)](torch.ones(128), torch.zeros(256)[:{}], BLOCK=128)
print("launched")
"""
    done = in_python(code.format(100), "check")
    assert done.returncode == 1 and "SimulatorError: double: 1 report(s)" in done.stderr and not done.stdout
    assert "[sim:bounds] double wg(0,0,0)" in done.stderr and "line_kernels.py:" in done.stderr
    assert in_python(code.format(128), "check").returncode == 0
    assert in_python(code.format(100), "fuzz=3").stdout == "launched\n"


def test_reports_of_launches_past_every_operator_are_listed_at_the_end():
    code = """
import struct
from test_lines import compiled
x, out = torch.ones(64), torch.zeros(64)
arguments = struct.pack("<QQi", x.data_ptr(), out.data_ptr(), 64)
sim.launch(compiled(), "early", (1, 1, 1), (64, 1, 1), 0, arguments)
print("so far nothing")
{between}
"""
    another = "sim.checked_call('another', lambda x: None, (x,), None)"
    for between in ("", "with sim.enabled(checks=False): pass", another):
        done = in_python(code.format(between=between), "check=wait")
        assert (done.returncode, done.stdout) == (0, "so far nothing\n"), done.stderr
        assert done.stderr.count("[sim:wait] early wg(0,0,0)") == 1
    assert in_python(code.format(between=""), "1").stderr == ""

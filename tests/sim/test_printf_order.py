# SPDX-License-Identifier: MIT
"""The order of what kernels print, that none of it is lost, and who gets it: threads, seeds, streams, graphs, programs
without Python, hipRTC, the cycle model."""

import ctypes
import os
import subprocess
import sys
from ctypes import byref, c_size_t, c_uint32, c_void_p

import pytest
from hip_calls import call, made
from talking import compiled, launch

from aiter_like import cli, sim
from aiter_like.errors import SimulatorError
from aiter_like.sim import library as sim_library

ROUNDS = r"""
extern "C" __global__ void talk(int rounds) {
  for (int round = 0; round < rounds; ++round) {
    if (lane() % 64 == 5) printf("group %d wave %d round %d\n", group(), lane() / 64, round);
  }
}
"""


def lines_of(groups: int, waves: int, rounds: int) -> list[list[str]]:
    return [[f"group {group} wave {wave} round {round_}" for group in range(groups) for round_ in range(rounds)]
            for wave in range(waves)]


@pytest.mark.parametrize("settings", [{"threads": 1}, {"threads": 2}, {"threads": 2, "fuzz": 7}, {"fuzz": 3}],
                         ids=str)
def test_workgroups_in_the_order_of_the_grid(settings):
    with sim.enabled(checks=True, **settings) as session:
        launch(compiled(ROUNDS), 3, grid=40, block=192)
    lines = session.output.splitlines()
    for wave, wanted in enumerate(lines_of(40, 3, 3)):
        assert [line for line in lines if f"wave {wave}" in line] == wanted
    assert [line.split()[1] for line in lines] == [str(group) for group in range(40) for _ in range(9)]


def test_without_a_seed_each_run_prints_the_same():
    texts = set()
    for threads in (1, 2, 2):
        with sim.enabled(checks=False, threads=threads) as session:
            launch(compiled(ROUNDS), 4, grid=33, block=256)
        texts.add(session.output)
    assert len(texts) == 1


FLOOD = r"""
extern "C" __global__ void talk(int rounds) {
  for (int round = 0; round < rounds; ++round) {
    printf("%3d %3d %d %s\n", group(), lane(), round, "the quick brown fox jumps over the lazy dog, again and again");
  }
}
"""


@pytest.mark.parametrize("flags", [(), ("-mprintf-kind=buffered",)], ids=["hostcall", "buffered"])
def test_nothing_is_lost_of_many_lanes(flags):
    """1,024 lanes, two workgroups: far more than all packets of a device hold."""
    with sim.enabled(checks=False) as session:
        launch(compiled(FLOOD, *flags), 2, grid=2, block=1024)
    fox = "the quick brown fox jumps over the lazy dog, again and again"
    wanted = sorted(f"{group:3d} {lane:3d} {round_} {fox}" for group in range(2) for lane in range(1024)
                    for round_ in range(2))
    assert sorted(session.output.splitlines()) == wanted


def test_a_full_buffer_says_that_text_is_lost():
    with sim.enabled(checks=False) as session:
        launch(compiled(FLOOD, "-mprintf-kind=buffered"), 700)
    assert "filled its buffer of 4194304 bytes for printf; what it printed later is lost" in session.output


class Stream:
    """A stream that launches `talk` of ROUNDS."""

    def __init__(self):
        self.function, code = c_void_p(), compiled(ROUNDS)
        self.handle, module = made("hipStreamCreate"), made("hipModuleLoadData", code)
        call("hipModuleGetFunction", byref(self.function), module, b"talk")

    def launch(self, rounds: int) -> None:
        value, sizes = ctypes.c_int(rounds), [c_uint32(n) for n in (1, 1, 1, 64, 1, 1, 0)]
        params = (c_void_p * 1)(ctypes.addressof(value))
        call("hipModuleLaunchKernel", self.function, *sizes, self.handle, params, None)


def test_deferred_work_prints_when_it_executes():
    stream = Stream()
    with sim.enabled(checks=True, defer=True) as session:
        stream.launch(1)
        stream.launch(2)
        assert session.output == ""
        call("hipStreamSynchronize", stream.handle)
        assert session.output.splitlines() == [*lines_of(1, 1, 1)[0], *lines_of(1, 1, 2)[0]]


def test_a_graph_prints_each_time_that_it_runs():
    stream, graph = Stream(), c_void_p()
    with sim.enabled(checks=True) as session:
        call("hipStreamBeginCapture", stream.handle, 0)
        stream.launch(2)
        call("hipStreamEndCapture", stream.handle, byref(graph))
        assert session.output == ""
        executable = made("hipGraphInstantiate", graph, None, None, c_size_t(0))
        for _ in range(2):
            call("hipGraphLaunch", executable, stream.handle)
    assert session.output.splitlines() == lines_of(1, 1, 2)[0] * 2


def test_open_sessions_all_keep_it_and_the_console_shows_it_once(capsys):
    with sim.enabled(checks=False) as outer:
        launch(compiled(ROUNDS), 1)
        with sim.enabled(checks=True) as inner:
            launch(compiled(ROUNDS), 2)
    assert inner.output.splitlines() == lines_of(1, 1, 2)[0]
    assert outer.output.splitlines() == lines_of(1, 1, 1)[0] + inner.output.splitlines()
    assert capsys.readouterr().out == outer.output


INTERRUPTED = """
import io
import sys

from aiter_like import sim
from talking import compiled, launch


class Interrupted(io.StringIO):
    def write(self, text):
        sys.stdout = sys.__stdout__
        raise KeyboardInterrupt


sim.load()
sys.stdout = Interrupted()
try:
    launch(compiled(ROUNDS), 2, grid=2)
    print("went on")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_while_text_is_shown_is_not_lost():
    """In a process of its own: an interrupt that is late would end the run of tests."""
    script = f"ROUNDS = r'''{ROUNDS}'''\n{INTERRUPTED}"
    paths = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["group 1 wave 0 round 1", "interrupted"]


def test_without_python_it_goes_to_the_programs_own_stdout(capfd):
    library = sim.load()
    library.aiter_like_sim_show_output(None)
    try:
        launch(compiled(ROUNDS), 1)
    finally:
        sim_library.print_through_python(library)
    assert capfd.readouterr().out.splitlines() == lines_of(1, 1, 1)[0]


def test_counters_and_the_cycle_model_see_such_launches():
    with sim.enabled(checks=True, counters=True, model="whole") as session:
        launch(compiled(ROUNDS), 1, grid=2)
    assert session.output.splitlines() == lines_of(2, 1, 1)[0]
    assert session.launches[0]["workgroups"] == 2 and session.modelled[0]["modelled_clk"] > 0


def test_programs_of_hiprtc_print_and_assert():
    rtc = sim.load_rtc()
    source = b"""extern "C" __global__ void talk(int n) {
      printf("%s %d\\n", "lane", threadIdx.x);
      assert(threadIdx.x < n);
    }"""
    program, size, empty = c_void_p(), c_size_t(), (ctypes.c_char_p * 0)()
    assert rtc.hiprtcCreateProgram(byref(program), source, b"rtc.hip", 0, empty, empty) == 0
    assert rtc.hiprtcCompileProgram(program, 0, empty) == 0
    rtc.hiprtcGetCodeSize(program, byref(size))
    code = ctypes.create_string_buffer(size.value)
    rtc.hiprtcGetCode(program, code)
    with sim.enabled(checks=True) as session:
        with pytest.raises(SimulatorError, match=r"in lane 2: rtc.hip:3: .*`threadIdx.x < n'"):
            launch(code.raw, 2, block=3)
    assert session.output.splitlines()[:3] == ["lane 0", "lane 1", "lane 2"]


PROGRAM = r"""
#include <hip/hip_runtime.h>
#include <cassert>
#include <cstdio>
__global__ void hello(const char* name, unsigned limit) {
  if (threadIdx.x == 0) printf("hello %s from workgroup %u of %u\n", name, blockIdx.x, gridDim.x);
  assert(blockIdx.x < limit);
}
int main() {
  char* name;
  (void)hipMalloc(&name, 16);
  (void)hipMemcpy(name, "world", 6, hipMemcpyHostToDevice);
  std::printf("before\n");
  for (unsigned limit : {3u, 2u}) {
    hello<<<3, 64>>>(name, limit);
    std::printf("%s\n", hipGetErrorString(hipDeviceSynchronize()));
  }
}
"""


def test_a_program_and_its_kernels_print_by_turns(tmp_path):
    (tmp_path / "hello.hip").write_text(PROGRAM)
    assert cli.main(["sim", "compile", str(tmp_path / "hello.hip"), "-o", str(tmp_path / "hello")]) == 0
    run = subprocess.run([tmp_path / "hello"], env=os.environ | {"AITER_LIKE_SIM": "check"}, capture_output=True,
                         text=True, check=False)
    hello = [f"hello world from workgroup {group} of 3" for group in range(3)]
    *lines, last = run.stdout.splitlines()
    assert lines == ["before", *hello, "no error", *hello], run.stdout + run.stderr
    assert "wg(2,0,0) wave 0 " in last and "in lanes 0-63: " in last and "hello.hip:7: void hello(" in last
    said = [line for line in run.stderr.splitlines() if line.endswith("assertion `blockIdx.x < limit' failed.")]
    assert len(said) == 65 and said[-1].startswith("[sim:launch] ")

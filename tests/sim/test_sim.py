# SPDX-License-Identifier: MIT
"""aiter_like.sim: settings, sessions, counters, launches of code objects, checked calls."""

import functools
import os
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hip_program import code_object

from aiter_like import sim
from aiter_like.errors import SimulatorError

SOURCE = """
extern "C" __global__ void twice(const float* x, float* out, int n) {
  int i = workgroup_index().x * 64 + thread_index();
  if (i < n) out[i] = 2 * x[i];
}
extern "C" __global__ void far(const float* x, float* out, int n) { out[thread_index() + n] = x[0]; }
"""


def launch(kernel: str, x: torch.Tensor, out: torch.Tensor, n: int) -> None:
    kernargs = struct.pack("<QQi", x.data_ptr(), out.data_ptr(), n)
    sim.launch(code_object(SOURCE), kernel, ((n + 63) // 64, 1, 1), (64, 1, 1), 0, kernargs)


@pytest.mark.parametrize("text, expected", [
    ("", sim.Settings()),
    ("1", sim.Settings()),
    ("check", sim.Settings(checks=sim.DEFAULT_CHECKS)),
    ("check=wait+bounds, threads=3", sim.Settings(checks=("wait", "bounds"), threads=3)),
    ("check=all", sim.Settings(checks=tuple(sim.CHECKS))),
    ("check=wait,check=bounds", sim.Settings(checks=("wait", "bounds"))),
    ("fuzz=12,dry", sim.Settings(fuzz=12, dry=True)),
    ("devices=4", sim.Settings(devices=4)),
    ("defer,fuzz=3", sim.Settings(defer=True, fuzz=3)),
    ("limit=1000", sim.Settings(instruction_limit=1000)),
])
def test_the_environment_variable(text, expected):
    assert sim.parse_settings(text) == expected


@pytest.mark.parametrize("text, named", [
    ("chekc", "'chekc' is not one of check"), ("fuzz", "'fuzz' is not"), ("threads=-1", "'threads=-1' is not"),
    ("check=waits", "unknown check 'waits'"), ("dry=1", "'dry=1' is not"), (f"threads={2**40}", "threads must be"),
    ("devices=0", "devices must be 1 to 64"),
])
def test_an_unknown_setting_is_named(text, named):
    with pytest.raises(ValueError, match=f"^AITER_LIKE_SIM: .*{named}"):
        sim.parse_settings(text)


def test_an_operator_keeps_the_name_of_the_variable():
    done = in_child("import torch, aiter_like; x = torch.ones(8, 64, dtype=torch.bfloat16); "
                    "aiter_like.rms_norm(x, x[0], 1e-6)", AITER_LIKE_SIM="chek")
    assert "ValueError: AITER_LIKE_SIM: 'chek' is not one of check, check=<wait+" in done.stderr


def test_checks_as_a_text():
    for text, names in (("all", tuple(sim.CHECKS)), ("lds_race, wait", ("wait", "lds_race"))):
        with sim.enabled(text):
            assert sim.state.current.settings.checks == names
    with pytest.raises(ValueError, match="unknown check 'waits'; there are: all, wait, "), sim.enabled("waits"):
        pass


def test_a_bad_session_is_refused_before_it_starts():
    with pytest.raises(ValueError, match="unknown check 'wiat'"), sim.enabled(checks=("wiat",)):
        pass
    with pytest.raises(ValueError, match="on_report must be"), sim.enabled(on_report="ignore"):
        pass
    assert not sim.checking()


def test_launch_and_counters():
    x, out = torch.arange(1000.), torch.zeros(1000)
    with sim.enabled(checks=False) as session:
        launch("twice", x, out, 1000)
        launch("twice", x, out, 500)
    launch("twice", x, out, 1000)
    assert torch.equal(out, 2 * x)
    counts = session.counters["twice"]
    assert (counts["launches"], counts["workgroups"], counts["waves"]) == (2, 16 + 8, 16 + 8)
    assert counts["wave_instructions"] == sum(counts["by_class"].values())
    assert counts["by_class"]["end"] == 24 and counts["by_class"]["global"] == 2 * 24
    assert counts["accesses"] == {"global_load_dword": 24, "global_store_dword": 24}


def test_dry_launches_do_nothing():
    x, out = torch.ones(64), torch.zeros(64)
    with sim.enabled(checks=False, dry=True) as session:
        launch("twice", x, out, 64)
    assert out.count_nonzero() == 0 and session.counters == {}


def test_a_checked_call_raises_with_its_reports():
    x, out = torch.ones(64), torch.zeros(64)
    with sim.enabled():
        assert sim.checking()
        sim.checked_call("twice", lambda *args: launch("twice", *args, 64), (x, out), writes=(1,))
        with pytest.raises(SimulatorError, match=r"far: .*\n  \[sim:bounds\]") as raised:
            sim.checked_call("far", lambda *args: launch("far", *args, 10), (x, out), writes=(1,))
        with pytest.raises(SimulatorError, match="bounds"):                      # out is not declared as written
            sim.checked_call("twice", lambda *args: launch("twice", *args, 64), (x, out), writes=())
    assert not sim.checking()
    report = raised.value.reports[0]
    assert report["kernel"] == "far" and report["text"].startswith("global_store") and report["lanes"] >> 54 == 1023


def test_collected_reports_do_not_raise():
    x, out = torch.ones(64), torch.zeros(64)
    with sim.enabled(on_report="collect") as session:
        sim.checked_call("far", lambda *args: launch("far", *args, 10), (x, out), writes=(1,))
    assert {report["check"] for report in session.reports} == {"bounds"}


def test_views_of_one_storage_are_one_range():
    storage = torch.ones(128)
    with sim.enabled():
        sim.checked_call("twice", lambda *args: launch("twice", *args, 64), (storage[:96], storage[64:]), writes=(1,))
    assert torch.equal(storage[64:], torch.full((64,), 2.))


def test_a_failed_launch_is_a_simulator_error():
    with pytest.raises(SimulatorError, match="wild memory access") as raised:
        sim.launch(code_object(SOURCE), "twice", (1, 1, 1), (64, 1, 1), 0, struct.pack("<QQi", 4096, 4096, 64))
    assert raised.value.reports[0]["check"] == "launch"
    with pytest.raises(SimulatorError, match="has no kernel thrice"):
        sim.launch(code_object(SOURCE), "thrice", (1, 1, 1), (64, 1, 1), 0, b"")
    with pytest.raises(SimulatorError, match="neither an ELF file"):
        sim.launch(b"not a code object, not at all", "twice", (1, 1, 1), (64, 1, 1), 0, b"")


def in_child(program: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True,
                          text=True, check=False)


def test_a_real_runtime_in_the_process_is_refused(tmp_path):
    fake = tmp_path / "libamdhip64.so.7"
    subprocess.run(["cc", "-shared", "-o", str(fake), "-x", "c", "/dev/null"], check=True)
    done = in_child(f"import ctypes; ctypes.CDLL({str(fake)!r}); from aiter_like import sim; sim.load()")
    assert done.returncode != 0 and f"has loaded the HIP runtime {fake}" in done.stderr


def test_the_environment_variable_is_applied():
    done = in_child("from aiter_like import sim; sim.load(); assert sim.checking()", AITER_LIKE_SIM="check")
    assert done.returncode == 0, done.stderr
    done = in_child("from aiter_like import sim; sim.load()", AITER_LIKE_SIM="chek")
    assert "ValueError: AITER_LIKE_SIM: 'chek'" in done.stderr


def test_a_forked_child_has_workers_of_its_own():
    x, out = np.arange(64 * 4000, dtype=np.float32), np.zeros(64 * 4000, np.float32)
    kernargs = struct.pack("<QQi", x.ctypes.data, out.ctypes.data, x.size)
    run = functools.partial(sim.launch, code_object(SOURCE), "twice", (4000, 1, 1), (64, 1, 1), 0, kernargs)
    run()
    child = os.fork()
    if child == 0:
        out[:] = 0
        run()
        os._exit(0 if np.array_equal(out, 2 * x) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_second_thread_may_not_open_a_session():
    opened, seen = threading.Event(), []
    ended = threading.Event()

    def other() -> None:
        with sim.enabled(fuzz=7, on_report="collect"):
            opened.set()
            ended.wait()

    thread = threading.Thread(target=other)
    thread.start()
    opened.wait()
    try:
        with pytest.raises(RuntimeError, match="another thread is in such a block"), sim.enabled():
            seen.append("entered")
        assert sim.state.current.settings.fuzz == 7 and not seen, "the other thread's settings stand"
    finally:
        ended.set()
        thread.join()
    with sim.enabled() as session, sim.enabled(checks=False):
        pass
    assert session.reports == [] and not sim.checking()

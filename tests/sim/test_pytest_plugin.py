# SPDX-License-Identifier: MIT
"""The pytest plugin: options, mark, what a report does to a test; without them it does nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import children
import pytest

pytest.importorskip("triton")  # here: pytester forgets what a test imports, and Triton cannot be loaded twice
pytest_plugins = ["pytester"]
FOLDER = Path(__file__).resolve().parent

TESTS = """
import sys
sys.path.insert(0, {folder!r})
import pytest, torch
from aiter_like import sim
from line_kernels import double

@pytest.fixture(autouse=True)
def triton():
    sim.enable_triton()
    yield
    sim.disable_triton()

def launch(size):
    out = torch.zeros(256)[:size]              # the memory is there: unchecked, nothing breaks
    double[(1,)](torch.ones(128), out, BLOCK=128)
    return out

def test_clean():
    assert torch.equal(launch(128), torch.full((128,), 2.0))

def test_bad():
    launch(128)
    launch(100)

def test_bad_and_failing():
    launch(100)
    assert False, "its own failure"

@pytest.fixture
def early():
    launch(100)

def test_bad_fixture(early):
    pass
"""


@pytest.fixture
def run(pytester, caches):
    """run(*arguments): pytest in a process of its own on TESTS, with the plugin and none of this project's options."""
    pytester.makepyfile(test_kernels=TESTS.format(folder=str(FOLDER)))
    return lambda *arguments: pytester.runpytest_subprocess("-p", "pytest_aiter_like", "-p", "no:cacheprovider",
                                                            *arguments)


def test_reports_fail_their_test(run):
    result = run("--sim-check", "test_kernels.py")
    result.assert_outcomes(passed=1, failed=2, errors=1)
    text = result.stdout.str()
    clean, bad, both = (text.find(name) for name in ("_ test_clean _", "_ test_bad _", "_ test_bad_and_failing _"))
    assert clean == -1 and 0 < bad < both
    assert "[sim:bounds] double wg(0,0,0)" in text[bad:both] and "line_kernels.py:" in text[bad:both]
    for phrase in ("its own failure", "Captured simulator call", "[sim:bounds]"):
        assert phrase in text[both:]


USERS = """
import pytest, torch, triton
import triton.language as tl

@triton.jit
def triple(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, 3 * tl.load(x + at))

@pytest.mark.parametrize("size", [128, 100])
def test_triple(size):
    x, out = torch.ones(128), torch.zeros(256)[:size]
    triple[(1,)](x, out, BLOCK=128)
    assert (out == 3).all()

def test_no_driver_is_left(request):
    if request.config.getoption("--sim-check") is None:
        assert triton.runtime.driver._active is None
"""


@pytest.mark.usefixtures("caches")
def test_kernels_of_a_user_without_a_conftest(pytester):
    path = pytester.makepyfile(test_users=USERS)
    arguments = ("-p", "pytest_aiter_like", "-p", "no:cacheprovider")
    result = pytester.runpytest_subprocess(*arguments, "--sim-check", str(path))
    result.assert_outcomes(passed=2, failed=1)
    line = next(k for k, text in enumerate(USERS.strip().splitlines(), 1) if "tl.store" in text)
    result.stdout.fnmatch_lines([f"*sim:bounds* triple wg(0,0,0) *({path}:{line}): *"])
    path.write_text(path.read_text().replace("@pytest.mark.param", "@pytest.mark.sim_check\n@pytest.mark.param"))
    pytester.runpytest_subprocess(*arguments, "-k", "not 100").assert_outcomes(passed=2, deselected=1)


def test_all_checks(run):
    """… with global_race, which is not on by default."""
    Path("test_checks.py").write_text("from aiter_like import sim\n"
                                      "def test(): assert sim.state.current.settings.checks == tuple(sim.CHECKS)\n")
    run("--sim-check=all", "test_checks.py").assert_outcomes(passed=1)


def test_without_the_options_nothing_happens(run):
    result = run()
    result.assert_outcomes(passed=3, failed=1)
    assert "[sim:" not in result.stdout.str()


def test_some_checks_and_a_seed(run):
    run("--sim-check=wait,lds_race", "--sim-fuzz", "3").assert_outcomes(passed=3, failed=1)
    run("--sim-check=bounds", "-k", "clean").assert_outcomes(passed=1, deselected=3)
    result = run("--sim-check=waits")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--sim-check: unknown check 'waits'; there are: all, wait, *"])


@pytest.mark.usefixtures("caches")
def test_the_settings_of_a_run(pytester):
    pytester.makepyfile("""
        import pytest
        from aiter_like import sim
        def test_on(): assert sim.state.current.settings.fuzz == 3 and not sim.checking()
        @pytest.mark.sim_check
        def test_marked(): assert sim.state.current.settings.checks == tuple(sim.DEFAULT_CHECKS)
    """)
    run = pytester.runpytest_subprocess("-p", "pytest_aiter_like", "--strict-markers", "--sim-fuzz=3")
    run.assert_outcomes(passed=2)


@pytest.mark.parametrize("device, marked", [("sim", True), ("gpu", False)])
def test_the_operators_tests_run_under_it(device, marked):
    done = children.run("-m", "pytest", "--collect-only", "-q", "-m", "sim_check", "op_tests/norm/test_rms_norm.py",
                        "--device", device, cwd=FOLDER.parent.parent)
    assert ("op_tests/norm/test_rms_norm.py::" in done.stdout) == marked, done.stdout + done.stderr


def test_importing_it_is_cheap():
    code = "import sys, pytest; before = set(sys.modules); import pytest_aiter_like; print(set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parent.parent, capture_output=True, text=True,
                          check=True)
    assert done.stdout.strip() == "{'pytest_aiter_like'}"


_BUDGETS = """
import pytest, torch, aiter_like

def call():
    aiter_like.rms_norm(torch.randn(4, 256).to(torch.bfloat16), torch.ones(256, dtype=torch.bfloat16), 1e-6)

@pytest.mark.sim_cycles(max=10_000_000)
def test_within(): call()

@pytest.mark.sim_cycles(max=10)
def test_beyond(): call()

@pytest.mark.sim_cycles(max=10)
def test_nothing(): pass
"""


def test_budgets_of_modelled_cycles(pytester, caches):
    pytester.makepyfile(_BUDGETS)
    result = pytester.runpytest_subprocess("-p", "pytest_aiter_like", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*sim_cycles: * modelled clk, 10 allowed:*", "*the test launched nothing*"])

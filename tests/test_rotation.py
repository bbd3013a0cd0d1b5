# SPDX-License-Identifier: MIT
"""op_tests/rotation.py: no case of a large test is lost, and no run lacks a backend."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import rotation


class Item(SimpleNamespace):
    """One of pytest's, as far as it is read; sets have them."""

    __hash__ = object.__hash__


def items(*grids, test="test_x"):
    """pytest's items of one test."""
    return [Item(nodeid=f"{test}[{'-'.join(map(str, values))}]",
                 callspec=SimpleNamespace(id="-".join(map(str, values)), params=dict(enumerate(values))))
            for values in itertools.product(*grids)]


def runs(cases, turn):
    out = {item.nodeid for item in rotation.items_left_out(cases, turn)}
    return {item.nodeid for item in cases} - out


@pytest.mark.parametrize("first", (0, 1, 77, 2**32 - 2))
@pytest.mark.parametrize("sizes", range(1, 12))
def test_every_case_comes_up_within_a_period(first, sizes):
    cases = items(("hip", "triton", "torch"), ("bf16", "fp16"), range(sizes))
    seen = set().union(*(runs(cases, turn) for turn in range(first, first + rotation.PERIOD)))
    assert seen == {case.nodeid for case in cases}


@pytest.mark.parametrize("turn", range(rotation.PERIOD))
def test_every_run_has_each_backend(turn):
    cases = items(("hip", "asm", "torch"), range(5 * rotation.PERIOD)) + items(("ck",), (0,))
    chosen = runs(cases, turn)
    assert len(chosen) == 3 * 5 + 1
    for backend in ("hip", "asm", "torch"):
        assert sum(f"[{backend}-" in case for case in chosen) == 5


def test_a_backend_is_a_word_of_the_id():
    assert rotation.kind("hip-bf16-3") == rotation.kind("fp16_hip_d64") == {"hip"} and rotation.kind("ship-x2") == set()


def test_small_tests_and_tests_without_cases_run_whole():
    cases = items(range(rotation.LARGE)) + items((0,), test="test_y") + [SimpleNamespace(nodeid="test_z")]
    assert rotation.items_left_out(cases, 1) == []


def test_the_order_of_collection_does_not_matter():
    cases = items(("hip", "triton"), range(30))
    assert runs(cases, 3) == runs(cases[::-1], 3) != runs(cases, 4)


def test_commits_in_a_row_have_turns_in_a_row(tmp_path):
    assert rotation.turn_of(tmp_path) == 0
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    for count in (1, 2, 3):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
        assert rotation.turn_of(tmp_path) == count
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{tmp_path}", str(clone)], check=True)
    assert rotation.turn_of(clone) > 2**8


def marked(*words: str) -> set[str]:
    """The cases of two files, of ten each, that op_tests/conftest.py leaves out of a run with these arguments."""
    folder = Path(rotation.__file__).parent
    spec = importlib.util.spec_from_file_location("op_tests_conftest", folder / "conftest.py")
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    out = set()
    cases = [case for name in ("test_a", "test_b") for case in items(("hip",), range(10), test=name)]
    for case in cases:
        case.path = folder / "norm" / f"{case.nodeid.partition('[')[0]}.py"
        case.get_closest_marker = lambda _: None
        case.add_marker = lambda mark, case=case: out.add(case.nodeid) if mark == "exhaustive" else None
    options = {"--device": "sim", "--repeated": False, "--all-cases": False}
    conftest.pytest_collection_modifyitems(SimpleNamespace(
        getoption=options.get, args=list(words), option=SimpleNamespace(turn=3),
        invocation_params=SimpleNamespace(dir=folder)), cases)
    return out


def test_a_file_that_the_command_line_names_runs_all_its_cases():
    folder = Path(rotation.__file__).parent
    for word in ("norm/test_a.py", str(folder / "norm/test_a.py"), "norm/test_a.py::test_a", "norm/../norm/test_a.py"):
        out = marked(word)
        assert len(out) == 8 and all(case.startswith("test_b") for case in out), word
    assert len(marked("norm")) == len(marked()) == 16

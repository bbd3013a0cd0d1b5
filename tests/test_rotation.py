# SPDX-License-Identifier: MIT
"""op_tests/rotation.py: no case of a large test is lost, no run lacks a backend, and operators draw the sample."""

import importlib.util
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import rotation

from aiter_like.ops.index import OPERATORS


class Item(SimpleNamespace):
    """One of pytest's, as far as it is read; sets have them."""

    __hash__ = object.__hash__

    def get_closest_marker(self, name):
        return getattr(self, name, None)


def items(*grids, test="test_x"):
    """pytest's items of one test."""
    return [Item(nodeid=f"{test}[{'-'.join(map(str, values))}]", path=Path(__file__),
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


def test_exhaustive_cases_are_not_drawn():
    cases = items(("hip", "triton"), range(20))
    for case in cases[5:20]:
        case.exhaustive = True
    drawn = runs(cases, 2) - {case.nodeid for case in cases[5:20]}
    assert sum("[hip-" in case for case in drawn) == 1 and sum("[triton-" in case for case in drawn) == 3


def test_the_order_of_collection_does_not_matter():
    cases = items(("hip", "triton"), range(30))
    assert runs(cases, 3) == runs(cases[::-1], 3) != runs(cases, 4)


def test_an_operator_that_changes_draws_cases_anew(monkeypatch):
    """Operators in parameters draw theirs alone, for which one other makes room; else all that the file names do."""
    by_name, by_file = items(sorted(OPERATORS)), items(range(60), test="test_y")
    for case in by_file:
        case.path = Path(rotation.__file__).parent / "norm" / "test_rms_norm.py"
    before = runs(by_name, 0), runs(by_file, 0)
    assert before == (runs(by_name, 0), runs(by_file, 0))
    revisions = rotation.revisions
    monkeypatch.setattr(rotation, "seed", rotation.seed.__wrapped__)
    monkeypatch.setattr(rotation, "revisions", lambda name: revisions(name) + "changed" * (name == "rms_norm"))
    assert len(runs(by_name, 0) ^ before[0]) <= 2 and runs(by_file, 0) != before[1]


def test_operators_of_a_text():
    assert rotation.operators_named("rms_norm.hip") == {"rms_norm"}
    assert rotation.operators_named("aiter_like.add_rmsnorm(x)") == {"rms_norm"}
    assert rotation.operators_named("flash_attn_func") > {"flash_attn_fwd", "flash_attn_bwd"}
    assert rotation.operators_named("add") == rotation.operators_named("div") > {"act_and_mul", "elementwise"}
    assert rotation.operators_named("nothing") == frozenset()


def marked(*words: str) -> set[str]:
    """The cases of two files, of ten each, that op_tests/conftest.py leaves out of a run with these arguments."""
    folder = Path(rotation.__file__).parent
    spec = importlib.util.spec_from_file_location("op_tests_conftest", folder / "conftest.py")
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    out = set()
    cases = [case for name in ("test_rms_norm", "test_layer_norm") for case in items(("hip",), range(10), test=name)]
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
    for word in ("norm/test_rms_norm.py", str(folder / "norm/test_rms_norm.py"), "norm/test_rms_norm.py::test_rms_norm",
                 "norm/../norm/test_rms_norm.py"):
        out = marked(word)
        assert len(out) == 8 and all(case.startswith("test_layer_norm") for case in out), word
    assert len(marked("norm")) == len(marked()) == 16

# SPDX-License-Identifier: MIT
"""`aiter-like aiter-tests`: what a program in the manner of AITER's op_tests is counted as, and its process."""

import json
import multiprocessing
import os
import sys
import textwrap

import pytest
import torch

from aiter_like.integrations import takeover
from aiter_like.integrations.aiter import names, shim
from aiter_like.integrations.aiter.checks import KINDS
from aiter_like.integrations.aiter.tests import process as aiter_test_process
from aiter_like.integrations.aiter.tests import runs as aiter_test_runs

HEAD = """
import sys, torch, aiter
from aiter import dtypes
from aiter.test_common import benchmark, checkAllclose, perftest, run_perftest
same, other = torch.ones(4), torch.zeros(4)
"""


def _child(job: dict, folder) -> None:
    """In a process of its own, as the command starts it, without the cost of a new interpreter."""
    sys.stdout = sys.stderr = open(folder / "log", "w")
    torch.set_num_threads(1)  # a forked process has none of its parent's threads
    takeover.reset_counters()  # of earlier tests: a script that called nothing of ours has an error, no failed check
    os.environ |= {"AITER_LIKE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    sys.path.insert(0, str(shim.PATH))
    for name in [name for name in sys.modules if name.split(".")[0] == "aiter"]:
        del sys.modules[name]
    os.chdir(folder)
    aiter_test_process.main(json.dumps(job))


@pytest.fixture(scope="module", autouse=True)
def loaded():
    """What the forked processes would each load again."""
    torch.testing.assert_close(torch.ones(1), torch.ones(1))
    return [row.value for row in names.table()]


@pytest.fixture
def count(tmp_path):
    """Runs a program and returns its counts, without zeros, the first event of each kind, and how it ended."""

    def counted(source: str, head: str = HEAD, is_sim: bool = True, arguments=(),
                memory_bytes: int = 0):
        file, journal = tmp_path / "test_toy.py", tmp_path / "journal"
        file.write_text(head + textwrap.dedent(source))
        journal.write_text("")
        job = {"file": str(file), "journal": str(journal), "arguments": list(arguments), "is_sim": is_sim,
               "memory_bytes": memory_bytes}
        process = multiprocessing.get_context("fork").Process(target=_child, args=(job, tmp_path))
        process.start()
        process.join()
        events = aiter_test_runs._events(journal)
        assert process.exitcode == 0 and events, (tmp_path / "log").read_text()
        counts = {kind: number for kind, number in aiter_test_runs._counts(events).items() if number}
        return counts, {kind: aiter_test_runs._first(events, kind) for kind in KINDS}, events[-1][1]

    return counted


# ---- scripts


def test_a_failed_check_is_counted_and_the_script_goes_on(count):
    counts, first, ended = count("""
        assert checkAllclose(same, other, msg="ones") == 1.0
        checkAllclose(same, same)
        torch.testing.assert_close(same, same)
        assert torch.allclose(same, same) and not torch.equal(same, other)
    """)
    assert counts == {"passed": 3, "failed": 2} and ended == ""
    assert first["failed"].startswith("ones: 100.00% of 4 elements differ")


def test_parts_end_alone(count):
    counts, first, ended = count("""
        @benchmark()
        def part(what):
            if what == "missing":
                aiter.gemm_a8w8_mxfp8(same)
            if what == "error":
                raise KeyError("size")
            if what == "assertion":
                torch.testing.assert_close(same, other)
            return {"err": checkAllclose(same, same)}
        for what in ("missing", "error", "assertion", "good"):
            assert part(what)["what"] == what
    """)
    assert counts == {"unserved": 1, "errors": 1, "failed": 1, "passed": 1} and ended == ""
    assert first["unserved"].startswith("part: aiter.gemm_a8w8_mxfp8 is not served")
    assert "KeyError" in first["errors"]


@pytest.mark.parametrize("is_lost", [True, False])
def test_tables_of_lost_parts_have_gaps(count, is_lost):
    """A column that the script itself forgot is still its error."""
    pytest.importorskip("pandas")
    counts, first, ended = count(f"""
        import pandas as pd
        @benchmark()
        def part(m):
            return {{}} if not {is_lost} else aiter.gemm_a8w8_mxfp8(same)
        table = pd.DataFrame([part(1), part(2)])
        print(table[["m", "us"]], table["us"])
        assert list(table["m"]) == [1, 2]
        checkAllclose(same, same)
    """)
    assert (counts, ended) == (({"unserved": 2, "passed": 1}, "") if is_lost else ({"errors": 1}, "error")), first


@pytest.mark.parametrize(("source", "counts", "ended"), [
    ("print('nothing')", {}, ""),
    ("from aiter import no_such_name", {"unserved": 1}, "missing"),
    ("import aiter.no_such_module", {"unserved": 1}, "missing"),
    ("aiter.no_such_name", {"unserved": 1}, "missing"),
    ("checkAllclose(same, same)\naiter.gemm_a4w4o8(same)", {"passed": 1, "unserved": 1}, "missing"),
    ("import no_such_package", {"errors": 1}, "error"),
    ("assert False, 'wrong'", {"errors": 1}, "error"),
    ("from aiter_like.integrations import takeover\n"
     "takeover.take('toy', lambda: 3, None, announce=False)()\nassert False, 'wrong'", {"failed": 1}, "failed check"),
    ("checkAllclose(same, torch.ones(3))", {"errors": 1}, "error"),
    ("sys.exit(0)", {}, ""),
    ("sys.exit(3)", {}, "exit status 3"),
    ("checkAllclose(same, same)\nsys.exit(len(sys.argv))", {"passed": 1}, "exit status 1"),
    ("if aiter.get_gfx() not in ['gfx1', 'gfx2']: sys.exit(0)", {"other_arch": 1}, ""),
    ("if aiter.get_gfx() != 'gfx2': checkAllclose(same, same)", {"passed": 1}, ""),
    ("{'gfx2': 1}[aiter.get_gfx()]", {"other_arch": 1}, "other arch"),
    ("if aiter.get_gfx() not in ['gfx2']: raise RuntimeError(f'not for {aiter.get_gfx()}')", {"other_arch": 1},
     "other arch"),
    ("same.gcnArchName", {"other_arch": 1}, "other arch"),
    ("@benchmark()\ndef part():\n    if aiter.get_gfx() == 'gfx2': checkAllclose(same, same)\npart()",
     {"other_arch": 1}, ""),
])
def test_how_a_script_ends(count, source, counts, ended):
    found, _, end = count("\n" + source)
    assert (found, end) == (counts, ended)


def test_the_first_missing_names_say_what_they_are(count):
    assert count("from aiter.ops.shuffle import nothing")[1]["unserved"] == "aiter.ops.shuffle.nothing is absent"
    assert count("import aiter.no_such_module")[1]["unserved"] == "aiter.no_such_module is absent"
    assert count("aiter.no_such_name")[1]["unserved"] == "aiter.no_such_name is absent"


def test_timed_functions_run_once_while_checks_are_counted(count):
    """A kernel that writes in place has one result."""
    counts, _, _ = count("""
        calls = []
        run_perftest(calls.append, 1, num_iters=50)
        perftest(num_warmup=9)(calls.append)(1)
        checkAllclose(torch.tensor(len(calls)), torch.tensor(2))
    """)
    assert counts == {"passed": 1}


def test_what_a_program_calls_cuda_is_the_simulated_device(count):
    counts, first, ended = count("""
        torch.set_default_device("cuda")
        tensors = [torch.ones(2, device="cuda"), torch.ones(2, device=torch.device("cuda:0")), torch.ones(2),
                   torch.ones(2, device="cpu").cuda(), torch.ones(2).to("cuda"), torch.ones(2).to(device="cuda"),
                   torch.ones(2).to(0), torch.ones(2, device=0), torch.nn.Linear(2, 2).to("cuda").weight]
        assert [tensor.device.type for tensor in tensors] == ["cuda"] * 9
        assert torch.ones(2).to("cuda", torch.int32, True).dtype == torch.int32
        moments = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        moments[0].record(); moments[1].record(); moments[1].synchronize(); torch.cuda.synchronize()
        assert moments[0].elapsed_time(moments[1]) >= 0
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        assert properties.gcnArchName.split(":")[0] == aiter.get_gfx() == "gfx942"
        assert properties.multi_processor_count == aiter.get_cu_num()
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        from aiter_like import device
        assert device.default_target().simulated  # which asks torch for a GPU itself
        checkAllclose(same, same)
    """)
    assert (counts, ended) == ({"passed": 1}, ""), first


def test_memory_has_an_end(count):
    counts, first, _ = count("torch.empty(1 << 38, dtype=torch.uint8)", memory_bytes=1 << 34)
    assert counts == {"errors": 1} and "allocate" in first["errors"]


def test_own_triton_kernels_are_the_simulators(count):
    pytest.importorskip("triton")
    counts, first, _ = count("""
        import triton
        assert triton.runtime.driver.active.get_current_target().arch == "gfx942"
        checkAllclose(same, same)
    """)
    assert counts == {"passed": 1}, first


# ---- files of pytest

PYTEST_FILE = """
import pytest, torch, aiter
from aiter.test_common import checkAllclose

@pytest.mark.parametrize("size", [1, 2])
def test_size(size):
    checkAllclose(torch.ones(size), torch.ones(size))

def test_wrong():
    checkAllclose(torch.ones(2), torch.zeros(2))

def test_given_up():
    pytest.fail("gives up")

def test_of_another_library():
    import unittest.mock
    unittest.mock.Mock().assert_called_once()

@pytest.mark.xfail(strict=True)
def test_marked(): pass

@pytest.fixture
def broken():
    raise OSError("no file")

def test_setup(broken): pass

def test_missing(): aiter.tgemm.mm(1, 2)

@pytest.mark.skip(reason="slow")
def test_skipped(): pass

@pytest.mark.skipif(aiter.get_gfx() != "gfx950", reason="needs gfx950")
def test_other(): pass

def test_part_of_a_script(m, n): pass
"""


def test_files_of_pytest(count):
    counts, first, ended = count(PYTEST_FILE, head="")
    assert counts == {"passed": 2, "failed": 3, "errors": 2, "unserved": 1, "skipped": 1, "other_arch": 1}
    assert ended == "" and first["failed"].startswith("test_wrong: 100.00%")
    assert first["errors"].startswith("test_of_another_library: AssertionError: ")
    assert first["unserved"].startswith("test_missing: ")
    assert first["other_arch"] == "needs gfx950"
    assert count(PYTEST_FILE, head="", arguments=["-k", "size"])[0] == {"passed": 2}


@pytest.mark.parametrize(("source", "counts", "ended"), [
    ("import pytest\nfrom aiter import no_such_name\ndef test_a(): pass", {"unserved": 1}, "missing"),
    ("import pytest\n1 / 0", {"errors": 1}, "error"),
    ("import pytest\npytest.skip('only for MI355X', allow_module_level=True)", {"other_arch": 1}, ""),
    ("import pytest\nfrom aiter.test_common import checkAllclose\nimport torch\ndef test_a(m): pass\n"
     "if __name__ == '__main__': checkAllclose(torch.ones(1), torch.ones(1))", {"passed": 1}, ""),  # a script after all
])
def test_how_a_file_of_pytest_ends(count, source, counts, ended):
    found, _, end = count(source, head="")
    assert (found, end) == (counts, ended)


def test_a_package_beside_the_folder_is_not_imported(count, tmp_path):
    """pytest puts the parent of a folder with __init__.py first on the path: in a checkout AITER itself is there."""
    (tmp_path / "__init__.py").write_text("")
    beside = tmp_path.parent / "aiter"
    beside.mkdir()
    (beside / "__init__.py").write_text("raise RuntimeError('AITER itself')")
    try:
        assert count("import pytest\nfrom aiter.ops.shuffle import shuffle_weight\ndef test_a(): pass", head="")[0] == {
            "passed": 1}
    finally:
        (beside / "__init__.py").unlink()
        beside.rmdir()


# ---- its process


def test_a_killed_command_leaves_no_process(tmp_path):
    """A parent that runs a program and is killed; the program's own end closes the pipe that it holds."""
    script = tmp_path / "programs" / "test_hang.py"
    script.parent.mkdir()
    script.write_text("import pathlib, sys, time\npathlib.Path(sys.argv[1]).write_text('here')\n"
                      "while True: time.sleep(60)")
    reading, writing = os.pipe()
    marker = tmp_path / "marker"
    os.mkfifo(marker)
    job = {"file": str(script), "journal": str(tmp_path / "journal"), "arguments": [str(marker)], "is_sim": False,
           "memory_bytes": 0}
    context = multiprocessing.get_context("fork")
    parent = context.Process(target=lambda: (os.close(reading), _middle(job, tmp_path)))
    parent.start()
    os.close(writing)
    assert marker.read_text() == "here"
    parent.kill()
    parent.join()
    assert os.read(reading, 1) == b""  # waits until nobody holds the other end
    os.close(reading)


def _middle(job: dict, folder) -> None:
    child = multiprocessing.get_context("fork").Process(target=_child, args=(job, folder))
    child.start()
    child.join()

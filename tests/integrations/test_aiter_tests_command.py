# SPDX-License-Identifier: MIT
"""`aiter-like aiter-tests` over a folder: its table, results, progress, limits, and what it refuses."""

import io
import subprocess
import sys

import pytest

from aiter_like import cli
from aiter_like.cli import aiter_tests
from aiter_like.integrations.aiter.checks import KINDS
from aiter_like.integrations.aiter.tests import runs as aiter_test_runs
from aiter_like.integrations.aiter.tests.runs import Result

HEAD = """
import sys, torch, aiter
from aiter import dtypes
from aiter.test_common import benchmark, checkAllclose, perftest, run_perftest
same = torch.ones(4)
"""

TOYS = {
    "test_hang.py": "checkAllclose(same, same)\nimport pathlib, time\npathlib.Path(sys.argv[1]).touch()\n"
                    "while True: time.sleep(60)",
    "test_well.py": "from aiter.ops.triton.rope.rope import RotateStyle\nprint('said')\n"
                      "checkAllclose(torch.ones(3, device='cuda') * RotateStyle.GPTJ, torch.ones(3))",
}


def test_a_folder_file_by_file(tmp_path, capsys, monkeypatch):
    """The clock stands still until the file that hangs has made its check."""
    folder, marker = tmp_path / "programs", tmp_path / "marker"
    folder.mkdir()
    for name, source in TOYS.items():
        (folder / name).write_text(HEAD + source)
    monkeypatch.setattr(aiter_test_runs.time, "monotonic", lambda: 1e6 * marker.exists())
    status = cli.main(["aiter-tests", str(folder), "--arguments", f"test_hang.py={marker}", "--device", "sim",
                       "--output", str(tmp_path / "new" / "out.json"), "--logs", str(tmp_path / "logs")])
    out, err = capsys.readouterr()
    about, results = aiter_test_runs.read(tmp_path / "new" / "out.json")
    assert status == 1 and [(row.file, row.counts["passed"], row.ended, row.is_counted, row.is_well)
                            for row in results] == [("test_hang.py", 1, "time limit", True, False),
                                                    ("test_well.py", 1, "", True, True)]
    assert about["device"] == "simulated MI300X" and about["arch"] == "gfx942" and about["limit_s"] == 600
    assert results[1].names == {"served": 6, "raising": 0, "absent": 0} and not results[1].absent
    assert "[1/2] test_hang.py" in err and out.splitlines()[-1].startswith("2 of 2 files count: 2 checks passed")
    assert "said" in (tmp_path / "logs" / "test_well.log").read_text()


def test_how_a_process_ends():
    assert [aiter_test_runs._ended(status) for status in (-11, 3, 0, None)] == [
        "signal 11", "exit status 3", "exit status 0", "time limit"]


def test_files_run_side_by_side_and_end_with_the_one_who_asks(tmp_path, monkeypatch):
    """As many as there are jobs; whoever stops listening leaves none behind. Shells stand in for the programs."""
    real = subprocess.Popen
    monkeypatch.setattr(aiter_test_runs.subprocess, "Popen", lambda command, **options: real(
        ["sh", "-c", "kill -SEGV $$" if "test_crash" in command[-1] else "sleep 600"], **options))
    files = [tmp_path / name for name in ("test_a.py", "test_b.py", "test_crash.py", "test_d.py")]
    for file in files:
        file.write_text("")
    seen: list[list[str]] = []
    settings = aiter_test_runs.Settings(limit_s=1e6, is_sim=True, jobs=3)
    results = aiter_test_runs.run_files(files, settings, lambda running: seen.append([name for name, _, _ in running]))
    first = next(results)
    assert (first.file, first.ended) == ("test_crash.py", "signal 11")
    frame = results.gi_frame.f_locals["running"]
    processes = [one.process for one in frame]
    results.close()
    assert seen[0] == ["test_a.py", "test_b.py", "test_crash.py"] and len(processes) == 2
    assert [process.returncode for process in processes] == [-9, -9]


def test_what_a_crash_leaves_is_counted(tmp_path):
    """The last line may be half written."""
    (tmp_path / "journal").write_text('["passed", "", ""]\n["failed", "50%", ""]\n["pass')
    events = aiter_test_runs._events(tmp_path / "journal")
    assert aiter_test_runs._counts(events) == dict.fromkeys(KINDS, 0) | {"passed": 1, "failed": 1}


def test_reasons_are_counted_without_the_tests_names():
    events = [["failed", "off by 1", "test_a[1-b: c]"], ["failed", "off by 1", "test_a[2]"], ["passed", "", "test_b"],
              ["errors", "KeyError: 'us'", ""], ["unserved", "aiter.x is absent", ""]]
    assert aiter_test_runs._reasons(events) == {"off by 1": 2, "KeyError: 'us'": 1, "aiter.x is absent": 1}


@pytest.mark.parametrize(("options", "message"), [
    (["nowhere"], "nowhere is no folder"),
    (["."], "no file test_*.py in ."),
    (["programs", "--only", "test_b*"], "no file test_b* in programs"),
    (["programs", "--limit", "0"], "must be above 0"),
    (["programs", "--arguments", "test_b.py=-m 1"], "with a file that runs, got 'test_b.py=-m 1'"),
    (["programs", "--output", "programs/test_a.py/out.json"], "programs/test_a.py"),
])
def test_mistakes_are_refused_before_anything_runs(tmp_path, capsys, monkeypatch, options, message):
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "test_a.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(aiter_test_runs, "run_files", lambda *args: pytest.fail("it runs"))
    assert cli.main(["aiter-tests", *options]) == 1
    assert message in capsys.readouterr().err


def test_progress_is_one_line_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    line = aiter_tests._Progress(2)
    line.show([("test_a.py", 3.2, {"passed": 4, "failed": 0}), ("test_b.py", 1.0, {"passed": 1, "failed": 2})])
    line.clear()
    assert sys.stderr.getvalue() == "\r\033[K[2/2] test_a.py 3 s, test_b.py 1 s: 5 passed, 2 failed\r\033[K"


@pytest.mark.parametrize("text", ["[]", "{}", '{"files": 3}', '{"files": [{"file": "a"}]}', "\x00"])
def test_other_files_are_no_results(tmp_path, text):
    (tmp_path / "out.json").write_text(text)
    with pytest.raises(ValueError, match="is no result of"):
        aiter_test_runs.read(tmp_path / "out.json")


def test_what_is_missing_or_left_out_is_not_wrong():
    def result(ended="", **counts):
        return Result("a", dict.fromkeys(KINDS, 0) | counts, "", "", {}, ended, 1.0, {}, [])

    well = [result(), result("missing", unserved=1), result("other arch", other_arch=1), result(skipped=2, passed=1)]
    assert all(one.is_well for one in well) and [one.is_counted for one in well] == [False, False, False, True]
    assert not any(one.is_well for one in (result(failed=1), result(errors=1), result("time limit"), result("error")))

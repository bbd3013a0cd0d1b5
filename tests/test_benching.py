# SPDX-License-Identifier: MIT
"""The benchmarks' machinery, op_tests/bench/benching.py and bench_all.py, on a clock that needs no GPU."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch

from aiter_like.errors import UnsupportedError

BENCH = Path(__file__).parent.parent / "op_tests" / "bench"


class Clock:
    """Counts calls instead of timing them."""

    cache_bytes, place = 1000, "cpu"

    def rounds(self, contenders, count):
        return [[float(len(one.calls))] * count for one in contenders]


@pytest.fixture
def benching(monkeypatch):
    """The module as a script sees it, freshly imported."""
    monkeypatch.syspath_prepend(str(BENCH))
    for name in ("benching", "bench_peers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import benching
    import run as scripts

    monkeypatch.setattr(scripts, "need_gpu", lambda: None)
    monkeypatch.setattr(benching, "_clock", Clock)
    monkeypatch.setattr(benching, "copy_tbps", lambda: 4.0)
    monkeypatch.setattr(benching, "time_us", lambda call: 0.5)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "toy")
    yield benching
    for name in ("benching", "bench_peers"):
        sys.modules.pop(name, None)


def refuse():
    raise UnsupportedError("toy", {"triton": "too small"})


def run(benching, monkeypatch, tmp_path, cases, *options):
    benching.main(lambda: benching.table("toys", cases), "doc", ["--rows", str(tmp_path / "rows"), *options])
    return [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]


def test_times_what_is_right_and_says_why_not_else(benching, monkeypatch, tmp_path):
    def check(result):
        assert result == 1, "two is wrong"
        return 0.25

    calls = {"hip": lambda: 1, "triton": refuse, "torch": lambda: 1, "peer": lambda: 2}
    rows = run(benching, monkeypatch, tmp_path, [benching.Case("large", 4000, calls, check)])
    assert {row["by"]: row.get("us", row.get("reason")) for row in rows} == {
        "triton": str(refuse_text()), "peer": 24.0, "hip": 24.0, "torch": 0.5, "copy": 24.0}
    assert {row["by"]: row["error"] for row in rows if "us" in row} == {
        "peer": math.inf, "hip": 0.25, "torch": 0.25, "copy": 0.0}  # a peer may be less exact
    assert all(row["share"] == row["tbps"] / 4 for row in rows if "us" in row)


def test_a_terminal_shows_what_is_done_of_a_shape_from_the_start(benching, monkeypatch, tmp_path, capsys):
    seen = []

    def cases():
        seen.append(capsys.readouterr().err)
        yield benching.Case("large", 4000, {"hip": lambda: 1, "torch": lambda: 1}, lambda result: 0.5)

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run(benching, monkeypatch, tmp_path, cases())
    assert seen[0].startswith("\rtoys, shape 1: 0/5 steps, about 00:")
    written = capsys.readouterr().err
    assert "\rtoys, shape 1: 3/4 steps, " in written and written.rstrip("\r").endswith(" ") and "\n" not in written


def refuse_text():
    with pytest.raises(UnsupportedError) as caught:
        refuse()
    return str(caught.value).partition("\n")[0]


def test_a_wrong_call_of_ours_is_not_timed_and_fails_the_script(benching, monkeypatch, tmp_path, capsys):
    def check(result):
        raise AssertionError("wrong")

    with pytest.raises(SystemExit, match="WRONG: toys, 1, hip, heads=4"):
        run(benching, monkeypatch, tmp_path, [benching.Case("1", 4000, {"hip, heads=4": lambda: 1}, check)])
    assert "us" not in json.loads((tmp_path / "rows").read_text())


def test_rotates_until_the_caches_are_exceeded_three_times(benching, monkeypatch, tmp_path):
    made = []

    def make(seed):
        made.append(seed)
        return benching.Case("small", 700, {"hip": lambda: 1}, lambda result: 0.0)

    row, _ = run(benching, monkeypatch, tmp_path, [benching.rotating(make)])  # the other: the copy
    assert made == [0, 1, 2, 3, 4] and row["us"] == 25.0 and row["how"] == ""
    row = run(benching, monkeypatch, tmp_path, [make(0)])[-1]
    assert row["us"] == 0.5 and row["how"] == "flushed"


def test_warming_up_runs_only_ours_and_times_nothing(benching, monkeypatch, tmp_path):
    ran = []
    calls = {name: lambda name=name: ran.append(name) for name in ("hip", "triton", "torch.compile", "peer")}
    cases = [benching.Case("large", 4000, calls, lambda result: 0.0)]
    benching.main(lambda: benching.table("toys", cases), "doc", ["--warm"])
    assert ran == ["hip", "triton"]


def test_peers_are_left_out_unless_asked_for_and_there(benching, monkeypatch, tmp_path, capsys):
    import bench_peers

    (tmp_path / "toy_peer.py").write_text("__version__ = '7'\ndef double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(bench_peers.PEERS, "toy", {
        "toy_peer": lambda module, x: lambda: module.double(x), "no_such_peer": None,
        "toy_peer.old": None, "json": lambda module, x: module.no_such_function(x)})
    assert bench_peers.calls("toy", 4) == {}
    monkeypatch.setattr(bench_peers, "is_asked_for", True)
    found = bench_peers.calls("toy", 4)
    assert list(found) == ["toy_peer"] and found["toy_peer"]() == 8
    printed = capsys.readouterr().out
    assert "beside toy_peer 7" in printed and "without no_such_peer: ModuleNotFoundError" in printed
    assert "without json for toy: module 'json' has no attribute 'no_such_function'" in printed


def test_all_benches_into_one_file(benching, monkeypatch, tmp_path, capsys):
    import bench_all

    scripts = {"table": 'import sys\nif "--rows" in sys.argv:\n'
                        '    print("toys: GPU, copy 4.00 TB/s")\n'
                        '    open(sys.argv[-1], "a").write(\'{"title": "toys", "shape": "1", "by": "hip", "us": 2.0, '
                        '"tbps": 3.0, "share": 0.75, "error": 0.5, "how": ""}\\n\')\n',
               "text": 'print("4 TFLOP/s")\n', "fails": 'raise SystemExit("wrong")\n',
               "none": ""}

    def write(name, body):
        (tmp_path / f"test_{name}.py").write_text("" if name == "none" else f"def f(): ...\ndef bench(): ...\n{body}")

    for name, body in scripts.items():
        write(name, body)
    monkeypatch.setattr(bench_all.run, "TESTS", tmp_path)
    monkeypatch.setattr(bench_all, "_command", lambda script: [sys.executable, str(script)])
    output = tmp_path / "out.md"
    monkeypatch.setattr(sys, "argv", ["bench_all.py", "--output", str(output), "--limit", "3600", "--jobs", "1"])
    bench_all.main()
    write("hangs", "import time\ntime.sleep(1000)\n")  # the others are done: the limit is for it alone
    with monkeypatch.context() as there:
        there.setattr(sys, "argv", ["bench_all.py", "--output", str(output), "--limit", "0.5", "--jobs", "1"])
        bench_all.main()
    text = output.read_text()
    assert "| 1 | hip | 2.00 | 3.00 | 75.0% | 0.50 |  |" in text and "```\n4 TFLOP/s\n```" in text
    assert "## fails, exit code 1: wrong" in text and "## hangs, stopped after the limit of 0 s" in text
    assert "none" not in text
    (tmp_path / "out.rows" / "test_text.done").unlink()
    bench_all.main()
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed[-2:]] == ["test_text", str(output)]

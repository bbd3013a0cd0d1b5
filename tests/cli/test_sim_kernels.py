# SPDX-License-Identifier: MIT
"""`aiter-like sim validate --kernels`: the table of published times, the manifest of a folder, errors and verdicts."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from aiter_like import cli
from aiter_like.cli import outputs
from aiter_like.cli.sim import kernels as sim_kernels
from aiter_like.sim import modelling
from aiter_like.sim.validation import whole_kernels
from aiter_like.sim.validation.kernels import Kernel, code_object, name_of
from aiter_like.sim.validation.whole_kernels import Modelled, Published

ROW, OTHER = "F7 256x1024 RadeonFlow", "F7 256x6144 RadeonFlow"
VALU = Kernel("v_add_u32 v20, v1, v1", unroll=128)  # an instruction takes 4 clk


def launch(loops: int, **changed) -> dict:
    arguments = [{"buffer": "a"}, {"buffer": "a"}, {"type": "u32", "value": loops}, {"type": "u32", "value": 0},
                 {"buffer": "a"}]
    buffers = {"a": {"dtype": "u8", "shape": [64], "fill": "zeros", "scratch": True}}
    return {"file": "own.co", "kernel": name_of(0), "grid": [1], "block": [64],
            "args": {"buffers": buffers, "arguments": arguments}, **changed}


@pytest.fixture(scope="module")
def image() -> bytes:
    return code_object([(VALU, VALU.unroll)])


def folder_with(path: Path, image: bytes, *entries: dict) -> str:
    (path / "own.co").write_bytes(image)
    (path / sim_kernels.MANIFEST).write_text(json.dumps({"kernels": entries}))
    return str(path)


def validate(*arguments: str) -> int:
    return cli.main(["sim", "validate", *arguments])


def figures_of(folder: str, tmp_path: Path, *only: str) -> dict[str, dict]:
    file = tmp_path / "figures.json"
    options = [word for name in only for word in ("--only", name)]
    assert validate("--kernels", folder, *options, "--json", str(file)) == 0
    return {one["row"]: one for one in json.loads(file.read_text())}


def test_table_is_sound():
    rows = whole_kernels.published()
    assert len({row.name for row in rows}) == len(rows)
    assert all(row.clock in modelling.SUSTAINED_MHZ and row.source for row in rows)
    assert all(row.us is None or row.us > 0 for row in rows)
    assert {row.group.split()[0] for row in rows} == {"F1", "F2", "F3", "F4", "F5", "F6", "F7"}


def test_rows_are_listed(capsys):
    assert validate("--rows") == 0
    assert capsys.readouterr().out.splitlines() == [row.name for row in whole_kernels.published()]


def test_launches_add_up_and_runs_have_a_geometric_mean(tmp_path, image):
    folder = folder_with(tmp_path, image, {"row": ROW, "runs": [[launch(200)]]})
    once = figures_of(folder, tmp_path, ROW)[ROW]
    folder = folder_with(tmp_path, image, {"row": ROW, "runs": [[launch(200), launch(200)]]},
                         {"row": OTHER, "runs": [[launch(200)], [launch(200), launch(200)]]})
    found = figures_of(folder, tmp_path, ROW, OTHER)
    assert found[ROW]["modelled_us"] == pytest.approx(2 * once["modelled_us"])
    assert found[OTHER]["modelled_us"] == pytest.approx(math.sqrt(2) * once["modelled_us"])


def test_both_clocks_are_those_of_the_class_and_the_peak(tmp_path, image):
    found = figures_of(folder_with(tmp_path, image, {"row": ROW, "runs": [[launch(2000)]]}), tmp_path, ROW)[ROW]
    assert found["clock_mhz"] == modelling.SUSTAINED_MHZ["memory"]
    at_least = 2000 * VALU.unroll * 4 / found["clock_mhz"]
    assert at_least < found["modelled_us"] < 1.2 * at_least
    assert found["modelled_us_at_peak"] / found["modelled_us"] == pytest.approx(
        found["clock_mhz"] / modelling.PEAK_MHZ, rel=0.02)


def test_what_did_not_run_says_why_and_page_keeps_the_other_section(tmp_path, image, capsys):
    page = tmp_path / "page.md"
    assert validate("--only", "plain VALU", "--page", str(page)) == 0
    folder = folder_with(tmp_path, image, {"row": ROW, "runs": [[launch(10)]], "note": "an own kernel"},
                         {"row": OTHER, "why_not": "no kernel at hand"})
    for _ in range(2):  # the section is replaced, not added again
        assert validate("--kernels", folder, "--only", "F7", "--page", str(page)) == 0
    printed, text = capsys.readouterr().out, page.read_text()
    assert f"not run: {sim_kernels.MANIFEST} does not have it" in printed and "not validated: 0 groups" in printed
    assert text.count("## Whole kernels") == 1 and "| plain VALU | pyhip |" in text
    assert f"| {OTHER} | RadeonFlow/RadeonFlow_Kernels src/gemm/transpose_kernel.cpp | 2.72 | " \
           "not run: no kernel at hand" in text
    assert "What is off by more than 15%:" in text and "- F7, RadeonFlow, 1 rows: caches are modelled cold" in text
    assert "- F7, RadeonFlow: an own kernel." in text and "**not validated: 0 groups" in text


def test_a_kernel_that_fails_is_told_and_the_others_run(tmp_path, image, capsys):
    folder = folder_with(tmp_path, image, {"row": ROW, "runs": [[launch(10, kernel="absent")]]},
                         {"row": OTHER, "runs": [[launch(10)]]})
    assert validate("--kernels", folder, "--only", ROW, "--only", OTHER) == 1
    printed = capsys.readouterr().out
    assert "not run: failed: " in printed and "has no kernel absent" in printed
    assert "1 of 2 rows ran" in printed


@pytest.mark.parametrize(("entry", "message"), [
    ({"row": "F9 none", "why_not": "x"}, r"kernels\[0\]: no row 'F9 none' is published"),
    ({"row": ROW}, "must have either runs or why_not"),
    ({"row": ROW, "runs": []}, "runs must be a list of lists"),
    ({"row": ROW, "runs": [[{"file": "own.co"}]]}, r"runs\[0\]\[0\]: kernel is missing"),
    ({"row": ROW, "runs": [[launch(1, grids=[1])]]}, "has no key grids"),
    ({"row": ROW, "why_not": 3}, "must be texts"),
    ({"row": "F4 CompV4 over 86 shapes CK fp16, one barrier fewer", "runs": [[launch(1)]]}, "has no published time"),
])
def test_damaged_manifests_are_refused(tmp_path, image, entry, message):
    folder_with(tmp_path, image, entry)
    with pytest.raises(ValueError, match=message):
        sim_kernels.read(tmp_path)


def test_sizes_and_files_are_told_by_their_row(tmp_path, image, capsys):
    folder = folder_with(tmp_path, image, {"row": ROW, "runs": [[launch(1, grid=[0])]]},
                         {"row": OTHER, "runs": [[launch(1, file="absent.co")]]})
    assert validate("--kernels", folder, "--only", ROW, "--only", OTHER) == 1
    printed = capsys.readouterr().out
    assert f"{ROW}: own.co: grid must be an integer from 1 to" in printed and "absent.co: No such file" in printed


def test_options_that_do_not_go_together(tmp_path, capsys):
    assert validate("--kernels", str(tmp_path), "--clock", "2000") == 1
    assert "--kernels: --mca is for microbenchmarks" in capsys.readouterr().err


def row(group: str, case: str, variant: str, us: float) -> Published:
    return Published(group, case, variant, "memory", us, "nobody")


def test_errors_order_and_verdict():
    found = [Modelled(row("A", "s", "x", 10), 20, 10), Modelled(row("A", "s", "y", 20), 30, 20),
             Modelled(row("A", "t", "x", 10), None, None, "absent"), Modelled(row("B", "s", "x", 1), 1.1, 1)]
    a, b = whole_kernels.groups(found)
    assert (a.ran, a.rows, a.ordered, a.pairs) == (2, 3, 1, 1)
    assert a.error == pytest.approx(0.75) and a.peak_error == 0
    mean = math.sqrt(2 * 1.5)  # both are too slow by about as much: without a clock they are off by less
    assert a.ratio_error == pytest.approx(((2 / mean - 1) + (1 - 1.5 / mean)) / 2)
    assert b.ratio_error is None
    assert whole_kernels.verdict([a, b]) == "not validated: 2 groups have a row that ran, 3 are needed"
    assert "over 3 groups: 31.7% at the clocks" in whole_kernels.verdict([b, b, a])  # of 10 %, 10 % and 75 %
    later = dataclasses.replace(a, name="F6 later")
    assert whole_kernels.verdict([a, b, later]).startswith("not validated: 2 groups")
    assert "over 3 groups: 31.7% at the clocks" in whole_kernels.verdict([b, b, a, later])
    assert "added since, over 4 groups: 42.5% at the clocks" in whole_kernels.verdict([b, b, a, later])


def test_section_of_a_page_is_replaced_in_its_place(tmp_path):
    page = tmp_path / "page.md"
    for name, text in (("one", "1"), ("two", "2"), ("one", "3")):
        outputs.put_section(page, name, "a command", [text], "# Title")
    assert page.read_text().splitlines() == [
        "# Title", "", "<!-- one: written by `a command` -->", "3", "<!-- end of one -->", "",
        "<!-- two: written by `a command` -->", "2", "<!-- end of two -->"]

# SPDX-License-Identifier: MIT
"""The page of `aiter-like sim profile`, in a browser where there is one, and its comparison of two profiles."""

import json
import re

import pages_in_browser
import pytest

from aiter_like import cli
from aiter_like.sim.profiling import comparison, page, summary

_CALL = ["rms_norm", "input=bf16[64,1024]", "weight=bf16[1024]", "epsilon=1e-6"]


@pytest.fixture(scope="module")
def profiles(tmp_path_factory) -> dict[str, list[dict]]:
    """Of a short and of a wide normalisation."""
    found, folder = {}, tmp_path_factory.mktemp("profiles")
    for name, call in (("short", _CALL), ("wide", [word.replace("1024", "4096") for word in _CALL])):
        assert cli.main(["sim", "profile", "--json", str(folder / name), *call]) == 0
        found[name] = json.loads((folder / name).read_text())
    return found


def _data(text: str) -> dict:
    return json.loads(re.search(r'type="application/json">(.*?)</script>', text, re.DOTALL).group(1))


def test_the_page_is_one_file(profiles):
    one = {**profiles["short"][0], "title": "</script><b>x"}
    text = page.page([one])
    assert not re.search(r'(src|href)="(?!#)|@import|url\((?!#)|https?://', text)  # nothing else is loaded
    data = _data(text)
    assert data["profiles"] == [{**one, "title": summary.short_name(one)}] and data["comparison"] is None
    source = next(line["source"] for line in one["instructions"] if line["source"])
    assert data["sources"][source.rpartition(":")[0]]


def test_of_many_launches_the_longest_are_shown(profiles):
    many = profiles["short"] * (page.LAUNCHES + 2)
    data = _data(page.page(many))
    assert [bool(one["timeline"]["events"]) for one in data["profiles"]] == \
        [number < page.TIMELINES for number in range(page.LAUNCHES)]
    assert data["left_out"] == 2 and _data(page.page(profiles["short"]))["left_out"] == 0
    rows = summary.texts(many)
    clk = len(many[4:]) * many[0]["modelled_clk"]
    assert rows[:len(rows) - 2] == summary.text(many[0]) * 4 and rows[-2] == "22 shorter launches, modelled:"
    assert rows[-1].split("  ")[-1] == summary.short_name(many[0]) and f"{clk:.0f} clk in 22" in rows[-1]


def test_a_comparison(profiles, tmp_path, capsys):
    before, file = tmp_path / "before.json", tmp_path / "page.html"
    before.write_text(json.dumps(profiles["short"]))
    wide = [word.replace("1024", "4096") for word in _CALL]
    assert cli.main(["sim", "profile", "--compare", str(before), "--page", str(file), *wide]) == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith("modelled time, clk"))
    assert "modelled, not measured" in out and re.search(r"\+\d+\.\d%$", row)
    assert _data(file.read_text())["comparison"]["totals"][0]["name"] == "modelled time"
    before.write_text("[]")
    assert cli.main(["sim", "profile", "--compare", str(before), *_CALL]) == 1
    assert "holds no profiles" in capsys.readouterr().err


def test_nothing_has_changed_against_itself(profiles):
    (one,) = profiles["short"]
    same = comparison.of(*comparison.pair([one], [one]))
    for row in (*same["totals"], *same["units"], *same["waits"]):
        assert row["before"] == row["after"], row
    assert same["lines"] and all(line["source"][0] == line["source"][1] for line in same["lines"])
    assert sum(line["after"] for line in same["lines"]) == pytest.approx(
        sum(map(summary.spent, one["instructions"])) * 64 / one["recorded"])
    for line in same["lines"]:
        assert sum(form["clk"][1] for form in line["instructions"]) == pytest.approx(line["after"])


def test_lines_that_moved_are_matched_by_their_text(profiles):
    """A line that was put in above moves all others; one is gone, one is new."""
    (one,) = profiles["short"]
    name = next(iter(one["lines"])).rpartition(":")[0]
    places = sorted((place for place in one["lines"] if place.startswith(f"{name}:")),
                    key=lambda place: int(place.rpartition(":")[2]))
    moved = {place: f"{name}:{int(place.rpartition(':')[2]) + 3}" for place in places}
    after = {**one, "lines": {moved.get(place, place): text for place, text in one["lines"].items()},
             "instructions": [{**line, "source": moved.get(line["source"], line["source"])}
                              for line in one["instructions"]]}
    changed = moved[places[0]]
    after["lines"][changed] = "another text"
    rows = {tuple(line["source"]) for line in comparison.of(one, after)["lines"]}
    texts = [one["lines"][place].strip() for place in places]
    alone = [place for place, text in zip(places, texts) if texts.count(text) == 1][1:]
    assert alone and {(place, moved[place]) for place in alone} <= rows
    assert any(old is None and new == changed for old, new in rows)


def test_in_a_browser(profiles, tmp_path):
    """Every part is drawn, and clicks lead from a load to its wait, and from a line to its instructions."""
    compared = comparison.of(*comparison.pair(profiles["short"], profiles["wide"]))
    click = """<script>const load = C.waitsOf.findIndex(waits => waits.length);
      $("hot").checked = false; rows(); goToInstruction(load);
      document.body.dataset.arrows = $("arrows").querySelectorAll("path.on").length;
      document.body.dataset.pinned = $("rows").querySelectorAll("tr.pinned").length;
      goToSource(C.p.instructions[load].source);
      document.body.dataset.lit = $("rows").querySelectorAll("tr.lit").length;
      document.body.dataset.timeline = T.height;</script></body>"""
    dom = pages_in_browser.dom(page.page(profiles["wide"], compared).replace("</body>", click), tmp_path)
    dom = re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL)
    assert "This page failed" not in dom
    for part in ("compare", "overview", "roofline", "timeline", "code", "memory", "banks"):
        assert re.search(rf'<section id="{part}">\s*<\w+', dom), part
    told = dict(re.findall(r'data-(arrows|pinned|lit|timeline)="(\d+)"', re.search(r"<body[^>]*>", dom).group()))
    assert int(told["arrows"]) >= 1 and told["pinned"] == "1" and int(told["lit"]) >= 1 and int(told["timeline"]) > 100
    shown = len(re.findall(r'<tr data-k="\d+" data-tip', dom))
    assert shown == len(profiles["wide"][0]["instructions"])

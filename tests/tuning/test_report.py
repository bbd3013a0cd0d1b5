# SPDX-License-Identifier: MIT
"""The report: numbers that follow from the results, a plot that holds every choice, HTML that is well formed."""

import dataclasses
import itertools
import math
import re
import xml.etree.ElementTree as xml

import pytest

from aiter_like import pages
from aiter_like.tuning import report, roofline
from aiter_like.tuning.candidates import Plan, Trial
from aiter_like.tuning.tuner import Outcome, Result

DEVICE = {"arch": "sm_90", "cu_num": 132, "name": "Toy <1>", "unit": "us", "trial_unit": "us", "is_measured": True,
          "about": ()}
MODEL = DEVICE | {"unit": "modelled us (version 7)", "trial_unit": "clk", "is_measured": False,
                  "about": ("None of it is measured.",)}


def trial(backend, **params):
    return Trial(backend, "kernel", params, "", "")


def found(value, status="ok", **more):
    return {"status": status, "value": value, "base": 10.0, "ratio": value / 10, "spread": 0.02, "rounds": 7,
            "err": 1e-3, **more}


@pytest.fixture
def outcome():
    plan = Plan([trial("hip"), trial("triton", num_warps=4), trial("torch")], 0, {"asm": "a | b"}, 40_000_000, 0)
    first = Result({"rows": 4, "dtype": "bf16"}, plan, [found(20.0), found(10.0),
                                                        {"status": "wrong", "detail": "NaN & Inf", "err": math.inf}],
                   best=1, value=10.0, before=20.0)
    second = Result({"rows": 8, "dtype": "bf16"}, note="no candidate passed")
    return Outcome("toy", DEVICE, (5e12, 1e15), [first, second], [{}], False, None)


def test_markdown(outcome):
    text = report.markdown(outcome)
    assert "| rows=4 dtype=bf16 | triton kernel num_warps=4 | 10.00 | 20.00 | +100.0 | 4.00 | 80 |  | 0.001 |" in text
    assert "| rows=8 dtype=bf16 | none |" in text and "no candidate passed" in text
    assert "| torch kernel | wrong |" in text and "copy 5.00 TB/s" in text
    assert "- not tried: asm: a | b" in text and "budget was spent" in text


SVG = "{http://www.w3.org/2000/svg}"


def svg(outcome):
    return xml.fromstring(roofline.svg(outcome))


def texts(plot):
    return [text.text for text in plot.iter(f"{SVG}text")]


def test_roofline_of_bytes(outcome):
    plot = svg(outcome)
    (circle,) = plot.iter(f"{SVG}circle")
    line = next(plot.iter(f"{SVG}polyline")).get("points").split()
    heights = {float(point.split(",")[1]) for point in line}
    assert len(heights) == 1 and 0 < heights.pop() < float(circle.get("cy")) < 500, "below the roof"
    assert "rows=4 dtype=bf16: triton" in circle[0].text


def test_axes_scales_ceilings_and_points_have_names(outcome):
    found = texts(svg(outcome))
    for text in ("useful bytes of a call", "useful bytes per second", "10 MB", "1 TB/s", "copy, 5 TB/s", "rows=4"):
        assert text in found, found
    outcome.results[0].plan.flops, outcome.results[0].plan.bytes = 10**9, 10**6
    found = texts(svg(outcome))
    for text in ("arithmetic intensity: flop per useful byte of a call", "flop per second", "100 flop/B", "1 Pflop/s",
                 "bf16 matrix product, 1 Pflop/s", "copy, 5 TB/s"):
        assert text in found, found


def test_labels_are_what_differs_and_never_lie_on_one_another(outcome):
    first = outcome.results[0]
    outcome.results = [dataclasses.replace(first, key={"rows": rows, "dtype": "bf16"},
                                           plan=dataclasses.replace(first.plan, bytes=40_000_000 + rows))
                       for rows in range(40)]
    plot = svg(outcome)
    labels = [text for text in plot.iter(f"{SVG}text") if text.text.startswith("rows=")]
    assert 1 < len(labels) < 40 and "dtype" not in labels[0].text and len(list(plot.iter(f"{SVG}circle"))) == 40
    boxes = [(float(text.get("x")) - 7.4 * len(text.text) * (text.get("text-anchor") == "end"),
              float(text.get("y")) - 11, 7.4 * len(text.text), 14) for text in labels]
    assert not any(roofline._overlap(one, other) for one, other in itertools.combinations(boxes, 2))


def test_light_and_dark(outcome):
    page = report.page(outcome)
    assert pages.COLOURS in page
    colours = [dict(re.findall(r"--(\w+): (#\w+)", half)) for half in pages.COLOURS.split("@media")]
    assert colours[0].keys() == colours[1].keys() and not set(colours[0].values()) & set(colours[1].values())
    plot = roofline.svg(outcome)
    assert "#" not in plot and "black" not in plot, "every colour is the page's"


@pytest.mark.parametrize(("value", "unit", "text"), [
    (1.0, "B", "1 B"), (1e12, "B/s", "1 TB/s"), (4.2e12, "B/s", "4.2 TB/s"), (1e3, "B", "1 kB"),
    (0.1, "flop/B", "0.1 flop/B"), (1e4, "flop/B", "10000 flop/B"), (999.6e9, "flop/s", "1000 Gflop/s")])
def test_quantities(value, unit, text):
    assert roofline.quantity(value, unit) == text


def test_roofline_of_flops_bends(outcome):
    outcome.results[0].plan.flops = 10**9
    outcome.results[0].plan.bytes = 10**6
    line = next(svg(outcome).iter(f"{SVG}polyline")).get("points").split()
    heights = [float(point.split(",")[1]) for point in line]
    assert heights == sorted(heights, reverse=True) and len(set(heights)) > 2


def test_page_is_well_formed_and_complete(outcome, tmp_path):
    markdown, page = report.write(outcome, tmp_path / "new")
    text = page.read_text()
    assert "Toy &lt;1&gt;" in text and "NaN &amp; Inf" in text and "http" not in text.replace("http://www.w3.org", "")
    xml.fromstring(text.removeprefix("<!doctype html>\n").replace('<meta charset="utf-8">', ""))
    assert markdown.name == "toy.sm_90.md" and page.name == "toy.sm_90.html"


def test_what_is_modelled_says_so_and_has_no_plot_and_no_rates(outcome):
    outcome.device = MODEL
    outcome.results[0].note = "judged at rows=2"
    outcome.results[0].finals = {1: {"value": 7.0, "text": "modelled: 900 clk"}, 0: {"error": "hung: no answer"}}
    for text in (report.markdown(outcome), report.page(outcome)):
        assert "Values in modelled us (version 7)." in text and "None of it is measured." in text
        assert "a smaller key" in text and "judged at rows=2" in text and "<svg" not in text
    text = report.markdown(outcome)
    assert "| candidate | status | clk | against the first | rounds | final, modelled us (version 7) |" in text
    assert "| ok | 10.00 | 1.000 ± 0.010 | 7 | 7.00 | 0.001 | modelled: 900 clk |" in text
    assert "| ok | 20.00 | 2.000 ± 0.010 | 7 |  | 0.001 | hung: no answer |" in text
    assert "| 10.00 | 20.00 | +100.0 |  |  |  |" in text


def test_counts_have_an_intensity(outcome):
    """40 MB useful; what whole waves move, and their vector operations."""
    outcome.device = MODEL
    outcome.results[0].results[1]["found"] = {"bytes": 102400, "lane_operations": 25600, "text": ""}
    assert "| 102400 | 0.00× | 0.25 op/B | 0.001 |" in report.markdown(outcome)
    outcome.results[0].plan.flops = 1024000
    assert "| 102400 | 0.00× | 10 flop/B | 0.001 |" in report.markdown(outcome)


def test_errors_state_their_norm(outcome):
    for text in (report.markdown(outcome), report.page(outcome)):
        assert "relative L2 error" in text and "‖result − reference‖ / ‖reference‖" in text

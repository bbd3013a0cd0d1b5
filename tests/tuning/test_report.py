# SPDX-License-Identifier: MIT
"""The report: numbers that follow from the results, a plot that holds every choice, HTML that is well formed."""

from __future__ import annotations

import math
import xml.etree.ElementTree as xml

import pytest

from aiter_like.tuning import report
from aiter_like.tuning.candidates import Plan, Trial
from aiter_like.tuning.tuner import Outcome, Result

DEVICE = {"arch": "sm_90", "cu_num": 132, "name": "Toy <1>", "unit": "us", "is_time": True}


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


def svg(outcome):
    return xml.fromstring(report.roofline(outcome))


def test_roofline_of_bytes(outcome):
    plot = svg(outcome)
    (circle,) = plot.iter("{http://www.w3.org/2000/svg}circle")
    line = next(plot.iter("{http://www.w3.org/2000/svg}polyline")).get("points").split()
    heights = {float(point.split(",")[1]) for point in line}
    assert len(heights) == 1 and 0 < heights.pop() < float(circle.get("cy")) < 420, "below the roof"
    assert "rows=4 dtype=bf16: triton" in circle[0].text


def test_roofline_of_flops_bends(outcome):
    outcome.results[0].plan.flops = 10**9
    outcome.results[0].plan.bytes = 10**6
    line = next(svg(outcome).iter("{http://www.w3.org/2000/svg}polyline")).get("points").split()
    heights = [float(point.split(",")[1]) for point in line]
    assert heights == sorted(heights, reverse=True) and len(set(heights)) > 2


def test_page_is_well_formed_and_complete(outcome, tmp_path):
    markdown, page = report.write(outcome, tmp_path / "new")
    text = page.read_text()
    assert "Toy &lt;1&gt;" in text and "NaN &amp; Inf" in text and "http" not in text.replace("http://www.w3.org", "")
    xml.fromstring(text.removeprefix("<!doctype html>\n").replace('<meta charset="utf-8">', ""))
    assert markdown.name == "toy.sm_90.md" and page.name == "toy.sm_90.html"


def test_counts_have_no_plot_and_no_rates(outcome):
    outcome.device = DEVICE | {"is_time": False, "unit": "counts"}
    assert report.roofline(outcome) == "" and "No time, no rows" in report.markdown(outcome)
    assert "| 10.00 | 20.00 | +100.0 |  |  |  |" in report.markdown(outcome)

# SPDX-License-Identifier: MIT
"""Pages and pictures in a browser, as on a phone and on a desk, light and dark: all their text can be read."""

import json
import math
import random
import struct

import measured_page
import measured_plot
import pages_in_browser
import pytest
import torch
from hip_program import code_object

from aiter_like import cli, sim
from aiter_like.pages import page
from aiter_like.sim import tracing
from aiter_like.sim.profiling import comparison
from aiter_like.sim.profiling.page import page as profile_page
from aiter_like.sim.tracing.page import page as trace_page
from aiter_like.tuning import report
from aiter_like.tuning.candidates import Plan, Trial
from aiter_like.tuning.tuner import Outcome, Result

TRANSPOSE = """
extern "C" __global__ void transpose(const float* x, float* out) {
  __shared__ float tile[192];
  const int i = thread_index();
  if (i >= 64 && i < 640) return;                     // the last wave is the eleventh
  tile[i % 192] = x[i];
  workgroup_barrier();
  out[i] = tile[i % 4 * 32 + i % 128 / 4];            // lanes meet at banks
}
"""
PLANTED = {
    "overlap": '<p style="margin:0">one</p><p style="margin:-12px 0 0">other</p>',
    "overlap of turned text": '<svg width="90" height="90"><text transform="translate(9 80) rotate(-40)">turned</text>'
                              '<text x="15" y="72">level</text></svg>',
    "overlap in a canvas": '<canvas width="200" height="40"></canvas><script>const c = document.querySelector("canvas")'
                           '.getContext("2d"); c.font = "12px sans-serif"; c.fillRect(0, 0, 300, 0); '
                           'c.fillStyle = "#777"; c.fillText("one", 9, 20); c.fillText("other", 20, 22)</script>',
    "clipped": '<div style="width:60px;overflow:hidden;white-space:nowrap">longer than its box</div>',
    "clipped by its picture": '<svg width="50" height="20"><text x="9" y="15">longer than that</text></svg>',
    "contrast": '<p style="color:#808080;background:#999">grey</p>',
    "contrast through opacity": '<p style="opacity:.45">pale</p>',
    "contrast on a shape": '<svg width="90" height="20"><rect width="90" height="20" fill="#777"/>'
                           '<text x="9" y="15">grey</text></svg>',
    "covered": '<svg width="90" height="20"><text x="9" y="15">hidden</text><rect width="90" height="20"/></svg>',
    "small": '<svg viewBox="0 0 1200 60" width="300"><text x="9" y="40">tiny</text></svg>',
    "wide": '<div style="width:1400px">x</div>'}


def profiles(folder) -> list[list[dict]]:
    """Of a short and of a wide normalisation."""
    found = []
    for columns in (1024, 4096):
        file = folder / f"{columns}.json"
        assert cli.main(["sim", "profile", "--json", str(file), "rms_norm", f"input=bf16[64,{columns}]",
                         f"weight=bf16[{columns}]", "epsilon=1e-6"]) == 0
        found.append(json.loads(file.read_text()))
    return found


def profile(folder) -> str:
    """Several launches, one beside what was before, with an instruction that is pinned."""
    short, wide = profiles(folder)
    text = profile_page([*wide, *short], comparison.of(*comparison.pair(short, wide)))
    pinned = "<script>goToInstruction(C.waitsOf.findIndex(waits => waits.length))</script></body>"
    return text.replace("</body>", pinned)


def trace() -> str:
    x, out, found = torch.arange(704.0), torch.zeros(704), []
    with tracing.traced(found):
        sim.launch(code_object(TRANSPOSE, "--no-gpu-bundle-output", "-gline-tables-only"), "transpose", (1, 1, 1),
                   (704, 1, 1), 0, struct.pack("<QQ", x.data_ptr(), out.data_ptr()))
    text = trace_page(found)
    assert "10.63" in text and "lost because lanes of a phase meet" in text
    return text


def tuned() -> str:
    """Thirty choices under their roofs, among them ones on the roofs and one without a choice."""
    draw = random.Random(5)
    results = []
    for rows in (1, 8, 64, 256, 1024, 4096):
        for columns in (512, 1536, 4608, 7168, 9216):
            flops, moved = 2 * rows * columns * 7168, 7168 * columns + rows * (7168 + 2 * columns)
            us = max(flops / 1e15, moved / 4e12) * 1e6 * draw.choice((1, 1.3, 4))
            trials = [Trial("hip", "gemm_a8w8_kernel", {"BLOCK_M": 128, "SPLIT_K": 4}, "", ""),
                      Trial("torch", "", {}, "", "")]
            found = {"status": "ok", "value": us, "ratio": 1.0, "spread": .02, "rounds": 7, "err": 1e-3}
            wrong = {"status": "wrong", "detail": "element (17, 4093) is NaN, the reference says 0.125 " * 3,
                     "err": math.inf}
            results.append(Result({"m": rows, "n": columns, "k": 7168, "dtype": "bf16"},
                                  Plan(trials, 0, {"asm": "needs k to be a multiple of 256"}, moved, flops),
                                  [found, wrong], best=0, value=us, before=1.2 * us))
    device = {"arch": "sm_90", "cu_num": 132, "name": "NVIDIA H200", "unit": "us", "trial_unit": "us",
              "is_measured": True, "about": ()}
    results.append(Result({"m": 3, "n": 5, "k": 7, "dtype": "bf16"}, note="no candidate passed"))
    return report.page(Outcome("gemm_a8w8", device, (4e12, 1e15), results, [{}], False, None))


def other_figures() -> str:
    """The plot of a card with a longer name, faster and slower than its axis goes."""
    draw = random.Random(7)
    drawn = [[draw.lognormvariate(0, spread) for _ in range(6)] for spread in (.01, .1, .5, 1, 2, 3)]
    rows = [measured_plot.Row(f"a family of operators, {n}", [] if n == 3 else ratios, ratios)
            for n, ratios in enumerate(drawn)]
    heads = "Measured: NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition, 2027-10-10", "Modelled: MI300X"
    shares = {"gemm_a8w8_blockscale 4096x4608x7168": 0.0, "moe_gemm gates × 4096": .01, "softmax": .999, "topk": 1.4}
    return pages_in_browser.shown(*(measured_plot.plot("", heads, rows, shares, narrow) for narrow in (False, True)))


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[tuple[str, str, str], list[str]]:
    folder = tmp_path_factory.mktemp("pages")
    plots = [path.read_text(encoding="utf-8") for path in (measured_page.PLOT, measured_page.NARROW_PLOT)]
    pages = {"profile": profile(folder), "trace": trace(), "tuned": tuned(), "other figures": other_figures(),
             "measured": pages_in_browser.shown(*plots)}
    return pages_in_browser.findings(pages, folder / "all")


@pytest.mark.parametrize("scheme", pages_in_browser.SCHEMES)
@pytest.mark.parametrize("size", pages_in_browser.SIZES)
@pytest.mark.parametrize("name", ["profile", "trace", "tuned", "measured", "other figures"])
def test_all_text_can_be_read(found, name, size, scheme):
    assert found[name, size, scheme] == []


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> dict[tuple[str, str, str], list[str]]:
    pages = {name: page(name, body) for name, body in PLANTED.items()}
    pages["no viewport"] = "<!doctype html><html><head></head><body>a page</body></html>"
    return pages_in_browser.findings(pages, tmp_path_factory.mktemp("planted"))


@pytest.mark.parametrize("name", [*PLANTED, "no viewport"])
def test_what_cannot_be_read_is_found(planted, name):
    kind = "no viewport" if name == "no viewport" else name.partition(" ")[0]
    for (_, _, scheme), told in ((key, told) for key, told in planted.items() if key[0] == name):
        assert {one.partition(":")[0] for one in told} == {kind}, (scheme, told)

# SPDX-License-Identifier: MIT
"""Traces of accesses: lanes, addresses, banks, who wrote what; the page that draws them and the command."""

import json
import re
import struct
from html.parser import HTMLParser

import pytest
import torch
from hip_program import code_object

from aiter_like import sim
from aiter_like.cli import main
from aiter_like.cli.sim.hardware.lds_phases import SIMULATED
from aiter_like.errors import DebuggerError
from aiter_like.sim import names, tracing
from aiter_like.sim.tracing.page import _name, page

SOURCE = """
typedef float f4 __attribute__((ext_vector_type(4)));
extern "C" __global__ void transpose(const float* x, float* out) {
  __shared__ float tile[32 * 32];
  const int i = thread_index(), row = i / 32, column = i % 32;
  tile[row * 32 + column] = x[workgroup_index().x * 1024 + row * 32 + column];
  workgroup_barrier();
  out[workgroup_index().x * 1024 + i] = tile[column * 32 + row];     // 32 lanes at one bank
}
extern "C" __global__ void swizzled(const f4* x, f4* out) {
  __shared__ f4 tile[64];
  const int i = thread_index();
  tile[i ^ (i / 8)] = x[i];
  workgroup_barrier();
  out[i] = tile[i];
}
"""


def elf() -> bytes:
    return code_object(SOURCE, "--no-gpu-bundle-output", "-gline-tables-only")


def traced(kernel: str, block: int, groups: int = 1, **options) -> tuple[list[dict], torch.Tensor, torch.Tensor]:
    x, out, found = torch.arange(2048.0), torch.zeros(2048), []
    with tracing.traced(found, **options):
        sim.launch(elf(), kernel, (groups, 1, 1), (block, 1, 1), 0, struct.pack("<QQ", x.data_ptr(), out.data_ptr()))
    return found, x, out


def of(launch: dict, space: str, access: str) -> list[dict]:
    return [one for one in launch["recorded"] if (one["space"], one["access"]) == (space, access)]


def test_a_transpose_meets_at_banks():
    (launch,), x, out = traced("transpose", 1024, groups=2, workgroup=1)
    assert (launch["kernel"], launch["group"], launch["lds_bytes"]) == ("transpose", 1, 4096)
    assert launch["grid"] == [2, 1, 1] and launch["arguments"] == [x.data_ptr(), out.data_ptr()]
    loads, stores, writes, reads = (of(launch, *kind) for kind in (("global", "load"), ("global", "store"),
                                                                   ("LDS", "store"), ("LDS", "load")))
    assert len(loads) == len(stores) == len(writes) == len(reads) == 16 == launch["accesses"] // 4
    for one in loads:
        first = x.data_ptr() + 4 * (1024 + 64 * one["wave"])
        assert one["at"] == [first + 4 * lane for lane in range(64)] and one["lanes"] == list(range(64))
        assert one["segments_64"] in (4, 5) and one["source"] == loads[0]["source"]
    for one in writes:
        assert (one["clk"], one["conflict_clk"]) == (2, 0) and set(one["writers"]) == {-1}
        assert one["phases"] == [0] * 32 + [1] * 32
    for one in reads:
        assert (one["clk"], one["conflict_clk"]) == (64, 62)
        assert one["at"] == [4 * (lane % 32 * 32 + 2 * one["wave"] + lane // 32) for lane in range(64)]
        assert one["writers"] == [at // 4 for at in one["at"]]            # work-item i wrote dword i
    assert len(launch["barriers"]) == 1 and writes[-1]["clock"] < launch["barriers"][0] < reads[0]["clock"]
    assert torch.equal(out[:1024].reshape(32, 32), x[:1024].reshape(32, 32).T)


def test_executions_and_bad_counts():
    (once,), _, _ = traced("swizzled", 64)
    assert len(once["recorded"]) == 4 and of(once, "LDS", "load")[0]["bytes"] == 16
    assert of(once, "LDS", "load")[0]["writers"] == [lane ^ lane // 8 for lane in range(64)]
    assert traced("swizzled", 64, workgroup=3)[0] == []
    for options in ({"workgroup": -1}, {"executions": 0}, {"executions": 2000}):
        with pytest.raises(ValueError, match="workgroup must be 0 or more and executions 1 to 1024"):
            traced("swizzled", 64, **options)
    with tracing.traced([]), pytest.raises(DebuggerError, match="another trace"):
        traced("swizzled", 64)


@pytest.mark.parametrize("name, size, is_load", [("ds_read_b32", 4, True), ("ds_read_b64", 8, True),
                                                 ("ds_read_b128", 16, True), ("ds_write_b128", 16, False)])
def test_phases(name, size, is_load):
    lanes = tracing.phases(size, is_load)
    found = [[lane for lane in range(64) if lanes[lane] == phase] for phase in range(max(lanes) + 1)]
    assert "; ".join(map(names.spans, found)) == SIMULATED[name]


class Balanced(HTMLParser):
    """Fails on a tag that ends what has not begun."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("meta", "rect"):
            assert self.open.pop() == tag


def test_the_page():
    launches = [*traced("transpose", 1024)[0], *traced("swizzled", 64)[0]]
    text = page(launches)
    parser = Balanced()
    parser.feed(text)
    assert parser.open == [] and "/*" not in text.replace("/*  */", "") and "http" not in text
    assert text.count("<section") == 8 and "<td class=\"\">0-15</td>" in text     # waves that do alike are folded
    assert "the same: waves 1-15 from " in text and len(re.findall(r'class="c meets"', text)) == 64
    rows = re.findall(r"<tr>(?:<td.*?)</tr>", text)
    assert "62</td></tr>" in rows[0] and 'class="bad"' not in rows[1]   # conflicts come first
    assert "64 clk of the banks, 62 of them lost" in text and "all waves have passed a barrier" in text
    assert "lane 33, phase 1: offset 0x84, bank 1; wave 2 lane 1 wrote it" not in text
    assert "lane 33, phase 1: offset 0x84, bank 1; wave 0 lane 33 wrote it" in text     # wave 0: row 1, column 1
    assert "<h2>LDS here</h2>" in text and ">15.63</text>" in text and "wave.lane that wrote" in text
    assert "arg0+0x0" in text and "arg1+0x80" in text and "phase 1" in text


def test_rows_are_named_by_what_is_touched_there():
    """An argument in the middle of a row is not that much behind the one before it."""
    assert _name(0x1000, [0x800, 0x1040], 0x1040) == "arg1-0x40" and _name(0x1040, [0x800, 0x1040]) == "arg1+0x0"
    assert _name(0x1000, [0x800, 0x1040], 0x1000) == "arg0+0x800" and _name(0x1000, [0x1040]) == "arg0-0x40"


def test_the_command(tmp_path, capsys):
    file, spec, written, drawn = (tmp_path / name for name in ("k.co", "spec.json", "trace.json", "trace.html"))
    file.write_bytes(elf())
    spec.write_text(json.dumps({
        "buffers": {"x": {"dtype": "fp32", "shape": [2048], "fill": "random"},
                    "out": {"dtype": "fp32", "shape": [2048], "fill": "zeros", "output": True}},
        "arguments": [{"buffer": "x"}, {"buffer": "out"}]}))
    launch = [str(file), "--kernel", "transpose", "--grid", "2", "--block", "1024", "--args", str(spec)]
    assert main(["sim", "trace", "--workgroup", "1", "--page", str(drawn), "--json", str(written), *launch]) == 0
    text = capsys.readouterr().out
    assert "transpose: workgroup 1, 64 accesses" in text and f"{drawn}: written" in text
    assert "load LDS, 16 times by 16 waves, 4 bytes of a lane, 1024 clk, 992 of them lost in conflicts, ds_read" in text
    (found,) = json.loads(written.read_text())
    assert found["group"] == 1 and len(found["recorded"]) == 64 and "<svg" in drawn.read_text()
    assert main(["sim", "trace", "--workgroup", "2", *launch]) == 1
    assert "no kernel was launched on the simulated MI300X with a workgroup 2" in capsys.readouterr().out
    for arguments, message in [(["--page", str(file / "x.html"), *launch], "--page"),
                               (["--workgroup", "-1", *launch], "workgroup must be 0 or more")]:
        assert main(["sim", "trace", *arguments]) == 1
        assert message in capsys.readouterr().err

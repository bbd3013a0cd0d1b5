# SPDX-License-Identifier: MIT
"""`aiter-like bench`: the table with planted backends, on the simulated device, and its mistakes."""

import planted
import pytest

from aiter_like import cli, device, dispatch
from aiter_like.cli import tune
from aiter_like.tuning import bench, harness


@pytest.fixture
def gpu(toy, monkeypatch):
    """The planted device as GPU 0."""
    monkeypatch.setattr(harness, "gpu", planted.harness)
    monkeypatch.setattr(tune, "_all_gpus", lambda kind: (0,))


def run(capsys, *argv):
    return cli.main(["bench", *argv]), *capsys.readouterr()


def test_table(gpu, capsys):
    status, out, err = run(capsys, "planted", "--shape", "rows=1000,plant=0,dtype=fp32")
    assert status == 0
    assert err.splitlines() == ["planted: 0/5 checks and timings, 0/1 shapes, about 00:10 left",
                                "planted: 5/5 checks and timings, 1/1 shapes, 00:00 left"]
    assert out.splitlines() == [
        "planted on Toy 0; us; copy 0.00 TB/s", "rows=1000  plant=0  dtype=fp32",
        "  * hip                10.00 us   0.01 TB/s  640 % of copy  rel. L2 error 0  hip",
        "    triton                 - never",
        "    torch              30.00 us   0.00 TB/s  213 % of copy  rel. L2 error 0  torch"]


def test_quiet(gpu, capsys):
    assert run(capsys, "planted", "--quiet", "--shape", "rows=4,plant=0,dtype=fp32")[2] == ""


def test_a_wrong_backend_has_no_time(gpu, capsys, monkeypatch):
    monkeypatch.setattr(planted.op().backends[2].__class__, "bind",
                        lambda self, target, args, candidate: lambda *args: None)
    status, out, _ = run(capsys, "planted", "--shape", "rows=4,plant=0,dtype=fp32")
    assert status == 1 and "hip                    - NaN or Inf differ" in out and " us " not in out.split("\n", 1)[1]


def test_tuned_row_is_what_a_call_takes(gpu, monkeypatch, tmp_path):
    path = tmp_path / "planted.csv"
    path.write_text("arch,cu_num,rows,plant,dtype,backend,kernel,params,us,err,toolchain,kernel_rev,origin\n"
                    "gfx942,304,4,0,fp32,torch,torch,,5,0,,,measured:x\n")
    monkeypatch.setenv("AITER_LIKE_TUNED", str(path))
    planted.op().reset()
    lines = bench.lines(planted.op(), {"rows": 4, "plant": 0, "dtype": "fp32"}, planted.harness(0))
    assert [line.name for line in lines if line.is_chosen] == ["torch"]


def test_on_the_simulated_device(capsys, tmp_path):
    shape = "rows=3,hidden=64,dtype=bf16,has_residual=1"
    try:
        status, out, _ = run(capsys, "rms_norm", "--device", "sim", "--shape", shape)
        tuned = cli.main(["tune", "rms_norm", "--device", "sim", "--quiet", "--report", str(tmp_path), "--output",
                          str(tmp_path / "out"), "--shape", shape])
    finally:
        device.reset()
        dispatch.reset()
    assert status == 0 and out.startswith("rms_norm on simulated gfx942; modelled us (cycle model version ")
    line = next(line for line in out.splitlines() if line.startswith("  * hip"))
    assert float(line.split()[2]) > 0 and "modelled us" in line and "torch                  - launches nothing" in out
    assert "TB/s" not in out
    out = capsys.readouterr().out
    report = (tmp_path / "rms_norm.gfx942.md").read_text()
    row = next(line for line in report.splitlines() if line.startswith("| rows=3 hidden=64")).split(" | ")
    assert "| bytes moved | of useful | intensity | relative L2 error |" in report
    assert int(row[5]) > 0 and float(row[6].rstrip("×")) >= 1 and row[7].endswith(" op/B"), row
    assert tuned == 0 and "modelled rows, which come after every measured one: " in out
    assert "Every time here is modelled and none is measured" in report and "llvm-mca" in report


@pytest.mark.parametrize(("argv", "text"), [
    (["rms_norm"], "torch sees no GPU; --device sim"),
    (["rms_norm", "--shape", "rows=1"], "--shape: shapes of rms_norm must have the columns"),
    (["rms_norm", "--device", "sim", "--peers"], "--peers needs a GPU"),
    (["nothing"], "nothing is no operator"),
])
def test_mistakes(capsys, argv, text):
    status, out, err = run(capsys, *argv)
    assert status == 1 and not out and text in err and err.count("\n") == 1

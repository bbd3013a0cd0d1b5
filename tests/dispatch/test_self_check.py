# SPDX-License-Identifier: MIT
"""The self-check before a compiled kernel's first automatic use on hardware."""

import json
import logging

import pytest
import torch
from toys import HARDWARE, SIMULATED, FakeJit, make_op, self_check_case

from aiter_like import device, dispatch
from aiter_like.cli import verify
from aiter_like.dispatch import Backend, explain, self_check
from aiter_like.modules import cache


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A "real" gfx942 whose tensors live on the CPU, a cache of its own, and a switch for graph capture."""
    monkeypatch.setattr(dispatch.OPS, "declared", {})
    monkeypatch.setattr(dispatch.OPS, "index", {})
    monkeypatch.setattr(device, "_targets", {torch.device("cpu"): HARDWARE})
    monkeypatch.setattr(self_check, "torch_device", lambda target: torch.device("cpu"))
    monkeypatch.setattr(self_check, "device_name", lambda target: "AMD Instinct MI300X")
    monkeypatch.setattr(self_check, "_verdicts", {})
    monkeypatch.setattr(cache, "cache_root", lambda: tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def capturing(monkeypatch):
    """Sets whether a graph is being captured."""

    def switch(on):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: on)

    switch(False)
    return switch


def wrong(out, x, factor, flag):
    out.copy_(x * factor + 1)


def run(op, rows=2, **options):
    x = torch.randn(rows, 4)
    out = torch.empty_like(x)
    op.run(out, x, 3.0, 0, **options)
    assert torch.equal(out, x * 3) or options
    return out


def files(folder):
    return sorted((folder / "verified").rglob("*.json"))


def test_right_kernel_is_checked_once_per_process_and_machine(machine, caplog):
    hip = FakeJit()
    op = make_op(Backend("hip", hip))
    run(op, 2)
    assert hip.calls == 2  # the check, then the call
    run(op, 3)
    assert hip.calls == 3
    (path,) = files(machine)
    assert path.relative_to(machine).as_posix() == "verified/AMD_Instinct_MI300X/key-scale.json"
    assert json.loads(path.read_text())["failure"] is None
    self_check._verdicts.clear()
    op.reset()
    run(op, 2)
    assert hip.calls == 4  # the verdict came from the file
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_wrong_kernel_is_out_of_use_with_one_warning(machine, caplog):
    op = make_op(Backend("hip", FakeJit(wrong)))
    run(op, 2)
    run(op, 3)
    warnings = [record.getMessage() for record in caplog.records if "out of use" in record.getMessage()]
    assert len(warnings) == 1
    assert f"{op.name}: backend hip (scale) is out of use on gfx942: self-check differs from the reference by" in \
        warnings[0]
    assert "self-check differs" in json.loads(files(machine)[0].read_text())["failure"]
    assert "self-check differs" in explain(lambda x: op.run(torch.empty_like(x), x, 1.0, 0),
                                           torch.randn(9, 4)).rejected["hip"]
    op.reset()
    self_check._verdicts.clear()
    run(op, 2)  # a stored failure counts too


def test_crash_and_missing_writes_are_failures(machine):
    def crash(out, x, factor, flag):
        raise RuntimeError("memory fault")

    for kernel, text in ((crash, "self-check raised memory fault"), (lambda *args: None, "error of inf")):
        self_check._verdicts.clear()
        for path in files(machine):
            path.unlink()
        op = make_op(Backend("hip", FakeJit(kernel)))
        run(op)
        assert text in json.loads(files(machine)[0].read_text())["failure"]


def test_forced_backend_is_not_checked(machine):
    op = make_op(Backend("hip", FakeJit(wrong)))
    run(op, backend="hip")
    assert not (machine / "verified").exists()


def test_graph_capture_uses_the_next_backend_and_is_not_remembered(machine, capturing):
    hip = FakeJit()
    op = make_op(Backend("hip", hip))
    capturing(True)
    run(op)
    assert hip.calls == 0 and not (machine / "verified").exists()
    capturing(False)
    run(op)
    assert hip.calls == 2
    capturing(True)
    run(op, 5)  # checked by now
    assert hip.calls == 3


def test_each_instance_needs_a_case(machine):
    hip = FakeJit(instance=lambda out, x, factor, flag: f"d{x.shape[1]}")
    op = make_op(Backend("hip", hip))
    run(op)
    x = torch.randn(2, 8)
    op.run(torch.empty_like(x), x, 3.0, 0)
    assert hip.calls == 2
    assert op.failures[("hip", "scale[d8]", HARDWARE)] == "no self-check case covers scale[d8]"


def test_list_of_cases(machine):
    def cases(device):
        x = torch.ones(2, 8)
        return {"narrow": self_check_case(device), "wide": (torch.empty_like(x), x, 2.0, 0)}

    hip = FakeJit(instance=lambda out, x, factor, flag: f"d{x.shape[1]}")
    op = make_op(Backend("hip", hip), cases=cases)
    for width in (4, 8):
        x = torch.randn(2, width)
        op.run(torch.empty_like(x), x, 3.0, 0)
    assert hip.calls == 4 and len(files(machine)) == 2


def test_a_backend_makes_a_case_for_the_kernel_of_the_call(machine):
    seen = []

    def own(device, out, x, factor, flag):
        seen.append(x.shape)
        return torch.empty(1, x.shape[1]), torch.ones(1, x.shape[1]), 2.0, flag

    hip = FakeJit(instance=lambda out, x, factor, flag: f"d{x.shape[1]}")
    op = make_op(Backend("hip", hip, self_check=own))
    for width in (7, 9, 9):
        x = torch.randn(5, width)
        op.run(torch.empty_like(x), x, 3.0, 0)
    assert seen == [(5, 7), (5, 9)] and hip.calls == 5 and not op.failures


def test_operator_without_a_case_is_not_trusted(machine):
    op = make_op(Backend("hip", hip := FakeJit()), cases=None)
    run(op)
    assert hip.calls == 0


@pytest.mark.parametrize(("backend", "target", "expected"), [
    ("hip", HARDWARE, True), ("ck", HARDWARE, True), ("asm", HARDWARE, True), ("triton", HARDWARE, False),
    ("torch", HARDWARE, False), ("hip", SIMULATED, False), ("hip", device.Target("cuda", "sm_90", 132, 32), False)])
def test_applies_to_our_kernels_on_amd_hardware(backend, target, expected):
    assert self_check.applies(Backend(backend, FakeJit()), target) is expected


def test_report_keeps_the_verdict(machine):
    op = make_op(Backend("hip", FakeJit(wrong)), Backend("triton", "no_such_file:scale"))
    with pytest.raises(ImportError):
        list(verify.report(HARDWARE, [op.name]))
    op.backends = op.backends[:1]
    (record,) = verify.report(HARDWARE, [op.name])
    assert record["status"] == "failed"
    assert "self-check differs" in json.loads(files(machine)[0].read_text())["failure"]


class TestCompare:
    def error(self, kernel, reference, *args, writes=("out",)):
        op = make_op(writes=writes)
        op.reference = reference
        return self_check.compare(op, kernel, args)

    def test_relative_to_the_largest_value(self):
        x = torch.tensor([[100.0, 0.0]])
        error, tolerance = self.error(lambda out, x: out.copy_(x + 1), lambda out, x: out.copy_(x), x.clone(), x)
        assert error == pytest.approx(0.01) and tolerance == pytest.approx(8 * 2**-23)

    def test_tolerance_of_the_coarsest_dtype(self):
        x = torch.ones(2, 2, dtype=torch.bfloat16)
        assert self.error(lambda out, x: out.copy_(x), lambda out, x: out.copy_(x), torch.empty(2, 2), x) == (
            0.0, 8 * 2**-7)

    def test_tolerance_of_the_results_where_sums_have_32_bits(self):
        """An fp8 operand alone would allow a result of nothing but zeros."""
        op = make_op()
        op.sums_in_fp32, op.reference = True, lambda out, x: out.copy_(x.float())
        x, out = torch.ones(2, 2).to(torch.float8_e4m3fnuz), torch.empty(2, 2, dtype=torch.bfloat16)
        assert self_check.compare(op, lambda out, x: out.zero_(), (out, x)) == (1.0, 8 * 2**-7)

    @pytest.mark.parametrize(("got", "expected", "same"), [
        (float("-inf"), float("-inf"), True), (float("nan"), float("nan"), True), (float("inf"), float("-inf"), False),
        (0.0, float("-inf"), False), (float("nan"), 0.0, False)])
    def test_non_finite_values(self, got, expected, same):
        error, _ = self.error(lambda out: out.fill_(got), lambda out: out.fill_(expected), torch.ones(1, 2))
        assert (error == 0.0) is same

# SPDX-License-Identifier: MIT
"""Triton's device_print and device_assert on the simulated MI300X."""

from __future__ import annotations

import re

import pytest
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from aiter_like import sim  # noqa: E402
from aiter_like.errors import SimulatorError  # noqa: E402
from aiter_like.sim import triton_host  # noqa: E402

pytestmark = pytest.mark.usefixtures("simulated_triton")


@triton.jit
def talking_kernel(x, out, n, limit, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, at < n, other=0.0)
    tl.device_print("rows left", n - pid * BLOCK)
    tl.device_print("value: ", values, at)
    tl.device_assert(values < limit, "a value is too large")
    tl.store(out + at, 2 * values, at < n)


def run(limit: float, debug: bool, n: int = 100) -> tuple[sim.Session, torch.Tensor]:
    x, out = torch.arange(n, dtype=torch.float32), torch.zeros(n)
    with sim.enabled(checks="all") as session:
        talking_kernel[(2,)](x, out, n, limit, BLOCK=64, num_warps=1, debug=debug)
    return session, out


def test_print_has_the_program_and_the_place_before_each_value():
    session, out = run(100.0, debug=True)
    assert session.reports == []
    torch.testing.assert_close(out, 2 * torch.arange(100.0))
    lines = session.output.splitlines()
    for pid in range(2):
        part = lines[192 * pid:192 * (pid + 1)]
        assert part[:64] == [f"pid ({pid}, 0, 0) idx () rows left: {100 - 64 * pid}"] * 64
        values = [float(64 * pid + i if 64 * pid + i < 100 else 0) for i in range(64)]
        wanted = [f"pid ({pid}, 0, 0) idx ({i:2d}) value: (operand 0) {value:f}" for i, value in enumerate(values)]
        assert part[64:128] == wanted
        assert part[128:] == [f"pid ({pid}, 0, 0) idx ({i:2d}) value: (operand 1) {64 * pid + i}" for i in range(64)]


def test_assert_names_line_lanes_and_workgroup():
    with pytest.raises(SimulatorError) as failure:
        run(97.0, debug=True)
    told = str(failure.value)
    line = next(number for number, text in enumerate(open(__file__), 1) if "device_assert(values" in text)
    assert re.search(rf"wg\(1,0,0\) wave 0 .*{re.escape(__file__)}:{line}\).*in lanes 33-35: device assertion failed: "
                     rf"'a value is too large', in unknown at .*:{line}", told), told
    assert [report["check"] for report in failure.value.reports] == ["launch"]
    if triton_host.is_usable():  # which else are the words of Triton's C extension
        assert "Code: 719, Messsage: unspecified launch failure: kernel talking_kernel" in told


def test_without_debug_there_are_no_asserts():
    session, out = run(3.0, debug=False)
    assert "failed" not in session.output and out[99] == 198

# SPDX-License-Identifier: MIT
"""Every wait, barrier and s_nop of the hand-written rms_norm is needed: without it a checker reports the launch."""

from __future__ import annotations

import re
import shutil

import pytest
import torch

from aiter_like import device, paths, sim
from aiter_like.errors import SimulatorError
from aiter_like.jit import Launch
from aiter_like.jit.asm import AsmFunction
from aiter_like.ops.norm import rms_norm

_SOURCE = paths.hsa() / "gfx942/norm/rms_norm.s"
_LINES = _SOURCE.read_text().splitlines()
_WAITS = [index for index, line in enumerate(_LINES) if re.match(r"\s+s_(waitcnt|barrier|nop)\b", line)]


def _launch(is_residual: bool) -> set[str]:
    """The checks that report one launch; a new AsmFunction, so that the source is looked at again."""

    def _rms_norm_asm(out, input, weight, residual_in, residual_out, epsilon):
        return Launch({"dtype": "bf16", "hidden": 4096}, (2, 1, 1), (256, 1, 1),
                      {"out_stride": 8192, "input_stride": 8192})

    function = AsmFunction(_rms_norm_asm, "gfx942/norm/rms_norm.s", "rms_norm", rms_norm._rms_norm_asm.arguments)
    x, weight = torch.randn(2, 4096).bfloat16(), torch.randn(4096).bfloat16()
    residuals = (x.clone(), torch.empty_like(x)) if is_residual else (None, None)
    args = (torch.empty_like(x), x, weight, *residuals, 1e-6)
    bound = function.bind(device.simulated_target(), args)
    with sim.enabled("strict", on_report="collect") as session:
        try:
            sim.checked_call("rms_norm", bound, args, (0, 4))
        except SimulatorError as error:
            return {report["check"] for report in error.reports}
    return {report["check"] for report in session.reports}


def test_the_kernel_itself_is_clean():
    assert len(_WAITS) == 15
    assert _launch(False) == _launch(True) == set()


@pytest.mark.parametrize("index", _WAITS, ids=lambda index: f"{index + 1}:{_LINES[index].split('//')[0].strip()}")
def test_without_one_of_them(index, tmp_path, monkeypatch):
    shutil.copytree(paths.hsa(), tmp_path / "hsa")
    mutant = [*_LINES[:index], *_LINES[index + 1:]]
    (tmp_path / "hsa" / "gfx942/norm/rms_norm.s").write_text("\n".join(mutant) + "\n")
    monkeypatch.setattr(paths, "hsa", lambda: tmp_path / "hsa")
    reported = _launch(False) | _launch(True)
    line = _LINES[index].split()[0]
    expected = {"s_waitcnt": "wait", "s_barrier": "lds_race", "s_nop": "waitstate"}[line]
    assert expected in reported

# SPDX-License-Identifier: MIT
"""jit/triton_launch.py: what a launch is given, by the GPU it is for."""

import pytest
import torch

from aiter_like.device import Target

pytest.importorskip("triton")
from aiter_like.jit import triton_launch as launcher


class Kernel:
    """Returns the keyword arguments that it was launched with."""

    def __init__(self, *arg_names: str):
        self.arg_names = arg_names

    def run(self, *args, grid, warmup, **named):
        return named


@pytest.mark.parametrize(("arch", "overlaps"), (("sm_80", False), ("sm_90", True), ("sm_100", True)))
def test_a_kernel_that_waits_may_start_early_since_hopper(monkeypatch, arch, overlaps):
    monkeypatch.setattr(launcher, "target_of", lambda device: Target("cuda", arch, 132, 32))
    x = torch.empty(1)
    given = launcher.Launch(Kernel("x", "OVERLAPS"), (1,), (x,), {"num_warps": 4, "waves_per_eu": 2}, {}).start()
    early = {"launch_pdl": True} if overlaps else {}
    assert given == {"num_warps": 4, "enable_fp_fusion": True, "OVERLAPS": overlaps, **early}
    assert launcher.Launch(Kernel("x"), (1,), (x,), {}, {}).start() == {"enable_fp_fusion": True}, "waits for nothing"

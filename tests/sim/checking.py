# SPDX-License-Identifier: MIT
"""Runs assembly or HIP kernels under the simulator's checkers and gives their reports. Read by test_check_*.py."""

import ctypes
import re
from collections.abc import Sequence

import numpy as np
from asm import run
from hip_program import library

from aiter_like import sim


def reports(body: str, inputs: dict | None = None, checks: Sequence[str] = sim.DEFAULT_CHECKS, **options) -> list[dict]:
    """What the checkers say about an assembly body; arguments as of `asm.run`."""
    with sim.enabled(checks=checks, on_report="collect") as session:
        run(body, inputs or {}, options.pop("outputs", {}), **options)
    return session.reports


def hip_reports(source: str, arrays: Sequence[np.ndarray], block: int, groups: int = 1,
                read_only: Sequence[int] = (), checks: Sequence[str] = sim.DEFAULT_CHECKS) -> list[dict]:
    """What the checkers say about `extern "C" void launch(int groups, int block, T*... arrays)` of a HIP source.

    The arrays are registered as device memory in place, as the package registers tensors.
    """
    program, runtime = library(source), sim.load()
    count = len(arrays)
    bases = (ctypes.c_uint64 * count)(*[array.ctypes.data for array in arrays])
    sizes = (ctypes.c_uint64 * count)(*[array.nbytes for array in arrays])
    names = (ctypes.c_char_p * count)(*[f"array{index}".encode() for index in range(count)])
    writable = (ctypes.c_uint8 * count)(*[index not in read_only for index in range(count)])
    with sim.enabled(checks=checks, on_report="collect") as session:
        merged = runtime.aiter_like_sim_register(count, bases, sizes, names, writable)
        try:
            program.launch(groups, block, *[ctypes.c_void_p(array.ctypes.data) for array in arrays])
            runtime.hipDeviceSynchronize()
        finally:
            runtime.aiter_like_sim_unregister(merged, bases)
    return session.reports


def only(found: list[dict], check: str, offender: str, *phrases: str) -> dict:
    """The single report: of this check, at an instruction that matches `offender`, its message with all `phrases`."""
    assert len(found) == 1, listing(found)
    return among(found, check, offender, *phrases)


def among(found: list[dict], check: str, offender: str, *phrases: str) -> dict:
    """The first report of this check at such an instruction; every report must be of this check."""
    assert {report["check"] for report in found} == {check}, listing(found)
    matches = [report for report in found if re.fullmatch(offender, report["text"])]
    assert matches, listing(found)
    for phrase in phrases:
        assert phrase in matches[0]["message"], listing(found)
    return matches[0]


def listing(found: list[dict]) -> str:
    """The reports, a line each."""
    return "\n".join(f"[{r['check']}] wave {r['wave']} {r['text']}: {r['message']}" for r in found) or "no reports"

# SPDX-License-Identifier: MIT
"""Launches of a call on the simulator, by their counts and on the cycle model, and what gates hold all of them to."""

from collections.abc import Callable
from typing import Any

from aiter_like import sim

COMPILERS = ("clang++-19", "clang++-22")
READ_TB_PER_S = 4.14
"""Published for HBM (SC25, gpu-stream)."""


def counted(operator: Callable, call: Any, backend: str = "ck") -> dict:
    """The one launch of a call, with its counters."""
    with sim.enabled(counters=True) as session:
        operator(call, backend=backend)
    (launch,) = session.launches
    return launch


def modelled(operator: Callable, call: Any, backend: str = "ck") -> list[dict]:
    """The launches of a call on the cycle model, which runs a few workgroups and reads no values."""
    with sim.enabled(model="sample") as session:
        operator(call, backend=backend)
    return session.modelled


def modelled_us(operator: Callable, call: Any, backend: str = "ck") -> float:
    """Of all launches of a call."""
    return sum(launch["modelled_us"] for launch in modelled(operator, call, backend))


def check_fit(launch: dict, workgroups: int) -> None:
    """So many workgroups share a CU, no register is spilled, nothing is in local memory, no banks of LDS collide."""
    assert launch["occupancy"]["workgroups_per_cu"] >= workgroups
    assert launch["registers"]["vgpr_spills"] == launch["registers"]["sgpr_spills"] == 0
    assert launch["private_bytes"] == 0 and launch["totals"]["lds_conflict_clk"] == 0


def step_between(before: dict, after: dict) -> Callable[..., int]:
    """Counts of a step, which the second launch takes once more, of instructions of a class whose text begins so."""

    def of_step(kind: str, value: str = "executed", text: str = "") -> int:
        first, second = (sum(one.get(value, 0) for one in launch["instructions"]
                             if one["class"] == kind and one["text"].startswith(text)) for launch in (before, after))
        return second - first

    return of_step


def passes_of_mfma(launch: dict) -> int:
    """Of each matrix instruction, which are of one kind."""
    (passes,) = {one["passes"] for one in launch["instructions"] if one["class"] == "mfma"}
    return passes

# SPDX-License-Identifier: MIT
"""The pages of csrc/sim/timing that keep every figure of the model: written, and read back by whoever compares."""

from __future__ import annotations

import functools
import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiter_like import paths
from aiter_like.sim import modelling
from aiter_like.sim.validation.run import Outcome

AIM = 0.05
"""The relative error that is aimed at."""

FILES = {"microbenchmarks": "MICROBENCHMARKS.md", "one side alone": "ONE_SIDE.md", "kernels": "KERNELS.md"}
"""Section → the page that has it."""


@functools.cache
def known() -> dict[str, Any]:
    """published.toml: reasons why the model misses cases, and measurements that have no case."""
    return tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))


def folder() -> Path:
    """The folder in which the repository keeps the pages."""
    return paths.csrc() / "sim/timing"


def kept() -> str:
    """The microbenchmarks' pages of the repository."""
    return "\n".join((folder() / FILES[name]).read_text(encoding="utf-8")
                     for name in ("microbenchmarks", "one side alone"))


def section(found: Sequence[Outcome]) -> list[str]:
    """The lines of the section of microbenchmarks: those that are published and modelled."""
    beside = [one for one in found if one.error is not None]
    missed = [one for one in beside if abs(one.error) > AIM]
    return [
        f"Model version {modelling.version()}, at {modelling.PEAK_MHZ:.0f} MHz. Figures under \"modelled\" are not "
        "measured. The model's parameters", "were fitted to the published ones; `parameters.h` has their sources.", "",
        "| case | source | published | modelled | error |", "|---|---|---|---|---|",
        *(f"| {one.case.name} | {one.case.source} | {one.case.published:g} {one.case.unit} | {one.modelled:.2f} | "
          f"{one.error:+.1%} |" for one in beside), "", sums(found), "",
        "## What is off by more than 5 %", "", *(f"- {one.case.name}: {_reason(one)}." for one in missed)]


def one_side(found: Sequence[Outcome]) -> list[str]:
    """The lines of the section of what is published or modelled alone."""
    alone = [one for one in found if one.error is None]
    return [
        "## Published, without a figure of the model", "", "| what | source | published | why |", "|---|---|---|---|",
        *("| {what} | {source} | {published} | {why} |".format(**row) for row in known()["elsewhere"]), "",
        "## Modelled, and not published", "",
        "The model assumes these; `aiter-like sim validate --hardware` measures the same on an MI300X.",
        "", "| case | modelled | parameters |", "|---|---|---|",
        *(f"| {one.case.name} | {one.modelled:.2f} {one.case.unit} | {', '.join(one.case.parameters)} |"
          for one in alone)]


def _reason(one: Outcome) -> str:
    return next((why for name, why in known()["microbenchmarks"].items() if one.case.name.startswith(name)),
                "no explanation")


def sums(found: Sequence[Outcome]) -> str:
    """How many cases are within 5 %, in a sentence; "" where none is published."""
    errors = [abs(one.error) for one in found if one.error is not None]
    if not errors:
        return ""
    within = sum(error <= AIM for error in errors)
    quartile = sorted(errors)[math.ceil(0.75 * len(errors)) - 1]
    return f"{within} of {len(errors)} within {AIM:.0%}, three quarters within {quartile:.1%}; mean absolute error " \
           f"{sum(errors) / len(errors):.1%}. Fitted to these: no validation on whole kernels."


def figures(page: str) -> tuple[str, dict[str, float]]:
    """The model's version and case → modelled figure, of such pages.

    Raises:
        ValueError: it is no such page.
    """
    page = page.partition("<!-- kernels: ")[0]  # whole kernels have a section of their own
    version = re.search(r"^Model version (\S+),", page, re.MULTILINE)
    if not version:
        raise ValueError("the page of the cycle model names no version")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    found = {cells[0]: float(cells[3]) for cells in rows if len(cells) == 5 and cells[4].endswith("%")}
    found |= {cells[0]: float(cells[1].split(" ")[0]) for cells in rows
              if len(cells) == 3 and re.match(r"-?[\d.]+ ", cells[1])}
    return version.group(1), found

# SPDX-License-Identifier: MIT
"""`aiter-like sim validate --kernels DIR`: whole kernels with published times, from code objects that DIR holds.

The published figures are the project's (sim/validation/whole_kernels.csv); the kernels are other people's and stay
outside.
"""

from __future__ import annotations

import collections
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiter_like.cli.sim import described
from aiter_like.cli.sim import spec as sim_spec
from aiter_like.cli.sim.steps import sizes
from aiter_like.errors import SimulatorError

if TYPE_CHECKING:
    from aiter_like.sim.validation.whole_kernels import Group, Modelled, Published

MANIFEST = "manifest.json"
_MOST_BYTES = 64 << 20
_ABSENT = f"{MANIFEST} does not have it"

DESCRIPTION = f"""DIR/{MANIFEST} says which kernel serves which row of the table of published times (--rows lists them):
  {{"kernels": [{{"row": "F5 8192x16x64 SGLang rope BLOCK_M=8", "runs": [[LAUNCH, …], …], "note": "built from …"}},
               {{"row": "F4 CompV4 over 86 shapes CK fp16, one barrier fewer", "why_not": "no kernels at hand"}}]}}
A run is the list of its launches, whose times are added; of several runs the geometric mean counts. A LAUNCH:
  {{"file": "rope.co", "kernel": NAME, "grid": [1024, 16], "block": [256], "shared": 0, "args": SPEC}}
file is beside {MANIFEST}; shared, the dynamic LDS in bytes, may be left out; SPEC is what `aiter-like sim run --args`
reads from a file, as an object."""


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Name of a row → its entry of the manifest, checked but for what its launches need."""
    from aiter_like.sim.validation.whole_kernels import published

    path = folder / MANIFEST
    manifest = described.read_json(path, _MOST_BYTES)
    described.require_keys(manifest, {"kernels"}, f"{path}", needed=("kernels",))
    if not isinstance(manifest["kernels"], list):
        raise ValueError(f"{path}: kernels must be a list")
    rows = {row.name: row for row in published()}
    found: dict[str, dict[str, Any]] = {}
    for index, entry in enumerate(manifest["kernels"]):
        place = f"{path}: kernels[{index}]"
        described.require_keys(entry, {"row", "runs", "why_not", "note"}, place, needed=("row",))
        name = entry["row"]
        if not isinstance(name, str) or name not in rows:
            raise ValueError(f"{place}: no row {name!r} is published; --rows lists them")
        if name in found:
            raise ValueError(f"{place}: {name} is there twice")
        if ("runs" in entry) == ("why_not" in entry):
            raise ValueError(f"{place}: {name} must have either runs or why_not")
        if "runs" in entry and rows[name].us is None:
            raise ValueError(f"{place}: {name} has no published time, so it can only have why_not")
        if not all(isinstance(entry.get(key, ""), str) for key in ("why_not", "note")):
            raise ValueError(f"{place}: why_not and note must be texts")
        for launch, where in _launches(entry, place):
            described.require_keys(launch, {"file", "kernel", "grid", "block", "shared", "args"}, where,
                                  needed=("file", "kernel", "grid", "block", "args"))
        found[name] = entry
    return found


def _launches(entry: Mapping[str, Any], place: str) -> list[tuple[Any, str]]:
    runs = entry.get("runs", [[{}]])
    if not isinstance(runs, list) or not runs or not all(isinstance(run, list) and run for run in runs):
        raise ValueError(f"{place}: runs must be a list of lists of launches, none of them empty")
    return [(launch, f"{place}.runs[{i}][{j}]") for i, run in enumerate(runs) for j, launch in enumerate(run)
            if "runs" in entry]


def modelled(folder: Path, rows: Sequence[Published]) -> Iterator[Modelled]:
    """Each row, in order, when it is done. A row whose kernel fails is one that did not run; it says why."""
    from aiter_like.sim import modelling
    from aiter_like.sim.validation.whole_kernels import Modelled

    entries = read(folder)
    for row in rows:
        entry = entries.get(row.name, {"why_not": _ABSENT})
        if "why_not" in entry:
            yield Modelled(row, why_not=entry["why_not"])
            continue
        try:
            peaks = [_run(folder, row, run, modelling.PEAK_MHZ) for run in entry["runs"]]
            matrix, vector = (statistics.mean(shares) for shares in zip(*map(modelling.busy_shares, peaks)))
            clock = modelling.sustained_mhz(row.operands, matrix, vector)
            own = peaks if clock == modelling.PEAK_MHZ else [_run(folder, row, run, clock) for run in entry["runs"]]
            times = [statistics.geometric_mean(sum(one["modelled_us"] for one in launches) for launches in found)
                     for found in (own, peaks)]
        except (SimulatorError, ValueError) as error:
            yield Modelled(row, why_not=f"failed: {error}", failed=True)
            continue
        yield Modelled(row, *times, clock, note=entry.get("note", ""))


def _run(folder: Path, row: Published, run: Sequence[Mapping[str, Any]], clock_mhz: float) -> list[dict]:
    """The modelled launches of a run, which follow one another."""
    from aiter_like import sim

    launches = []
    for launch in run:
        file, place = folder / str(launch["file"]), f"{row.name}: {launch['file']}"
        code = sim_spec.read_code(file)
        kernel = code.kernel(str(launch["kernel"]))
        spec = sim_spec.spec_of(launch["args"], file, f"{place}: args")
        grid, block = (sizes(launch[key], f"{place}: {key}") for key in ("grid", "block"))
        shared = described.integer(launch.get("shared", 0), 0, 2**32 - 1, f"{place}: shared")
        with sim.enabled(checks=False, model="sample", clock_mhz=clock_mhz) as session:
            sim.launch(code.image, kernel.name, grid, block, shared, spec.steps[0].kernargs(kernel, spec.buffers))
            launches += session.modelled
    return launches


def lines(found: Sequence[Modelled]) -> list[str]:
    """The table, the groups and the verdict, as text."""
    from aiter_like.sim.validation import whole_kernels

    ratios = whole_kernels.ratio_errors(found)
    rows = [f"{'row':60} {'published':>10} {'modelled':>10} us {'at MHz':>7} {'error':>7} {'at 2100':>7} {'ratio':>7}"]
    for one in found:
        if one.us is None:
            rows.append(f"{one.row.name:60} {_us(one.row.us):>10} not run: {one.why_not}")
            continue
        ratio = f"{ratios[one.row]:+7.1%}" if one.row in ratios else f"{'-':>7}"
        rows.append(f"{one.row.name:60} {one.row.us:10.2f} {one.us:10.2f} us {one.clock_mhz:7.0f} "
                    f"{one.error:+7.1%} {one.peak_error:+7.1%} {ratio}")
    sums = whole_kernels.groups(found)
    return [*rows, "", *(_group(one) for one in sums), errors_of(found), whole_kernels.verdict(sums)]


def errors_of(found: Sequence[Modelled]) -> str:
    """Each class's error, in a sentence."""
    from aiter_like.sim.validation import whole_kernels

    errors = ", ".join(f"{kind} {error:.1%}" for kind, error in whole_kernels.class_errors(found).items())
    return f"mean absolute error of each class, within which modelled times are a tie: {errors or 'nothing ran'}"


def _us(us: float | None) -> str:
    return "a ratio" if us is None else f"{us:.2f}"


def _group(one: Group) -> str:
    ratio = "" if one.ratio_error is None else f", without a clock {one.ratio_error:.1%}"
    order = f"; {one.ordered} of {one.pairs} pairs of variants in the published order" if one.pairs else ""
    return (f"{one.name}: {one.ran} of {one.rows} rows ran; mean absolute error {one.error:.1%}, at 2100 MHz "
            f"{one.peak_error:.1%}{ratio}{order}")


def keep_errors(found: Sequence[Modelled]) -> None:
    """Writes the file that modelling.class_error reads. A class of which nothing ran keeps the error that it has."""
    from aiter_like.sim import modelling, validation
    from aiter_like.sim.validation import whole_kernels

    file = Path(validation.__file__).with_name(modelling.ERRORS)
    errors = json.loads(file.read_text(encoding="utf-8"))["errors"] | whole_kernels.class_errors(found)
    file.write_text(json.dumps({"model": modelling.version(), "errors": errors}, indent=1) + "\n", encoding="utf-8")


def section(found: Sequence[Modelled]) -> list[str]:
    """The same, for the page that the repository keeps."""
    from aiter_like.sim import modelling
    from aiter_like.sim.validation import whole_kernels

    ratios, sums = whole_kernels.ratio_errors(found), whole_kernels.groups(found)
    text = ["## Whole kernels", "",
            f"Model version {modelling.version()}. Figures under \"modelled\" are not measured: they are times at the "
            "clock that power", "leaves them (`modelling.sustained_mhz`; its figures come from none of them). The "
            "last two columns are the error at", "2100 MHz, and a ratio that needs no clock: how much a row's error "
            "differs from the geometric mean of its group and", "operands.", "",
            "| row | source | published, us | modelled, us | error | at 2100 MHz | ratio |",
            "|---|---|---|---|---|---|---|"]
    for one in found:
        head = f"| {one.row.name} | {one.row.source} | {_us(one.row.us)} |"
        ratio = f"{ratios[one.row]:+.1%}" if one.row in ratios else "-"
        text.append(f"{head} not run: {one.why_not} | | | |" if one.us is None else
                    f"{head} {one.us:.2f} | {one.error:+.1%} | {one.peak_error:+.1%} | {ratio} |")
    notes = dict.fromkeys(f"- {one.row.group.split()[0]}, {one.row.variant.split()[0]}: {one.note}."
                          for one in found if one.note)
    return [*text, "", *(f"- {_group(one)}." for one in sums), "", f"{errors_of(found)}.", "",
            f"**{whole_kernels.verdict(sums)}**", "",
            "What ran, as the manifest says:", "", *notes, "", *_reasons(found)]


def _reasons(found: Sequence[Modelled]) -> list[str]:
    """For each group and whose kernel it is: how many rows are far off, and what is known of the reason."""
    from aiter_like.sim.validation import page
    from aiter_like.sim.validation.whole_kernels import MOST_ERROR

    known = page.known()["whole_kernels"]
    far = collections.Counter((one.row.group.split()[0], one.row.variant.split()[0]) for one in found
                              if one.us is not None and abs(one.error) > MOST_ERROR)
    return [f"What is off by more than {MOST_ERROR:.0%}:", "",
            *(f"- {group}, {whose}, {count} rows: {known.get(group, {}).get(whose, 'no explanation')}."
              for (group, whose), count in far.items())] if far else []


def figures(found: Sequence[Modelled]) -> str:
    """The same as JSON."""
    return json.dumps([{"row": one.row.name, "source": one.row.source, "published_us": one.row.us,
                        "clock_mhz": one.clock_mhz, "modelled_us": one.us, "modelled_us_at_peak": one.peak_us,
                        "why_not": one.why_not} for one in found], indent=1) + "\n"

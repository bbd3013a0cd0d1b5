# SPDX-License-Identifier: MIT
"""Reports of the simulator's checkers: taken from the library, given to sessions, turned into errors and text."""

import atexit
import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from aiter_like.errors import SimulatorError
from aiter_like.sim import library
from aiter_like.sim.settings import default_settings
from aiter_like.sim.state import current

_OF_LAUNCHES = (9, 719)  # hipErrorInvalidConfiguration, hipErrorLaunchFailure: what launches leave reports with


def take_reports() -> list[dict]:
    """The reports that nobody has taken yet, oldest first; the simulator forgets them."""
    return library.json_of(library.load().aiter_like_sim_take_reports())


def take() -> list[dict]:
    """`take_reports`, and all open sessions keep them."""
    found = take_reports()
    current.give("reports", found)
    return found


def set_aside() -> None:
    """Takes the reports of launches before a block: for the blocks around it, or for the list at the process's end."""
    found = take()
    if not current.kept("reports"):
        current.unclaimed.extend(found)


@atexit.register
def _list_unclaimed() -> None:
    """Writes what nobody has taken to stderr: for programs whose checks AITER_LIKE_SIM has switched on."""
    if library.is_loaded() and default_settings().checks:
        for report in listing([*current.unclaimed, *take_reports()]):
            sys.stderr.write(report + "\n")


def as_simulator_error(name: str, error: RuntimeError) -> RuntimeError:
    """The error of a failed launch as SimulatorError with its reports; any other error as it is."""
    found = [] if isinstance(error, SimulatorError) else take()
    return SimulatorError(f"{name}: {error}", found) if found else error


def raise_error(error: int) -> None:
    """Raises the SimulatorError of a HIP error code, with the reports of a failed launch; nothing for 0."""
    if error:
        message = library.error_text(error)
        library.load().hipGetLastError()  # the exception tells it, so the next caller must not see it
        raise SimulatorError(message, take() if error in _OF_LAUNCHES else [])


def errors(reports: Iterable[dict]) -> list[dict]:
    """Those that are no notes: that do harm on the hardware, or all when the checks are strict."""
    return [report for report in reports if report["severity"] == "error"]


def merged(reports: Iterable[dict]) -> list[dict]:
    """One record per check, severity, kernel and instruction, the first one, with the sum of the counts.

    Copies of a kernel share its name: their instructions differ in text or source.
    """
    found: dict[tuple, dict] = {}
    for report in reports:
        key = tuple(report[name] for name in ("check", "severity", "kernel", "pc", "text", "source", "caller"))
        count = found[key]["count"] if key in found else 0
        found[key] = {**found.get(key, report), "count": count + report["count"]}
    return list(found.values())


def by_cause(reports: Iterable[dict]) -> list[list[dict]]:
    """Those of one cause together, `merged`: report.h says what that is. An unrolled loop has many instructions for one
    line."""
    found: dict[tuple, list[dict]] = {}
    for report in merged(reports):
        key = tuple(report[name] for name in ("check", "severity", "kernel", "cause"))
        found.setdefault(key, []).append(report)
    return list(found.values())


def listing(reports: Iterable[dict]) -> list[str]:
    """Reports as the terminal shows them, one for each cause: the first of it, and which other instructions have it."""
    return [_text_of(group) for group in by_cause(reports)]


def _text_of(group: Sequence[dict]) -> str:
    first, count = group[0], sum(report["count"] for report in group)
    text = first["summary"] + (f" ({count} times)" if count > 1 else "")
    seed = f" (seed {first['seed']})" if first.get("seed") else ""
    if len(group) == 1:
        return text + seed
    kinds = Counter(report["text"].partition(" ")[0] for report in group[1:])
    others = ", ".join(f"{name} ({times})" if times > 1 else name for name, times in kinds.most_common(6))
    return (f"{text}{seed}\n    the same cause at {len(group) - 1} more instruction{'s' * (len(group) > 2)}: {others}"
            + (", …" if len(kinds) > 6 else ""))

# SPDX-License-Identifier: MIT
"""Settings of the simulator, and their text in AITER_LIKE_SIM and in options of commands."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from aiter_like import env

CHECKS = {"wait": 1, "lds_race": 2, "uninit": 4, "bounds": 8, "waitstate": 16, "sanity": 32,
          "global_race": 64, "strict": 128}  # bits of settings.h
DEFAULT_CHECKS = tuple(CHECKS)[:-2]  # global_race is slow, needs one thread, and must be asked for by name
_INSTRUCTION_LIMIT = 2_000_000_000  # per wave; more is an endless loop
_COUNTS = {"fuzz": "fuzz", "threads": "threads", "devices": "devices", "limit": "instruction_limit"}


@dataclass(frozen=True)
class Settings:
    """Settings that the simulator is given before launches.

    Attributes:
        checks: names of CHECKS that are on.
        fuzz: seed of schedules: order of workgroups and waves, late loads, poison; 0 = program order.
        threads: workers, 0 = one per core.
        dry: launches return without executing (benchmarks of host overhead).
        instruction_limit: instructions per wave beyond which a launch is stopped; 0 = none.
        devices: how many MI300X the process sees.
        defer: streams execute at synchronisation points, in an order between streams that `fuzz` draws: a HIP program
            that does not synchronise sees old data. Not for operators on CPU tensors, whose readers never synchronise.
    """

    checks: tuple[str, ...] = ()
    fuzz: int = 0
    threads: int = 0
    dry: bool = False
    instruction_limit: int = _INSTRUCTION_LIMIT
    devices: int = 1
    defer: bool = False

    def __post_init__(self):
        if unknown := [name for name in self.checks if name not in CHECKS]:
            raise ValueError(f"unknown check {', '.join(map(repr, unknown))}; there are: {', '.join(CHECKS)}")
        for name in ("fuzz", "threads", "instruction_limit"):
            if not 0 <= getattr(self, name) < 2**(32 if name == "threads" else 64):
                raise ValueError(f"simulator setting {name} must be a count, got {getattr(self, name)}")
        if not 1 <= self.devices <= 64:
            raise ValueError(f"simulator setting devices must be 1 to 64, got {self.devices}")


def complete(names: Iterable[str]) -> tuple[str, ...]:
    """The names in the order of CHECKS; "strict" without another check means those on by default."""
    given = set(names)
    if given == {"strict"}:
        given.update(DEFAULT_CHECKS)
    return (*(name for name in CHECKS if name in given), *sorted(given - set(CHECKS)))


def parse_checks(text: str, separator: str = ",") -> tuple[str, ...]:
    """"wait,bounds" as a tuple, in the order of CHECKS; "all" stands for each of them, also those not on by default.

    "strict" makes errors of the notes: of what LLVM or a manual demands, though it works on the hardware.

    Raises:
        ValueError: one of them is no check.
    """
    names = {name.strip() for name in text.split(separator)}
    if unknown := sorted(names - {"all", *CHECKS}):
        raise ValueError(f"unknown check {', '.join(map(repr, unknown))}; there are: all, {', '.join(CHECKS)}")
    return tuple(CHECKS) if "all" in names else complete(names)


def parse_settings(text: str) -> Settings:
    """The settings of AITER_LIKE_SIM: a list of check, check=NAME+NAME, fuzz=SEED, threads=N, devices=N, limit=N, dry,
    defer, gpu, which aiter_like_startup.py reads; "1": none.

    Raises:
        ValueError: an unknown setting or a bad value; the message names it.
    """
    try:
        return Settings(**_values(text))
    except ValueError as error:
        raise ValueError(f"AITER_LIKE_SIM: {error}") from None


@functools.cache
def default_settings() -> Settings:
    """Those of AITER_LIKE_SIM, read once.

    Raises:
        ValueError: it has an unknown setting.
    """
    return parse_settings(env.get("AITER_LIKE_SIM"))


def _values(text: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = part.partition("=")
        if name == "check":
            added = parse_checks(value, "+") if value else DEFAULT_CHECKS
            values["checks"] = tuple(dict.fromkeys([*values.get("checks", ()), *added]))
        elif name in _COUNTS and value.isdecimal():
            values[_COUNTS[name]] = int(value)
        elif part in ("dry", "defer"):
            values[part] = True
        elif part not in ("1", "gpu"):
            raise ValueError(f"{part!r} is not one of check, check=<{'+'.join(CHECKS)}+all>, "
                             "fuzz=SEED, threads=N, devices=N, limit=N, dry, defer, gpu")
    return values

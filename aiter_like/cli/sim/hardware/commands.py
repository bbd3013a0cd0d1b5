# SPDX-License-Identifier: MIT
"""`aiter-like sim validate --hardware`: asks an MI300X what the model assumes; `--answers`: what it has answered.

The file that goes from the one to the other is described in hardware/answers.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiter_like.cli.outputs import require_writable

if TYPE_CHECKING:
    from aiter_like.cli.sim.hardware.items import Item

_DEFAULT = Path("mi300x_answers.json.gz")
_ARCH = "gfx942"
_KINDS = ("question", "cost", "case", "verify")
_HARNESS = {"gpu": "aiter_like.tuning.harness:gpu", "sim": "aiter_like.tuning.harness:sim"}


def add_options(validate: argparse.ArgumentParser) -> None:
    """The options of `validate` that are about a device."""
    device = validate.add_argument_group(
        "on a device", "One command measures on an MI300X what the model says, asks what manuals leave open, checks "
                       "every operator, and packs the answers into one file to send; the other one reads such a file.")
    device.add_argument("--hardware", action="store_true", help="ask the device; takes some minutes, and a compiler")
    device.add_argument("--device", choices=tuple(_HARNESS),
                        help="gpu (default): the first GPU; sim: a rehearsal on the simulated MI300X, without times")
    device.add_argument("--kinds", type=_kinds, metavar="KIND,…", help=f"only these of {', '.join(_KINDS)}")
    device.add_argument("--output", type=Path, metavar="FILE",
                        help=f"the answers, .json or .json.gz (default: {_DEFAULT})")
    device.add_argument("--answers", type=Path, metavar="FILE",
                        help="compare such a file with the simulator and the model of this installation")


def asked_for(args: argparse.Namespace) -> Callable[[argparse.Namespace], int] | None:
    """The function that runs these arguments; None: the model alone."""
    given = {"--hardware": args.hardware, "--answers": args.answers}
    model = {"--clock": args.clock, "--mca": args.mca, "--page": args.page, "--json": args.json}
    device = {"--device": args.device, "--kinds": args.kinds, "--output": args.output}
    if all(given.values()):
        raise ValueError("--hardware writes a file and --answers reads one: give one of them")
    for one, value in given.items():
        useless = {**model, **(device | {"--only": args.only} if one == "--answers" else {})}
        if value and (clash := next((name for name, other in useless.items() if other), None)):
            raise ValueError(f"{clash} is of no use with {one}")
    if not any(given.values()) and (alone := next((name for name, other in device.items() if other), None)):
        raise ValueError(f"{alone} needs --hardware")
    return _hardware if args.hardware else _answers if args.answers else None


def _kinds(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if unknown := [kind for kind in found if kind not in _KINDS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(_KINDS)}")
    return found


def _hardware(args: argparse.Namespace) -> int:
    from aiter_like.cli.sim.hardware import answers
    from aiter_like.cli.sim.hardware.items import items
    from aiter_like.modules import progress

    path = args.output or _DEFAULT
    if not path.name.endswith((".json", ".json.gz")):
        raise ValueError(f"--output: must end with .json or .json.gz, got {path}")
    require_writable(path, "--output")
    if args.device != "sim":
        _require_mi300x()
    chosen = items(args.only, args.kinds or _KINDS)
    found: list[dict[str, Any]] = []
    now = "the device"

    def telling(item: Item) -> None:
        nonlocal now
        now = f"{item.kind} {item.name}"

    asked = answers.records(_HARNESS[args.device or "gpu"], chosen, telling)
    try:
        while True:
            with progress.shown(lambda: f"{len(found)}/{len(chosen) + 1}: {now}"):
                record = next(asked, None)
            if record is None:
                break
            found.append(record)
            print(_line(len(found), len(chosen) + 1, record), flush=True)
    finally:
        asked.close()
        if found:
            answers.write(path, answers.packed(found))
            print(f"{sum(one['status'] != 'failed' for one in found)} of {len(chosen) + 1} answered: {path}")
    return 1 if any(one["status"] == "failed" for one in found) else 0


def _line(number: int, total: int, record: dict[str, Any]) -> str:
    what = record.get("error") or record.get("answer") or ""
    if "figure" in record:
        what = f"{record['figure']:.2f} {record['unit']} at {record['clock_mhz']:.0f} MHz"
    return f"[{number}/{total}] {record['status']:9} {record['kind']} {record['name']}" + (f": {what}" if what else "")


def _require_mi300x() -> None:
    """
    Raises:
        ValueError: there is no such GPU; the message says what there is, and what goes instead.
    """
    import torch

    from aiter_like import device

    instead = "--device sim rehearses it on the simulated MI300X, which decides nothing"
    if not torch.cuda.is_available():
        raise ValueError(f"--hardware: needs an MI300X ({_ARCH}) and torch for ROCm; torch sees no GPU. {instead}")
    target = device.target_of(torch.device("cuda:0"))
    if (target.platform, target.arch) != ("hip", _ARCH):
        raise ValueError(f"--hardware: needs an MI300X ({_ARCH}) and torch for ROCm, got {target.arch}: "
                         f"{torch.cuda.get_device_name(0)}. {instead}")


def _answers(args: argparse.Namespace) -> int:
    from aiter_like.cli.sim.hardware import answers, comparison

    for line in comparison.lines(answers.read(args.answers)):
        print(line)
    return 0

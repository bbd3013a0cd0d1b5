# SPDX-License-Identifier: MIT
"""`aiter-like verify`: every case of every compiled kernel against the reference, on this device, as a report."""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiter_like import __version__
from aiter_like.cli.outputs import require_writable
from aiter_like.dispatch import OPS
from aiter_like.errors import AiterLikeError, UnsupportedError, did_you_mean

if TYPE_CHECKING:
    from aiter_like.device import Target
    from aiter_like.dispatch import Backend, Op

_SUMMARY = "run the self-check of every kernel on this device and write a report"


def add_commands(subparsers: argparse._SubParsersAction) -> None:
    """Adds `verify`; its parser sets `run`: of the parsed arguments, returns the exit status."""
    verify = subparsers.add_parser("verify", description=_SUMMARY)
    verify.add_argument("ops", nargs="*", help="operators (default: all)")
    verify.add_argument("--device", choices=("auto", "sim", "gpu"), default="auto")
    verify.add_argument("--output", type=Path, default=Path("aiter_like_verify.json"),
                        help="the report; a text version is printed and written beside it (default: %(default)s)")
    verify.set_defaults(run=_verify)


def _verify(args: argparse.Namespace) -> int:
    import torch

    from aiter_like import device

    unknown = sorted(set(args.ops) - set(OPS))
    if unknown:
        like = "".join(did_you_mean(name, OPS) for name in unknown[:1])
        raise ValueError(f"no operator {', '.join(unknown)}{like}; known: {', '.join(OPS)}")
    if args.device == "gpu" and not torch.cuda.is_available():
        raise ValueError("torch sees no GPU; --device sim runs on the simulated MI300X")
    require_writable(args.output, "--output")
    is_gpu = args.device == "gpu" or (args.device == "auto" and torch.cuda.is_available())
    if not is_gpu:
        device.use_simulator(True)
    target = device.target_of(torch.device("cuda:0" if is_gpu else "cpu"))
    facts = environment(target)
    lines = [f"{name}: {value}" for name, value in facts.items()] + [""]
    print("\n".join(lines))
    records: list[dict[str, Any]] = []

    def write(is_complete: bool) -> None:
        found = {"environment": facts, "is_complete": is_complete, "results": records}
        args.output.write_text(json.dumps(found, indent=1) + "\n")
        args.output.with_suffix(".txt").write_text("\n".join(lines) + "\n")

    for record in report(target, args.ops):
        records.append(record)
        lines.append(_line(record))
        print(lines[-1], flush=True)
        write(False)  # An interrupted command leaves what it knows.
    statuses = [record["status"] for record in records]
    count = {status: statuses.count(status) for status in ("passed", "failed", "refused")}
    lines.append(", ".join(f"{number} {status}" for status, number in count.items()))
    write(True)
    print(f"{lines[-1]}; report: {args.output}, {args.output.with_suffix('.txt')}")
    return 1 if count["failed"] or not count["passed"] else 0


def _line(record: dict[str, Any]) -> str:
    numbers = ""
    if "error" in record:
        numbers = (f"max abs error {record['error']:.3g}, limit {record['tolerance']:.3g} "
                   f"(per max(1, max |reference|)), {record['seconds']} s")
    shapes = " ".join("x".join(map(str, shape)) for shape in record["shapes"])
    return " | ".join(filter(None, (record["status"].upper(), record["op"], record["backend"], record["kernel"], shapes,
                                    numbers, record["detail"])))


def report(target: Target, names: list[str]) -> Iterator[dict[str, Any]]:
    """Runs every case of every backend but torch on `target`, whatever was decided before; one record each."""
    from aiter_like.dispatch import self_check

    for op in OPS.values():
        if names and op.name not in names:
            continue
        for backend in op.backends:
            if backend.name != "torch":
                for args in self_check.cases(op, target):
                    yield _outcome(op, backend, target, args)


def environment(target: Target) -> dict[str, Any]:
    """Facts about the machine for a report."""
    import torch

    from aiter_like.dispatch import self_check

    return {"aiter_like": __version__, "torch": torch.__version__, "hip": torch.version.hip,
            "cuda": torch.version.cuda, "python": platform.python_version(), "device": self_check.device_name(target),
            "platform": target.platform, "arch": target.arch, "cu_num": target.cu_num, "simulated": target.simulated}


def _outcome(op: Op, backend: Backend, target: Target, args: tuple) -> dict[str, Any]:
    from torch import Tensor

    from aiter_like.dispatch import self_check
    from aiter_like.dispatch.selection import Request, select

    outcome: dict[str, Any] = {"op": op.name, "backend": backend.name, "kernel": "", "status": "refused", "detail": "",
                               "shapes": [list(arg.shape) for arg in args if isinstance(arg, Tensor)]}
    start = time.perf_counter()
    selection = select(op, Request(target, args, backend.name, "verify"))
    if not selection.candidates:
        return outcome | {"detail": selection.refused[backend.name]}
    candidate = selection.candidates[-1]  # the backend's own choice, not a tuned row
    outcome |= {"kernel": candidate.kernel, "status": "failed"}
    try:
        function = candidate.backend.bind(target, args, candidate)
        error, tolerance = self_check.compare(op, function, args)
    except UnsupportedError as refusal:
        return outcome | {"status": "refused", "detail": str(refusal)}
    except (AiterLikeError, RuntimeError) as failure:
        return outcome | {"detail": str(failure)}
    status = "passed" if error <= tolerance else "failed"
    seconds = round(time.perf_counter() - start, 3)
    if self_check.applies(backend, target):
        self_check.keep(candidate, target, args, error, tolerance)
    return outcome | {"status": status, "error": error, "tolerance": tolerance, "seconds": seconds}

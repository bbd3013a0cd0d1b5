# SPDX-License-Identifier: MIT
"""The command line, `aiter-like`, and its commands doctor, explain and verify. It configures logging."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiter_like import env, log
from aiter_like.errors import AiterLikeError

# Command → the module whose add_commands defines it and what it needs; imported when the command is asked for.
_COMMANDS = {
    "demo": ("aiter_like.cli.demo", "attention of a real transformer, checked against stock"),
    "doctor": ("aiter_like.cli", "environment, compilers, devices, cache and tuned tables; what is wrong with them"),
    "build": ("aiter_like.cli.build", "build modules ahead of their first use"),
    "cache": ("aiter_like.cli.build", "list, verify or prune built modules"),
    "sim": ("aiter_like.cli.sim", "the simulated MI300X: launch any gfx942 code object, check a script's kernels"),
    "tune": ("aiter_like.cli.tune", "measure the candidates of an operator and write its tuned rows"),
    "bench": ("aiter_like.cli.tune", "time every backend of an operator on a shape, checked first"),
    "explain": ("aiter_like.cli", "which backend and kernel would serve a call, and why not the others"),
    "names": ("aiter_like.cli.integrations", "AITER's names, and which backends serve each of them"),
    "shim": ("aiter_like.cli.integrations", "where a package `aiter` lies, for engines without AMD's"),
    "verify": ("aiter_like.cli", "run the self-check of every kernel on this device and write a report"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; its exit status: 0 when all is well, 1 when something failed, 2 for wrong usage."""
    argv = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in argv if not word.startswith("-")), None)
    parser = argparse.ArgumentParser(prog="aiter-like", description="GPU operators for AMD MI300X, real or simulated.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    if command in _COMMANDS:
        importlib.import_module(_COMMANDS[command][0]).add_commands(subparsers)
    else:  # help or a mistake: names and summaries are enough
        for name, (_, summary) in _COMMANDS.items():
            subparsers.add_parser(name, help=summary)
    try:
        args = parser.parse_args(argv)
        log.configure("warning")
        return args.run(args)
    except (AiterLikeError, ValueError, TypeError) as error:
        if logging.getLogger("aiter_like").isEnabledFor(logging.DEBUG):
            raise
        print(f"aiter-like {command}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `aiter-like doctor | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def add_commands(subparsers: argparse._SubParsersAction) -> None:
    """Adds doctor, explain and verify; each parser sets `run`, a function of the parsed arguments."""
    doctor = subparsers.add_parser("doctor", description=_COMMANDS["doctor"][1])
    doctor.add_argument("--engine", choices=("vllm", "sglang", "transformers"),
                        help="instead: whether this engine is served, and what is taken in it")
    doctor.set_defaults(run=lambda args: _doctor() if args.engine is None else _doctor_engine(args.engine))

    explain = subparsers.add_parser(
        "explain", description=_COMMANDS["explain"][1], formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="A tensor is dtype[sizes], anything else a Python literal:\n"
               "  aiter-like explain rms_norm input=bf16[32,4096] weight=bf16[4096] epsilon=1e-6\n"
               "  aiter-like explain flash_attn_func q=bf16[1,99,8,64] k=bf16[1,99,2,64] v=bf16[1,99,2,64] causal=True")
    explain.add_argument("op", help="a public function, e.g. rms_norm")
    explain.add_argument("arguments", nargs="*", metavar="name=value")
    explain.add_argument("--device", default="auto", help="auto, cpu (simulated MI300X where there is no GPU), cuda")
    explain.set_defaults(run=_explain)

    verify = subparsers.add_parser("verify", description=_COMMANDS["verify"][1])
    verify.add_argument("ops", nargs="*", help="operators (default: all)")
    verify.add_argument("--device", choices=("auto", "sim", "gpu"), default="auto")
    verify.add_argument("--output", type=Path, default=Path("aiter_like_verify.json"),
                        help="the report; a text version is printed and written beside it (default: %(default)s)")
    verify.set_defaults(run=_verify)


# ---- doctor


def _doctor() -> int:
    """Prints the state of the installation; 1 when something is broken rather than absent."""
    problems = [*_print_environment(), *_print_software(), *_print_devices(), *_print_tables()]
    return _print_problems([""], problems)


def _doctor_engine(engine: str) -> int:
    """Prints the state of one engine's integration; 1 when something keeps it from being served."""
    from aiter_like.integrations import doctor

    lines, problems = doctor.report(engine)
    return _print_problems([*lines, ""], problems)


def _print_problems(lines: list[str], problems: list[str]) -> int:
    for line in [*lines, *(f"PROBLEM  {problem}" for problem in problems)]:
        print(line)
    print("no problems found" if not problems else f"{len(problems)} problem(s)")
    return 1 if problems else 0


def _print_environment() -> list[str]:
    print("environment")
    problems = []
    for name, variable in env.VARIABLES.items():
        try:
            value: Any = env.get(name)
        except ValueError as error:
            value = os.environ[name]
            problems.append(str(error))
        mark = "=" if name in os.environ else " "
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
        print(f"  {name:24}{mark} {shown!s:20}  {variable.help}; read {variable.read}")
    for name in env.unknown():
        print(f"  {name:24}= {os.environ[name]:20}  UNKNOWN")
        problems.append(f"{name} is not a variable of aiter_like")
    return problems


def _print_software() -> list[str]:
    import torch

    from aiter_like import __version__, paths
    from aiter_like.build import cache, toolchain

    print("\nsoftware")
    print(f"  aiter_like   {__version__}, data in {paths.data_root()}")
    print(f"  torch        {torch.__version__} (hip {torch.version.hip}, cuda {torch.version.cuda})")
    for package in ("apache-tvm-ffi", "ninja", "filelock"):
        print(f"  {package:12} {_version(package) or 'MISSING'}")
    found = importlib.util.find_spec("triton")
    print(f"  triton       {_version('triton') or 'version unknown' if found else 'absent (an extra)'}")
    for candidate in toolchain.report():
        print(f"  {candidate.name:12} {candidate.toolchain or candidate.reason}")
    print(f"  cache        {cache.cache_root()}")
    missing = [package for package in ("apache-tvm-ffi", "filelock") if _version(package) is None]
    return [f"{package} is not installed" for package in missing]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _print_devices() -> list[str]:
    import torch

    from aiter_like import device
    from aiter_like.build import toolchain

    print("\ndevices")
    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    platforms = set()
    for name in names:
        target = device.target_of(torch.device(name))
        platforms.add(target.platform)
        if target.platform == "cpu":
            print(f"  {name:8} torch reference only")
            continue
        real = "the simulated MI300X" if target.simulated else torch.cuda.get_device_name(target.index)
        print(f"  {name:8} {real}: {target.arch} ({target.platform}), {target.cu_num} CUs, wave {target.wave_size}")
    problems = []
    for platform in sorted(platforms - {"cpu"}):
        try:
            toolchain.find(platform)
        except AiterLikeError as error:
            problems.append(f"kernels for {platform} cannot be built: {error}")
    return problems


def _print_tables() -> list[str]:
    from aiter_like.dispatch import OPS, table

    print("\ntuned tables")
    problems = dict.fromkeys(str(problem) for problem in table.strays(OPS))
    for op in OPS.values():
        if op.tune_key is None:
            continue
        layers = "; ".join(f"{layer.title}: {sum(map(len, layer.rows.values()))} rows" for layer in op.table.layers)
        print(f"  {op.name:20} {layers or 'no file'}")
        problems |= dict.fromkeys(map(str, op.table.problems))
        stale = op.stale_rows()
        if stale:
            print(f"  {'':20} {len(stale)} stale rows (kernel revision, toolchain) are ignored, the first: {stale[0]}")
    return list(problems)


# ---- explain


def _explain(args: argparse.Namespace) -> int:
    import torch

    import aiter_like

    function = getattr(aiter_like, args.op, None)
    if not callable(function):
        raise ValueError(f"no operator {args.op!r}")
    name = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    values = dict(_argument(text, torch.device(name)) for text in args.arguments)
    with torch.no_grad():
        explanations = aiter_like.dispatch.explain(function, **values)
    for explanation in explanations if isinstance(explanations, tuple) else (explanations,):
        print(explanation)
    return 0


def _argument(text: str, device: Any) -> tuple[str, Any]:
    """`x=bf16[32,4096]` → ("x", tensor); `causal=True` → ("causal", True)."""
    import ast

    import torch

    from aiter_like.dtypes import DTYPES

    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"an argument must be name=value, got {text!r}")
    dtype, bracket, sizes = value.partition("[")
    if bracket and dtype in DTYPES:
        try:
            shape = [int(size) for size in sizes.removesuffix("]").split(",") if size]
        except ValueError:
            raise ValueError(f"{name} must be dtype[sizes], got {value!r}") from None
        return name, torch.empty(shape, dtype=DTYPES[dtype], device=device)
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


# ---- verify


def _verify(args: argparse.Namespace) -> int:
    import torch

    from aiter_like import device
    from aiter_like.dispatch import OPS, self_check

    unknown = sorted(set(args.ops) - set(OPS))
    if unknown:
        raise ValueError(f"no operator {', '.join(unknown)}; known: {', '.join(OPS)}")
    if args.device == "gpu" and not torch.cuda.is_available():
        raise ValueError("torch sees no GPU; --device sim runs on the simulated MI300X")
    is_gpu = args.device == "gpu" or (args.device == "auto" and torch.cuda.is_available())
    if not is_gpu:
        device.use_simulator(True)
    target = device.target_of(torch.device("cuda:0" if is_gpu else "cpu"))
    facts = self_check.environment(target)
    lines = [f"{name}: {value}" for name, value in facts.items()] + [""]
    print("\n".join(lines))
    records = []
    for record in self_check.report(target, args.ops):
        records.append(record)
        lines.append(_line(record))
        print(lines[-1], flush=True)
    statuses = [record["status"] for record in records]
    count = {status: statuses.count(status) for status in ("passed", "failed", "refused")}
    lines.append(", ".join(f"{number} {status}" for status, number in count.items()))
    args.output.write_text(json.dumps({"environment": facts, "results": records}, indent=1) + "\n")
    args.output.with_suffix(".txt").write_text("\n".join(lines) + "\n")
    print(f"{lines[-1]}; report: {args.output}, {args.output.with_suffix('.txt')}")
    return 1 if count["failed"] or not count["passed"] else 0


def _line(record: dict[str, Any]) -> str:
    numbers = ""
    if "error" in record:
        numbers = f"error {record['error']:.3g} of {record['tolerance']:.3g}, {record['seconds']} s"
    shapes = " ".join("x".join(map(str, shape)) for shape in record["shapes"])
    return " | ".join(filter(None, (record["status"].upper(), record["op"], record["backend"], record["kernel"], shapes,
                                    numbers, record["detail"])))

# SPDX-License-Identifier: MIT
"""`aiter-like sim script SCRIPT`: a Python script that was written for a GPU, as it is, on the simulated MI300X.

How a script runs within this process; `aiter-like sim check` and `sim profile` use it, too.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from aiter_like import sim
from aiter_like.cli.sim.described import require_kind

GPU_HELP = 'device="cuda" is the simulated MI300X, as in `aiter-like sim script`'
_DESCRIPTION = """Runs a Python script as __main__, in which torch's device "cuda" is the simulated MI300X:
torch.cuda.is_available() is true, tensors on cuda are CPU tensors that say cuda:0, torch's own functions run on the
CPU, kernels of this package and of Triton on the simulator. Exit status: the script's own. With --checks or seeds use
`aiter-like sim check --gpu`, for a profile `aiter-like sim profile --gpu`."""


def add_script(actions: argparse._SubParsersAction) -> None:
    """Adds `script`; its parser sets `run`: of the parsed arguments, returns the exit status."""
    script = actions.add_parser("script", help="run a Python script that was written for a GPU",
                                description=_DESCRIPTION)
    script.add_argument("--model", choices=("whole", "sample"),
                        help="times between events, and of triton.testing.do_bench, are the cycle model's; sample: "
                             "only workgroups that it needs run, and results are wrong (default: times are this "
                             "machine's)")
    script.add_argument("script", type=Path, metavar="SCRIPT")
    script.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS", help="the script's arguments")
    script.set_defaults(run=_run)


def require_script(script: Path) -> None:
    """Raises ValueError unless it is a file, and none that is surely no Python."""
    if not script.is_file():
        raise ValueError(f"{script}: {'is a folder' if script.is_dir() else 'no such file'}")
    require_kind(script, "Python script")
    text = script.read_bytes()
    try:
        ast.parse(text)
    except (SyntaxError, ValueError) as error:
        if b"\0" in text or script.suffix != ".py" and not text.startswith(b"#!"):  # else Python says where it errs
            raise ValueError(f"{script}: it is no Python script: {getattr(error, 'msg', error)}") from None


def prepare_script(script: Path, arguments: Sequence[str]) -> None:
    """Makes this process one in which `runpy` runs a script as its user would: its arguments, its folder's modules,
    CPU tensors and Triton on the simulated MI300X.
    """
    from aiter_like import device

    device.use_simulator(True)
    if importlib.util.find_spec("triton"):
        sim.enable_triton()
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))


def gpu_block(is_gpu: bool) -> contextlib.AbstractContextManager:
    """`sim.as_gpu()`, or a block without effect."""
    return sim.as_gpu() if is_gpu else contextlib.nullcontext()


def _run(args: argparse.Namespace) -> int:
    require_script(args.script)
    prepare_script(args.script, args.args)
    model = sim.enabled(checks=False, model=args.model) if args.model else contextlib.nullcontext()
    with gpu_block(True), model, Shown() as shown:
        runpy.run_path(str(args.script), run_name="__main__")
    return shown.status


class Shown:
    """A block whose end is that of a script: an exception is shown, an exit has a status."""

    status = 0

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        if isinstance(error, SystemExit):
            if error.code is not None and not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
            self.status = error.code if isinstance(error.code, int) else int(error.code is not None)
            return True
        if not isinstance(error, Exception):
            return False
        while traceback and traceback.tb_frame.f_globals.get("__name__") != "__main__":
            traceback = traceback.tb_next  # without this file and runpy
        sys.excepthook(kind, error.with_traceback(traceback), traceback)
        self.status = 1
        return True

# SPDX-License-Identifier: MIT
"""One operator's `--bench`, wherever its test file is: `python op_tests/bench/run.py rms_norm --peers`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent


def scripts() -> dict[str, Path]:
    """The test files that have a bench, by the names of their operators."""
    return {path.stem.removeprefix("test_"): path for path in sorted(TESTS.rglob("test_*.py"))
            if "\ndef bench(" in path.read_text(encoding="utf-8")}


def environment() -> dict[str, str]:
    """That of a test file run as a script: it finds the package, benching.py and covering.py by bare name."""
    folders = [str(TESTS.parent), str(TESTS), str(TESTS / "bench"), os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def need_gpu() -> None:
    """Ends the process, with what else there is, where nothing can be timed: also on the simulated MI300X."""
    sys.path.append(str(TESTS.parent))
    import torch

    from aiter_like.device import target_of

    if torch.cuda.is_available() and not target_of(torch.device("cuda", torch.cuda.current_device())).simulated:
        return
    seen = "torch.cuda is the simulated MI300X" if torch.cuda.is_available() else "torch sees no GPU"
    sys.exit(f"{Path(sys.argv[0]).name}: times need a GPU, and {seen}. `aiter-like verify OPERATOR` checks its kernels "
             "on the simulated MI300X; `aiter-like bench OPERATOR --shape … --device sim` models their times")


def main() -> None:
    name, options = sys.argv[1] if len(sys.argv) > 1 else "", sys.argv[2:]
    found = scripts()
    if name not in found:
        from aiter_like.errors import did_you_mean

        sys.exit(f"run.py: the first argument must be one of {', '.join(found)}, got {name!r}"
                 f"{did_you_mean(name, found)}")
    if not {"-h", "--help"} & set(options):
        need_gpu()
    os.execve(sys.executable, [sys.executable, str(found[name]), "--bench", *options], environment())


if __name__ == "__main__":
    main()

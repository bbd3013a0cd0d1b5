# SPDX-License-Identifier: MIT
"""One operator's bench(), wherever its test file is: `python op_tests/bench/run.py rms_norm --peers`."""

import importlib
import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
FOLDERS = (str(TESTS.parent), str(TESTS), str(TESTS / "bench"))


def scripts() -> dict[str, Path]:
    """The test files that have a bench, by the names of their operators."""
    return {path.stem.removeprefix("test_"): path for path in sorted(TESTS.rglob("test_*.py"))
            if "\ndef bench(" in path.read_text(encoding="utf-8")}


def environment() -> dict[str, str]:
    """That of scripts in this folder, which find the package and helpers of op_tests by bare name."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (*FOLDERS, os.environ.get("PYTHONPATH"))))}


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
    sys.path[:0] = (str(found[name].parent), *FOLDERS)
    import benching

    module = importlib.import_module(found[name].stem)
    benching.main(module.bench, module.__doc__, options)


if __name__ == "__main__":
    main()

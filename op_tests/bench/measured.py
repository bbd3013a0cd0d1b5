# SPDX-License-Identifier: MIT
"""Runs held_out.py family by family, each in a process of its own, and keeps what they measure in one JSON file.

Read by bench_all.py.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import run as scripts

_SCRIPT = Path(__file__).parent / "held_out.py"
_ABOUT = """import json, torch, triton
print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}))"""


def run(seed: int, count: int, output: Path, has_peers: bool, limit: float, jobs: int, only: Sequence[str]) -> None:
    """Warms all families up at once, then times one after the other; `output` is written after each."""
    found = _about(seed, count)
    if output.exists():
        before = json.loads(output.read_text(encoding="utf-8"))
        if any(before[name] != found[name] for name in ("seed", "count", "device", "commit")):
            sys.exit(f"bench_all: {output} is of another seed, device or commit; --json must name another file")
        found = before
    families = [name for name in _families() if name not in found["families"] and (
        not only or any(part in name for part in only))]
    options = ["--seed", str(seed), "--count", str(count), *(["--peers"] if has_peers else [])]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(jobs) as pool:
        folder = Path(scratch)
        warmed = pool.map(lambda name: _one(name, [*options, "--warm"], folder, limit), families)
        for name, said in zip(families, warmed):
            print(f"warm {name}: {said}", flush=True)
        for name in families:
            rows = folder / f"{name}.jsonl"
            said = _one(name, [*options, "--rows", str(rows)], folder, limit)
            lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
            found["families"][name] = {"said": said, "rows": [json.loads(line) for line in lines]}
            found["peers"] = sorted({*found["peers"], *(
                line for line in (folder / f"{name}.log").read_text(encoding="utf-8").splitlines()
                if line.startswith(("beside ", "without ")))})
            output.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(f"{name}: {said}", flush=True)


def _about(seed: int, count: int) -> dict[str, Any]:
    """What the figures are of."""
    try:
        told = subprocess.run([sys.executable, "-c", _ABOUT], capture_output=True, text=True, check=True).stdout
    except subprocess.CalledProcessError as error:
        sys.exit(f"bench_all: --held-out needs a GPU that torch sees: {error.stderr.strip().rpartition(chr(10))[2]}")
    commit = subprocess.run(["git", "-C", str(_SCRIPT.parent), "rev-parse", "--short=12", "HEAD"], capture_output=True,
                            text=True, check=False).stdout.strip()
    return {**json.loads(told), "commit": commit, "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "seed": seed, "count": count, "peers": [], "families": {}}


def _families() -> list[str]:
    from held_out import FAMILIES

    return list(FAMILIES)


def _one(name: str, options: list[str], folder: Path, limit: float) -> str:
    """What became of a run of one family; its output goes to a file of `folder`."""
    start = time.monotonic()
    with (folder / f"{name}.log").open("w", encoding="utf-8") as log:
        try:
            code = subprocess.run([sys.executable, str(_SCRIPT), name, *options], stdout=log, stderr=subprocess.STDOUT,
                                  check=False, timeout=limit, env=scripts.environment()).returncode
        except subprocess.TimeoutExpired:
            return f"stopped after {limit:.0f} s"
    last = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
    return f"{time.monotonic() - start:.0f} s" + (f", exit code {code}: {last[:200]}" if code else "")

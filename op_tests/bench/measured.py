# SPDX-License-Identifier: MIT
"""Runs held_out.py family by family, each in a process of its own, and keeps what they measure in one JSON file.

Read by bench_all.py.
"""

import datetime
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import run as scripts

READY = "ready"
"""What a process of held_out.py says when it has built and checked its calls."""

_SCRIPT = Path(__file__).parent / "held_out.py"
_ABOUT = """import json, torch, triton
print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}))"""


def run(seed: int, count: int, output: Path, options: Sequence[str], limit: float, only: Sequence[str], commit: str
        ) -> None:
    """Builds and checks all families at once, then times one after the other; `output` is written after each."""
    found = _about(seed, count, commit)
    if output.exists():
        before = json.loads(output.read_text(encoding="utf-8"))
        if any(before[name] != found[name] for name in ("seed", "count", "device", "commit")):
            sys.exit(f"bench_all: {output} is of another seed, device or commit; --json must name another file")
        found = before
    names = [name for name in _families() if name not in found["families"] and (
        not only or any(part in name for part in only))]
    options = ["--seed", str(seed), "--count", str(count), "--wait", *options]
    with tempfile.TemporaryDirectory() as scratch:
        started = {name: _Started(name, options, Path(scratch)) for name in names}
        _await(started, limit)
        for name, one in started.items():
            rows, said = one.timed(limit)
            found["families"][name] = {"said": said, "rows": rows}
            found["peers"] = sorted({*found["peers"], *one.about_peers()})
            output.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(f"{name}: {said}", flush=True)


class _Started:
    """A process that builds and checks a family's calls, and times them when it is told to."""

    def __init__(self, name: str, options: Sequence[str], folder: Path):
        self.log, self.rows = folder / f"{name}.log", folder / f"{name}.jsonl"
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen([sys.executable, str(_SCRIPT), name, *options, "--rows", str(self.rows)],
                                            stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, text=True,
                                            env=scripts.environment())

    def lines(self) -> list[str]:
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()

    @property
    def is_settled(self) -> bool:
        return READY in self.lines() or self.process.poll() is not None

    def about_peers(self) -> list[str]:
        return [line for line in self.lines() if line.startswith(("beside ", "without "))]

    def timed(self, limit: float) -> tuple[list[dict[str, Any]], str]:
        """(rows, what became of it)."""
        start = time.monotonic()
        if not self.is_settled:
            self.process.kill()
            return [], f"nothing to time: not built after {limit:.0f} s"
        try:
            self.process.communicate("go\n", timeout=limit)
            code = self.process.returncode
            last = [line.strip() for line in self.lines() if line.strip()][-3:]
            said = f", exit code {code}: {' | '.join(last)}" if code else ""
        except subprocess.TimeoutExpired:
            self.process.kill()
            said = f", stopped after {limit:.0f} s"
        lines = self.rows.read_text(encoding="utf-8").splitlines() if self.rows.exists() else []
        return [json.loads(line) for line in lines], f"{time.monotonic() - start:.0f} s{said}"


def _await(started: dict[str, _Started], limit: float) -> None:
    """Until all have built what they need, or `limit` is over: nothing is timed beside compilers."""
    start, open_ones = time.monotonic(), dict(started)
    while open_ones and time.monotonic() - start < limit:
        time.sleep(0.5)
        for name in [name for name, one in open_ones.items() if one.is_settled]:
            del open_ones[name]
            print(f"built {name}: {time.monotonic() - start:.0f} s", flush=True)
    for name in open_ones:
        started[name].process.kill()


def _about(seed: int, count: int, commit: str) -> dict[str, Any]:
    """What the figures are of."""
    told = subprocess.run([sys.executable, "-c", _ABOUT], capture_output=True, text=True, check=True).stdout
    if not commit:
        commit = subprocess.run(["git", "-C", str(_SCRIPT.parent), "rev-parse", "--short=8", "HEAD"],
                                capture_output=True, text=True, check=False).stdout.strip()
    return {**json.loads(told), "commit": commit, "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "seed": seed, "count": count, "peers": [], "families": {}}


def _families() -> list[str]:
    from held_out import FAMILIES

    return list(FAMILIES)

# SPDX-License-Identifier: MIT
"""The pages of csrc/sim/tutorials, and the tile library's README.md, typed in.

Each begins in an empty folder, and every output is as the page shows it.

A block after "Save as `NAME`:" is that file, in ```python or ```text. Of the others, ```sh are commands, ```text is
what the commands before print. `…` stands for anything. Figures of lines with "modelled" may differ by a quarter.
"""

import contextlib
import io
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiter_like import cli, sim
from aiter_like.errors import SimulatorError
from aiter_like.modules import code_object

FOLDER = Path(__file__).resolve().parents[2] / "csrc/sim/tutorials"
PAGES = sorted(path.name for path in FOLDER.glob("*.md"))
TILE = "../../include/aiter_like/tile/README.md"
_BLOCK = re.compile(r"^(?:Save as `([^`]+)`:\n)?```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_every_tutorial_is_here():
    assert PAGES == ["ASSEMBLY.md", "ATTENTION.md", "HIP.md", "TRITON.md"]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    sim.disable_triton()


@pytest.mark.parametrize("page", [*PAGES, TILE])
def test_page(page, folder, monkeypatch):
    printed = ""
    for name, language, text in _BLOCK.findall((FOLDER / page).read_text()):
        if name:
            (folder / name).write_text(text)
        elif language == "sh":
            printed, status = "", 0
            for line in text.replace("\\\n", "").splitlines():
                assert status == 0 or "$?" in line, f"status {status} before {line!r}, after:\n{printed}"
                more, status = ran(line.replace("$?", str(status)), folder, monkeypatch)
                printed += more
            assert status == 0, f"status {status} after {line!r}:\n{printed}"
        elif language == "text" and printed:
            require_shown(text.splitlines(), printed)


@pytest.mark.parametrize("clang", ["clang++-19", "clang++-22"])
def test_the_assembly_page_with_one_clang(clang, folder, monkeypatch):
    """As on Debian, where no compiler is called clang; what is built of this package is there already."""
    found = shutil.which(clang)
    if found is None:
        pytest.skip(f"no {clang} here")
    text, printed = (FOLDER / "ASSEMBLY.md").read_text(), ""
    (folder / "scale.s").write_text(next(text for name, _, text in _BLOCK.findall(text) if name == "scale.s"))
    compiles = dict.fromkeys(line for line in text.splitlines() if line.startswith("aiter-like sim compile "))
    assert len(compiles) == 1 and "\nclang" not in text
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", found)
    for line in compiles:
        printed, status = ran(f"{line} --show", folder, monkeypatch)
        assert status == 0 and printed.startswith(f"{found} "), printed
    assert list(code_object.kernels((folder / "scale.co").read_bytes())) == ["scale"]


def ran(line: str, folder: Path, monkeypatch) -> tuple[str, int]:
    """What a command prints, and its exit status. Python runs in this process, which has loaded what takes seconds."""
    words = shlex.split(line)
    variables = [words.pop(0).split("=", 1) for word in list(words) if re.match(r"[A-Z_]+=", word)]
    out, status = io.StringIO(), 0
    with monkeypatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        for name, value in variables:
            patch.setenv(name, value)
            if name == "TRITON_DEBUG":  # read when triton is imported
                patch.setattr("triton.knobs.runtime.debug", value == "1")
        with as_new_process(folder):
            if words[0] == "aiter-like":
                status = cli.main(words[1:])
            elif words[0] == "python":
                try:
                    runpy.run_path(words[1], run_name="__main__")
                except SimulatorError:
                    out.write(traceback.format_exc())
                    status = 1
            else:
                done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
                out.write(done.stdout + done.stderr)
    return out.getvalue(), status


@contextlib.contextmanager
def as_new_process(folder: Path) -> Iterator[None]:
    """Modules of the folder are forgotten afterwards."""
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in set(sys.modules) - before:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]


def require_shown(wanted: list[str], printed: str) -> None:
    """Every wanted line is printed, in this order; others may be between them."""
    lines = iter(printed.splitlines())
    for want in wanted:
        assert any(is_shown(want, line) for line in lines), f"{want!r} is not in:\n{printed}"


def is_shown(want: str, line: str) -> bool:
    if "modelled" not in want:
        return re.fullmatch(".*".join(map(re.escape, want.split("…"))), line) is not None
    pieces = re.split(r"(\d+(?:\.\d+)?)", want)  # text and figures in turns
    pattern = r"(\d+(?:\.\d+)?)".join(".*".join(map(re.escape, text.split("…"))) for text in pieces[::2])
    found = re.fullmatch(pattern, line)
    return bool(found) and all(abs(float(a) - float(b)) <= 0.25 * float(a)
                               for a, b in zip(pieces[1::2], found.groups()))


def test_what_is_not_printed_is_found():
    """The comparison itself."""
    require_shown(["a … c", "modelled: 100 clk for 4"], "x\na b c\nmodelled: 120 clk for 4\n")
    for wanted in (["b", "a"], ["modelled: 100 clk"], ["a…b"]):
        with pytest.raises(AssertionError):
            require_shown(wanted, "a\nb\nmodelled: 130 clk\n")

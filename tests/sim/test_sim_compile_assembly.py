# SPDX-License-Identifier: MIT
"""`aiter-like sim compile FILE.s`: assembly to a code object, as either clang of Debian makes it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from aiter_like import cli
from aiter_like.modules import code_object

HIP = 'extern "C" __attribute__((global)) void twice(float* x, int n) { if (x[n] < n) x[n] *= 2; }\n'
CLANGS = [clang for clang in ("clang++-19", "clang++-22") if shutil.which(clang)]


def compile_(*words: object) -> int:
    return cli.main(["sim", "compile", *map(str, words)])


@pytest.mark.parametrize("clang", CLANGS)
def test_what_the_compiler_wrote_assembles(clang, tmp_path, monkeypatch, capsys):
    source, text, preprocessed = (tmp_path / name for name in ("k.hip", "k.s", "k.S"))
    source.write_text(HIP)
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", shutil.which(clang))
    subprocess.run([clang, "-x", "hip", "--offload-arch=gfx942", "--offload-device-only", "-nogpuinc", "-nogpulib",
                    "-gline-tables-only", "-O3", "-S", source, "-o", text], check=True)
    preprocessed.write_text(f"#define NAME twice\n{text.read_text().replace('twice', 'NAME')}")
    objects = []
    for name in (text, preprocessed):
        assert compile_(name, "-o", tmp_path / "k.co", "-D", "UNUSED=1") == 0, capsys.readouterr().err
        objects.append(code_object.kernels((tmp_path / "k.co").read_bytes()))
    assert objects[0]["twice"].kernarg_bytes == objects[1]["twice"].kernarg_bytes >= 12


@pytest.mark.parametrize(("words", "said"), [
    ("k.s -o k", "k: assembly makes a code object, .co or .hsaco, of one source, got k.s"),
    ("k.s -o k.so", "k.so: assembly makes a code object"),
    ("k.s l.s -o k.co", "k.co: assembly makes a code object, .co or .hsaco, of one source, got k.s, l.s"),
    ("none.s -o k.co", "none.s: no such file"),
    ("k.asm -o k.co", "k.asm: not a kind of source that is known; there are: .hip"),
    ("k.s -o k.co", "k.s: does not compile"),
])
def test_mistakes_are_told(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("k.s", "l.s", "k.asm"):
        Path(name).write_text("no_such_instruction v0\n")
    assert compile_(*words.split()) == 1
    assert said in capsys.readouterr().err and not Path("k.co").exists()

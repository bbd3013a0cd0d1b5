# SPDX-License-Identifier: MIT
"""What commands say to a file of another kind than theirs, and to arguments that a function does not have."""

import sys
from pathlib import Path

import pytest
import torch

import aiter_like
from aiter_like import cli


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prog").write_bytes(Path(sys.executable).read_bytes()[:4096])
    (tmp_path / "a&b").write_bytes((tmp_path / "prog").read_bytes())
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "tk.py").write_text("print(1)\n")
    (tmp_path / "tk").write_text("#!/usr/bin/env python3\nprint(1)\n")
    (tmp_path / "k.hip").write_text("__global__ void k() {}\n")
    (tmp_path / "k.s").write_text(".text\n")
    (tmp_path / "k.co").write_bytes(b"\x7fELF\2\1\1\x40" + bytes(8) + b"\3\0\xe0\0" + bytes(44))
    return tmp_path


@pytest.mark.parametrize(("words", "said"), [
    ("check prog", "prog: it is a program or library of the host, and no Python script; `AITER_LIKE_SIM=check ./prog`"),
    ("script prog", "prog: it is a program or library of the host, and no Python script"),
    ("run prog", "prog: it is a program or library of the host, and no code object; `AITER_LIKE_SIM=check ./prog`"),
    ("run --init prog", "prog: it is a program or library of the host, and no code object"),
    ("compare prog prog", "prog: it is a program or library of the host, and no code object"),
    ("run tk.py", "tk.py: it is a Python script, and no code object; `aiter-like sim check tk.py` runs it"),
    ("run tk", "tk: it is a Python script, and no code object; `aiter-like sim check tk` runs it"),
    ("run --init tk.py", "tk.py: it is a Python script, and no code object"),
    ("run tk.py a --lr 3", "tk.py: it is a Python script, and no code object; `aiter-like sim check tk.py` runs it"),
    ("check a&b", "`AITER_LIKE_SIM=check ./'a&b'` runs a program"),
    ("check folder.py", "folder.py: is a folder"),
    ("check none.py", "none.py: no such file"),
    ("script none.py", "none.py: no such file"),
    ("check k.co", "k.co: it is a code object, and no Python script; `aiter-like sim run k.co` launches"),
    ("check k.hip", "k.hip: it is a HIP source, and no Python script; `aiter-like sim compile k.hip -o k.co`"),
    ("run k.hip", "k.hip: it is a HIP source, and no code object; `aiter-like sim compile k.hip -o k.co`"),
    ("run k.s", "k.s: it is assembly, and no code object; `aiter-like sim compile k.s -o k.co`"),
])
def test_a_file_of_another_kind_is_told_its_command(files, capsys, words, said):
    assert cli.main(["sim", *words.split()]) == 1
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1, err


@pytest.mark.parametrize("command", ["profile", "trace", "debug"])
@pytest.mark.parametrize(("words", "said"), [
    ("nowhere.co --kernel x", "nowhere.co: No such file"), ("nowhere.py", "nowhere.py: no such file"),
    ("folder.py", "folder.py: is a folder"), ("prog", "prog: it is a program or library of the host"),
    ("--kernel k tk.py", "--kernel is for a code object"), ("rms_norm input=bf16[1,64] --grid 4", "--grid is for a c"),
    ("rms_nrm input=bf16[1,1]", "did you mean rms_norm"),
])
def test_targets_that_are_none(files, capsys, command, words, said):
    assert cli.main(["sim", command, *words.split()]) == 1
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1, err


@pytest.mark.parametrize("command", ["explain", "sim profile", "sim trace"])
@pytest.mark.parametrize(("arguments", "said"), [
    ("gemm_a16w16 a=bf16[16,4096]", "gemm_a16w16: no argument 'a' (did you mean A?); its arguments: A, B, bias=None, "),
    ("gemm_a16w16 A=bf16[16,4096]", "gemm_a16w16: B must be given; its arguments: A, B, bias=None, otype=None, "),
    ("rms_norm", "rms_norm: input, weight, epsilon must be given; its arguments: input, weight, epsilon, use_"),
    ("rms_norm input=bf16[1,8] input=bf16[1,8] weight=bf16[8] epsilon=1", "an argument is there twice; its arguments"),
])
def test_wrong_arguments_are_answered_with_all(capsys, command, arguments, said):
    assert cli.main([*command.split(), *arguments.split()]) == 1
    err = capsys.readouterr().err
    assert said in err and err.endswith("backend=None\n"), err


@pytest.mark.parametrize(("words", "said"), [
    ("input=bf17[1,8]", "input: no dtype 'bf17' (did you mean bf16?); there are: "),
    ("input=bf16[1,8", "input must be dtype[sizes], got 'bf16[1,8'"),
    ("input=bf16[1,-8]", "input must be dtype[sizes], got 'bf16[1,-8]'"),
    ("input=bf16[1,x]", "input must be dtype[sizes], got 'bf16[1,x]'"),
    ("input=bf16[1,99999999999999999]", "input=bf16[1,99999999999999999]: "),
    ("input=bf16[1,8] --device gpu", "--device must be auto, cpu, cuda or cuda:N, got 'gpu'"),
    pytest.param("input=bf16[1,8] --device cuda:1", "--device cuda:1: torch sees no GPU; --device cpu is",
                 marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")),
])
def test_wrong_tensors_and_devices(capsys, words, said):
    assert cli.main(["explain", "rms_norm", "weight=bf16[8]", "epsilon=1e-6", *words.split()]) == 1
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1, err


@pytest.mark.parametrize(("words", "said"), [
    ("", "a command must be given; there are: demo, doctor, build"),
    ("--verson", "unrecognized arguments: --verson (did you mean --version?)"),
    ("--jsn doctor", "unrecognized arguments: --jsn (did you mean --json?)"),
    ("sim run k.co --argz x", "unrecognized arguments: --argz x (did you mean --args?)"),
])
def test_a_command_that_is_missing_or_has_no_such_option(files, capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_every_public_function_lists_its_arguments(capsys):
    for name in aiter_like.__all__:
        if callable(getattr(aiter_like, name)) and not isinstance(getattr(aiter_like, name), type):
            assert cli.main(["explain", name, "no_such_argument=1"]) == 1
            err = capsys.readouterr().err
            assert f"{name}: no argument 'no_such_argument'; its arguments: " in err or name in ("is_tuned", "explain")


@pytest.mark.parametrize(("words", "said"), [
    ("sim check noise", "noise: it is no Python script: "), ("sim script noise", "noise: it is no Python script: "),
    ("sim check noise.py", "noise.py: it is no Python script: "), ("sim profile noise.py", "it is no Python script"),
    ("sim debug noise.py", "it is no Python script"), ("sim check words", "words: it is no Python script: "),
    ("cache prune --days -1", "--days must be at least 0, got -1"),
    ("build rms_norm -j -3", "--jobs must be at least 1, got -3"),
    ("build --list --arch nope", "--arch must be like gfx942 or sm_90, got 'nope'")])
def test_what_is_no_script_and_numbers_that_are_none(files, capsys, monkeypatch, words, said):
    monkeypatch.setenv("AITER_LIKE_CACHE_DIR", str(files / "cache"))
    for name in ("noise", "noise.py"):
        (files / name).write_bytes(b"\x8f\0\xff\1" * 99)
    (files / "words").write_text("int main() { return 0; }\n")
    assert cli.main(words.split()) == 1
    assert f"aiter-like {words.split()[0]}: " in (told := capsys.readouterr().err) and said in told, told


@pytest.mark.parametrize("words", ["build rms_norm --output tk/x", "verify rms_norm --output folder.py",
                                   "verify rms_norm --output tk/x"])
def test_places_that_cannot_be_written_are_told_before_anything_runs(files, capsys, words):
    assert cli.main(words.split()) in (1, 2)
    found, (command, place) = capsys.readouterr(), (words.split()[0], words.split()[-1])
    assert f"aiter-like {command}: " in found.err and place.split("/")[0] in found.err and not found.out

# SPDX-License-Identifier: MIT
"""The bench command of aiter_like/ops/README.md, typed in: the operator's file finds what it imports."""

import os
import re
import shlex
import subprocess
import sys

import bench_all
import benching
import pytest
import torch

from aiter_like import cli, paths

PAGE = paths.data_root() / "aiter_like/ops/README.md"


def call(*words: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *words], cwd=paths.data_root(), env={**os.environ, **variables},
                          capture_output=True, text=True, check=False)


def words_of_the_page() -> list[str]:
    (line,) = re.findall(r"^python (op_tests/.*?) *#", PAGE.read_text(), re.MULTILINE)
    assert "my_op" in line
    return shlex.split(line.replace("my_op", "relu_squared"))


def test_the_command_as_the_page_has_it():
    done = call(*words_of_the_page(), "--help")
    assert done.returncode == 0 and "prints a table of times" in done.stdout, done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_one_sentence(monkeypatch):
    for variables, seen in (({}, "torch sees no GPU"),
                            ({"AITER_LIKE_SIM": "gpu"}, "torch.cuda is the simulated MI300X")):
        done = call(*words_of_the_page(), **variables)
        assert (done.returncode, done.stdout) == (1, ""), done
        assert done.stderr.startswith(f"run.py: times need a GPU, and {seen}. `aiter-like verify OPERATOR`"), done
        assert done.stderr.count("\n") == 1, done
    monkeypatch.setattr(sys, "argv", ["test_it.py"])
    for command in (bench_all.main, lambda: benching.main(lambda: None, None, ())):
        with pytest.raises(SystemExit, match="^test_it.py: times need a GPU, and torch sees no GPU"):
            command()


def test_the_command_of_that_sentence(capsys):
    """It names `aiter-like bench OPERATOR --shape … --device sim`."""
    assert cli.main("bench relu_squared --shape rows=4,columns=64,dtype=bf16 --device sim".split()) == 0
    assert re.search(r"^ +[ *] hip +\d+\.\d\d modelled us", capsys.readouterr().out, re.MULTILINE)

# SPDX-License-Identifier: MIT
"""`aiter-like generate` and `new-op`: generated texts are those of the declarations; a new operator's files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from aiter_like import cli, paths
from aiter_like.dispatch import OPS
from aiter_like.ops import index


def test_generated_texts_are_up_to_date(capsys):
    assert cli.main(["generate", "--check"]) == 0, capsys.readouterr().out


def test_the_index_names_every_operator_and_public_function():
    import aiter_like

    assert set(index.OPERATORS) <= set(OPS)
    for name in index.PUBLIC:
        assert callable(getattr(aiter_like, name)), name


@pytest.mark.parametrize("args, message", [
    (("rms_norm", "--family", "norm"), "there is an operator rms_norm, in aiter_like.ops.norm.rms_norm"),
    (("Relu", "--family", "activation"), "NAME must be a lower-case Python name, got 'Relu'"),
    (("relu", "--family", "../norm"), "--family must be a lower-case Python name, got '../norm'")])
def test_a_bad_name_is_refused(capsys, args, message):
    assert cli.main(["new-op", *args]) == 1
    assert f"new-op: {message}" in capsys.readouterr().err


def test_a_new_operator_is_clean_and_its_tests_say_what_is_missing(tmp_path):
    root = paths.data_root()
    for name in ("aiter_like", "csrc", "configs", "tuned_csv", "op_tests"):
        shutil.copytree(root / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "sim"))
    shutil.copytree(root / "aiter_like/sim", tmp_path / "aiter_like/sim")
    shutil.copytree(root / "csrc/sim", tmp_path / "csrc/sim")
    for name in ("README.md", "pyproject.toml", "pytest_aiter_like.py"):
        shutil.copy(root / name, tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def python(*args: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, *args], cwd=tmp_path, env=environment, capture_output=True, text=True,
                              check=False)

    made = python("-m", "aiter_like", "new-op", "cubed_and_clipped", "--family", "brand_new")
    assert made.returncode == 0, made.stderr
    files = [Path(line.removeprefix("written: ")) for line in made.stdout.splitlines() if line.startswith("written")]
    assert [str(file) for file in files] == [
        "aiter_like/ops/brand_new/cubed_and_clipped.py", "csrc/brand_new/cubed_and_clipped.hip",
        "aiter_like/ops/brand_new/triton/cubed_and_clipped.py", "op_tests/brand_new/test_cubed_and_clipped.py",
        "aiter_like/ops/index.py", "README.md", "aiter_like/ops/README.md"]
    assert max(len(line) for file in files[:4] for line in (tmp_path / file).read_text().splitlines()) <= 120
    lint = python("-m", "ruff", "check", "--output-format=concise", *map(str, files[:4:2]), str(files[3]))
    assert lint.returncode == 0, lint.stdout
    tests = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "--all-cases", str(files[3]), "-k",
                   "float32-hip or float32-torch or empty")
    assert "write the formula in float64, in its own words" in tests.stdout, tests.stdout[-3000:] + tests.stderr
    assert "write the formula here, then in the .hip and the Triton kernel" in tests.stdout
    assert "1 passed" in tests.stdout, "what the frame itself does must already work"


@pytest.mark.parametrize("wrong", (lambda x: x.double().exp() * (1 + 2**-12), lambda x: x.double().exp().half(),
                                   lambda x: x.exp() * (1 + 2**-19)), ids=("2^-12", "fp16", "2^-19"))
def test_the_tolerance_of_a_new_operators_test_tells_a_right_exp_from_a_rough_one(wrong):
    """In fp32 one whose argument times log2 e is rounded first is right, as kernels have it; in 16 bits one that is
    rounded once is.
    """
    text = (paths.data_root() / "aiter_like/cli/new_op/test.py.txt").read_text()
    names = {"torch": torch, "exact": lambda x: x.double().exp()}
    exec(text[text.index("def compare("):text.index("@pytest")], names)
    x = torch.randn(64, 1000, generator=torch.Generator().manual_seed(0))
    names["compare"]((x * 1.4426950408889634).exp2(), x)
    for dtype in (torch.bfloat16, torch.float16):
        narrow = x.to(dtype)
        names["compare"](narrow.float().exp().to(dtype), narrow)
    with pytest.raises(AssertionError, match="not close"):
        names["compare"](wrong(x).float(), x)

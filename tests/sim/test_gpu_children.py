# SPDX-License-Identifier: MIT
"""Other interpreters that a program starts within sim.as_gpu() are as on a GPU, where the package is installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aiter_like import sim

ROOT = Path(__file__).resolve().parent.parent.parent
ASKING = """
import torch
print(torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.is_available() and torch.ones(2).cuda().device)
"""


@pytest.fixture
def ask(tmp_path):
    """What a program says that another interpreter runs, which reads the .pth files of an editable install."""
    (tmp_path / "_aiter_like.pth").write_text(f"{ROOT}\n")
    shutil.copy(ROOT / "aiter_like" / "integrations" / "aiter_like_startup.pth", tmp_path)

    def answer(first: str = "torch", **changes: str) -> str:
        code = f"import site; site.addsitedir({str(tmp_path)!r})\nimport {first}\n{ASKING}"
        done = subprocess.run([sys.executable, "-c", code], env=os.environ | changes, capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        return done.stdout.strip()

    return answer


def test_programs_that_a_program_starts(ask, monkeypatch):
    monkeypatch.setenv("AITER_LIKE_SIM", "devices=2")
    with sim.as_gpu():
        assert ask() == "True 2 cuda:0"
    assert ask() == "False 0 False" and os.environ["AITER_LIKE_SIM"] == "devices=2"


@pytest.mark.parametrize("first", ["aiter_like", "aiter_like.sim.torch_cuda", "pytest_aiter_like"])
def test_programs_that_import_the_package_first(ask, first):
    """It imports torch before it is whole."""
    with sim.as_gpu():
        assert ask(first) == "True 1 cuda:0"


def test_the_setting_alone(ask, monkeypatch):
    monkeypatch.delenv("AITER_LIKE_SIM", raising=False)
    with sim.as_gpu(), sim.as_gpu():
        assert os.environ["AITER_LIKE_SIM"].split(",")[0] == "gpu"
    assert "AITER_LIKE_SIM" not in os.environ
    assert ask(AITER_LIKE_SIM="gpu, threads=1", AITER_LIKE="1") == "True 1 cuda:0"

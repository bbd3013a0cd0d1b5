# SPDX-License-Identifier: MIT
"""The table of AITER's names against a checkout of AITER: a small one that is written here."""

import pytest
import torch

from aiter_like import cli
from aiter_like.enums import QuantType
from aiter_like.integrations.aiter import sources
from aiter_like.integrations.aiter.names import Name

FILES = {
    "__init__.py": "from .ops.norm import *\nfrom .ops.enum import QuantType\n",
    "ops/__init__.py": "",
    "ops/enum.py": "QuantType = type(_made(0))\n",
    "ops/norm.py": """
import torch
from torch import nn
from ..jit.core import compile_ops
from .enum import QuantType
if torch:
    from .parts import SIZE, DEVICE, Mode
BLOCK: int = 32

@compile_ops("module_norm")
def rms_norm(input, weight, epsilon, quant=QuantType.per_Token.value, block=BLOCK, size=SIZE): ...
def typed(x, dtype=torch.bfloat16, out_dtype=dtypes.fp8, device=DEVICE, *, more=None, **rest): ...
def rounded(x, mode=Mode.UP): ...
def newer(x, more=1): ...
def known(x): ...
def _private(x): ...
class Layer(nn.Module):
    @staticmethod
    def make(x, y=2): ...
    def run(self, x): ...
""",
    "ops/parts.py": "SIZE = 128\nDEVICE = made()\nclass Mode:\n    DOWN = 0\n    UP = 1\n",
    "ops/triton/__init__.py": '_BACKWARD_COMPAT_MAP = {"moe": "expert.moe"}\n',
    "ops/triton/expert/__init__.py": "",
    "ops/triton/expert/moe.py": "__all__ = ['fused']\ntry:\n    from missing import fused\n"
                                "except ImportError:\n    def fused(x, block=64): ...\n",
    "jit/__init__.py": "",
    "jit/core.py": "from chip_info import get_gfx\ndef compile_ops(name): ...\n",
}


@pytest.fixture()
def checkout(tmp_path):
    for name, text in FILES.items():
        file = tmp_path / "aiter" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


SYMBOLS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fnuz, "QuantType": QuantType}


def row(name, parameters, *modules):
    """A row that something with these parameters serves; None: something that is no function."""
    found = Name(name, modules, "x", "U", False, "section")
    found.__dict__["value"] = None if parameters is None else eval(f"lambda {parameters}: None", SYMBOLS)
    return found


def differences(checkout, *rows):
    return sources.compare(checkout, rows).different


@pytest.mark.parametrize(("parameters", "difference"), [
    ("input, weight, epsilon, quant=QuantType.per_Token, block=32, size=128", ""),
    ("input, weight, epsilon, quant=2, block=32, size=128, more=None", ""),
    ("input, weight, epsilon, quant=2, block=32", "size missing"),
    ("input, weight, epsilon, quant=1, block=32, size=128", "the default of quant is 1, not "),
    ("input, weight, epsilon, quant=2, block=64, size=128", "the default of block is 64, not 32"),
    ("input, weight, epsilon, quant=2, block=32, size=1", "the default of size is 1, not 128"),
    ("weight, input, epsilon, quant=2, block=32, size=128", "input is weight"),
    ("input, weight, epsilon=1e-6, quant=2, block=32, size=128", "the default of epsilon is 1e-06, not "),
])
def test_signatures(checkout, parameters, difference):
    for module in ("aiter.ops.norm", "aiter"):
        found = differences(checkout, row("rms_norm", parameters, module))
        assert len(found) == bool(difference)
        assert not found or found[0].startswith(f"{module}.rms_norm: {difference}")


def test_defaults_that_are_no_literals(checkout):
    same = "x, dtype=bf16, out_dtype=fp8, device='cuda', *, more=None, **rest"
    assert not differences(checkout, row("typed", same, "aiter.ops.norm"))
    assert not differences(checkout, row("rounded", "x, mode=1", "aiter.ops.norm"))
    assert differences(checkout, row("rounded", "x, mode=0", "aiter.ops.norm"))
    other = same.replace("dtype=bf16", "dtype=fp16")
    assert "the default of dtype is torch.float16, not torch.bfloat16" in differences(
        checkout, row("typed", other, "aiter.ops.norm"))[0]


def test_methods_and_earlier_names_of_modules(checkout):
    assert not differences(checkout, row("Layer.make", "x, y=2", "aiter.ops.norm"),
                           row("Layer.run", "x", "aiter.ops.norm"), row("fused", "x, block=64", "aiter.ops.triton.moe"))
    assert differences(checkout, row("fused", "x, block=32", "aiter.ops.triton.moe"))


def test_other_names_of_modules(checkout):
    today, earlier = "aiter.ops.triton.expert.moe", "aiter.ops.triton.moe"
    for known, other in ((today, earlier), (earlier, today)):
        found = sources.compare(checkout, (row("fused", "x, block=64", known),))
        assert found.paths == [f"{other}.fused"] and not found.unknown
    assert not sources.compare(checkout, (row("fused", "x", today, earlier), row("known", "x", "aiter"))).paths


def test_names_on_one_side_only(checkout):
    rows = (row("rms_norm", None, "aiter.ops.norm"), row("known", "x", "aiter.ops.norm"),
            row("older", "x", "aiter.ops.norm", "aiter.ops.gone_module"), row("get_gfx", "", "aiter.jit.core"),
            row("top", "x", "torch.ops.aiter"))
    found = sources.compare(checkout, rows)
    assert found.gone == ["aiter.ops.norm.older"] and found.compared == 1
    assert found.unknown == {"aiter.jit.core": ["compile_ops"],
                             "aiter.ops.norm": ["Layer", "newer", "rounded", "typed"]}


def test_command(checkout, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sources.aiter_names, "table", lambda: (row("newer", "x, more=2", "aiter.ops.norm"),))
    assert cli.main(["names", "--against", str(checkout)]) == 1
    printed = capsys.readouterr().out
    assert "differs: aiter.ops.norm.newer: the default of more is 2, not 1" in printed
    assert "unknown: aiter.ops.norm: Layer known rms_norm rounded typed" in printed
    assert "1 signatures compared, 1 differ; 0 names are not in AITER, 5 of AITER's not in the table" in printed
    with pytest.raises(ValueError, match="is no checkout of AITER"):
        sources.compare(tmp_path / "nothing")

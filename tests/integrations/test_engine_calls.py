# SPDX-License-Identifier: MIT
"""Every call of AITER's functions in the engines' sources fits our signatures, and what is missing is known.

`engine_calls` has the lists, one for each version of an engine that is served: `aiter-like names --calls WHEEL --output
tests/integrations/engine_calls/ENGINE-VERSION.txt` writes one, of a wheel that `pip download --no-deps` has fetched.
Tests marked `engine` hold them against the sources that are installed.
"""

import zipfile
from pathlib import Path

import pytest

from aiter_like import cli
from aiter_like.integrations.aiter import calls as aiter_calls
from aiter_like.integrations.versions import SUPPORTED

LISTS = sorted((Path(__file__).parent / "engine_calls").glob("*.txt"))

# Keywords that an engine passes where it has found them in the signature, or never to AITER's function.
ASKED = {"aiter.fused_moe.fused_moe quant_dtype_a": "vLLM asks fused_moe_supports_quant_dtype_a",
         "aiter.fused_moe.fused_moe no_combine": "SGLang asks _aiter_fused_moe_supports_no_combine",
         "aiter.fused_moe.fused_moe output": "SGLang asks _aiter_fused_moe_supports_output",
         "aiter.ops.triton.mha.flash_attn_varlen_func fa_version": "vLLM passes it on CUDA alone"}

PROGRAM = """
import functools
import aiter
from aiter.ops.mhc import thing as other

ready = functools.partial(other, 2, z=1)

def run(x, rope):
    if x:
        from flashinfer import mhc_post
        return mhc_post(x)
    if not x:
        from aiter.ops.mhc import mhc_post
        return mhc_post(x, 1)
    try:
        from aiter.a import g
    except ImportError:
        from aiter.b import g
    h = None
    if x:
        from aiter import h
    h(x, a=1)
    options = {"a": 1} if x else {}
    options["b"] = 2
    options.update(c=3)
    g(x, *x, **options)
    rope(1), x.aiter.nothing(1), aiter.logger.info
    aiter.rms_norm(*x, **rope)

def lazy():
    from aiter import late
    return late

class Layer:
    ours = staticmethod(other)

    def __init__(self):
        self.pair, self.not_ours = 1, print
        self.ops = torch.ops.aiter
        self.norm = aiter.rms_norm if aiter else None

    def run(self):
        self.ops.k(1), self.norm(1, 2), lazy()(7), self.ours(k=1), self.not_ours(4)
        getattr(aiter, "gelu")(1)
"""


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_call_fits(path):
    lines = aiter_calls.lines_of(path.read_text())
    assert sum("(" in line for line in lines) > 150
    assert [f"{line}: {reason}" for line, reason in aiter_calls.unfit(lines, ASKED)] == []


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_missing_names_are_listed(path):
    engine, _, version = path.stem.partition("-")
    missing = Path(__file__).with_name(f"{engine}_missing_{version}.txt").read_text().splitlines()
    assert aiter_calls.absent(aiter_calls.lines_of(path.read_text())) == [
        line for line in missing if line and not line.startswith("#")]


def test_lists_are_of_the_versions_that_the_adapters_were_written_against():
    expected = {f"{engine}-{version}" for engine in ("vllm", "sglang") for version in SUPPORTED[engine].seen}
    assert {path.stem for path in LISTS} == expected


def test_a_call_that_does_not_fit_is_found():
    lines = ["aiter.rms_norm(_, _)", "aiter.rms_norm(_, _, _)", "aiter.rms_norm(_, **_)", "aiter.rms_norm(*_, new=...)",
             "aiter.no_such(_)", "aiter.gemm_a8w8_mxfp8()", "aiter.tuned_gemm.tgemm.mm(_, _, out=_)", "aiter.rms_norm"]
    found = dict(aiter_calls.unfit(lines))
    assert set(found) == {lines[0], lines[3], lines[6]}
    assert "epsilon" in found[lines[0]] and "'new'" in found[lines[3]] and "'out'" in found[lines[6]]
    assert set(dict(aiter_calls.unfit(lines, {"aiter.rms_norm new"}))) == {lines[0], lines[6]}
    assert aiter_calls.absent([*lines, "torch.ops.aiter.no_such(_)", "aiter.ops.mhc.mhc_pre(_)"]) == [
        "aiter.no_such", "torch.ops.aiter.no_such"]


def test_calls_of_a_program():
    other = "from .a import lazy\nfrom program.a import other\nother(4, 5)\nlazy()  # aiter"
    assert {line for line in aiter_calls.written({"program/a.py": PROGRAM, "program/b.py": other}) if "(" in line} == {
        "aiter.a.g(_, *_, a=..., b=..., c=...)", "aiter.b.g(_, *_, a=..., b=..., c=...)", "aiter.h(_, a=_)",
        "aiter.late(_)", "aiter.ops.mhc.mhc_post(_, _)", "aiter.ops.mhc.thing(_, *_, z=_, **_)",
        "aiter.ops.mhc.thing(k=_)", "aiter.ops.mhc.thing(_, _)", "aiter.rms_norm(_, _)", "aiter.rms_norm(*_, **_)",
        "aiter.gelu(_)", "torch.ops.aiter.k(_)"}


def test_command_reads_wheels_and_folders(tmp_path, capsys):
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "a.py").write_text("import aiter\naiter.rms_norm(1)\naiter.no_such\n")
    (tmp_path / "program" / "template.py").write_text("aiter {{ no Python }}")
    with zipfile.ZipFile(tmp_path / "program.whl", "w") as wheel:
        wheel.write(tmp_path / "program" / "a.py", "program/a.py")
    for path in ("program", "program.whl"):
        assert cli.main(["names", "--calls", str(tmp_path / path), "--output", str(tmp_path / "list.txt")]) == 0
        found = aiter_calls.lines_of((tmp_path / "list.txt").read_text())
        assert found == {"aiter": "a.py", "aiter.no_such": "a.py", "aiter.rms_norm(_)": "a.py:2"}
        said = capsys.readouterr().err
        assert "does not fit: aiter.rms_norm(_)  # a.py:2: missing" in said and "absent: aiter.no_such" in said

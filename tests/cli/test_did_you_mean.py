# SPDX-License-Identifier: MIT
"""An unknown name of any kind is answered with the known one that is like it, by one helper."""

import re
from pathlib import Path

import pytest
from toys import make_op, run

import aiter_like
from aiter_like import cli, env, integrations, log
from aiter_like.dispatch import declaration, find_op
from aiter_like.errors import did_you_mean
from aiter_like.integrations import takeover
from aiter_like.tuning import models, shapes


@pytest.mark.parametrize(("name", "known", "text"), [
    ("rms_nrom", ["rope", "rms_norm"], " (did you mean rms_norm?)"),
    ("rmsnorm", ["RMSNorm", "rms_norm"], " (did you mean RMSNorm or rms_norm?)"),
    ("xyz", ["rope", "rms_norm"], ""), ("", ["a"], ""), ("a", [], "")])
def test_helper(name, known, text):
    assert did_you_mean(name, known) == text


@pytest.mark.parametrize(("argv", "text"), [
    (["docter"], "did you mean doctor?"),
    (["expalin", "rms_norm"], "did you mean explain?"),
    (["sim", "chek", "x.py"], "did you mean check?"),
    (["doctor", "--engine", "transformer"], "did you mean transformers?"),
    (["tune", "rms_norm", "--shpae", "rows=1"], "did you mean --shape"),
])
def test_commands_choices_and_options(capsys, argv, text):
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2 and text in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "text"), [
    (["explain", "rms_nrom", "input=bf16[1,8]"], "no public function 'rms_nrom' (did you mean rms_norm"),
    (["explain", "flash_attn_fwd"], "flash_attn_fwd is an operator, and no function"),
    (["tune", "rms_nrom", "--shape", "rows=1"], "rms_nrom is no operator of aiter_like (did you mean rms_norm"),
    (["bench", "rms_nrom"], "rms_nrom is no operator of aiter_like (did you mean rms_norm"),
    (["verify", "rms_nrom"], "no operator rms_nrom (did you mean rms_norm"),
    (["build", "rms_nrom"], "no module rms_nrom (did you mean rms_norm"),
    (["tune", "rms_norm", "--shape", "rows=1,hiden=4096,dtype=bf16,has_residual=0"],
     "missing: hidden; unknown: hiden (did you mean hidden?"),
    (["tune", "rms_norm", "--model", "llama-3-80b"], "no model 'llama-3-80b' (did you mean llama-3-8b"),
])
def test_names_of_operators_columns_and_models(capsys, argv, text):
    assert cli.main(argv) == 1
    err = capsys.readouterr().err
    assert text in err and err.count("\n") == 1


def test_in_python(capsys):
    with pytest.raises(AttributeError, match=r"no attribute 'rms_nrom', nor has AITER \(did you mean rms_norm"):
        _ = aiter_like.rms_nrom
    with pytest.raises(ValueError, match="did you mean flash_attn_fwd"):
        find_op("flash_atn_fwd")
    assert shapes.did_you_mean is models.did_you_mean is log.did_you_mean is did_you_mean


def test_variables(monkeypatch, caplog):
    monkeypatch.setenv("AITER_LIKE_DISABEL", "rope")
    log.first_use.cache_clear()
    log.first_use()
    assert "AITER_LIKE_DISABEL is not a variable of aiter_like (did you mean AITER_LIKE_DISABLE?)" in caplog.text
    assert env.unknown() == ["AITER_LIKE_DISABEL"]


class TestDisabled:
    @pytest.fixture(autouse=True)
    def listed(self, monkeypatch):
        monkeypatch.setenv("AITER_LIKE_DISABLE", "rms_nrom,rms_norm,flash_attn_func,vllm.SiluAndMul,rmsnorm2d_fwd")
        declaration.tell_unknown_disabled.cache_clear()
        takeover.forget()
        yield
        declaration.tell_unknown_disabled.cache_clear()
        takeover.forget()

    def test_without_engines_only_operators_mean_something(self, machine, monkeypatch, caplog):
        op = make_op()
        monkeypatch.setenv("AITER_LIKE_DISABLE", f"{op.name},{op.name}_,flash_attn_func")
        monkeypatch.delitem(declaration.sys.modules, takeover.__name__)
        run(op)
        run(make_op())
        told = [message for message in caplog.messages if "AITER_LIKE_DISABLE:" in message]
        assert told == [f"AITER_LIKE_DISABLE: '{op.name}_' is no operator (did you mean {op.name}?)",
                        "AITER_LIKE_DISABLE: 'flash_attn_func' is no operator"]

    def test_engines_have_functions_and_layers_too(self, caplog):
        for _ in range(2):
            takeover.take("toy.scaled", sum, max)
        (told,) = [message for message in caplog.messages if "AITER_LIKE_DISABLE:" in message]
        assert "'rms_nrom' is no operator, nor a function" in told and "did you mean rms_norm" in told

    def test_doctor_says_so(self, capsys):
        cli.main(["doctor"])
        assert "PROBLEM  AITER_LIKE_DISABLE: 'rms_nrom' is no operator" in capsys.readouterr().out


def test_names_of_adapters_are_those_they_take():
    """What `take` is called with, or a table of layers has, is known to AITER_LIKE_DISABLE."""
    folder = Path(integrations.__file__).parent
    source = "\n".join(path.read_text() for path in sorted(folder.rglob("*.py")) if path.name != "takeover.py")
    taken = set(re.findall(r'take\(\s*"\w+\.(\w+)"', source)) | set(re.findall(r'"transformers\.(\w+)", "', source))
    rows = set(re.findall(r'"(\w+(?:Norm|AndMul\w*|Embedding))"', source))
    assert len(taken) >= 6 and len(rows) >= 10
    assert taken | rows <= takeover.NAMES | set(aiter_like.__all__), (taken | rows) - takeover.NAMES

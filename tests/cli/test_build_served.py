# SPDX-License-Identifier: MIT
"""`aiter-like build --model` and `--recorded`: what they list is what first calls load."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import first_calls
import model_calls
import pytest
import torch

import aiter_like
from aiter_like import cli, device
from aiter_like.cli import main
from aiter_like.dispatch import OPS, selection, table, without_memory
from aiter_like.dispatch import reset as forget_plans
from aiter_like.errors import TuningError
from aiter_like.modules import build
from aiter_like.tuning import models, modules


class Asked(BaseException):
    """Ends a call where it would build: no other backend is tried."""


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """Names of the modules that calls on the simulated device ask for, of which none is built."""
    names = []

    def ensure(spec, **_options):
        names.append(spec.name)
        raise Asked

    from aiter_like.sim import seam

    monkeypatch.setattr(seam, "load", lambda: None)
    monkeypatch.setattr(build, "ensure", ensure)
    for op in OPS.values():
        for backend in op.backends:
            if hasattr(backend.function, "_bound"):
                monkeypatch.setattr(backend.function, "_bound", {})
    device.use_simulator(True)
    yield names
    device.reset()
    forget_plans()


def listed(capsys, *words: str) -> set[str]:
    assert main(["build", "--list", *words]) == 0
    return set(capsys.readouterr().out.splitlines())


def test_what_a_model_takes_is_what_first_calls_ask_for(asked, capsys, monkeypatch):
    monkeypatch.setattr(modules, "TOKENS", (1, 5, 48, 104))
    names = ("gemm_a16w16", "gemm_a16w16_skinny", "rms_norm", "act_and_mul")
    found = listed(capsys, *names, "--model", "llama-3-8b", "--tp", "8")
    assert "sim" not in found and not any("paged_attention" in name for name in found)
    model = models.load("llama-3-8b")
    hidden, inner = model.hidden_size, model.intermediate_size // 8
    for tokens in (1, 5, 48, 104):
        x, w = torch.zeros(tokens, hidden, dtype=torch.bfloat16), torch.zeros(2 * inner, hidden, dtype=torch.bfloat16)
        head, gates = w.new_empty(-(-model.vocab_size // 8), hidden), x.new_zeros(tokens, 2 * inner)
        for function, args in ((aiter_like.rms_norm, (x, x[0], 1e-5)), (aiter_like.gemm_a16w16, (x, w)),
                               (aiter_like.gemm_a16w16, (x, head)),
                               (aiter_like.silu_and_mul, (gates[:, :inner].clone(), gates))):
            with pytest.raises(Asked):
                function(*args)
            assert asked.pop() in found


def test_a_compiled_row_behind_others_is_built(asked, capsys, monkeypatch, tmp_path):
    """The vendor's library, and Triton of the version that a row names, may be missing where the call is made."""
    monkeypatch.setattr(modules, "TOKENS", (96,))
    rows = {"rms_norm": ("triton,rms_norm,num_warps=4", "hip,rms_norm[bf16_l64_v8x8],lanes=64"),
            "gemm_a16w16": ("vendor,vendor,", "triton,gemm_a16w16,num_warps=4",
                            "ck,gemm_a16w16[bf16_t192x256_w1x4x1_s2],splits=2;tile=t192x256_w1x4x1")}
    for name, entries in rows.items():
        op = OPS[name]
        keys = [",".join(map(str, key.values())) for key in models.keys(op, models.load("llama-3-8b"), 8, (96,))]
        lines = [f"gfx942,304,{key},{entry},{us},0,,,measured:test" for key in keys
                 for us, entry in enumerate(entries, 1)]
        (tmp_path / f"{name}.csv").write_text("\n".join([",".join(table.columns(op.tune_fields)), *lines]) + "\n")
    monkeypatch.setenv("AITER_LIKE_TUNED", str(tmp_path))
    forget_plans()
    found = listed(capsys, *rows, "--model", "llama-3-8b", "--tp", "8")

    monkeypatch.setattr(selection, "_has_triton", lambda: False)
    x, w = torch.zeros(96, 4096, dtype=torch.bfloat16), torch.zeros(768, 4096, dtype=torch.bfloat16)
    for function, args, part in ((aiter_like.rms_norm, (x, x[0], 1e-5), "_l64_"),
                                 (aiter_like.gemm_a16w16, (x, w), "_t192x256_")):
        with pytest.raises(Asked):
            function(*args)
        assert (name := asked.pop()) in found and part in name


def test_recorded_shapes_give_the_modules_of_their_tiles(capsys, tmp_path):
    (tmp_path / "rms_norm.host.1.csv").write_text(
        f"arch,cu_num,{','.join(OPS['rms_norm'].tune_fields)}\n" + _row("rms_norm", "llama-3-8b"))
    found = listed(capsys, "rms_norm", "act_and_mul", "--recorded", str(tmp_path))
    assert found and all(name.startswith("norm/rms_norm-bf16") for name in found)
    with pytest.raises(TuningError, match="is no directory"):
        modules.of_recorded(tmp_path / "none", OPS.values())


def _row(op: str, model: str) -> str:
    key = models.keys(OPS[op], models.load(model), 1)[0]
    return ",".join(map(str, ("gfx942", 304, *key.values()))) + "\n"


def test_calls_of_experts_are_planned_without_data(monkeypatch):
    """Data, even of indices alone, cost a minute for a model with experts."""
    monkeypatch.setattr(without_memory, "_LargeAreFake", lambda: pytest.fail("a case asked for data"))
    with device.planning_for("gfx942") as target:
        for name in ("grouped_gemm", "moe_gemm", "moe_sum", "topk_gating"):
            keys = models.keys(OPS[name], models.load("deepseek-v3"), 8, (1, 64))
            assert [spec.name for _, spec in modules.of_keys(OPS[name], keys, target)]


def test_an_unknown_model_is_named(capsys):
    assert main(["build", "--list", "--model", "llama-3-8"]) == 1
    assert "no model 'llama-3-8' (did you mean" in capsys.readouterr().err.replace("; did", " (did")


def test_choosing_shows_how_far_it_is(monkeypatch):
    texts = []

    @contextlib.contextmanager
    def shown(text):
        texts.append(text())
        yield
        texts.append(text())

    monkeypatch.setattr(cli.build.progress, "shown", shown)
    cli.build.selected(["rms_norm"], "gfx942", modules.of_model(models.load("llama-3-8b"), 8))
    assert texts == [f"choosing modules: {done} of {len(OPS)} operators" for done in (0, len(OPS))]


@pytest.fixture
def prebuilt(tmp_path, monkeypatch, simulated) -> Path:
    """What `build --recorded` makes of the shapes of first_calls.py, and the simulator; from this suite's cache, where
    it has them.
    """
    monkeypatch.setenv("AITER_LIKE_RECORD", str(tmp_path / "shapes"))
    with aiter_like.use_backend("torch"):
        for function, arguments in first_calls.calls().values():
            function(*arguments)
    monkeypatch.delenv("AITER_LIKE_RECORD")
    device.reset()
    names = ("rms_norm", "gemm_a16w16", "gemm_a16w16_skinny", "paged_attention", "sim")
    assert main(["build", *names, "--recorded", str(tmp_path / "shapes"), "--output", str(tmp_path / "built")]) == 0
    return tmp_path / "built"


def without_compilers(tmp_path: Path, built: Path, **changed: str) -> dict[str, str]:
    """The variables of a process that finds no compiler, an empty cache, and what was built."""
    (tmp_path / "bin").mkdir()
    closed = ("AITER_LIKE_TOOLCHAIN", "AITER_LIKE_RECORD", "CC", "CXX", "CUDA_HOME", "HIP_CLANG_PATH", "ROCM_PATH")
    return {name: value for name, value in os.environ.items() if name not in closed} | {
        "PATH": str(tmp_path / "bin"), "AITER_LIKE_CACHE_DIR": str(tmp_path / "cache"), "AITER_LIKE_SIM": "threads=2",
        "AITER_LIKE_PREBUILT_DIR": str(built), "PYTHONPATH": str(Path(aiter_like.__file__).parents[1]), **changed}


def test_without_a_compiler_first_calls_load_what_was_built(prebuilt, tmp_path):
    env = without_compilers(tmp_path, prebuilt, AITER_LIKE_BACKENDS="hip,torch")
    run = subprocess.run([sys.executable, first_calls.__file__], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout.endswith("ok\n"), run.stdout + run.stderr
    assert not (tmp_path / "cache").exists() or not [*(tmp_path / "cache").glob("*/*/meta.json")]
    command = f"aiter-like build activation/act_and_mul --recorded DIR --output {prebuilt}"
    told = run.stdout.splitlines()[:-1]
    assert len(told) == 3, "the error; what is logged of the backend, and of the reference that serves"
    for line in told:
        assert f"{prebuilt}: activation/act_and_mul-silu_bf16_v2 is not in it" in line and command in line
        assert "clang" not in line


@pytest.mark.exhaustive
def test_a_model_of_eight_billion_runs_on_what_was_built(monkeypatch, tmp_path, simulated):
    """Each call of a layer and of what follows the last one, of 128 tokens: without a cache it takes minutes."""
    monkeypatch.setattr(modules, "TOKENS", (128,))
    device.reset()
    words = ("--model", "llama-3-8b", "--tp", "8", "--output", str(tmp_path / "built"))
    assert main(["build", *model_calls.OPERATORS, "sim", *words]) == 0
    env = without_compilers(tmp_path, tmp_path / "built", AITER_LIKE_BACKENDS="hip,ck,asm")
    run = subprocess.run([sys.executable, model_calls.__file__, "llama-3-8b", "8", "128"], env=env, cwd=tmp_path,
                         capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout.endswith("ok\n"), run.stdout + run.stderr
    assert not [*(tmp_path / "cache").glob("*/*/meta.json")]

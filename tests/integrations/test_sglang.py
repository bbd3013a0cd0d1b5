# SPDX-License-Identifier: MIT
"""SGLang itself, with our operators on the simulated MI300X: its hooks, its attention backend, its AITER path.

Needs SGLang in a virtual environment (engine_venv.py); `pytest -m engine tests/integrations/test_sglang.py`.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest
from engine_venv import ROOT, folder_of, python_of, run_in

from aiter_like.integrations.aiter import calls

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

SCRIPT = Path(__file__).with_name("sglang_process.py")
CALLS = Path(__file__).parent / "engine_calls" / "sglang-0.5.23.txt"
README = ROOT / "aiter_like" / "integrations" / "sglang" / "README.md"
SHIM = f"{ROOT / 'aiter_like' / 'integrations' / 'aiter' / 'shim_path'}{os.pathsep}{ROOT}"

# What sglang_process.py makes SGLang import: of its requirements, and of those of its video models. No CUDA package.
NEEDED = ("aiohttp", "apache-tvm-ffi", "compressed-tensors", "einops", "fastapi", "gguf", "IPython", "msgspec", "numpy",
          "openai", "orjson", "packaging", "partial_json_parser", "pillow", "psutil", "pybase64", "pydantic", "pyzmq",
          "requests", "sentencepiece", "setproctitle", "tqdm", "transformers", "uvicorn")
BESIDES = ("addict", "diffusers==0.37.0", "dill", "imageio", "torchvision==0.28.0")

LIMIT = 2**-8  # relative L2 of one rounding to bf16, and of P in attention; a wrong scale or row gives 0.05 and more
LAYERS = {"RMSNorm": 5, "GemmaRMSNorm": 2, "SiluAndMul": 2, "GeluAndMul": 2, "RotaryEmbedding": 3}
AS_CPU = {"SGLANG_USE_CPU_ENGINE": "1"}  # SGLang's CPU platform: elsewhere its rotary layer asks for vLLM's kernels


@pytest.fixture(scope="module")
def python(pytestconfig) -> str:
    return python_of("sglang", "sglang==0.5.23", pytestconfig, only=NEEDED, besides=BESIDES)


@pytest.fixture(scope="module")
def run(python):
    """Runs a case of sglang_process.py: `run(case, **variables)`."""
    return lambda case, **variables: run_in(python, SCRIPT, {"case": case}, **variables)


def warnings(result: dict) -> list[str]:
    """Without those of every process: that the device is simulated, and builds that take long."""
    return [text for level, text in result["messages"] if level == "WARNING" and "no GPU in use" not in text
            and not text.startswith("building ")]


def assert_close(errors: dict[str, float]) -> None:
    assert errors and all(0 < error < LIMIT for error in errors.values()), errors


def test_layers(run):
    """Every layer against float64, by our kernels; a refused one is SGLang's own, and that is said once."""
    result = run("layers", AITER_LIKE="1", **AS_CPU)
    assert_close(result["errors"])
    counts = result["counts"]
    assert counts.pop("sglang.RMSNorm") == [LAYERS["RMSNorm"], 2]
    assert counts == {f"sglang.{name}": [count, 0] for name, count in LAYERS.items() if name != "RMSNorm"}
    launches = {part: sum(count for name, count in result["kernels"].items() if part in name)
                for part in ("rms_norm", "act_and_mul", "rope")}
    assert launches == {"rms_norm": 7, "act_and_mul": 3, "rope": 3}  # no launch for the empty call
    assert len(warnings(result)) == 1 and "variance over part of the row" in warnings(result)[0]
    taken = {text for _, text in result["messages"] if re.fullmatch(r"sglang\..*: taken", text)}
    assert taken == {f"sglang.{name}: taken" for name in LAYERS}


@pytest.mark.parametrize("value", [None, "0"])
def test_inert_without_the_switch(run, value):
    result = run("layers", **AS_CPU, **({} if value is None else {"AITER_LIKE": value}))
    assert_close(result["errors"])
    assert not result["is_loaded"] and not result["hooks"] and not result["messages"]


def test_denied_operators_stay(run):
    result = run("layers", AITER_LIKE="1", AITER_LIKE_DISABLE="rms_norm,SiluAndMul", **AS_CPU)
    assert_close(result["errors"])
    assert sorted(result["denied"]) == ["sglang.GemmaRMSNorm", "sglang.RMSNorm", "sglang.SiluAndMul"]
    assert result["counts"] == {f"sglang.{name}": [LAYERS[name], 0] for name in ("GeluAndMul", "RotaryEmbedding")}


def test_out_of_tree_platform(run):
    """There SGLang asks its registry of forward functions instead of the hooks."""
    result = run("out_of_tree", AITER_LIKE="1", **AS_CPU)
    assert_close(result["errors"])
    assert not result["hooks"] and result["registered"] == sorted(LAYERS)
    assert result["counts"]["sglang.RMSNorm"] == [LAYERS["RMSNorm"], 2]


def test_attention_backend(run):
    """Prefill, mixed and decode over the token pool against float64; the refused call is torch_native's."""
    result = run("attention", AITER_LIKE="1")
    assert result["is_choice"] and result["own"] == "TorchNativeAttnBackend"
    assert_close(result["errors"])
    served = len(result["errors"]) - 1
    assert result["served"]["counts"]["sglang.attention"] == [served, 0]
    assert sum(count for name, count in result["served"]["kernels"].items() if "attention" in name) == served
    assert result["counts"]["sglang.attention"] == [served, 1]
    assert len(warnings(result)) == 1 and "a layout of the pool's own" in warnings(result)[0]


def test_latent_attention_gets_another_backend(run):
    result = run("latent", AITER_LIKE="1")
    assert result["is_own"] and "latent attention" in " ".join(warnings(result))


def test_video_models(run):
    """Attention of Wan 2.1's head dimension, self, cross and packed, against float64; dropout is SGLang's own."""
    result = run("diffusion", AITER_LIKE="1")
    assert_close(result["errors"])
    assert result["served"]["counts"] == {"sglang.diffusion_attention": [3, 0]}
    assert sum(count for name, count in result["served"]["kernels"].items() if "flash_attn_fwd" in name) == 3
    assert result["counts"] == {"sglang.diffusion_attention": [3, 1]}
    assert result["backend"] == "TORCH_SDPA" and len(warnings(result)) == 1


def test_video_models_without_the_switch(run):
    result = run("diffusion")
    assert_close(result["errors"])
    assert result["is_own"] and not result["is_loaded"]


def test_undone_and_installed_again(run):
    assert run("undone", AITER_LIKE="1", **AS_CPU)["found"] == [[False, False], [True, True]]


def test_recorded_calls_are_those_of_its_sources(python):
    """test_engine_calls.py checks the list, without SGLang."""
    found = calls.written(calls.sources(folder_of(python, "sglang")))
    assert found == calls.lines_of(CALLS.read_text())


def test_aiter_path_of_rocm_starts(run):
    """As a gfx942 with SGLANG_USE_AITER=1, what models of this package's families import at start is there."""
    result = run("rocm", AITER_LIKE="1", SGLANG_USE_AITER="1", PYTHONPATH=SHIM)
    assert result["failed"] == {} and len(result["imported"]) > 15
    assert result["bound"] == {"rms_norm": "rmsnorm2d_fwd", "silu_and_mul": "silu_and_mul", "use_aiter": True}


def test_readme(python, tmp_path):
    """Its Python runs."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
    assert "status()" in code
    script = tmp_path / "readme.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(SCRIPT.parent)!r})\n"
                      f"import sglang_process\nsglang_process.stand_in_for_torchvision()\n{code}")
    done = subprocess.run([python, str(script)], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^sglang.RMSNorm 1 0$", done.stdout, re.MULTILINE), done.stdout

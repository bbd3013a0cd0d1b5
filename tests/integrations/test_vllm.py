# SPDX-License-Identifier: MIT
"""vLLM itself, on its CPU platform with our operators on the simulated MI300X: same tokens as stock, and who served.

Needs vLLM in a virtual environment (engine_venv.py); `pytest -m engine tests/integrations/test_vllm.py`.
"""

import functools
import json
import re
import subprocess
from pathlib import Path

import pytest
from engine_venv import ROOT, environment, run_in
from tiny_checkpoint import LAYERS, write
from vllm_process import LLM_OPTIONS, NEW_TOKENS
from vllm_versions import VERSIONS, python_with_vllm

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

SCRIPT = Path(__file__).with_name("vllm_process.py")
README = ROOT / "aiter_like" / "integrations" / "vllm" / "README.md"

# Prompts whose stock tokens lead the runner-up by 0.25 or more in log-probability.
PROMPTS = {"llama": [[123, 146, 28, 93, 114, 83, 159], [238, 143, 237, 6, 26]],
           "qwen3": [[242, 176, 8, 142, 111], [255, 235, 139]],
           "deepseek_v2": [[85, 28, 217, 18, 184, 61, 74], [233, 170, 170, 225, 205]],
           "mixtral": [[64, 208, 250, 39, 208, 142], [159, 129, 214]],
           "qwen3_moe": [[235, 58, 132, 38, 75], [64, 208, 250, 39, 208, 142]],
           "deepseek_v3": [[114, 83, 159, 166, 236], [6, 26, 187, 218]]}
NORMS = {"llama": 2 * LAYERS + 1, "qwen3": 4 * LAYERS + 1}  # per step: qwen3 also norms queries and keys
LOGPROB_TOLERANCE = 0.15  # of bf16 activations in two layers; stock's own change by that between batch sizes


@pytest.fixture(scope="module", params=VERSIONS)
def version(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def python(version, pytestconfig) -> str:
    return python_with_vllm(version, pytestconfig)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for model_type in PROMPTS:
        write(folder / model_type, model_type)
    return folder


@pytest.fixture(scope="module")
def generate(python, models):
    """Runs one vLLM, or returns what it gave before: `generate(model type, variables, **request)`."""

    @functools.cache
    def run(model_type: str, variables: tuple[tuple[str, str], ...] = (), **request) -> dict:
        if "compiled" in request:
            request = {"options": {"enforce_eager": not request["compiled"]}}
        if "sampling" in request:  # text, which the cache of calls can hold
            request["sampling"] = json.loads(request["sampling"])
        request |= {"model": str(models / model_type), "prompts": PROMPTS[model_type]}
        return run_in(python, SCRIPT, request, **dict(variables))

    return run


ON = (("AITER_LIKE", "1"),)


def served(result: dict, *, is_compiled: bool = False) -> dict[str, int]:
    """Name without "vllm." → calls that ours served; none fell back. Where graphs are compiled vLLM warms up its
    sampler, too, once with generators of requests, which are left to it: those are not counted."""
    counts = {name: calls for name, calls in result["counts"].items() if not (is_compiled and name == "vllm.sampler")}
    assert not any(fell_back for _, fell_back in counts.values()), counts
    return {name.removeprefix("vllm."): count for name, (count, _) in counts.items() if count}


def launches(result: dict, name: str) -> int:
    return sum(count for kernel, count in result["kernels"].items() if name in kernel)


def assert_same_tokens(found: dict, stock: dict) -> None:
    """Greedy tokens and their log-probabilities; after a near-tie of stock's the sequences may part."""
    for tokens, logprobs, expected, expected_logprobs in zip(
            found["tokens"], found["logprobs"], stock["tokens"], stock["logprobs"]):
        assert len(tokens) == len(expected) == NEW_TOKENS
        for token, ours, other, theirs in zip(tokens, logprobs, expected, expected_logprobs):
            best = theirs[str(other)]
            assert abs(ours[str(other)] - best) < LOGPROB_TOLERANCE, (tokens, expected)
            if token != other:
                assert best - theirs[str(token)] < LOGPROB_TOLERANCE, (tokens, expected)
                break


def test_without_the_switch_vllm_is_stock(generate):
    stock = generate("llama")
    assert stock["counts"] == stock["kernels"] == {} and stock["classes"] == stock["backends"] == []
    assert not stock["is_loaded"] and not stock["messages"] and stock["key"] is None


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_our_kernels_serve_every_layer_and_the_tokens_are_stocks(generate, model_type):
    result = generate(model_type, ON)
    assert_same_tokens(result, generate(model_type))
    counts = served(result)
    steps = counts["attention"] // LAYERS
    assert steps >= NEW_TOKENS
    per_step = {"attention": LAYERS, "kv_cache": LAYERS, "RotaryEmbedding": LAYERS, "SiluAndMul": LAYERS,
                "RMSNorm": NORMS[model_type], "greedy_sample": 1}
    assert counts == {name: steps * count for name, count in per_step.items()}
    kernels = {"attention_kernel": LAYERS, "reshape_and_cache_kernel": LAYERS, "rope_kernel": LAYERS,
               "act_and_mul_kernel": LAYERS, "rms_norm_kernel": NORMS[model_type], "sample_kernel": 1}
    assert {name: launches(result, name) for name in kernels} == {
        name: steps * count for name, count in kernels.items()}
    messages = "\n".join(text for _, text in result["messages"])
    assert all(f"vllm.{name}: taken" in messages for name in per_step), messages
    assert not warnings(result)


def warnings(result: dict) -> list[str]:
    """But for what is said of builds, and of the simulator."""
    return [text for level, text in result["messages"]
            if level == "WARNING" and "no GPU in use" not in text and not text.startswith("building ")]


def test_our_kernels_serve_latent_attention(generate):
    """Expanded prompts, then decoding over the latents; stock's rotary kernel is replaced by its formula."""
    result = generate("deepseek_v2", ON)
    assert_same_tokens(result, generate("deepseek_v2", rotate_by_formula=True))
    counts = served(result)
    steps = counts["mla_cache"] // LAYERS
    assert steps >= NEW_TOKENS and counts["greedy_sample"] == steps
    assert counts["mla_decode"] == launches(result, "mla_decode") >= LAYERS * (NEW_TOKENS - 1)
    assert counts["mla_prefill"] == launches(result, "flash_attn") >= LAYERS
    assert counts["mla_cache"] == launches(result, "reshape_and_cache_kernel")
    assert counts["RMSNorm"] == steps * (3 * LAYERS + 1) and counts["RotaryEmbedding"] == steps * LAYERS
    assert not warnings(result)


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_our_kernels_serve_experts(generate, model_type):
    """After vLLM's own routing: softmax over the chosen, over all, and sigmoids with a bias in groups, where an expert
    of all tokens is added by vLLM."""
    result = generate(model_type, ON)
    assert_same_tokens(result, generate(model_type, rotate_by_formula=model_type == "deepseek_v3"))
    counts = served(result)
    steps = counts["experts"] // LAYERS
    assert steps >= NEW_TOKENS and counts["experts"] == counts.get("attention", counts.get("mla_cache"))
    assert launches(result, "moe_gemm") >= 2 * counts["experts"]
    assert not warnings(result)


def test_our_kernels_draw_tokens(generate):
    """Of one token, after top-k, or after top-p, so that they are stock's greedy ones."""
    for filtered in ({"top_k": 1}, {"top_p": 1e-6}, {"top_k": 3, "top_p": 1e-6}):
        result = generate("llama", ON, sampling=json.dumps({"temperature": 1.0, **filtered}))
        assert_same_tokens(result, generate("llama"))
        assert launches(result, "filter_kernel") >= served(result)["sampler"] >= NEW_TOKENS


ASKED = (*ON, ("AITER_LIKE_BACKENDS", "hip,ck,triton"))  # for products, which the simulator leaves to vLLM
PRODUCTS = 4 * LAYERS + 1  # q, k and v at once; o; gate and up at once; down; and the logits


def test_our_kernels_serve_every_product(generate):
    """Also of layers whose weights vLLM packs for its own products on a CPU."""
    result = generate("llama", ASKED)
    assert_same_tokens(result, generate("llama"))
    counts = served(result)
    assert counts["linear"] == counts["attention"] // LAYERS * PRODUCTS == launches(result, "gemm_a16w16")


def test_products_are_in_the_graphs_that_inductor_compiles(generate, tmp_path):
    result = generate("llama", (*ASKED, ("VLLM_CACHE_ROOT", str(tmp_path))), compiled=True)
    assert_same_tokens(result, generate("llama"))
    steps = launches(result, "act_and_mul_kernel") // LAYERS  # the logits of warm-ups are not asked for
    assert steps * 4 * LAYERS < launches(result, "gemm_a16w16") <= steps * PRODUCTS
    assert served(result, is_compiled=True)["linear"] == launches(result, "gemm_a16w16")
    assert "UnquantizedLinearMethod" in result["key"]


def test_our_kernels_are_in_the_graphs_that_inductor_compiles(generate, tmp_path):
    result = generate("llama", (*ON, ("VLLM_CACHE_ROOT", str(tmp_path))), compiled=True)
    assert_same_tokens(result, generate("llama"))
    # The others are within graphs, where nothing is counted.
    assert set(served(result, is_compiled=True)) == {"attention", "kv_cache", "greedy_sample"}
    steps = launches(result, "act_and_mul_kernel") // LAYERS  # more than tokens: vLLM warms its graphs up
    assert steps > NEW_TOKENS and launches(result, "rope_kernel") == steps * LAYERS
    assert launches(result, "rms_norm_kernel") == steps * NORMS["llama"]
    assert "RMSNorm" in result["key"]  # of the folder where vLLM keeps them: stock vLLM must not find these


def test_operators_on_the_deny_list_stay_vllms(generate):
    result = generate("llama", (*ON, ("AITER_LIKE_DISABLE", "rms_norm,attention")))
    assert_same_tokens(result, generate("llama"))
    assert set(served(result)) == {"RotaryEmbedding", "SiluAndMul", "greedy_sample"}
    assert not launches(result, "rms_norm") and not launches(result, "attention") and launches(result, "rope")
    denied = [text.partition(":")[0] for _, text in result["messages"] if "engine (AITER_LIKE_DISABLE)" in text]
    assert {name for name in denied if name.startswith("vllm.")} == {  # vLLM imports transformers, which is served too
        "vllm.RMSNorm", "vllm.GemmaRMSNorm", "vllm.attention"}


def test_a_refused_attention_falls_back_to_vllms_own_on_the_same_cache(generate):
    result = generate("llama", ON, refuse=True)
    assert_same_tokens(result, generate("llama"))
    count, fell_back = result["counts"]["vllm.attention"]
    assert count == fell_back > 0 and result["counts"]["vllm.kv_cache"] == [count + fell_back, 0]
    assert warnings(result) == ["vllm.attention falls back to the engine's own: every second call is refused"]


def test_a_hook_that_fails_costs_one_warning(generate):
    result = generate("llama", ON, break_hook=True)
    assert result["tokens"] == generate("llama")["tokens"]
    assert result["classes"] == result["backends"] == [] and result["kernels"] == {}
    (text,) = warnings(result)
    assert "vllm (RuntimeError: the registry is closed)" in text


def test_backends_of_gpus_are_served_as_vllm_makes_them(python):
    """On CPU tensors: vLLM's classes, arguments and metadata, our kernels."""
    results = run_in(python, Path(__file__).with_name("vllm_gpu_backends.py"), {})
    assert list(results) == ["CUSTOM", "ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN"]
    for result in results.values():
        assert result["counts"] == {"vllm.attention": [1, 0], "vllm.kv_cache": [1, 0]} and result["error"] < 2e-2
    assert results["CUSTOM"]["name"] == "CUSTOM"  # vLLM looks the backend up by its name


def test_doctor_says_what_is_taken_and_denied(python, version):
    variables = {"AITER_LIKE": "1", "AITER_LIKE_DISABLE": "act_and_mul"}
    run = subprocess.run([python, "-m", "aiter_like", "doctor", "--engine", "vllm"], env=environment(**variables),
                         capture_output=True, text=True, check=False)
    lines = dict(line.split(maxsplit=1) for line in run.stdout.splitlines() if " " in line)
    assert run.returncode == 0 and re.match(rf"{version}(\+cpu)?; served", lines["vllm"]), run.stdout + run.stderr
    assert lines["plugin"] == "vllm.general_plugins: aiter_like.integrations:install"
    assert "vllm.RMSNorm" in lines["taken"] and lines["denied"].startswith("vllm.SiluAndMul, ")


def test_python_of_the_page_runs(python, models, tmp_path):
    """As it stands there, but for the model: the tiny one, which has no tokenizer."""
    model = models / "llama"
    code = "\n".join(re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
    code = code.replace('LLM("path/to/model")', f"LLM({str(model)!r}, **{LLM_OPTIONS!r})")
    code = code.replace('"The capital of France is"', '{"prompt_token_ids": [5, 6, 7]}')
    assert str(model) in code and "prompt_token_ids" in code
    script = tmp_path / "page.py"
    script.write_text(code)
    run = subprocess.run([python, str(script)], env=environment(), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert re.search(r"^vllm.attention \d+ 0 0$", run.stdout, re.MULTILINE), run.stdout

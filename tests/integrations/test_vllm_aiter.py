# SPDX-License-Identifier: MIT
"""vLLM's own wrappers of AITER's functions, on the shim: called as vLLM calls them, with results as its fakes say.

Needs vLLM in a virtual environment (engine_venv.py); `pytest -m engine tests/integrations/test_vllm_aiter.py`.
"""

import os
from pathlib import Path

import pytest
from engine_venv import ROOT, folder_of, run_in
from vllm_versions import VERSIONS, python_with_vllm

from aiter_like.integrations.aiter import calls as aiter_calls
from aiter_like.integrations.aiter import shim

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

SCRIPT = Path(__file__).with_name("vllm_aiter_process.py")
CALLS = {version: Path(__file__).parent / "engine_calls" / f"vllm-{version}.txt" for version in VERSIONS}


@pytest.fixture(scope="module", params=VERSIONS)
def version(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def python(version, pytestconfig) -> str:
    return python_with_vllm(version, pytestconfig)


@pytest.fixture(scope="module")
def result(python):
    return run_in(python, SCRIPT, {}, AITER_LIKE="1", PYTHONPATH=f"{shim.PATH}{os.pathsep}{ROOT}")


def test_results_are_what_vllm_expects_in_its_graphs(result):
    assert len(result["cases"]) > 15
    assert [name for name, case in result["cases"].items() if not case["as_faked"]] == []


def test_numbers_are_those_of_the_references(result):
    """To a step of the narrowest format: fp8 near its largest value, int8, or bf16."""
    wrong = {name: case for name, case in result["cases"].items() if case["error"] > 0.07 * max(case["scale"], 1)}
    assert not wrong


def test_our_kernels_served_every_call(result):
    assert {"aiter.rms_norm", "aiter.rmsnorm2d_fwd_with_add", "aiter.rmsnorm2d_fwd_with_dynamicquant",
            "aiter.rmsnorm2d_fwd_with_add_dynamicquant", "aiter.dynamic_per_token_scaled_quant",
            "aiter.dynamic_per_tensor_quant", "aiter.static_per_tensor_quant",
            "aiter.ops.triton.fused_fp8_quant.fused_rms_fp8_group_quant",
            "aiter.ops.triton.activation.act_mul_and_fp8_group_quant",
            "aiter.ops.triton.fused_add_rmsnorm_pad.fused_add_rmsnorm_pad",
            "aiter.ops.fused_qk_norm_rope_cache_quant._fused_qk_rmsnorm",
            "aiter.ops.triton.rope.rope.rope_cached_thd_positions_offsets_2c_fwd_inplace",
            "aiter.flash_attn_varlen_fp8_pertensor_func"} <= set(result["served"])


def test_recorded_calls_are_those_of_its_sources(python, version):
    """test_engine_calls.py checks the list, without vLLM."""
    found = aiter_calls.written(aiter_calls.sources(folder_of(python, "vllm")))
    assert found == aiter_calls.lines_of(CALLS[version].read_text())

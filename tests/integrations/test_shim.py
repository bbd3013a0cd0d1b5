# SPDX-License-Identifier: MIT
"""The shim named `aiter`, in fresh processes as an engine starts them: what is imported there, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiter_like import cli
from aiter_like.integrations.aiter import shim

ROOT = Path(__file__).resolve().parent.parent.parent

# What SGLang 0.5.23 imports when it starts; one that is missing stops every model.
SGLANG_STARTS = """
from aiter import (QuantType, biased_grouped_topk, dynamic_per_tensor_quant, dynamic_per_token_scaled_quant,
    static_per_tensor_quant, gemm_a8w8_blockscale, gemm_a8w8_blockscale_bpreshuffle, gemm_a8w8_bpreshuffle,
    get_hip_quant, greedy_sample, layernorm2d_fwd, rmsnorm2d_fwd, rmsnorm2d_fwd_with_add, silu_and_mul, moe_sum)
from aiter import (flash_attn_varlen_func, flash_attn_varlen_fp8_pertensor_func, mha_batch_prefill_func,
    paged_attention_ragged, get_mla_metadata_info_v1, get_mla_metadata_v1, get_ps_metadata_info_v1,
    get_ps_metadata_v1, mla_prefill_ps_asm_fwd, mla_reduce_v1)
from aiter.mla import mla_decode_fwd, mla_prefill_fwd
from aiter.ops.triton.attention.unified_attention import unified_attention
from aiter.fused_moe import fused_topk, fused_moe
from aiter.tuned_gemm import tgemm
from aiter.rotary_embedding import get_rope
from aiter.ops.shuffle import (shuffle_weight, shuffle_scale, shuffle_weight_a16w4, shuffle_scale_a16w4,
    moe_shuffle_weight, moe_shuffle_scale)
from aiter.ops.quant import per_group_quant_hip
from aiter.ops.rmsnorm import rmsnorm_quant, add_rmsnorm_quant
from aiter.ops.cache import indexer_k_quant_and_cache, cp_gather_indexer_k_quant_cache
from aiter.utility.fp4_utils import e8m0_shuffle
from aiter.ops.triton.gemm_a16w16 import gemm_a16w16
from aiter.ops.triton.gemm_a8w8_blockscale import gemm_a8w8_blockscale
from aiter.ops.triton.quant import dynamic_mxfp4_quant
from aiter.ops.triton.utils._triton.kernel_repr import make_kernel_repr
from aiter.ops.triton.fused_qk_concat import fused_qk_rope_cat
from aiter.ops.triton.fused_kv_cache import fused_qk_rope_cat_and_cache_mla
from aiter.ops.enum import QuantType as other_path
from aiter.ops.fused_qk_rmsnorm_group_quant import fused_qk_rmsnorm
from aiter.ops.triton.batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant import (
    batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant)
from aiter.ops.triton.normalization.rmsnorm import rms_norm, rmsnorm2d_fwd_with_add
from aiter.ops.groupnorm import GroupNorm
from aiter.jit.utils.chip_info import get_gfx, get_cu_num
import aiter
assert aiter.get_hip_quant(QuantType.per_1x128) and other_path is QuantType and tgemm.mm and aiter.flash_attn_func
"""

# What vLLM 0.32 and 0.33 import, inside functions, on their dense, MoE and MLA paths of a gfx942.
VLLM = """
from importlib.util import find_spec
assert find_spec("aiter") is not None and find_spec("aiter.ops.triton.unified_attention") is not None
assert find_spec("aiter.no_such_module") is None
from aiter import rms_norm, rmsnorm2d_fwd_with_add, ActivationType, QuantType, dtypes, topk_softmax, topk_gating
from aiter import paged_attention_common, pa_fwd_asm, gemm_a8w8_CK, hipb_create_extension, hipb_mm
from aiter.fused_moe import fused_moe, moe_sorting
from aiter.fused_moe_bf16_asm import asm_moe_tkw1
from aiter.ops.flydsl.moe_common import GateMode
from aiter.ops.shuffle import shuffle_weight
from aiter.ops.triton.unified_attention import unified_attention
from aiter.ops.triton.mha import flash_attn_varlen_func
from aiter.ops.triton.attention.mha_v3 import flash_attn_with_kvcache
from aiter.ops.triton.rope.rope import rope_cached_thd_positions_offsets_2c_fwd_inplace
from aiter.ops.fused_qk_norm_rope_cache_quant import _fused_qk_rmsnorm
from aiter.ops.gemm_op_a8w8 import AITER_CONFIGS, get_GEMM_config_with_quant_type
from aiter.ops.triton.utils.gemm_config_utils import get_gemm_config
from aiter.ops.triton.utils.types import e4m3_dtype
from aiter.ops.cache import fused_qk_rope_concat_and_cache_mla
from aiter.dist.device_communicators.custom_all_reduce import CustomAllreduce
from aiter.jit.core import AITER_CSRC_DIR, ENABLE_CK
from aiter.jit.utils.chip_info import get_gfx_runtime
import inspect, torch, aiter
assert {"q_scale", "kv_scale", "causal"} <= set(inspect.signature(aiter.mla.mla_decode_fwd).parameters)
assert CustomAllreduce(None, torch.device("cpu")).disabled and AITER_CONFIGS.AITER_CONFIG_FMOE_FILE.endswith(".csv")
assert GateMode.SEPARATED.value == "separated" and QuantType(4) is QuantType.per_1x128
assert aiter.dtypes.fp8 is e4m3_dtype and torch.ops.aiter.paged_attention_v1
"""

RUNS = """
import aiter, torch
from aiter_like import is_tuned  # a name of ours is no name of the shim
from aiter_like.errors import UnsupportedError
from aiter_like.integrations import takeover
x, weight = torch.ones(2, 64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16)
assert torch.equal(aiter.rms_norm(x, weight, 0.0), x)
assert takeover.counters()["aiter.rms_norm"] == takeover.Counts(1, 0)
from aiter.ops.groupnorm import GroupNorm
image = torch.randn(1, 8, 4, 4, dtype=torch.bfloat16)
layer = GroupNorm(num_groups=2, num_channels=8, dtype=torch.bfloat16)
with torch.no_grad():
    torch.testing.assert_close(layer(image), layer(image, use_torch=True), rtol=2e-2, atol=2e-2)
for missing in (aiter.gemm_a4w4o8, aiter.gemm_a8w8_mxfp8, aiter.gemm_mxfp4_asm):
    try:
        missing()
    except UnsupportedError as error:
        assert "use " in str(error)
    else:
        raise AssertionError(missing)
assert not hasattr(aiter, "no_such_operator") and not hasattr(aiter, "is_tuned")
try:
    aiter.no_such_operator
except AttributeError as error:
    assert "the aiter shim of aiter_like has no such name" in str(error)
"""


def python(code: str, switch: str = "1", **more: str) -> subprocess.CompletedProcess:
    """A fresh process with the shim on its path."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AITER_LIKE_DISABLE")}
    environment = clean | {"PYTHONPATH": f"{shim.PATH}{os.pathsep}{ROOT}", "AITER_LIKE": switch} | more
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("code", [pytest.param(SGLANG_STARTS, id="sglang"), pytest.param(VLLM, id="vllm"),
                                  pytest.param(RUNS, id="runs")])
def test_imports_of_an_engine(code):
    run = python(code)
    assert run.returncode == 0, run.stderr


def test_calls_are_counted():
    """Of names that an installed aiter would keep, of those of an object, and of torch.ops.aiter."""
    run = python("""
import aiter, torch
from aiter.tuned_gemm import tgemm
from aiter_like import integrations, use_backend
x, w, p = torch.ones(2, 64).bfloat16(), torch.ones(32, 64).bfloat16(), torch.full((2, 8), 1 / 8)
with use_backend("torch"):
    assert (tgemm.mm(x, w) == 64).all() and (aiter.batched_gemm_bf16_CK(x[None], w[None]) == 64).all()
    torch.ops.aiter.top_k_renorm_probs(p, None, 8)
served = {name: counts.served for name, counts in integrations.status().taken.items() if counts.served}
assert served == {"aiter.tuned_gemm.tgemm.mm": 1, "aiter.batched_gemm_bf16_CK": 1,
                  "aiter.ops.sampling.top_k_renorm_probs": 1}, served
""")
    assert run.returncode == 0, run.stderr


def test_every_module_imports():
    code = "import importlib\n" + "\n".join(f"importlib.import_module({name!r})" for name in shim.modules())
    assert len(shim.modules()) > 60
    run = python(code)
    assert run.returncode == 0, run.stderr


def test_it_starts_nothing_and_takes_no_memory_of_a_gpu():
    run = python("import aiter, sys, torch\nassert not torch.cuda.is_initialized()\n"
                 "assert not {'triton', 'vllm', 'sglang', 'transformers'} & set(sys.modules)")
    assert run.returncode == 0 and not run.stderr, run.stderr


@pytest.mark.parametrize("switch", ["0", ""])
def test_without_the_switch_there_is_no_aiter(switch):
    run = python("""
try:
    import aiter
except ImportError as error:
    assert error.name == "aiter" and "AITER_LIKE=1" in str(error)
else:
    raise AssertionError("imported")
""", switch)
    assert run.returncode == 0, run.stderr


def test_command_prints_what_belongs_on_the_path(capsys):
    assert cli.main(["shim"]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == shim.PATH and [entry.name for entry in path.iterdir() if entry.name != "__pycache__"] == ["aiter"]

# SPDX-License-Identifier: MIT
"""What a tuned row may choose of the operators on rows is right: each trial of the tuner, judged as it judges them.

Daily, one build for each operator that no other test gives parameters; all trials are exhaustive.
"""

import pytest
import torch

from aiter_like import device as devices
from aiter_like.dispatch import OPS
from aiter_like.tuning import candidates, harness, judge

TENSOR_QUANT = {"rows": 5, "columns": 1000, "is_dynamic": 1, "dtype": "bf16", "out_dtype": "i8"}
DROPOUT = {"rows": 5, "hidden": 1000, "dtype": "bf16"}
BACKWARD = {"rows": 700, "hidden": 1000, "dtype": "bf16", "has_mean": 1}
PATCHES = {"patches": 12, "heads": 5, "head_dim": 64, "rotary_dim": 32, "dtype": "bf16", "table_dtype": "fp32",
           "rotate_style": 0}
HEADS = {"tokens": 70, "heads": 5, "kv_heads": 2, "head_dim": 64, "rotary_dim": 32, "page_size": 16, "layout": "rows",
         "has_norm": 1, "dtype": "bf16", "cache_dtype": "bf16"}
PACKED = {**HEADS, "layout": "shuffled"}
GROUPS = {"samples": 1, "channels": 12, "positions": 5000, "num_groups": 2, "dtype": "bf16", "channels_last": 0}
DAILY = (("tensor_quant", TENSOR_QUANT, "hip", {"vectors": 1}),
         ("tensor_quant", TENSOR_QUANT, "triton", {"num_warps": 2}),
         ("dropout_layer_norm", DROPOUT, "hip", {"lanes": 32}), ("norm_backward", BACKWARD, "triton", {"num_warps": 1}),
         ("rope_2d", PATCHES, "hip", {"heads": 4, "share": 8}),
         ("rope_2d", PATCHES, "triton", {"elements": 512, "num_warps": 1}),
         ("fused_qk_rope_cache", HEADS, "hip", {"threads": 128, "share": 4}),
         ("fused_qk_rope_cache", PACKED, "hip", {"threads": 256, "share": 8}),
         ("fused_qk_rope_cache", PACKED, "triton", {"elements": 512, "num_warps": 1}))
EVERY = (("tensor_quant", TENSOR_QUANT), ("tensor_quant", {**TENSOR_QUANT, "is_dynamic": 0}),
         ("dropout_layer_norm", DROPOUT), ("dropout_layer_norm", {**DROPOUT, "hidden": 8192}),
         ("norm_backward", BACKWARD), ("norm_backward", {**BACKWARD, "hidden": 20000, "has_mean": 0}),
         ("group_norm", GROUPS), ("group_norm", {**GROUPS, "positions": 41 * 163, "channels_last": 1}),
         ("rope_2d", PATCHES), ("rope_2d", {**PATCHES, "rotate_style": 1}), ("fused_qk_rope_cache", HEADS),
         ("fused_qk_rope_cache", PACKED), ("fused_qk_rope_cache", {**HEADS, "layout": "columns", "has_norm": 0}),
         ("fused_qk_rope_cache", {**PACKED, "head_dim": 256, "rotary_dim": 256, "cache_dtype": "fp8_e4m3fnuz"}))


def check(device: torch.device, name: str, key: dict, backend: str, wanted: dict | None) -> None:
    """The trials of a backend with the parameters `wanted`, or all."""
    op, target = OPS[name], devices.target_of(device)
    if "e4m3" in str(key.get("cache_dtype")) and target.platform == "cuda":
        key = {**key, "cache_dtype": "fp8_e4m3fn"}
    place = harness.sim(0) if device.type == "cpu" else harness.gpu(device.index)
    made = judge.case(op, key, device)
    trials = [trial for trial in candidates.plan(op, target, made.args).trials
              if trial.backend == backend and (wanted is None or dict(trial.params) == wanted)]
    assert len(trials) == 1 if wanted else len(trials) > 1
    for trial in trials:
        one = trial.candidate(op)
        error, fault = judge.check(made, place.guarded(op, one.backend.bind(target, made.args, one)))
        assert fault is None, f"{trial.title}: {fault} (error {error:.3g})"


@pytest.mark.parametrize(("name", "key", "backend", "params"), DAILY)
def test_a_trial_is_right(device, name, key, backend, params):
    check(device, name, key, backend, params)


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ("hip", "triton"))
@pytest.mark.parametrize(("name", "key"), EVERY)
def test_every_trial_is_right(device, name, key, backend):
    if backend == "hip" and name == "norm_backward":
        pytest.skip("norm_backward has no hip backend")
    check(device, name, key, backend, None)

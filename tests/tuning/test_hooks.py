# SPDX-License-Identifier: MIT
"""What operators declare for the tuner: cases that have their key, spaces that their kernels take; stale rows."""

import math

import pytest
import torch
from toys import FakeJit, make_op, run

import aiter_like  # noqa: F401  (declares the operators)
from aiter_like.device import Target, facts_of
from aiter_like.dispatch import OPS, Backend
from aiter_like.dispatch.table import columns
from aiter_like.modules import toolchain
from aiter_like.ops.attention.call import dense_call
from aiter_like.ops.common import rows
from aiter_like.tuning import candidates, models

GPUS = (Target("hip", "gfx942", 304, 64), Target("cuda", "sm_90", 132, 32), Target("cuda", "sm_80", 108, 32))
KEYS = {
    "rms_norm": [{"rows": count, "hidden": hidden, "dtype": dtype, "has_residual": residual}
                 for count, hidden, dtype, residual in ((1, 4096, "bf16", 0), (3, 100, "fp16", 1), (9, 8192, "fp32", 0),
                                                        (2, 32768, "bf16", 1), (1, 1, "fp32", 0))],
    "flash_attn_fwd": [{"mask": mask, "packing": "dense", "batch": 2, "seqlen_q": 3, "seqlen_k": 5, "num_heads": 4,
                        "num_kv_heads": 2, "head_dim": 64, "head_dim_v": 64, "features": "none", "dtype": "bf16"}
                       for mask in ("none", "causal")],
    "group_norm": [{"samples": 2, "channels": channels, "positions": positions, "num_groups": groups, "dtype": dtype,
                    "channels_last": is_last}
                   for channels, positions, groups, dtype, is_last in ((64, 1024, 32, "bf16", 0), (12, 7, 3, "fp32", 1),
                                                                       (320, 4096, 32, "fp16", 1),
                                                                       (8, 20000, 2, "fp32", 0))],
    "rope_2d": [{"patches": patches, "heads": 3, "head_dim": 64, "rotary_dim": rotary_dim, "dtype": dtype,
                 "table_dtype": "fp32", "rotate_style": style}
                for patches, rotary_dim, dtype, style in ((12, 64, "bf16", 0), (7, 32, "fp32", 1), (1, 64, "fp16", 0))],
    "block_quant": [{"matrices": count, "rows": size, "columns": columns, "block_rows": 128, "dtype": "bf16",
                     "out_dtype": "i8"} for count, size, columns in ((1, 256, 512), (3, 130, 100))],
    "flatten_group_quant": [{"tokens": count, "heads": 16, "columns": 128, "group_size": 128, "dtype": "bf16",
                             "out_dtype": "i8"} for count in (1, 128)],
    "norm_backward": [{"rows": count, "hidden": hidden, "dtype": dtype, "has_mean": has_mean}
                      for count, hidden, dtype, has_mean in ((1, 4096, "bf16", 0), (3, 100, "fp32", 1),
                                                             (700, 64, "fp16", 1), (2, 32768, "bf16", 0))],
    **{name: [{"rows": count, "columns": columns, "group_size": group_size, "dtype": dtype, "out_dtype": "i8"}
              for count, columns, group_size, dtype in ((1, 4096, 0, "bf16"), (3, 100, 0, "fp16"),
                                                        (5, 256, 128, "fp32"), (2, 16384, 32, "bf16"))]
       for name in ("row_quant", "act_and_mul_quant")},
}


def keys_of(op):
    """Keys to try an operator's declaration with: those above, else some of a model's."""
    is_latent = op.name in ("batched_gemm", "mla_decode", "fused_qk_rope_concat_and_cache_mla")  # of its attention
    model = "deepseek-v3" if is_latent else "qwen3-30b-a3b"
    return KEYS.get(op.name) or models.keys(op, models.load(model), 8, (1, 128))[:8]


def declared():
    return sorted(name for name, op in OPS.items() if op.tuning is not None and (name in KEYS or op.tuning.shapes))


@pytest.mark.parametrize("name", declared())
def test_a_case_has_its_key_and_is_new_for_each_seed(name):
    op = OPS[name]
    for key in keys_of(op):
        first, second, again = (op.tuning.case(key, torch.device("cpu"), seed) for seed in (0, 1, 0))
        assert {field: int(value) if isinstance(value, bool) else value
                for field, value in op.tune_key(*first).items()} == key
        op.check(*first)
        inputs = [index for index, arg in enumerate(first)
                  if isinstance(arg, torch.Tensor) and index not in op.write_indices]
        assert all(torch.equal(first[index], again[index]) for index in inputs)
        assert not all(torch.equal(first[index], second[index]) for index in inputs)
        assert op.tuning.needs(first)[0] > 0


@pytest.mark.parametrize("target", GPUS, ids=lambda target: target.arch)
@pytest.mark.parametrize("name", declared())
def test_each_trial_is_one_that_its_backend_takes(name, target):
    op = OPS[name]
    for key in keys_of(op):
        args = op.tuning.case(key, torch.device("cpu"), 0)
        for backend in op.backends:
            trials = list(backend.space(target, *args)) if backend.space else []
            assert len({tuple(trial.items()) for trial in trials}) == len(trials)
            for trial in trials:
                assert backend.kernel_names(target, args, trial)
                if backend.cost and (backend.refusal is None or backend.refusal(target, *args) is None):
                    assert backend.cost(*args, facts=facts_of(target), **trial) > 0


def test_a_row_serves_the_counts_that_round_up_to_it(monkeypatch, tmp_path):
    path = tmp_path / "rms_norm.csv"
    path.write_text(f"{','.join(columns(OPS['rms_norm'].tune_fields))}\n"
                    "gfx942,304,64,4096,bf16,0,triton,rms_norm,num_warps=2,1.5,0,,,measured:x\n")
    monkeypatch.setenv("AITER_LIKE_TUNED", str(path))
    OPS["rms_norm"].reset()
    try:
        table = OPS["rms_norm"].table
        found = {count: table.find("gfx942", 304, {"rows": count, "hidden": 4096, "dtype": "bf16", "has_residual": 0},
                                   lambda row: True) for count in (32, 37, 49, 64, 65)}
    finally:
        monkeypatch.undo()
        OPS["rms_norm"].reset()
    assert [count for count, row in found.items() if row is not None] == [37, 49, 64]


def test_the_models_of_the_docstring_have_a_space():
    for name, backend in (("rms_norm", "hip"), ("rms_norm", "triton"), ("flash_attn_fwd", "triton")):
        args = OPS[name].tuning.case(KEYS[name][0], torch.device("cpu"), 0)
        (found,) = (one for one in OPS[name].backends if one.name == backend)
        assert len(list(found.space(GPUS[0], *args))) > 2


@pytest.mark.parametrize(("hidden", "lanes"), [
    (4096, [64, 128, 256, 512]), (8192, [128, 256, 512, 1024]), (1024, [16, 32, 64, 128]), (7, [8]), (64, [8]),
    (32768, [256, 512, 1024]), (65536, [256, 512, 1024])])
def test_lanes_that_are_tried(hidden, lanes):
    x = torch.empty(2, hidden, dtype=torch.bfloat16, device="meta")
    assert rows.lane_space(GPUS[0], x) == [{"lanes": count} for count in lanes]
    assert all(rows.row_layout(GPUS[0], x, lanes=count).is_whole for count in lanes) == (hidden < 32768)
    assert rows.row_layout(GPUS[0], x, lanes=lanes[-1]).is_whole


@pytest.mark.parametrize(("count", "hidden", "layouts"), [
    (8192, 4096, [(256, 2), (128, 4)]), (64, 8192, [(1024, 1), (256, 4)]), (8192, 32768, [(1024, 4)] * 2),
    (64, 512, [(64, 1), (32, 2)]), (64, 256, [(32, 1)] * 2), (64, 24, [(8, 1)] * 2)])
def test_lanes_without_a_tuned_row(count, hidden, layouts):
    x = torch.empty(count, hidden, dtype=torch.bfloat16, device="meta")
    found = [rows.row_layout(target, x) for target in GPUS[:2]]
    assert [(layout.lanes, layout.vectors) for layout in found] == layouts


def test_accesses_of_16_elements_for_8_bit_results():
    x = torch.empty(2, 1024, dtype=torch.bfloat16, device="meta")
    narrow, wider = [{"lanes": count} for count in (16, 32, 64, 128)], [16, 32, 64]
    assert rows.lane_space(GPUS[0], x, is_8bit=True) == narrow + [{"lanes": count, "vec": 16} for count in wider]
    wide = rows.RowLayout(32, 2, 16, is_whole=True)
    assert rows.row_layout(GPUS[0], x, lanes=32, vec=16) == wide
    assert rows.row_layout(GPUS[1], x, vec=16) == wide, "half as many of twice the size"
    assert rows.lane_space(GPUS[0], x[:, :1016], is_8bit=True) == narrow  # rows are no whole accesses
    assert rows.lane_space(GPUS[0], x, group_size=256, is_8bit=True) == [
        *narrow[1:], *({"lanes": count, "vec": 16} for count in wider)]
    assert rows.lane_space(GPUS[0], x.float(), is_8bit=True) == [{"lanes": count} for count in (32, 64, 128, 256)]
    with pytest.raises(ValueError, match="vec must be a power of two up to 16, got 3"):
        rows.row_layout(GPUS[0], x, vec=3)


def test_tiles_that_do_not_fit_cost_infinitely():
    backend = next(backend for backend in OPS["flash_attn_fwd"].backends if backend.name == "triton")
    q, k = (torch.empty(2, 4096, heads, 128, dtype=torch.bfloat16, device="meta") for heads in (4, 2))
    args = dense_call(q, None, q, k, k, window_right=0, how_v3_bf16_cvt=1)
    costs = {(trial["BLOCK_N"], trial["num_stages"]): backend.cost(*args, facts=facts_of(GPUS[0]), **trial)
             for trial in backend.space(GPUS[0], *args) if trial["BLOCK_M"] == 128 and trial["num_warps"] == 8}
    assert math.isinf(costs[128, 2]) and math.isfinite(costs[64, 1])


class TestStaleness:
    def row(self, monkeypatch, tmp_path, op, toolchain_text):
        path = tmp_path / f"{op.name}.csv"
        path.write_text(f"{','.join(columns(op.tune_fields))}\n"
                        f"gfx942,304,2,4,float32,asm,scale,,1.5,0,{toolchain_text},,measured:me\n")
        monkeypatch.setenv("AITER_LIKE_TUNED", str(path))
        return path

    @pytest.mark.parametrize(("text", "is_stale"), [("clang 22.1", False), ("clang 22", False), ("clang", False),
                                                    ("", False), ("clang 21.1", True), ("clang 2", True),
                                                    ("hipcc 6.4", True)])
    def test_another_toolchain(self, machine, monkeypatch, tmp_path, caplog, text, is_stale):
        found = toolchain.Toolchain("clang", "clang++", (22, 1, 8), "id", "")
        monkeypatch.setattr(toolchain, "find", lambda platform: found)
        hip, asm = FakeJit(), FakeJit()
        op = make_op(Backend("hip", hip), Backend("asm", asm))
        path = self.row(monkeypatch, tmp_path, op, text)
        for factor in (2.0, 3.0):
            run(op, torch.ones(2, 4), factor)
        assert (hip.calls, asm.calls) == ((2, 0) if is_stale else (0, 2))
        assert [row.source for row in op.table.rows() if op.staleness(row)] == ([f"{path}:2"] if is_stale else [])
        lines = [record for record in caplog.records if "tuned row ignored" in record.message]
        assert len(lines) == is_stale
        assert not is_stale or f"it timed what {text} made, here is clang 22.1" in caplog.text


def test_trials_that_are_expected_to_cost_less_come_first():
    """A budget that ends early has tried the likely ones."""
    op = OPS["flash_attn_fwd"]
    args = op.tuning.case(KEYS["flash_attn_fwd"][0] | {"seqlen_q": 200, "seqlen_k": 300}, torch.device("cpu"), 0)
    triton, = (backend for backend in op.backends if backend.name == "triton")
    facts = facts_of(GPUS[1])
    costs = [triton.cost(*args, facts=facts, **trial.params) for trial in candidates.plan(op, GPUS[1], args).trials
             if trial.backend == "triton" and trial.params]
    assert costs == sorted(costs) and costs[-1] > costs[0]

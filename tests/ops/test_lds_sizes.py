# SPDX-License-Identifier: MIT
"""What a workgroup of a compiled kernel takes of LDS: no choice by size and no trial of the tuner asks for more than
gfx942 has."""

import itertools

import pytest
import torch

from aiter_like import sim
from aiter_like.device import target_of
from aiter_like.dispatch import OPS
from aiter_like.jit.compile_ops import JitFunction
from aiter_like.modules import build
from aiter_like.ops.moe import moe_gemm_hip

MOST, GRAIN = 65536, 512
CPU = torch.device("cpu")


def moe_calls():
    """Products of odd sizes, with and without gates, of every format that a kernel is built for."""
    for block, (k, inner), experts in itertools.product((1, 4, 16, 32, 64), ((96, 80), (72, 48), (256, 512)), (1, 2)):
        for dtype, b_dtype, group in (("bf16", "same", 0), ("fp8_e4m3fnuz", "same", 128), ("bf16", "int4", 32),
                                      ("bf16", "int4", 128), ("bf16", "mxfp4", 32)):
            for is_gated in (0, 1):
                if b_dtype != "same" and k % 128 or group > k:
                    continue
                key = {"pairs": max(70, block), "experts": experts, "n": 2 * inner if is_gated else inner, "k": k,
                       "slots": 1, "block": block, "dtype": dtype, "b_dtype": b_dtype, "group_size": group,
                       "is_gated": is_gated, "is_of_pairs": 1, "is_shuffled": 0}
                yield key, OPS["moe_gemm"].tuning.case(key, CPU, 0)


def test_experts_with_few_rows(simulated):
    target, count = target_of(CPU), 0
    for key, call in moe_calls():
        if moe_gemm_hip.refusal(target, call) is not None:
            continue
        for params in (moe_gemm_hip.suited(call, target)._asdict(), *moe_gemm_hip.space(target, call)):
            assert moe_gemm_hip.lds_bytes(call, moe_gemm_hip.Block(**params)) <= MOST, (key, params)
            count += 1
    assert count > 500


def test_experts_as_their_kernel_has_it(simulated):
    op, count = OPS["moe_gemm"], 0
    hip = next(backend for backend in op.backends if backend.name == "hip")
    for name, call in op.cases(CPU).items():
        if hip.refusal(target_of(CPU), *call) is None:
            with sim.enabled(checks=False, counters=True) as session:
                op(call, backend="hip")
            (launch,) = session.launches
            told = moe_gemm_hip.lds_bytes(call, moe_gemm_hip.suited(call, target_of(CPU)))
            assert launch["lds_bytes"] == -(-told // GRAIN) * GRAIN, name
            count += 1
    assert count > 4


@pytest.mark.exhaustive
@pytest.mark.timeout(14400)
@pytest.mark.parametrize("name", sorted(OPS))
def test_every_trial_of_the_tuner_builds(simulated, name):
    """The compiler refuses a kernel with more than LDS has."""
    op, target, seen = OPS[name], target_of(CPU), set()
    for backend, call in itertools.product(op.backends, op.cases(CPU).values()):
        if not isinstance(backend.function, JitFunction) or "hip" not in backend.function.platforms or (
                backend.space is None or backend.refusal is not None and backend.refusal(target, *call)):
            continue
        for params in backend.space(target, *call):
            spec = backend.function.spec(target, tuple(call), **params)
            if spec.name not in seen:
                seen.add(spec.name)
                build.ensure(spec)

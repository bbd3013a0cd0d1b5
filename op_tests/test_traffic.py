# SPDX-License-Identifier: MIT
"""What the kernels move on gfx942, by the simulator's counters: no more than the operation needs, 16 bytes at a time,
and no scratch.

The calls are the tuner's: an operator's own cases are a few rows of odd lengths, with lanes that move nothing and
accesses narrower than a whole row's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import torch

import aiter_like  # noqa: F401  (declares the operators)
from aiter_like import sim
from aiter_like.dispatch import OPS
from aiter_like.jit.compile_ops import JitFunction
from aiter_like.modules import build, code_object

BYTES = {"ubyte": 1, "sbyte": 1, "byte": 1, "ushort": 2, "sshort": 2, "short": 2, "dword": 4, "dwordx2": 8,
         "dwordx3": 12, "dwordx4": 16}
FP8 = "fp8_e4m3fnuz"


@dataclass(frozen=True)
class Case:
    """An operator's call.

    Attributes:
        key: the tune key.
        rows: of the matrices, each of which reads the vectors among the arguments, all but the first from a cache.
        halves: the part of all bytes that accesses of 8 bytes move: results of 8 bits, of which a lane has 8.
    """

    op: str
    key: dict[str, int | str]
    rows: int
    halves: float = 0.0

    def __str__(self) -> str:
        return "-".join([self.op, *(str(value) for value in self.key.values())])


def norm(op: str, rows: int, hidden: int, halves: float = 0.0, **key: int | str) -> Case:
    return Case(op, {"rows": rows, "hidden": hidden, "dtype": "bf16", **key}, rows, halves)


def quant(op: str, rows: int, columns: int, group_size: int, halves: float) -> Case:
    return Case(op, {"rows": rows, "columns": columns, "group_size": group_size, "dtype": "bf16", "out_dtype": FP8}, 1,
                halves)


CASES = (
    norm("rms_norm", 16, 4096, has_residual=0),
    norm("rms_norm", 16, 4096, has_residual=1),
    norm("layer_norm", 16, 1024, out_dtype="bf16", has_residual=0),
    norm("rms_norm_quant", 16, 1024, 1 / 5, out_dtype=FP8, group_size=0, has_residual=0),
    norm("gated_rms_norm", 16, 1024, out_dtype="bf16"),
    Case("act_and_mul", {"rows": 16, "columns": 1024, "dtype": "bf16", "out_dtype": "bf16"}, 1),
    Case("fused_qk_rmsnorm", {"q_rows": 16, "q_hidden": 2048, "k_rows": 16, "k_hidden": 2048, "dtype": "bf16"}, 16),
    Case("flatten_group_quant", {"tokens": 16, "heads": 4, "columns": 512, "group_size": 128, "dtype": "bf16",
                                 "out_dtype": FP8}, 1, 1 / 3),
    Case("block_quant", {"matrices": 1, "rows": 256, "columns": 512, "block_rows": 128, "dtype": "bf16",
                         "out_dtype": FP8}, 1, 1 / 3),
    Case("moe_sum", {"tokens": 16, "slots": 9, "columns": 1024, "dtype": "bf16"}, 1),
    Case("elementwise", {"elements": 32768, "operands": 2, "dtype": "bf16"}, 1),
    quant("act_and_mul_quant", 16, 1024, 128, 1 / 5),
    quant("row_quant", 40, 1024, 0, 1 / 3),
    quant("row_quant", 40, 1024, 128, 1 / 3),
)


# Operators with a HIP kernel that no case above counts, and why the rule does not hold for them.
ELSEWHERE = {
    **dict.fromkeys(("copy_blocks", "cp_gather_indexer_k_quant_cache", "indexer_k_quant_and_cache", "reshape_and_cache",
                     "reshape_and_cache_with_block_quant", "reshape_and_cache_with_pertoken_quant"),
                    "copies between caches have no key to be tuned by, so no tuner's call"),
    "fused_qk_norm_rope_group_quant": "no key to be tuned by either",
    **dict.fromkeys(("flash_attn_fwd", "flash_attn_bwd", "group_norm"), "reads its input again, by design"),
    "gemm_a16w16": "each workgroup reads all rows of a again; what the weights take is a gate of test_gemm_gates.py",
    **dict.fromkeys(("rope", "rope_2d", "rope_rounded", "fused_qk_rope_cache", "fused_qk_rope_concat_and_cache_mla"),
                    "rows of a head are narrower than a wave's access"),
    **dict.fromkeys(("paged_attention", "unified_attention"),
                    "which pages are read, tables say; counted by a gate of test_paged_attention_gates.py"),
    "merge_attn_states": "log-sum-exps are read by each lane of a row",
    **dict.fromkeys(("moe_align_block_size", "moe_sorting"),
                    "numbers of pairs, read once to be counted and once to be placed"),
    "moe_permute": "sorts before it copies; the copies are counted by moe/test_moe_permute.py",
    "moe_gemm": "which experts' weights are read, tables say; counted by moe/test_moe_gemm_skinny.py",
    "topk_gating": "a row of logits in single elements, so that a wave has them in order",
    **dict.fromkeys(("mla_metadata", "pa_metadata"), "integers, of which each workgroup reads all lengths"),
    "mla_reduce": "a lane takes single columns, so that few rows fill the device",
    **dict.fromkeys(("dropout_layer_norm", "fused_rms_quant"), "the body of layer_norm, of rms_norm_quant"),
    **dict.fromkeys(("moe_smoothquant", "tensor_quant", "truncated_quant", "pack_int4", "mxfp4_quant",
                     "relu_squared"),
                    "the row loops of row_quant and act_and_mul"),
    "causal_conv1d": "sequences begin at any address, so that tokens are read in single elements, or channels in pairs",
    "hadamard": "rows are shorter than a workgroup's accesses: each row is read and written once, 16 bytes at a time",
    "dropout_randval": "a lane has the four bytes of one counter, whose products take longer than memory does",
    "exponential": "lanes beyond the end of a row repeat its first access, which these counters take for more bytes",
    **dict.fromkeys(("renorm_probs", "sample", "sampling_from_probs", "softmax", "topk"),
                    "the same; rows that fill the lanes are counted by sampling/test_row_traffic.py"),
    **dict.fromkeys(("penalties", "token_bitmask", "verify_chain", "verify_tree"),
                    "what is moved depends on the tokens"),
}


def test_every_operator_is_counted_or_says_why_not():
    with_hip = {op.name for op in OPS.values() if any(backend.name == "hip" for backend in op.backends)}
    assert with_hip == {case.op for case in CASES} | set(ELSEWHERE)
    assert not {case.op for case in CASES} & set(ELSEWHERE)


def size_of(mnemonic: str) -> int:
    """Bytes of a lane's access."""
    return BYTES[re.fullmatch(r"(?:global|buffer)_(?:load|store)_(\w+?)(?:_d16(?:_hi)?)?", mnemonic)[1]]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_moves_each_byte_once_in_wide_accesses(device, monkeypatch, case):
    if device.type != "cpu":
        pytest.skip("counters of the simulator")
    bound = []
    bind = JitFunction.bind
    monkeypatch.setattr(JitFunction, "bind", lambda self, target, args, **params: (
        bound.append(self.spec(target, args, **params)), bind(self, target, args, **params))[1])
    op = OPS[case.op]
    args = op.tuning.case(case.key, device, 0)
    op.reset()  # the call that is counted binds its kernel
    with sim.enabled(checks=False) as session:
        op(args, backend="hip")
    ((kernel, counts),) = session.counters.items()

    accesses = counts["accesses"]
    moved = {name: 64 * size_of(name) * count for name, count in accesses.items() if size_of(name) >= 8}
    vectors = sum(arg.nbytes for arg in args if isinstance(arg, torch.Tensor) and arg.ndim == 1)
    needed = op.tuning.needs(args)[0] + (case.rows - 1) * vectors
    assert sum(moved.values()) <= 1.05 * needed, (moved, needed)
    assert sum(moved[name] for name in moved if size_of(name) == 8) == case.halves * sum(moved.values()), moved
    stores = sum(count for name, count in accesses.items() if "store" in name and size_of(name) >= 8)
    assert sum(accesses.values()) - sum(map(accesses.get, moved)) <= stores, accesses  # scales, by one lane of many

    (spec,) = bound
    image = build.ensure(spec).path.read_bytes()
    bundle = image[image.index(b"__CLANG_OFFLOAD_BUNDLE__"):]
    facts = sim.inspect(code_object.unbundled(bundle, spec.arch))[kernel]
    assert (facts["private_bytes"], facts["vgpr_spills"], facts["sgpr_spills"]) == (0, 0, 0), facts

# SPDX-License-Identifier: MIT
"""RMSNorm, rotary position embedding and quantisation by groups of latent attention's queries and keys, in one kernel
(csrc/rope/fused_qk_norm_rope_group_quant.hip). The functions: ops/rope/fused_norm_rope_entries.py.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, paged_cache, quant_rule, tune_shapes, vectors
from aiter_like.ops.rope import parts

_OP = "fused_qk_norm_rope_group_quant"
_VEC = 8  # elements of an access
_IN_VECTORS = ("k_nope_scale_buff", "k_rope_buff", "q_nope_scale_buff", "q_rope_buff", "swa_nope_scale_buff",
               "swa_rope_buff", "q", "kv", "q_weight", "k_weight", "cos_cache", "sin_cache")
_MOST_LANES = 64
MAX_HEAD_DIM = 1024


class FusedQkNormRopeGroupQuantCall(NamedTuple):
    """One call of the operator. An entry is `head_dim` bytes: fp8 values of what is not rotated, then each group's
    scale twice (e8m0); the bytes behind are not written. Beside entries lie the `pe` rotated elements.

    Attributes:
        k_nope_scale_buff: entries of keys; with no `slot_mapping` [tokens, 1, head_dim].
        q_nope_scale_buff: entries, or of the dtype of `q`: whole heads.
        swa_nope_scale_buff: entries of some of the keys once more.
        q: [tokens, heads, head_dim].
        q_weight, k_weight: None: 1.
        positions: rows of the tables `cos_cache` and `sin_cache`, [rows, pe / 2].
        slot_mapping: the places of keys.
        swa_dest_row: rows of `swa_nope_scale_buff`; a negative one: none.
        swa_block_tables: instead: blocks of `swa_block_size` rows; a negative one: none.
        batch_id_per_token: the sequence; a negative one: no row. None: the first.
        q_group_size, quant_group_size: elements with a scale, of q and of the key.
        is_neox: pairs (i, i + pe / 2); else (2i, 2i + 1).
    """

    k_nope_scale_buff: Annotated[Tensor, "_ _ head_dim", torch.uint8]
    k_rope_buff: Annotated[Tensor, "*k_rope", "kv"]
    q_nope_scale_buff: Annotated[Tensor | None, "*q_nope", ("kv", torch.uint8)]
    q_rope_buff: Annotated[Tensor | None, "*q_rope", "kv"]
    swa_nope_scale_buff: Annotated[Tensor | None, "1 _ head_dim", torch.uint8]
    swa_rope_buff: Annotated[Tensor | None, "*swa_rope", "kv"]
    q: Annotated[Tensor | None, "*q", "kv"]
    kv: Annotated[Tensor, "tokens head_dim", elements.FLOATS]
    q_weight: Annotated[Tensor | None, "head_dim", "kv"]
    k_weight: Annotated[Tensor | None, "head_dim", "kv"]
    positions: Annotated[Tensor, "tokens", elements.INTEGERS, STRIDED]
    cos_cache: Annotated[Tensor, "_ _", elements.FLOATS]
    sin_cache: Annotated[Tensor, "*sin", "cos_cache"]
    slot_mapping: Annotated[Tensor | None, "tokens", elements.INTEGERS] = None
    swa_dest_row: Annotated[Tensor | None, "tokens", elements.INTEGERS, STRIDED] = None
    swa_block_tables: Annotated[Tensor | None, "_ _", elements.INTEGERS, STRIDED] = None
    batch_id_per_token: Annotated[Tensor | None, "tokens", elements.INTEGERS, STRIDED] = None
    swa_block_size: int = 0
    q_group_size: int = 64
    quant_group_size: int = 64
    eps: float = 1e-6
    is_neox: bool = False

    @property
    def has_q_entries(self) -> bool:
        return self.q_nope_scale_buff is not None and self.q_nope_scale_buff.dtype == torch.uint8


def fused_ref(call: FusedQkNormRopeGroupQuantCall) -> None:
    """In torch, in fp32, each result rounded once."""
    kind, tokens = dtypes.fp8_of(target_of(call.kv.device).arch), len(call.kv)
    nope, pe = _head(call, call.kv[:, None], call.k_weight)
    entry = _entry(nope[:, 0], call.quant_group_size, kind)
    every = torch.arange(tokens, device=call.kv.device)
    outs = [(call.k_nope_scale_buff, call.k_rope_buff, every, every, torch.zeros_like(every))]
    if call.slot_mapping is not None:
        blocks, page_size = call.k_nope_scale_buff.shape[:2]
        outs = [(*outs[0][:2], *paged_cache.places(call.slot_mapping, page_size, blocks))]
    if call.swa_nope_scale_buff is not None:
        kept, rows = _pool_rows(call)
        outs.append((call.swa_nope_scale_buff, call.swa_rope_buff, kept, torch.zeros_like(rows), rows))
    for entries, rotated, kept, block, offset in outs:
        entries[block, offset, :entry.shape[-1]] = entry[kept]
        rotated[block, offset] = pe[kept, 0].to(rotated.dtype)
    if call.q is None:
        return
    nope, pe = _head(call, call.q, call.q_weight)
    if not call.has_q_entries:
        call.q_nope_scale_buff[:tokens] = torch.cat((nope, pe), -1).to(call.q.dtype)
        return
    entry = _entry(nope, call.q_group_size, kind)
    call.q_nope_scale_buff[:tokens, :, :entry.shape[-1]] = entry
    call.q_rope_buff[:tokens] = pe.to(call.q.dtype)


def _head(call: FusedQkNormRopeGroupQuantCall, x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """[tokens, heads, …] in fp32: what is not rotated, and what is."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + call.eps)
    y = y if weight is None else y * weight.float()
    tables = [parts.table_rows(table, call.positions[:len(x)], torch.float32)[:, None]
              for table in (call.cos_cache, call.sin_cache)]
    nope = x.shape[-1] - 2 * tables[0].shape[-1]
    return y[..., :nope], parts.rotated(y[..., nope:], *tables, 0 if call.is_neox else 1, True, False, False)


def _entry(x: Tensor, group: int, kind: torch.dtype) -> Tensor:
    """Bytes of fp8 values, and of each group's scale twice."""
    scale = quant_rule.row_scales(x, kind, group)
    mantissa, exponent = scale.frexp()
    above = torch.ldexp(torch.ones_like(scale), exponent - (mantissa == 0.5).int())
    scale = torch.where(scale.isfinite(), above, scale)
    exponents = (scale.view(torch.int32) >> 23 & 0xFF).to(torch.uint8).repeat_interleave(2, -1)
    return torch.cat((quant_rule.quantised(x, scale, kind).view(torch.uint8), exponents), -1)


def _pool_rows(call: FusedQkNormRopeGroupQuantCall) -> tuple[Tensor, Tensor]:
    """Tokens that have a row of the pool, and these rows."""
    tokens, position = len(call.kv), call.positions[:len(call.kv)].long()
    ids = torch.zeros_like(position) if call.batch_id_per_token is None else call.batch_id_per_token[:tokens].long()
    is_kept = (position >= 0) & (ids >= 0)
    if call.swa_dest_row is not None:
        rows = call.swa_dest_row[:tokens].long()
    else:
        table, nth = call.swa_block_tables, position // call.swa_block_size
        is_kept &= (nth < table.shape[1]) & (ids < table.shape[0])
        if not table.numel():
            return ids[:0], ids[:0]
        block = table[ids.where(is_kept, 0), nth.where(is_kept, 0)].long()
        is_kept &= block >= 0
        rows = block * call.swa_block_size + position % call.swa_block_size
    kept = (is_kept & (rows >= 0) & (rows < call.swa_nope_scale_buff.shape[1])).nonzero()[:, 0]
    return kept, rows[kept]


def _instance(call: FusedQkNormRopeGroupQuantCall) -> Instance:
    dtype, table, head_dim = call.kv.dtype, call.cos_cache.dtype, call.kv.shape[-1]
    lanes = 16  # The kernel needs so many for a group of 128 elements.
    while lanes < _MOST_LANES and lanes * _VEC < head_dim:
        lanes *= 2
    vectors = -(-head_dim // (lanes * _VEC))
    q_out = "fp8" if call.has_q_entries else elements.CPP[dtype]
    name = f"{dtypes.name(dtype)}_table_{dtypes.name(table)}{'_q_fp8' if call.has_q_entries else ''}"
    return Instance(f"{name}_l{lanes}_v{vectors}", {
        "ELEMENT": elements.CPP[dtype], "TABLE": elements.CPP[table], "Q_OUT": q_out, "LANES": lanes,
        "VECTORS": vectors})


@compile_ops("rope/fused_qk_norm_rope_group_quant.hip", gen_func=_instance)
def _fused_qk_norm_rope_group_quant_hip(call: FusedQkNormRopeGroupQuantCall) -> None: ...


def _check(call: FusedQkNormRopeGroupQuantCall) -> object:
    tokens, head_dim = call.kv.shape
    parts.check_table(_OP, "cos_cache", call.cos_cache, call.sin_cache, head_dim, min(tokens, 1), True)
    pe = 2 * call.cos_cache.shape[1]
    _check_group("quant_group_size", call.quant_group_size, head_dim - pe, pe)
    if call.slot_mapping is None:
        check.tensor(_OP, "k_nope_scale_buff", call.k_nope_scale_buff, shape=(tokens, 1, head_dim))
    else:
        paged_cache.check_pages(_OP, "k_nope_scale_buff", call.k_nope_scale_buff, call.k_nope_scale_buff.shape[1])
    _check_queries(call, pe)
    _check_pool(call)
    for name in ("k_rope_buff", "q_rope_buff", "swa_rope_buff"):
        if (rotated := getattr(call, name)) is not None:
            entries = getattr(call, name.replace("rope", "nope_scale"))
            check.tensor(_OP, name, rotated, shape=(*entries.shape[:2], pe))
    check.real(_OP, "eps", call.eps, low=0)
    return SKIP if tokens == 0 else None


def _check_group(name: str, group: int, nope: int, pe: int) -> None:
    check.choice(_OP, name, group, quant_rule.GROUPS)
    if nope <= 0 or nope % group:
        raise ValueError(f"{_OP}: {name} must divide the part that is not rotated, of {nope} elements, got {group}")
    if 2 * (nope // group) > pe:
        raise ValueError(f"{_OP}: {name} must leave place for 2 · {nope // group} scales in the {pe} bytes behind the "
                         f"values, got {group}")


def _check_queries(call: FusedQkNormRopeGroupQuantCall, pe: int) -> None:
    q, (tokens, head_dim) = call.q, call.kv.shape
    if q is None:
        for name in ("q_nope_scale_buff", "q_rope_buff"):
            if getattr(call, name) is not None:
                raise ValueError(f"{_OP}: {name} must be None without q")
        return
    check.tensor(_OP, "q", q, shape=(tokens, None, head_dim))
    check.tensor(_OP, "q_nope_scale_buff", call.q_nope_scale_buff, shape=q.shape)
    if call.has_q_entries:
        _check_group("q_group_size", call.q_group_size, head_dim - pe, pe)
        check.tensor(_OP, "q_rope_buff", call.q_rope_buff)
    elif call.q_rope_buff is not None:
        raise ValueError(f"{_OP}: q_rope_buff must be None where q_nope_scale_buff has dtype {q.dtype}")


def _check_pool(call: FusedQkNormRopeGroupQuantCall) -> None:
    given = [name for name in ("swa_nope_scale_buff", "swa_rope_buff", "swa_dest_row", "swa_block_tables")
             if getattr(call, name) is not None]
    if not given:
        return
    if len(given) != 3 or given[:2] != ["swa_nope_scale_buff", "swa_rope_buff"]:
        raise ValueError(f"{_OP}: swa_nope_scale_buff and swa_rope_buff must come with one of swa_dest_row and "
                         f"swa_block_tables, got {' and '.join(given)}")
    if call.swa_block_tables is not None:
        check.integer(_OP, "swa_block_size", call.swa_block_size, low=1)


def _hip_refusal(target: Target, call: FusedQkNormRopeGroupQuantCall) -> str | None:
    (tokens, head_dim), pe = call.kv.shape, 2 * call.cos_cache.shape[1]
    heads = 0 if call.q is None else call.q.shape[1]
    if head_dim > MAX_HEAD_DIM or pe % (2 * _VEC):
        return f"head dimensions up to {MAX_HEAD_DIM} of which a multiple of {2 * _VEC} turns, got {head_dim} and {pe}"
    if tokens * (heads + 1) * _MOST_LANES >= 2**31:
        return f"too many heads for one launch: {tokens} tokens of {heads + 1}"
    for name, tensor in call._asdict().items():
        if not isinstance(tensor, Tensor) or tensor.dtype in elements.INTEGERS:
            continue
        need = min(16 // tensor.element_size(), _VEC)
        if any(step % need for step in parts.steps(tensor)):
            return f"{name} has rows at multiples of {need} elements, got strides {tensor.stride()}"
    pool = 0 if call.swa_nope_scale_buff is None else call.swa_nope_scale_buff.shape[1]
    return paged_cache.too_many_slots(*call.k_nope_scale_buff.shape[:2]) or paged_cache.too_many_slots(1, pool)


def _case(device: torch.device, dtype: str, head_dim: int, pe: int, groups: tuple[int, int], *, has_q: bool = False,
          has_entries: bool = False) -> FusedQkNormRopeGroupQuantCall:
    """Keys into pages; with queries beside these, whole or as entries, and into a pool by rows or by blocks."""
    normal, index = tune_shapes.normal(device, 0, dtype), torch.arange(5, device=device)

    def entries(*shape: int) -> Tensor:
        return torch.zeros(*shape, head_dim, dtype=torch.uint8, device=device)

    call = FusedQkNormRopeGroupQuantCall(
        entries(2, 4), normal(2, 4, pe), None, None, None, None, None, normal(5, head_dim), None, normal(head_dim),
        index, *normal(2, 7, pe // 2), slot_mapping=index.flip(0) + 1, q_group_size=groups[0],
        quant_group_size=groups[1], is_neox=has_entries)
    if not has_q:
        return call
    q = normal(5, 2, head_dim)
    call = call._replace(
        k_nope_scale_buff=entries(5, 1), k_rope_buff=normal(5, 1, pe), q=q, slot_mapping=None,
        swa_nope_scale_buff=entries(1, 5), swa_rope_buff=normal(1, 5, pe), batch_id_per_token=torch.zeros_like(index))
    if not has_entries:
        return call._replace(q_nope_scale_buff=torch.empty_like(q), q_weight=normal(head_dim),
                             swa_dest_row=index.flip(0))
    return call._replace(q_nope_scale_buff=entries(5, 2), q_rope_buff=normal(5, 2, pe), swa_block_size=2,
                         swa_block_tables=torch.tensor([[1, 0, -1]], device=device))


fused_norm_rope_quant = Op(
    _OP, call=FusedQkNormRopeGroupQuantCall, reference=fused_ref, check=_check,
    cases=lambda device: {
        "bf16 entries": _case(device, "bf16", 512, 64, (32, 64), has_q=True, has_entries=True),
        "fp16": _case(device, "fp16", 192, 64, (64, 128), has_q=True),
        "fp32 keys": _case(device, "fp32", 96, 32, (64, 32)), "bf16 keys": _case(device, "bf16", 384, 128, (64, 64)),
        "bf16 long": _case(device, "bf16", 640, 128, (64, 64))},
    writes=("k_nope_scale_buff", "k_rope_buff", "q_nope_scale_buff", "q_rope_buff", "swa_nope_scale_buff",
            "swa_rope_buff"),
    backends=(Backend("hip", _fused_qk_norm_rope_group_quant_hip, refusal=_hip_refusal,
                      address_refusal=vectors.begin_at(dict.fromkeys(_IN_VECTORS, _VEC))), Backend("torch", fused_ref)))

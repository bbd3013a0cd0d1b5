# SPDX-License-Identifier: MIT
"""The call object of paged_attention: what it says about a call, what is wrong with one, memory for partial sums."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import Facts, arch_facts, facts_of, target_of
from aiter_like.dispatch import SKIP, STRIDED
from aiter_like.ops.attention.call import FLOATS, FP8
from aiter_like.ops.attention.checks import MIN_SCALE, check_heads
from aiter_like.traced import computed

OP = "paged_attention"
_DTYPES = (*FLOATS, *FP8, torch.int8)  # dtypes of q and of the cache
_MAX_BATCH = 65535


class Splitting(NamedTuple):
    """Numbers of configs/<arch>/attention.toml: when a sequence is split, and into how many parts."""

    least_keys: int
    parts_per_cu: int
    most_rounds: int
    part_keys: int = 0


class HopperSplitting(NamedTuple):
    """Numbers of configs/sm_90/attention.toml beside those."""

    whole_keys: int
    short_keys: int
    sum_bytes: int
    full: float
    uneven: float
    begin_keys: int
    sum_keys: int


def splitting(facts: Facts) -> Splitting:
    return facts.model("attention.paged", Splitting)


class PagedAttentionCall(NamedTuple):
    """One call of paged_attention: attention of the last tokens of sequences, causal, over keys in pages.

    Attributes:
        k: pages [num_pages, page_size, num_kv_heads, head_dim] of any strides but for the last, which is 1; or with x
            elements of a key together [num_pages, page_size, num_kv_heads, head_dim / x, x].
        v: [num_pages, page_size, num_kv_heads, head_dim_v] of any strides; or with x keys of a column together
            [num_pages, page_size / x, num_kv_heads, head_dim_v, x].
        block_table: [batch, pages], the pages of each sequence; with `page_starts` [pages] of all.
        seqlens_k: [batch], keys of each sequence; with `page_starts` those in its last page, or None: all.
        page_starts: [batch + 1]: where the pages of a sequence begin in `block_table`.
        cu_seqlens_q: [batch + 1]: where the rows of a sequence begin; or [batch]: each then has max_seqlen_q of them
            from there on; None: max_seqlen_q rows each, one after the other.
        q_scale: one number, or [total_q, num_heads]: what elements of q are multiplied by.
        k_scale, v_scale: one number, or [num_pages, page_size, num_kv_heads], also of strides 0.
        out_scale: one number: what an fp8 out is divided by.
        alibi_slopes: [num_heads] or [batch, num_heads]: slope · distance is subtracted from scores.
        sink: one more score in the denominator, with no value.
        tree_mask: [n, n] or [batch, n, n], n at least max_seqlen_q: query i sees the key of query j iff [i, j].
        workspace: memory for partial sums, paged_attention_workspace_bytes many; None: allocated.
        max_seqlen_q, max_seqlen_k: not less than the longest sequence of queries and of keys.
        window_left: a query sees that many keys before its own; −1: all.
        softcap: 0, or scores become softcap · tanh(score / softcap).
        num_splits: 0: the keys of a sequence are split as its length and the others' ask for; n: into n parts at most.
    """

    out: Annotated[Tensor, "total_q heads _"]
    lse: Annotated[Tensor | None, "heads total_q", torch.float32, STRIDED]
    q: Annotated[Tensor, "total_q heads dim", _DTYPES]
    k: Annotated[Tensor, "*k _", _DTYPES]
    v: Annotated[Tensor, "*v _", "k", STRIDED]
    block_table: Annotated[Tensor, "*table _", torch.int32]
    seqlens_k: Annotated[Tensor | None, "_", torch.int32]
    page_starts: Annotated[Tensor | None, "_", torch.int32] = None
    cu_seqlens_q: Annotated[Tensor | None, "_", torch.int32] = None
    q_scale: Annotated[Tensor | None, "*q_scale", torch.float32, STRIDED] = None
    k_scale: Annotated[Tensor | None, "*k_scale", torch.float32, STRIDED] = None
    v_scale: Annotated[Tensor | None, "*v_scale", torch.float32, STRIDED] = None
    out_scale: Annotated[Tensor | None, "*out_scale", torch.float32, STRIDED] = None
    alibi_slopes: Annotated[Tensor | None, "*slopes _", torch.float32] = None
    sink: Annotated[Tensor | None, "_", torch.float32] = None
    tree_mask: Annotated[Tensor | None, "*tree _ _", torch.bool, STRIDED] = None
    workspace: Annotated[Tensor | None, "_", torch.uint8] = None
    max_seqlen_q: int = 1
    max_seqlen_k: int = 0
    softmax_scale: float = 1.0
    window_left: int = -1
    softcap: float = 0.0
    num_splits: int = 0

    @property
    def batch(self) -> int:
        return self.block_table.shape[0] if self.page_starts is None else max(self.page_starts.shape[0] - 1, 0)

    @property
    def num_heads(self) -> int:
        return self.q.shape[1]

    @property
    def num_kv_heads(self) -> int:
        return self.k.shape[2]

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def head_dim(self) -> int:
        return self.q.shape[2]

    @property
    def head_dim_v(self) -> int:
        return self.v.shape[3]

    @property
    def page_size(self) -> int:
        return self.k.shape[1]

    @property
    def layout(self) -> str:
        """The layout of K and V: "rows"; "packed", K in packs of a key's elements; "shuffled", V in packs of keys
        too."""
        if self.v.ndim == 5:
            return "shuffled"
        return "packed" if self.k.ndim == 5 else "rows"

    @property
    def scales(self) -> str:
        """ "none", "tensor" or "token": how finely K or V are scaled. "tensor" is also a number per sequence and head,
        which unified_attention has.
        """
        given = [scale for scale in (self.k_scale, self.v_scale) if scale is not None]
        is_fine = any(scale.numel() > 1 and scale.ndim > 2 for scale in given)
        return "none" if not given else "token" if is_fine else "tensor"

    @property
    def features(self) -> tuple[str, ...]:
        """Features that a kernel must have besides pages and lse: short names, sorted."""
        found = {"alibi": self.alibi_slopes is not None, "sink": self.sink is not None, "softcap": self.softcap > 0,
                 "tree": self.tree_mask is not None, "window": self.window_left >= 0}
        return tuple(name for name, is_on in found.items() if is_on)


class Parts(NamedTuple):
    """Bounds that the host knows of what the device plans from lengths.

    Attributes:
        share: sequences are cut so that about so many parts have equally many keys; 0: into `most` parts each.
        most: parts of one sequence.
        grid: parts of all sequences.
        slots: parts that leave partial sums: those of sequences with two parts or more.
        split: sequences of which there are two parts or more.
        least: keys of a part, where `share` says how many parts there are.
    """

    share: int
    most: int
    grid: int
    slots: int
    split: int
    least: int


def parts_of(call: PagedAttentionCall) -> Parts:
    """A function of metadata and of the number of CUs: the same for each call of a captured graph.

    A sequence of n keys has ceil(n / chunk) parts, where share · chunk is at least the keys of all: together at most
    batch + share. A sequence of p ≥ 2 parts has more than (p − 1) chunk keys, so those have at most 2 share.
    """
    batch, longest, target = call.batch, max(call.max_seqlen_k, 1), target_of(call.q.device)
    facts = facts_of(target)
    model = splitting(facts)
    least = model.least_keys
    if call.num_splits:
        is_split = call.num_splits > 1
        return Parts(0, call.num_splits, batch * call.num_splits, batch * call.num_splits * is_split, batch * is_split,
                     least)
    most, heads = -(-longest // least), call.num_kv_heads
    if most == 1:
        return Parts(batch, 1, batch, 0, 0, least)
    at_once = max(model.parts_per_cu * target.cu_num // heads, 1)
    if target.platform != "cuda":
        share = best_share(batch, longest, at_once)  # csrc/attention/paged_attention.hip has the same
    else:
        own = facts.model("attention.paged_hopper", HopperSplitting)
        key_bytes = (call.head_dim + call.head_dim_v) * 2  # paged_attention_workspace_bytes knows no cache: 16 bits
        parts = best_parts(batch * heads, longest, target.cu_num, own.sum_bytes // key_bytes)
        share = batch * parts
        if parts * least > longest:
            least = own.short_keys
            most = -(-longest // least)
        if share == batch:  # equal sequences are best left whole: only one of more than its share of all keys is not
            if longest <= own.whole_keys:
                return Parts(batch, 1, batch, 0, 0, least)
            share = min(batch, at_once)
    return Parts(share, most, min(batch + share, batch * most), min(2 * share, batch * most), min(share, batch), least)


@computed
@functools.lru_cache(maxsize=1024)
def best_share(batch: int, longest: int, at_once: int) -> int:
    """Parts into which sequences of one length are best cut, where `at_once` of them run at a time."""
    model = splitting(arch_facts("gfx942"))
    best, least = batch, None
    for parts in range(1, -(-longest // model.least_keys) + 1):
        if parts > 1 and batch * parts > model.most_rounds * at_once:
            break
        cost = -(-batch * parts // at_once) * (-(-longest // parts) + model.part_keys)
        if least is None or cost < least:
            best, least = batch * parts, cost
    return best


@computed
@functools.lru_cache(maxsize=1024)
def best_parts(heads: int, longest: int, cu_num: int, sum_cost: int) -> int:
    """Parts of each of `heads` KV heads of all sequences, of one length, on NVIDIA: two workgroups share an SM, or one
    has it for itself and takes a little longer than half as long (configs/sm_90/attention.toml)."""
    facts = arch_facts("sm_90")
    model, own = splitting(facts), facts.model("attention.paged_hopper", HopperSplitting)
    best, least, all_at_once = 1, None, model.parts_per_cu * cu_num
    for parts in range(1, -(-longest // own.short_keys) + 1):
        most = model.most_rounds * all_at_once if parts * model.least_keys <= longest else cu_num // 2
        if parts > 1 and heads * parts > most:
            break
        rounds, rest = divmod(heads * parts, all_at_once)
        shares = rounds * model.parts_per_cu  # one is all of an SM's bandwidth
        if rest:
            shares += max(rest / cu_num, own.full) + (own.uneven if rest < all_at_once * own.full else 0)
        cost = shares * -(-longest // parts) + (rounds * model.parts_per_cu + -(-rest // cu_num)) * own.begin_keys
        cost += sum_cost + parts * own.sum_keys if parts > 1 else 0
        if least is None or cost < least:
            best, least = parts, cost
    return best


def decoding_space() -> Iterator[dict[str, int]]:
    """Settings that a tuner tries with the Triton kernel: at least 16 keys of a tile for each wave, which then has its
    own."""
    for block_n, num_warps, num_stages in itertools.product((32, 64, 128), (2, 4, 8), (2, 3, 4, 6)):
        if block_n >= 16 * num_warps:
            yield {"BLOCK_N": block_n, "num_warps": num_warps, "num_stages": num_stages}


def workspace_bytes(call: PagedAttentionCall, parts: Parts | None = None) -> int:
    """fp32 sums of rows, and their weights and maxima; of each sequence where they are, two int32."""
    slots = (parts or parts_of(call)).slots
    return slots * call.num_heads * call.max_seqlen_q * (call.head_dim_v + 2) * 4 + (8 * call.batch if slots else 0)


def check_paged_attention(call: PagedAttentionCall) -> object:
    """Checks a call by metadata, beyond annotations. Lengths and numbers of pages may be on a GPU: kernels keep within
    the tensors.
    """
    q = call.q
    _check_layout(call)
    if call.k.dtype in FLOATS and q.dtype != call.k.dtype:
        raise TypeError(f"{OP}: q must have the dtype of a 16-bit cache, {call.k.dtype}, got {q.dtype}")
    check_heads(OP, call, call.num_heads, call.num_kv_heads, "k")
    outs = FP8 if call.out_scale is not None else (q.dtype,) if q.dtype in FLOATS else FLOATS
    check.tensor(OP, "out", call.out, dtypes=outs, shape=(None, None, call.head_dim_v))
    _check_lengths(call)
    _check_scales(call)
    _check_options(call)
    return SKIP if q.numel() == 0 or call.batch == 0 or call.max_seqlen_q == 0 else None


def _check_layout(call: PagedAttentionCall) -> None:
    k, v, head_dim = call.k, call.v, call.head_dim
    if k.ndim not in (4, 5) or v.ndim not in (4, 5) or (v.ndim == 5 and k.ndim == 4):
        raise ValueError(f"{OP}: k and v must have 4 dimensions, k alone 5, or both, got {k.ndim} and {v.ndim}")
    x = 1 if k.ndim == 4 else max(k.shape[4], 1)
    packs = (head_dim,) if k.ndim == 4 else (head_dim // x, x)
    check.tensor(OP, "k", k, shape=(None, None, None, *packs))
    pages, page_size, heads = k.shape[:3]
    if v.ndim == 4:
        check.tensor(OP, "v", v, shape=(pages, page_size, heads, None), last_contiguous=False)
    else:
        y = max(v.shape[4], 1)
        check.tensor(OP, "v", v, shape=(pages, page_size // y, heads, None, y))
        if page_size % y or y & (y - 1):
            raise ValueError(f"{OP}: the last dimension of v must be a power of two that divides the page size "
                             f"{page_size}, got shape {tuple(v.shape)}")
    if head_dim % x or x & (x - 1):
        raise ValueError(f"{OP}: the last dimension of k must be a power of two that divides the head dimension "
                         f"{head_dim}, got shape {tuple(k.shape)}")
    if 0 in (head_dim, call.head_dim_v, page_size):
        raise ValueError(f"{OP}: pages and heads must not be empty, got k {tuple(k.shape)}, v {tuple(v.shape)}")


def _check_lengths(call: PagedAttentionCall) -> None:
    for name in ("max_seqlen_q", "max_seqlen_k", "num_splits"):
        check.integer(OP, name, getattr(call, name), low=0)
    check.tensor(OP, "block_table", call.block_table, rank=2 if call.page_starts is None else 1)
    if call.page_starts is None or call.seqlens_k is not None:
        check.tensor(OP, "seqlens_k", call.seqlens_k, shape=(call.batch,))
    rows, batch = call.q.shape[0], call.batch
    if batch > _MAX_BATCH:
        raise ValueError(f"{OP}: at most {_MAX_BATCH} sequences, got {batch}")
    if call.cu_seqlens_q is None:
        if rows != batch * call.max_seqlen_q:
            raise ValueError(f"{OP}: q must have {batch} sequences of max_seqlen_q = {call.max_seqlen_q} rows, got "
                             f"{rows}; cu_seqlens_q says where sequences of other lengths begin")
        return
    if call.cu_seqlens_q.shape[0] not in (batch, batch + 1):
        raise ValueError(f"{OP}: cu_seqlens_q must have {batch + 1} elements, or {batch}, got "
                         f"{call.cu_seqlens_q.shape[0]}")


def _check_scales(call: PagedAttentionCall) -> None:
    shapes = {"q_scale": call.q.shape[:2], "out_scale": None, "k_scale": call.k.shape[:3], "v_scale": call.k.shape[:3]}
    for name, shape in shapes.items():
        scale = getattr(call, name)
        if scale is not None and scale.numel() != 1 and scale.shape != shape:
            wanted = "1 element" if shape is None else f"1 element or shape {tuple(shape)}"
            raise ValueError(f"{OP}: {name} must have {wanted}, got shape {tuple(scale.shape)}")


def _check_options(call: PagedAttentionCall) -> None:
    if call.tree_mask is not None:
        mask, batch = call.tree_mask, call.batch
        if mask.ndim not in (2, 3) or min(mask.shape[-2:]) < call.max_seqlen_q or mask.ndim == 3 and len(mask) != batch:
            raise ValueError(f"{OP}: tree_mask must have shape (n, n) or ({batch}, n, n), n at least max_seqlen_q = "
                             f"{call.max_seqlen_q}, got {tuple(mask.shape)}")
    check.real(OP, "softmax_scale", call.softmax_scale, low=MIN_SCALE)
    check.real(OP, "softcap", call.softcap, low=0.0)
    check.integer(OP, "window_left", call.window_left, low=-1)
    if call.workspace is not None:
        needed = workspace_bytes(call)
        if call.workspace.numel() < needed or call.workspace.data_ptr() % 4:
            raise ValueError(f"{OP}: workspace must have at least {needed} bytes at an address that is a multiple of "
                             f"4, got {call.workspace.numel()}")

# SPDX-License-Identifier: MIT
"""Calls with memory that no result may depend on, and wrong things to put there: what no query sees of keys and values,
as pages that a window left or the rest of the last page; and how to find such memory in any call.
"""

import math
from typing import Any

import torch
from torch import Tensor

from aiter_like.dispatch import OPS
from aiter_like.dispatch.op import Op
from aiter_like.ops.attention.call import AttentionCall, PagedCall, backward_call, unshuffled_axes
from aiter_like.ops.attention.paged_attention import views_of
from aiter_like.ops.attention.paged_attention_call import PagedAttentionCall
from aiter_like.testing.attention_bwd import fill_forward

BF16 = torch.bfloat16
UNUSED = 2**31 - 1  # a page number that must never be read
_MOST_PARTS = 64  # of a tensor that are looked at one by one

Scene = tuple[Op, tuple, dict[str, Tensor]]
"""An operator, a call, and of its fields what is hidden, bool [leading dimensions]."""


def results(op: Op, args: tuple | list, backend: str) -> dict[str, Tensor]:
    """The bytes of what the call writes; its tensors stay as they are."""
    copies: dict[int, Tensor] = {}
    args = [copies.setdefault(id(arg), arg.clone()) if isinstance(arg, Tensor) else arg for arg in args]
    op(op.call(*args), backend=backend)
    return {op.call._fields[index]: args[index].contiguous().reshape(-1).view(torch.uint8)
            for index in op.write_indices if isinstance(args[index], Tensor)}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def put(tensor: Tensor, hidden: Tensor, value: float | Tensor) -> Tensor:
    """A copy, in the same strides, with something else where it is hidden."""
    mask = hidden.to(tensor.device).reshape(hidden.shape + (1,) * (tensor.ndim - hidden.ndim))
    wide = torch.float32 if tensor.is_floating_point() else tensor.dtype
    value = torch.as_tensor(value, device=tensor.device).to(wide)
    return tensor.clone().copy_(torch.where(mask, value, tensor.to(wide)).to(tensor.dtype))


def wrong(tensor: Tensor) -> tuple[float, ...]:
    """What no result may show, of operands; indices are looked at elsewhere."""
    if tensor.is_floating_point():
        return (math.nan, math.inf) if tensor.dtype.itemsize > 1 else (math.nan,)
    return (127,) if tensor.dtype == torch.int8 else ()


def _finite(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Other contents that mean something: large numbers of either sign."""
    return (torch.rand(tensor.shape, generator=generator) * 2 - 1) * (100.0 if tensor.dtype.itemsize == 1 else 3000.0)


def hidden_of(op: Op, call: tuple, field: int) -> Tensor | None:
    """What of an argument no result of the reference depends on while numbers are finite, over as many leading
    dimensions as are few parts; None: all of it counts, or this cannot be told."""
    tensor = call[field]
    if not isinstance(tensor, Tensor) or not tensor.numel() or not wrong(tensor) or tensor.shape[0] > _MOST_PARTS:
        return None
    shape = tensor.shape[:sum(math.prod(tensor.shape[:dims]) <= _MOST_PARTS for dims in range(1, tensor.ndim + 1))]
    generator, parts = torch.Generator().manual_seed(1), math.prod(shape)
    expected, everything = results(op, call, "torch"), torch.ones(shape, dtype=torch.bool)
    others = [_finite(tensor, generator) for _ in range(2)]
    # A part for which no other number was found is not looked at.
    is_hidden = torch.stack([put(tensor, everything, other) != tensor for other in others]).any(0)
    is_hidden = is_hidden.reshape(parts, -1).any(1).cpu()
    pending = [(0, parts)]
    while pending:
        first, end = pending.pop()
        part = (torch.arange(parts) >= first) & (torch.arange(parts) < end)
        changed = ([*call[:field], put(tensor, part.view(shape), other), *call[field + 1:]] for other in others)
        if all(equal(expected, results(op, args, "torch")) for args in changed):
            continue
        is_hidden &= ~part if end - first == 1 else True
        middle = (first + end) // 2
        pending += [(first, middle), (middle, end)] if end - first > 1 else []
    return is_hidden.view(shape) if is_hidden.any() else None


def _unseen(queries: int, keys: int, left: int, sink: int = 0) -> Tensor:
    """[keys]: whether no query of the sequence sees the key."""
    key = torch.arange(keys)
    return (key < (keys - queries - left if left >= 0 else 0)) & (key >= sink)


class _Pages:
    """Keys and values of sequences of `lengths` (queries, keys) on pages in random order, [pages, page_size, heads,
    dim], and which of their slots are hidden, [pages, page_size]."""

    def __init__(self, device: torch.device, lengths: tuple[tuple[int, int], ...], page_size: int, left: int, sink: int,
                 heads: int, dim: int, dtype: torch.dtype, seed: int):
        self.generator = torch.Generator().manual_seed(seed)
        self.device, counts = device, [-(-keys // page_size) for _, keys in lengths]
        order = torch.randperm(sum(counts) + 2, generator=self.generator).int()
        self.table = torch.full((len(lengths), max(counts) + 2), UNUSED, dtype=torch.int32)
        self.hidden = torch.ones(len(order), page_size, dtype=torch.bool)
        for index, (count, (queries, keys)) in enumerate(zip(counts, lengths)):
            pages = self.table[index, :count] = order[sum(counts[:index]):][:count]
            unseen = torch.ones(count * page_size, dtype=torch.bool)
            unseen[:keys] = _unseen(queries, keys, left, sink)
            self.hidden[pages.long()] = unseen.view(count, page_size)
        scale = 40 if dtype == torch.int8 else 1
        self.k, self.v = ((self.random(len(order), page_size, heads, dim) * scale).to(dtype) for _ in range(2))
        queries, keys = zip(*lengths)
        self.starts = torch.tensor([0, *torch.tensor(queries).cumsum(0)], dtype=torch.int32, device=device)
        self.used = torch.tensor(keys, dtype=torch.int32, device=device)
        self.table = self.table.to(device)
        self.sizes = {"max_seqlen_q": max(queries), "max_seqlen_k": max(keys), "softmax_scale": dim ** -0.5,
                      "window_left": left}

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.device)

    def packed(self, is_shuffled: bool) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """k and v with 16 bytes together as AITER's kernels have them, v by columns or shuffled; what is hidden."""
        x = 16 // self.k.element_size()
        k, (_, _, heads, dim) = self.k.unflatten(3, (-1, x)).permute(0, 2, 3, 1, 4).contiguous(), self.v.shape
        if not is_shuffled:
            return *views_of(k, self.v.permute(0, 2, 3, 1).contiguous(), "packed"), {"k": self.hidden, "v": self.hidden}
        v = self.v.unflatten(1, (-1, x)).permute(0, 3, 1, 4, 2).contiguous()
        return *unshuffled_axes(k, v), {"k": self.hidden, "v": self.hidden.unflatten(1, (-1, x))[:, :, None, None]
                                        .expand(-1, -1, heads, dim, -1)}


def unified(device: torch.device, lengths: tuple[tuple[int, int], ...], page_size: int = 16, left: int = -1,
            right: int = 0, sink: int = 0, dtype: torch.dtype = BF16, is_shuffled: bool = False, seed: int = 0,
            **options: Any) -> Scene:
    """A call of unified_attention; lengths: (queries, keys) of each sequence."""
    pages = _Pages(device, lengths, page_size, left, sink, 2, 64, dtype, seed)
    q = pages.random(int(pages.starts[-1]), 4, 64).to(BF16)
    k, v, hidden = pages.packed(True) if is_shuffled else (pages.k, pages.v, {"k": pages.hidden, "v": pages.hidden})
    if dtype.itemsize == 1:
        options = {"k_descale": torch.full((1,), 0.5, device=device), "v_descale": torch.ones(1, device=device),
                   **options}
    return OPS["unified_attention"], PagedCall(
        torch.zeros_like(q), torch.zeros(4, len(q), device=device), q, k, v, cu_seqlens_q=pages.starts,
        seqlens_k=pages.used, block_table=pages.table, **pages.sizes, window_right=right, sink_size=sink,
        **options), hidden


def paged(device: torch.device, lengths: tuple[tuple[int, int], ...], left: int = -1, layout: str = "rows",
          dtype: torch.dtype = BF16, by_token: bool = False, seed: int = 0, **options: Any) -> Scene:
    """A call of paged_attention. by_token: with scales for each key, which are hidden where it is."""
    pages = _Pages(device, lengths, 16, left, 0, 2, 64, dtype, seed)
    q = pages.random(int(pages.starts[-1]), 4, 64).to(BF16)
    k, v, hidden = pages.k, pages.v, {"k": pages.hidden, "v": pages.hidden}
    if layout != "rows":
        k, v, hidden = pages.packed(layout == "shuffled")
    if by_token:
        options |= {name: pages.random(*pages.k.shape[:3]).abs() * 0.02 + 0.01 for name in ("k_scale", "v_scale")}
        hidden |= {"k_scale": pages.hidden, "v_scale": pages.hidden}
    return OPS["paged_attention"], PagedAttentionCall(
        torch.zeros_like(q), torch.zeros(4, len(q), device=device), q, k, v, pages.table, pages.used,
        cu_seqlens_q=pages.starts, **pages.sizes, **options), hidden


def tree(device: torch.device, lengths: tuple[tuple[int, int], ...], layout: str = "rows", **options: Any) -> Scene:
    """A call of paged_attention with a mask of queries, three of whose keys no query sees."""
    op, call, hidden = paged(device, lengths, layout=layout, **options)
    size, unseen = max(queries for queries, _ in lengths), torch.tensor((1, 3, 4))
    mask = torch.ones(size, size, dtype=torch.bool).tril()
    mask[:, unseen] = False
    hidden = {name: own.clone() for name, own in hidden.items()}
    for pages, (queries, keys) in zip(call.block_table.cpu().long(), lengths):
        key = keys - queries + unseen
        place = (pages[key // 16], key % 16)
        for own in hidden.values():
            if own.ndim == 2:
                own[place] = True
            else:  # a shuffled v, whose axis of keys comes in parts
                own[place[0], place[1] // own.shape[-1], :, :, place[1] % own.shape[-1]] = True
    return op, call._replace(tree_mask=mask.to(device)), hidden


def latent(device: torch.device, name: str) -> Scene:
    """A case of mla_decode: its pages' keys behind the last one of a sequence, and pages of no sequence."""
    op = OPS["mla_decode"]
    call = op.cases(device)[name]
    kv = torch.cat((call.kv.float(), torch.ones_like(call.kv[:1]).float())).to(call.kv.dtype)
    hidden, starts = torch.ones(kv.shape[:2], dtype=torch.bool), call.kv_indptr.tolist()
    for index in range(call.batch):
        entries = call.kv_indices[starts[index]:starts[index + 1]].long().cpu()
        hidden[entries] = False
        if call.kv_last_page_lens is not None and len(entries):
            hidden[entries[-1], int(call.kv_last_page_lens[index]):] = True
    return op, call._replace(kv=kv), {"kv": hidden}


def dense(device: torch.device, lengths: tuple[tuple[int, int], ...], left: int = -1, right: int = 0, sink: int = 0,
          dim: int = 64, is_cache: bool = False, seed: int = 0) -> Scene:
    """A call of flash_attn_fwd: packed sequences with rows behind them, or equally many queries each, and caches."""
    generator = torch.Generator().manual_seed(seed)
    (queries, keys), batch = zip(*lengths), len(lengths)
    sizes = {"max_seqlen_q": max(queries), "max_seqlen_k": max(keys), "softmax_scale": dim ** -0.5,
             "window_left": left, "window_right": right, "sink_size": sink}
    unseen = [_unseen(*length, left, sink) for length in lengths]
    if is_cache:
        hidden = torch.ones(batch, max(keys) + 9, dtype=torch.bool)
        for own, part in zip(hidden, unseen):
            own[:len(part)] = part
        sizes |= {"seqlens_k": torch.tensor(keys, dtype=torch.int32, device=device), "max_seqlen_k": hidden.shape[1]}
        rows, lse = (batch, max(queries)), (batch, 4, max(queries))
        parts = {"k": hidden, "v": hidden}
    else:
        hidden = torch.cat((*unseen, torch.ones(70, dtype=torch.bool)))
        sizes |= {f"cu_seqlens_{name}": torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32,
                                                     device=device) for name, counts in (("q", queries), ("k", keys))}
        rows, lse = (sum(queries) + 5,), (4, sum(queries) + 5)
        parts = {"q": torch.arange(rows[0]) >= sum(queries), "k": hidden, "v": hidden}
    q, k, v = (torch.randn(*shape, heads, dim, generator=generator).to(device, BF16)
               for shape, heads in ((rows, 4), (hidden.shape, 2), (hidden.shape, 2)))
    return OPS["flash_attn_fwd"], AttentionCall(torch.zeros_like(q), torch.zeros(lse, device=device), q, k, v,
                                                **sizes), parts


def backward(device: torch.device, lengths: tuple[tuple[int, int], ...], left: int = -1, right: int = 0, sink: int = 0,
             is_packed: bool = True, heads: tuple[int, int] = (4, 2), dims: tuple[int, int] = (64, 64),
             dtype: torch.dtype = BF16, with_sink: bool = False, with_bias: bool = False, seed: int = 0,
             **options: Any) -> Scene:
    """A call of flash_attn_bwd, with rows behind packed sequences, or sequences of one length: hidden are keys that no
    query sees, queries that see no key, their results, and the bias between those that do not see each other."""
    generator = torch.Generator().manual_seed(seed)
    (queries, keys), batch, behind = zip(*lengths), len(lengths), 70 if is_packed else 0
    visible = torch.zeros(batch, max(queries), max(keys), dtype=torch.bool)
    for own, (rows, count) in zip(visible, lengths):
        distance = torch.arange(rows)[:, None] + (count - rows) - torch.arange(count)
        own[:rows, :count] = (distance >= -right if right >= 0 else True) & (
            (distance <= left) | (torch.arange(count) < sink) if left >= 0 else True)
    unseen, blind = ~visible.any(1), ~visible.any(2)
    sizes = {"max_seqlen_q": max(queries), "max_seqlen_k": max(keys), "softmax_scale": dims[0] ** -0.5,
             "window_left": left, "window_right": right, "sink_size": sink, **options}
    pairs = ~visible[:, None]
    if is_packed:
        tail = torch.ones(behind, dtype=torch.bool)
        pairs = torch.cat([own[:rows] for own, rows in zip(~visible, queries)] + [tail[:, None].expand(-1, max(keys))])
        unseen = torch.cat([own[:count] for own, count in zip(unseen, keys)] + [tail])
        blind = torch.cat([own[:count] for own, count in zip(blind, queries)] + [tail])
        sizes |= {f"cu_seqlens_{name}": torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32,
                                                     device=device) for name, counts in (("q", queries), ("k", keys))}
    q, dout, k, v = (torch.randn(*mask.shape, heads[kv], dim, generator=generator).to(device, dtype)
                     for mask, kv, dim in ((blind, 0, dims[0]), (blind, 0, dims[1]), (unseen, 1, dims[0]),
                                           (unseen, 1, dims[1])))
    lse_hidden = blind[..., None, :].expand(*blind.shape[:-1], heads[0], -1)
    dlse, gradients = torch.randn(lse_hidden.shape, generator=generator).to(device), {}
    hidden = {"k": unseen, "v": unseen, "q": blind, "dout": blind, "out": blind}
    if with_sink:
        sizes["sink"] = torch.randn(heads[0], generator=generator).to(device)
        gradients["dsink"] = torch.zeros_like(sizes["sink"])
    else:
        hidden |= {"lse": lse_hidden, "dlse": lse_hidden}
    if with_bias:
        bias = torch.randn(pairs.shape, generator=generator).to(device, dtype)
        sizes["bias"], hidden["bias"] = bias[:1], pairs[:1]
        if is_packed:
            sizes["bias"], hidden["bias"] = bias, pairs
    forward = AttentionCall(torch.zeros_like(dout), torch.zeros(lse_hidden.shape, device=device), q, k, v, **sizes)
    return OPS["flash_attn_bwd"], fill_forward(backward_call(forward, dout, dlse=dlse, **gradients)), hidden

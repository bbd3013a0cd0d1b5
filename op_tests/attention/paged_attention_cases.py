# SPDX-License-Identifier: MIT
"""What the tests of paged_attention share: sequences over pages in each layout, the call, comparison with float64."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch

import aiter_like
from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.testing import TOLERANCES, assert_within, relative_l2

BF16, F16, I8 = torch.bfloat16, torch.float16, torch.int8
_BITS = {1: torch.uint8, 2: torch.int16}  # fp8 can be indexed by its bits alone


@dataclass
class Case:
    """Sequences of `lengths` (queries, keys) over pages in random order; NaN wherever no key is stored.

    The first two sequences share the pages that both fill; the table ends in −1.
    """

    device: torch.device
    lengths: tuple[tuple[int, int], ...]
    heads: tuple[int, int] = (4, 2)
    dims: tuple[int, int] = (64, 64)
    page_size: int = 16
    layout: str = "NHD"
    dtype: torch.dtype = BF16
    kv_dtype: torch.dtype | None = None
    scales: str = "none"
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self.kv_dtype = self.kv_dtype or self.dtype
        size, (heads, kv_heads) = self.page_size, self.heads
        counts = [-(-keys // size) for _, keys in self.lengths]
        self.num_pages = sum(counts) + 2
        order = torch.randperm(self.num_pages, generator=self.generator).to(torch.int32)
        self.table = torch.full((len(self.lengths), max(counts) + 1), -1, dtype=torch.int32)
        stored = torch.zeros(self.num_pages, size, dtype=torch.bool)
        for index, (count, (_, keys)) in enumerate(zip(counts, self.lengths, strict=True)):
            pages = order[sum(counts[:index]):][:count].clone()
            if index == 1:
                shared = min(self.lengths[0][1], keys) // size
                pages[:shared] = self.table[0, :shared]
            self.table[index, :count] = pages
            stored[pages.long()] |= (torch.arange(count * size) < keys).view(count, size)
        rows = sum(queries for queries, _ in self.lengths)
        self.q = self.random(rows, heads, self.dims[0], dtype=self.dtype)
        self.planes = []  # [num_pages, page_size, num_kv_heads, dim], NaN where a type has one
        for dim in self.dims:
            plane = self.random(self.num_pages, size, kv_heads, dim, dtype=self.kv_dtype)
            poison = torch.tensor(99.0 if self.kv_dtype == I8 else math.nan).to(self.kv_dtype)
            plane.view(_BITS[plane.itemsize])[~stored] = poison.view(_BITS[plane.itemsize])
            self.planes.append(plane)
        shape = {"none": None, "tensor": (1,), "token": (self.num_pages, size, kv_heads)}[self.scales]
        self.scale_planes = [None, None]
        if shape:
            self.scale_planes = [torch.rand(shape, generator=self.generator) * 0.03 + 0.01 for _ in range(2)]
        if self.scales == "token":
            for plane in self.scale_planes:
                plane[~stored] = math.nan

    def random(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        values = torch.randn(*shape, generator=self.generator)
        return (values * 40).round().clamp(-127, 127).to(dtype) if dtype == I8 else values.to(dtype)

    @property
    def starts(self) -> torch.Tensor:
        queries = torch.tensor([0, *(queries for queries, _ in self.lengths)])
        return queries.cumsum(0).to(self.device, torch.int32)

    @property
    def used(self) -> torch.Tensor:
        return torch.tensor([keys for _, keys in self.lengths], dtype=torch.int32, device=self.device)

    @property
    def longest(self) -> tuple[int, int]:
        return max(q for q, _ in self.lengths), max(k for _, k in self.lengths)

    def caches(self) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V in the layout; "interleaved": NHD views of storage that has K and V of a head together."""
        k, v = self.planes
        x = 16 // k.element_size()
        if self.layout == "interleaved":
            storage = torch.cat((k, v), -1).transpose(1, 2).contiguous().to(self.device).transpose(1, 2)
            return storage[..., :self.dims[0]], storage[..., self.dims[0]:]
        if self.layout == "HND":
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        elif self.layout != "NHD":
            k = k.unflatten(3, (-1, x)).permute(0, 2, 3, 1, 4)
            v = (v.permute(0, 2, 3, 1) if self.layout == "packed"
                 else v.unflatten(1, (-1, x)).permute(0, 3, 1, 4, 2))
        return k.contiguous().to(self.device), v.contiguous().to(self.device)

    def arguments(self) -> dict[str, Any]:
        """Of the public function, but for q."""
        k, v = self.caches()
        longest_q, longest_k = self.longest
        moved = {name: value.to(self.device) if isinstance(value, torch.Tensor) else value
                 for name, value in self.options.items()}
        if any(queries != longest_q for queries, _ in self.lengths):
            moved["cu_seqlens_q"] = self.starts
        for name, plane in zip(("k_scale", "v_scale"), self.scale_planes):
            if plane is not None:  # heads before places, as AITER has them
                moved[name] = plane.to(self.device) if plane.ndim == 1 else plane.transpose(1, 2).contiguous().to(
                    self.device).transpose(1, 2)
        return {"k_cache": k, "v_cache": v, "block_table": self.table.to(self.device), "seq_lens": self.used,
                "max_seqlen_k": longest_k, "max_seqlen_q": longest_q,
                "layout": "NHD" if self.layout == "interleaved" else self.layout, **moved}

    def call(self, run, backend: str | None, **options: Any) -> Any:
        return run(backend, aiter_like.paged_attention, self.q.to(self.device), **{**self.arguments(), **options})

    def expect(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(out, Σ p·|v| / Σ p, lse) in float64."""
        outs, weighted, lses, first = [], [], [], 0
        for index, (queries, keys) in enumerate(self.lengths):
            pages = self.table[index, :-(-keys // self.page_size)].long()
            k, v = (self._gathered(plane, scale, pages, keys)
                    for plane, scale in zip(self.planes, self.scale_planes))
            q = self.q[first:first + queries].double()
            if "q_scale" in self.options:
                scale = self.options["q_scale"]
                q = q * (scale if scale.numel() == 1 else scale[first:first + queries][..., None])
            p, lse = self._weights(index, q, k)
            outs.append(torch.einsum("hqk,khd->qhd", p, v))
            weighted.append(torch.einsum("hqk,khd->qhd", p, v.abs()))
            lses.append(lse)
            first += queries
        return torch.cat(outs), torch.cat(weighted), torch.cat(lses, 1)

    def _gathered(self, plane, scale, pages, keys):
        group = self.heads[0] // self.heads[1]
        values = plane[pages].flatten(0, 1)[:keys].double() if plane.dtype not in (
            torch.float8_e4m3fnuz, torch.float8_e4m3fn) else plane.double()[pages].flatten(0, 1)[:keys]
        if scale is not None:
            values = values * (scale if scale.ndim == 1 else scale[pages].flatten(0, 1)[:keys][..., None])
        return values.repeat_interleave(group, 1)

    def _weights(self, index: int, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        options, queries, keys = self.options, q.shape[0], k.shape[0]
        scores = torch.einsum("qhd,khd->hqk", q, k) * options.get("softmax_scale", self.dims[0] ** -0.5)
        if softcap := options.get("softcap"):
            scores = softcap * torch.tanh(scores / softcap)
        distance = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
        if "alibi_slopes" in options:
            slopes = options["alibi_slopes"].double()
            scores = scores - (slopes if slopes.ndim == 1 else slopes[index])[:, None, None] * distance.abs()
        hidden = distance < 0
        if (tree := options.get("tree_mask")) is not None:
            tree, own = tree if tree.ndim == 2 else tree[index], min(queries, keys)
            hidden[:, keys - own:] = ~tree[:queries, queries - own:queries]
        if (left := options.get("window_left", -1)) >= 0:
            hidden = hidden | (distance > left)
        scores = scores.masked_fill(hidden, -math.inf)
        if "sinks" in options:
            scores = torch.cat((scores, options["sinks"].double()[:, None, None].expand(-1, queries, 1)), -1)
        lse = scores.logsumexp(-1)
        return torch.exp(scores - lse.masked_fill(lse == -math.inf, 0.0)[..., None])[..., :keys], lse

    def compare(self, out: torch.Tensor, lse: torch.Tensor | None = None) -> None:
        """|out − out64| ≤ (u + e32)·Σ p·|v| / Σ p + u·|out64|; P is bf16 where keys have scales of their own."""
        expected, weighted, lses = self.expect()
        tolerance, rounded = TOLERANCES[out.dtype, "rtne"], TOLERANCES[BF16 if self.scales == "token" else out.dtype,
                                                                       "rtne"]
        fp32 = 2**-24 * (8 * math.sqrt(max(self.longest[1], 1)) + 64 * math.sqrt(self.dims[0]) + 8)
        unit = tolerance.unit
        limit = (rounded.unit + fp32 + unit**2) * weighted + unit * (1 + unit) * expected.abs() + tolerance.smallest
        assert_within("paged_attention", out, expected, limit)
        assert relative_l2(out, expected) <= rounded.relative_l2
        if lse is not None:
            assert_within("lse", lse, lses, 2e-5 * (1 + lses.abs().nan_to_num(0, 0, 0)))


def fp8_of(device: torch.device) -> torch.dtype:
    return dtypes.fp8_of(target_of(device).arch)

# SPDX-License-Identifier: MIT
"""What the tests of latent attention share: sequences over pages, the call, comparison with float64."""

import math
from dataclasses import dataclass
from typing import Any

import torch

import aiter_like
from aiter_like.ops.attention.call import FLOATS
from aiter_like.testing import TOLERANCES, assert_within, relative_l2

BF16 = torch.bfloat16
UNUSED = 2**31 - 1  # a page number that must never be read


@dataclass
class Case:
    """Sequences of `lengths` (query tokens, keys) over pages in random order; NaN wherever no key is stored."""

    q: torch.Tensor
    kv: torch.Tensor
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    last_page_lens: torch.Tensor
    lengths: tuple[tuple[int, int], ...]
    v_dim: int

    @property
    def max_seqlen_q(self) -> int:
        return max(rows for rows, _ in self.lengths)

    @property
    def page_size(self) -> int:
        return self.kv.shape[1]

    @property
    def tables(self) -> tuple[torch.Tensor, ...]:
        return self.qo_indptr, self.kv_indptr, self.kv_indices, self.last_page_lens

    def new_out(self) -> torch.Tensor:
        dtype = self.q.dtype if self.q.dtype in FLOATS else BF16
        return torch.full((*self.q.shape[:2], self.v_dim), math.nan, dtype=dtype, device=self.q.device)

    def call(self, run, backend: str, out: torch.Tensor | None = None,
             **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, lse) of the public function; options: of it, by name."""
        out = self.new_out() if out is None else out
        _, lse = run(backend, aiter_like.mla_decode_fwd, self.q, self.kv, out, *self.tables, self.max_seqlen_q,
                     self.page_size, return_lse=True, **options)
        return out, lse


def starts_of(counts: list[int]) -> torch.Tensor:
    return torch.tensor([0, *counts]).cumsum(0).to(torch.int32)


def make(device, lengths, heads=16, page_size=16, dtype=BF16, kv_dtype=None, seed=0, v_dim=128, rope_dim=32,
         shared=0) -> Case:
    """shared: leading pages that all sequences have in common."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-keys // page_size) for _, keys in lengths]
    num_pages = sum(counts) + 2
    order = torch.randperm(num_pages, generator=generator).to(torch.int32)
    tables, stored = [], torch.zeros(num_pages, page_size, dtype=torch.bool)
    for index, (count, (_, keys)) in enumerate(zip(counts, lengths, strict=True)):
        pages = order[sum(counts[:index]):][:count].clone()
        if 0 < shared < min(count, counts[0]):
            pages[:shared] = tables[0][:shared] if tables else pages[:shared]
        tables.append(pages)
        stored[pages.long()] |= (torch.arange(count * page_size) < keys).view(count, page_size)
    kv = torch.randn(num_pages, page_size, 1, v_dim + rope_dim, generator=generator)
    kv[~stored] = math.nan
    q = torch.randn(sum(rows for rows, _ in lengths), heads, v_dim + rope_dim, generator=generator).to(dtype)
    last = torch.tensor([(keys - 1) % page_size + 1 if keys else 0 for _, keys in lengths], dtype=torch.int32)
    indices = torch.cat((*tables, torch.tensor([UNUSED, -1], dtype=torch.int32)))
    return Case(q.to(device), kv.to(kv_dtype or dtype).to(device), starts_of([rows for rows, _ in lengths]).to(device),
                starts_of(counts).to(device), indices.to(device), last.to(device), tuple(lengths), v_dim)


def expect(case: Case, causal: bool = True, sm_scale: float | None = None, logit_cap: float = 0.0, q_scale: float = 1.0,
           kv_scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(out, Σ p·|v| / Σ p, lse) in float64 on the CPU."""
    out, weighted, sums = [], [], []
    scale = case.q.shape[2] ** -0.5 if sm_scale is None else sm_scale
    rows, pages = case.qo_indptr.tolist(), case.kv_indptr.tolist()
    for index, (queries, keys) in enumerate(case.lengths):
        q = case.q[rows[index]:rows[index + 1]].cpu().double() * q_scale
        entries = case.kv_indices[pages[index]:pages[index + 1]].long()
        is_page = (entries >= 0) & (entries < len(case.kv))
        k = case.kv[entries.clamp(0, len(case.kv) - 1)].cpu().double() * kv_scale
        k = torch.where(is_page[:, None, None, None].cpu(), k, 0.0).flatten(0, 2)[:keys]
        scores = torch.einsum("qhd,kd->hqk", q, k) * scale
        if logit_cap:
            scores = logit_cap * torch.tanh(scores / logit_cap)
        hidden = ~is_page.repeat_interleave(case.page_size)[:keys].cpu().expand(queries, keys)
        if causal:
            hidden = hidden | (torch.arange(keys) > torch.arange(queries)[:, None] + keys - queries)
        scores = scores.masked_fill(hidden, -math.inf)
        lse = scores.logsumexp(-1)
        p = torch.exp(scores - lse.masked_fill(lse == -math.inf, 0.0)[..., None])
        v = k[:, :case.v_dim]
        out.append(torch.einsum("hqk,kd->qhd", p, v))
        weighted.append(torch.einsum("hqk,kd->qhd", p, v.abs()))
        sums.append(lse.t())
    return torch.cat(out), torch.cat(weighted), torch.cat(sums)


def compare(case: Case, out: torch.Tensor, lse: torch.Tensor | None = None, **options: Any) -> None:
    """|out − out64| ≤ (u + e32)·Σ p·|v| / Σ p + u·|out64|, and the log-sum-exp within what fp32 scores allow."""
    expected, weighted, sums = expect(case, **options)
    tolerance = TOLERANCES[out.dtype, "rtne"]
    longest = max(keys for _, keys in case.lengths)
    unit, fp32 = tolerance.unit, 2**-24 * (8 * math.sqrt(longest) + 64 * math.sqrt(case.q.shape[2]) + 8)
    limit = (unit + fp32 + unit**2) * weighted + unit * (1 + unit) * expected.abs() + tolerance.smallest
    assert_within("mla_decode", out, expected, limit)
    assert relative_l2(out, expected) <= tolerance.relative_l2
    if lse is not None:
        assert_within("lse", lse, sums, fp32 + 2**-20 * sums.abs().nan_to_num(posinf=0.0).clamp(min=1.0))


def check(run, backend: str, case: Case, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs the backend and compares with float64."""
    out, lse = case.call(run, backend, **options)
    known = {name: value for name, value in options.items() if name in ("causal", "sm_scale", "logit_cap")}
    scales = {name: options[name].item() for name in ("q_scale", "kv_scale") if name in options}
    compare(case, out, lse, **known, **scales)
    return out, lse

# SPDX-License-Identifier: MIT
"""What the tests of paged attention share: sequences over pages, the call, comparison with float64."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch

import aiter_like
from aiter_like import explain, sim
from aiter_like.modules import build, code_object
from aiter_like.ops.attention.call import PagedCall
from aiter_like.ops.attention.unified_attention import unified_attention_op
from aiter_like.testing import TOLERANCES, assert_within, relative_l2

BF16 = torch.bfloat16
UNUSED = 2**31 - 1  # a page number that must never be read


@dataclass
class Case:
    """Sequences of `lengths` (queries, keys) over pages in random order; NaN wherever no key is stored."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seqused_k: torch.Tensor
    block_table: torch.Tensor
    lengths: tuple[tuple[int, int], ...]

    @property
    def max_lengths(self) -> tuple[int, int]:
        return max(q for q, _ in self.lengths), max(k for _, k in self.lengths)

    def call(self, run, backend: str, out: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
        """The public function; options: of it, by name."""
        names = {"softmax_scale": self.q.shape[-1] ** -0.5, "causal": True, "window_size": (-1, -1), "softcap": 0.0,
                 "q_descale": None, "k_descale": None, "v_descale": None, **options}
        positional = [names.pop(name) for name in ("softmax_scale", "causal", "window_size")]
        scaling = [names.pop(name) for name in ("softcap", "q_descale", "k_descale", "v_descale")]
        out = torch.empty(*self.q.shape[:2], self.v.shape[-1], dtype=self.q.dtype,
                          device=self.q.device) if out is None else out
        max_q, max_k = self.max_lengths
        returned = run(backend, aiter_like.unified_attention, self.q, self.k, self.v, out, self.cu_seqlens_q, max_q,
                       self.seqused_k, max_k, *positional, self.block_table, *scaling, **names)
        assert returned is out
        return out


def make(device, lengths, heads=4, kv_heads=2, head_dim=64, page_size=16, dtype=BF16, kv_dtype=None, seed=0,
         head_dim_v=None) -> Case:
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-keys // page_size) for _, keys in lengths]
    num_pages, widest = sum(counts) + 2, max(counts) + 2
    order = torch.randperm(num_pages, generator=generator).to(torch.int32)
    table = torch.full((len(lengths), widest), UNUSED, dtype=torch.int32)
    stored = torch.zeros(num_pages, page_size, dtype=torch.bool)
    for index, (count, (_, keys)) in enumerate(zip(counts, lengths, strict=True)):
        pages = order[sum(counts[:index]):][:count]
        table[index, :count] = pages
        stored[pages.long()] = (torch.arange(count * page_size) < keys).view(count, page_size)
    total = sum(queries for queries, _ in lengths)
    q = torch.randn(total, heads, head_dim, generator=generator).to(dtype)
    caches = []
    for width in (head_dim, head_dim_v or head_dim):
        cache = torch.randn(num_pages, page_size, kv_heads, width, generator=generator)
        cache[~stored] = math.nan
        caches.append(cache.to(kv_dtype or dtype).to(device))
    starts = torch.tensor([0, *torch.tensor([queries for queries, _ in lengths]).cumsum(0)], dtype=torch.int32)
    used = torch.tensor([keys for _, keys in lengths], dtype=torch.int32)
    return Case(q.to(device), *caches, starts.to(device), used.to(device), table.to(device), tuple(lengths))


def expect(case: Case, causal=True, window_size=(-1, -1), softcap=0.0, softmax_scale=None, alibi_slopes=None,
           sinks=None, qq_bias=None, k_descale=1.0, v_descale=1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(out, Σ p·|v| / Σ p, lse) in float64 on the CPU."""
    out, weighted, lses = [], [], []
    scale = case.q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    starts = case.cu_seqlens_q.tolist()
    for index, (queries, keys) in enumerate(case.lengths):
        pages = case.block_table[index, :-(-keys // case.k.shape[1])].long()
        q = case.q[starts[index]:starts[index + 1]].cpu().double()
        k, v = (cache[pages].flatten(0, 1)[:keys].cpu().double().repeat_interleave(q.shape[1] // cache.shape[2], 1)
                * factor for cache, factor in ((case.k, k_descale), (case.v, v_descale)))
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        row, key, delta = torch.arange(queries)[:, None], torch.arange(keys), keys - queries
        if qq_bias is not None:
            scores[:, :, delta:] += qq_bias[:queries, :queries].cpu().double()
        if alibi_slopes is not None:
            scores -= alibi_slopes.cpu().double()[:, None, None] * (row + delta - key).abs()
        left, right = window_size[0], 0 if causal else window_size[1]
        hidden = (key > row + delta + right) if right >= 0 else torch.zeros(queries, keys, dtype=torch.bool)
        if left >= 0:
            hidden = hidden | (key < row + delta - left)
        scores = scores.masked_fill(hidden, -math.inf)
        if sinks is not None:
            scores = torch.cat((scores, sinks.cpu().double()[:, None, None].expand(-1, queries, 1)), -1)
        lse = scores.logsumexp(-1)
        p = torch.exp(scores - lse.masked_fill(lse == -math.inf, 0.0)[..., None])[..., :keys]
        out.append(torch.einsum("hqk,khd->qhd", p, v))
        weighted.append(torch.einsum("hqk,khd->qhd", p, v.abs()))
        lses.append(lse)
    return torch.cat(out), torch.cat(weighted), torch.cat(lses, 1)


def check(run, backend: str, case: Case, **options: Any) -> torch.Tensor:
    """Runs the backend and compares with float64: |out − out64| ≤ (u + e32)·Σ p·|v| / Σ p + u·|out64|."""
    out = case.call(run, backend, **options)
    known = {name: value for name, value in options.items() if name not in ("k_descale", "v_descale")}
    compare(case, out, **known)
    return out


def compare(case: Case, out: torch.Tensor, **options: Any) -> None:
    expected, weighted, _ = expect(case, **options)
    tolerance = TOLERANCES[out.dtype, "rtne"]
    unit, fp32 = tolerance.unit, 2**-24 * (8 * math.sqrt(case.max_lengths[1]) + 64 * math.sqrt(case.q.shape[2]) + 8)
    limit = (unit + fp32 + unit**2) * weighted + unit * (1 + unit) * expected.abs() + tolerance.smallest
    assert_within("unified_attention", out, expected, limit)
    assert relative_l2(out, expected) <= tolerance.relative_l2


def shuffled(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """The caches as engines shuffle them: pieces of 16 bytes of a key's columns, and of one column of the values."""
    x = 16 // case.k.element_size()
    return (case.k.unflatten(3, (-1, x)).permute(0, 2, 3, 1, 4).contiguous(),
            case.v.unflatten(1, (-1, x)).permute(0, 3, 1, 4, 2).contiguous())


def check_packed_storage(run, backend: str, case: Case) -> None:
    """K and V interleaved by head, heads before tokens, as engines store them; and heads apart in q and out."""
    device, (total, *_) = case.q.device, case.q.shape
    storage = torch.full((case.k.shape[0], 2, 16, 128), math.nan, dtype=BF16, device=device)
    k, v = storage.transpose(1, 2)[..., :64], storage.transpose(1, 2)[..., 64:]
    k.copy_(case.k), v.copy_(case.v)
    wide = torch.full((total, 9, 64), math.nan, dtype=BF16, device=device)
    q = wide[:, 2:6].copy_(case.q)
    expected = check(run, backend, case)
    target = torch.full((total, 5, 80), 3.0, dtype=BF16, device=device)
    assert torch.equal(dataclasses.replace(case, q=q, k=k, v=v).call(run, backend, out=target[:, 1:, :64]), expected)
    assert (target[:, 0] == 3).all() and (target[..., 64:] == 3).all()


def check_whatever_lengths_and_pages_hold(backend: str, device: torch.device, queries: int) -> None:
    """Nothing outside the tensors is touched: the bounds checker would tell, and a canary beside `out`."""
    case = make(device, ((queries, 40),) * 3)
    storage = torch.full((3 * queries + 2, 4, 64), 3.0, dtype=BF16, device=device)
    big = 2**31 - 1
    for starts, used, page in (((0, queries, 2 * queries, 3 * queries), (40, 40, 40), -5),
                               ((5, -9, big, 3), (-4, big, 40), big), ((-big, big, big, 0), (big, -big, 0), 10**6)):
        bad = [torch.tensor(values, dtype=torch.int32, device=device) for values in (starts, used)]
        for table, page_starts in ((case.block_table, None), (case.block_table.flatten(), bad[0] // 3)):
            unified_attention_op(PagedCall(
                storage[1:-1], None, case.q, case.k, case.v, cu_seqlens_q=bad[0], seqlens_k=bad[1],
                block_table=torch.full_like(table, page), page_starts=page_starts, max_seqlen_q=queries,
                max_seqlen_k=40, softmax_scale=0.125, window_right=0), backend=backend)
    assert (storage[0] == 3).all() and (storage[-1] == 3).all()


def check_pages_behind_the_window(run, case: Case) -> None:
    """What no window reaches may be NaN: engines give such pages away."""
    expected = expect(case, window_size=(50, 0))
    k, v, table = case.k.clone(), case.v.clone(), case.block_table.clone()
    unused = next(page for page in range(len(k)) if page not in table.flatten().tolist())  # NaN, all of it
    for index, (queries, keys) in enumerate(case.lengths):
        first = keys - queries - 50
        for pages in (k, v):
            pages[table[index, first // 16].long(), :first % 16] = math.nan
        table[index, :first // 16] = unused
    out = dataclasses.replace(case, k=k, v=v, block_table=table).call(run, "ck", window_size=(50, 0))
    limit = 2**-7 * expected[1] + 2**-7 * expected[0].abs() + 1e-6
    assert_within("unified_attention", out, expected[0], limit)


def check_batch_prefill(run, backend: str, case: Case, form: str, sinks: torch.Tensor | None = None) -> None:
    """mha_batch_prefill_func over the pages of all sequences, listed one after the other, and its LSE."""
    starts, pages, options = listed_pages(case, form)
    out, lse = run(backend, aiter_like.mha_batch_prefill_func, case.q, case.k, case.v, case.cu_seqlens_q, starts, pages,
                   *case.max_lengths, causal=True, window_size=(30, 0), return_lse=True, sink_ptr=sinks, **options)
    compare(case, out, window_size=(30, 0), sinks=sinks)
    expected = expect(case, window_size=(30, 0), sinks=sinks)[2]
    assert_within("lse", lse, expected, torch.full_like(expected, 2e-5))


def refusal(backend: str, case: Case, **options: Any) -> str:
    """What a backend says of a call that it does not serve; another one would."""
    said = []

    def asked(_, function, *args, **kwargs):
        explanation = explain(function, *args, **kwargs)
        assert explanation.backend != backend
        said.append(explanation.rejected[backend])
        return kwargs.get("out", args[3])

    case.call(asked, None, **options)
    return said[0]


def check_registers(spec: Any) -> None:
    """No kernel of a module has anything in local memory, and two waves share a SIMD."""
    image = build.ensure(spec).path.read_bytes()
    bundle = image[image.index(b"__CLANG_OFFLOAD_BUNDLE__"):]
    for facts in sim.inspect(code_object.unbundled(bundle, "gfx942")).values():
        assert (facts["private_bytes"], facts["vgpr_spills"], facts["sgpr_spills"]) == (0, 0, 0)
        assert facts["vgprs"] <= 256 and facts["lds_bytes"] <= 65536


def listed_pages(case: Case, form: str) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """(starts, pages, options) of mha_batch_prefill_func: the pages of all sequences one after the other; "full pages",
    "ragged": with the length of the last one; or "table": both forms."""
    device, counts = case.q.device, [-(-keys // 16) for _, keys in case.lengths]
    pages = torch.cat([case.block_table[index, :count] for index, count in enumerate(counts)])
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32, device=device)
    last = torch.tensor([(keys - 1) % 16 + 1 for _, keys in case.lengths], dtype=torch.int32, device=device)
    return starts, pages, {"full pages": {}, "ragged": {"kv_last_page_lens": last},
                           "table": {"block_table": case.block_table, "seqlen_k": case.seqused_k}}[form]

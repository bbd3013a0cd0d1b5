# SPDX-License-Identifier: MIT
"""flash_attn_fwd_hopper.py, a kernel of backend "triton" for sm_90, against float64.
What its code is like: test_flash_attn_fwd_triton.py.
"""

import functools
import itertools
import math

import pytest
import torch
from attention_cases import dense, packed, random, rounding_of
from covering import covering

from aiter_like.device import Target
from aiter_like.jit.triton_launch import Launcher
from aiter_like.ops.attention.call import AttentionCall, dense_call
from aiter_like.ops.attention.flash_attn_fwd import hopper_serves, triton_kernels
from aiter_like.ops.attention.triton import flash_attn_fwd
from aiter_like.testing.attention import check_attention

pytestmark = pytest.mark.usefixtures("only_on_hopper")
BF16, F16 = torch.bfloat16, torch.float16
SPECIALISED = [pytest.param(dtype, rounding, head_dim, {"GROUPS": groups, "PROGRAMS": programs, "BLOCK_M": rows,
                                                        "BLOCK_N": keys, "STAGES": 2, "HEADS": 4},
                            id=f"{dtype}-{rounding}-{head_dim}-{groups}x{rows}x{keys}")
               for dtype, rounding, head_dim, groups, programs, rows, keys in (
                   (BF16, 0, 128, 2, 1, 64, 128), (BF16, 1, 128, 2, 1, 64, 128), (F16, 2, 128, 2, 1, 64, 128),
                   (BF16, 1, 64, 1, 3, 64, 64), (BF16, 2, 64, 1, 2, 128, 64), (F16, 0, 64, 2, 1, 64, 128),
                   (BF16, 1, 80, 2, 1, 64, 128), (F16, 0, 256, 2, 1, 64, 64), (BF16, 1, 200, 2, 1, 64, 64))]


def check_specialised(device, call, params, **options):
    """Runs flash_attn_fwd_hopper.py's kernel, compares with float64, and runs it again."""
    def run():
        call.out.fill_(math.nan)
        call.lse.fill_(math.nan)
        Launcher(functools.partial(flash_attn_fwd.flash_attn_fwd, kernel="flash_attn_fwd_hopper", **params))(call)
        return call.out[:rows], call.lse if starts is None else call.lse[:, :rows]

    assert hopper_serves(call)
    starts = call.cu_seqlens_q
    rows = len(call.q) if starts is None else int(starts[-1])
    out, lse = run()
    check_attention(out, lse, call.q[:rows], call.k, call.v,
                    rounding=rounding_of("triton", call.q.dtype, call.how_v3_bf16_cvt), **options)
    first = out.clone()
    assert torch.equal(first, run()[0])


@pytest.mark.parametrize("dtype, rounding, head_dim, params", SPECIALISED)
def test_specialised_warps(device, dtype, rounding, head_dim, params):
    """Lengths that end anywhere, rows without keys, cross-attention, windows, groups of heads,
    sinks, strides: a covering design.
    """
    factors = {"seqlen_q": (1, 15, 64, 129, 385, 1000), "seqlen_k": (1, 63, 128, 384, 1000), "heads": ((6, 2), (3, 3)),
               "window": ((-1, -1), (-1, 0), (-1, 40), (0, 0), (100, -1), (200, 30)), "has_sink": (False, True),
               "is_bhsd": (False, True)}
    for row in covering(factors, 5):
        seqlen_q, seqlen_k, heads = row["seqlen_q"], row["seqlen_k"], row["heads"]
        tensors = dense(device, 2, seqlen_q, seqlen_k, *heads, head_dim, dtype)
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors) if row["is_bhsd"] else tensors
        sink = random(device, (heads[0],), torch.float32) if row["has_sink"] else None
        left, right = row["window"]
        call = dense_call(torch.empty_like(q), torch.empty(2, heads[0], seqlen_q, device=device), q, k, v, sink=sink,
                          window_left=left, window_right=right, how_v3_bf16_cvt=rounding)
        check_specialised(device, call, params, window_size=row["window"], sink=sink)


@pytest.mark.parametrize("dtype, rounding, head_dim, params", SPECIALISED)
def test_sequences(device, dtype, rounding, head_dim, params):
    """Packed sequences, empty ones among them, and caches: NaN behind the keys reaches no result."""
    lengths = (5, 70, 0, 130, 1, 300, 500, 64), (40, 70, 9, 0, 200, 511, 129, 128)
    for window in ((-1, -1), (-1, 0), (100, 20)):
        q, k, v, *starts, longest_q, longest_k = packed(device, *lengths, 4, 2, head_dim, dtype)
        q, k, v = (torch.cat((x, torch.full_like(x[:150], math.nan))) for x in (q, k, v))
        call = AttentionCall(
            torch.empty_like(q), torch.empty(4, len(q), device=device), q, k, v, cu_seqlens_q=starts[0],
            cu_seqlens_k=starts[1], max_seqlen_q=longest_q, max_seqlen_k=longest_k, softmax_scale=head_dim**-0.5,
            window_left=window[0], window_right=window[1], how_v3_bf16_cvt=rounding)
        check_specialised(device, call, params, window_size=window, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1])
        q, k, v = dense(device, 3, 150, 700, 4, 2, head_dim, dtype)
        counts = torch.tensor([700, 0, 70], dtype=torch.int32, device=device)
        for cache, (sequence, count) in itertools.product((k, v), enumerate(counts.tolist())):
            cache[sequence, count:] = math.nan
        call = call._replace(out=torch.empty_like(q), lse=torch.empty(3, 4, 150, device=device), q=q, k=k, v=v,
                             cu_seqlens_q=None, cu_seqlens_k=None, seqlens_k=counts, max_seqlen_q=150, max_seqlen_k=700)
        check_specialised(device, call, params, window_size=window, seqlens_k=counts)


def test_lengths_that_lie(device):
    """cu_seqlens that fall, or leave the tensors: no access outside, and an end."""
    q, k, v, *_ = packed(device, (70, 300), (60, 90), 4, 2, 64, BF16)
    for starts in ([0, 500, 100], [0, -7, 100], [90, 20, 3], [2**31 - 1, -(2**31), 2**31 - 1]):
        lying = torch.tensor(starts, dtype=torch.int32, device=device)
        for longest in (1, 50, 10**5):
            out = torch.empty_like(q)
            call = AttentionCall(out, None, q, k, v, cu_seqlens_q=lying, cu_seqlens_k=lying, max_seqlen_q=longest,
                                 max_seqlen_k=longest, softmax_scale=0.1, window_right=0, how_v3_bf16_cvt=1)
            Launcher(functools.partial(flash_attn_fwd.flash_attn_fwd, kernel="flash_attn_fwd_hopper"))(call)
    torch.cuda.synchronize()


def test_ties_away_by_one_bit():
    """round_finite: to nearest even with the lowest bit set is to nearest with ties away, of all but infinities."""
    low = torch.arange(2**16, dtype=torch.int32)
    for high in (0, 1, 0x7f, 0x80, 0x3f7f, 0x3f80, 0x3f81, 0x4000, 0x7f7e, 0x7f7f, 0x7f80, 0x7fff):
        for sign in (0, -(2**31)):
            bits = (high << 16 | low) + sign
            x = bits.view(torch.float32)
            bits, x = bits[~x.isinf()], x[~x.isinf()]
            found = (bits | 1).view(torch.float32).bfloat16()
            away = (bits + 0x8000 & -0x10000).view(torch.float32).bfloat16()
            assert torch.equal(found.isnan(), x.isnan())
            assert torch.equal(found[~x.isnan()], away[~x.isnan()])


HOPPER, OTHER = "flash_attn_fwd_hopper", "flash_attn_fwd"


@pytest.mark.parametrize("change, params, names", (
    ({}, {}, [HOPPER, OTHER]), ({}, {"GROUPS": 1}, [HOPPER]), ({}, {"TMA": 1}, [OTHER]),
    ({"window_left": 100}, {}, [HOPPER, OTHER]), ({"softcap": 1.0}, {}, [OTHER]),
    ({"softcap": 1.0}, {"GROUPS": 1}, []), ({"sink_size": 4, "window_left": 9}, {}, [OTHER]),
    ({"dropout_p": 0.1}, {}, [OTHER]), ({"num_splits": 2}, {}, [OTHER])), ids=str)
def test_which_kernel(change, params, names):
    """By the call, or by the parameters of a tuned row; short queries and few rows leave tiles and the GPU empty."""
    def call_of(rows, **change):
        q = torch.empty(16, rows, 8, 64, dtype=BF16, device="meta")
        return dense_call(q, None, q, q, q, window_right=0, how_v3_bf16_cvt=1)._replace(**change)

    hopper = Target("cuda", "sm_90", 132, 32, False, 0)
    assert triton_kernels(hopper, call_of(256, **change), **params) == names
    assert triton_kernels(hopper, call_of(33)) == [OTHER, HOPPER]
    assert triton_kernels(hopper, call_of(128)) == [OTHER, HOPPER]
    assert triton_kernels(Target("hip", "gfx942", 304, 64, True, 0), call_of(256, **change)) == [OTHER]


BENCH_CALLS = (  # lengths of queries, of keys (None: the same), heads, kv heads, head_dim, window, sinks
    ("16 of 1024", [1024] * 16, None, 32, 8, 128, (-1, 0), False),
    ("64 of 256", [256] * 64, None, 32, 8, 128, (-1, 0), False),
    ("100 to 6000", [100, 6000, 350, 1900, 40, 2500, 700, 4300], None, 32, 8, 128, (-1, 0), False),
    ("4 of 4096, full", [4096] * 4, None, 24, 24, 128, (-1, -1), False),
    ("512 on 8 of 8192", [512] * 8, [8192] * 8, 32, 8, 128, (-1, 0), False),
    ("8 of 2048, D 64", [2048] * 8, None, 64, 8, 64, (-1, 0), False),
    ("8 of 2048, D 64, sinks", [2048] * 8, None, 64, 8, 64, (127, 0), True),
    ("4 of 4096, window", [4096] * 4, None, 32, 8, 128, (1023, 0), False))
_CACHE = 9000  # rows of each sequence's cache, of which it fills 1000 to 8000


def _seen(rows: int, keys: int, window: tuple[int, int]) -> int:
    """Pairs of a row and a key that it sees."""
    positions = range(keys - rows, keys)
    return sum(max(min(keys - 1, position + window[1] if window[1] >= 0 else keys)
                   - max(0, position - window[0] if window[0] >= 0 else 0) + 1, 0) for position in positions)


def bench() -> None:
    """Packed sequences, windows, sinks and caches: either kernel of backend "triton", and PyTorch's FlashAttention 2,
    whose kv heads are repeated.
    """
    import benching
    from torch.nn.attention.varlen import varlen_attn

    device = torch.device("cuda")

    def ours(call):
        def with_kernel(kernel):
            flash_attn_fwd.flash_attn_fwd(call, kernel=kernel)
            return call.out
        return {f"triton, {kernel}": functools.partial(with_kernel, kernel) for kernel in (HOPPER, OTHER)}

    def case(name, call, lengths, window, check, others):
        pairs = sum(_seen(rows, keys, window) for rows, keys in zip(*lengths, strict=True))
        return benching.Case(name, 2 * sum(x.numel() for x in (call.q, call.q, call.k, call.v)), ours(call) | others,
                             check, flops=4 * pairs * call.num_heads * call.head_dim)

    def packed_case(name, lengths_q, lengths_k, heads, kv_heads, head_dim, window, has_sink):
        lengths = lengths_q, lengths_k or lengths_q
        q, k, v, *starts = packed(device, *lengths, heads, kv_heads, head_dim, BF16)
        sink, count = random(device, (heads,), torch.float32) if has_sink else None, heads // kv_heads
        call = AttentionCall(
            torch.empty_like(q), None, q, k, v, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1], sink=sink,
            max_seqlen_q=starts[2], max_seqlen_k=starts[3], softmax_scale=head_dim**-0.5, window_left=window[0],
            window_right=window[1])

        def check(out):
            """The last rows of the first sequence's first heads."""
            rows, keys = lengths[0][0], lengths[1][0]
            part = slice(max(rows - 64, 0), rows), slice(count)
            return check_attention(out[part][None], None, q[part][None], k[None, :keys, :1], v[None, :keys, :1],
                                   window_size=window, sink=None if sink is None else sink[:count])

        wide_k, wide_v = (x.repeat_interleave(count, 1) for x in (k, v))
        peer = functools.partial(varlen_attn, q, wide_k, wide_v, *starts, window_size=window)
        return case(name, call, lengths, window, check, {} if has_sink else {"FA2": peer})

    def cache_case():
        lengths = [512] * 8, list(range(1000, 9000, 1000))
        q, k, v = dense(device, 8, 512, _CACHE, 32, 8, 128, BF16)
        counts = torch.tensor(lengths[1], dtype=torch.int32, device=device)
        call = dense_call(torch.empty_like(q), None, q, k, v, seqlens_k=counts, window_right=0)
        return case("512 on 8 caches", call, lengths, (-1, 0), lambda out: check_attention(
            out[:1, -64:, :4], None, q[:1, -64:, :4], k[:1, :1000, :1], v[:1, :1000, :1], causal=True), {})

    def all_cases():
        for arguments in BENCH_CALLS:
            yield packed_case(*arguments)
        yield cache_case()

    benching.table("flash_attn_varlen_func, kernels", all_cases())

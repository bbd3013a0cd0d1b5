# SPDX-License-Identifier: MIT
"""Packed sequences, fp8 and the workspace's size: flash_attn_varlen_func, the fp8 functions, attention_workspace_bytes.
"""

import functools
import itertools
import math

import attention_cases as cases
import pytest
import torch
from attention_cases import BF16, check_varlen, dense, packed
from covering import covering

import aiter_like
from aiter_like import device as devices
from aiter_like import dtypes
from aiter_like.ops.attention.call import AttentionCall
from aiter_like.ops.attention.flash_attn_fwd import flash_attn_fwd
from aiter_like.testing import strided_like
from aiter_like.testing.attention import check_attention

pytestmark = pytest.mark.rotating

BACKENDS = ("triton", "torch")
VARLEN = aiter_like.flash_attn_varlen_func


@pytest.mark.parametrize("window", ((-1, -1), (-1, 0), (40, 3), (70, 0, 5)), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_pair_of_lengths(device, run, backend, window):
    """As the sequences of one call."""
    lengths = (0, 1, 15, 63, 65, 127, 200) if backend == "triton" else (0, 1, 17, 65)
    pairs = list(zip(*itertools.product(lengths, lengths)))
    check_varlen(run, backend, *packed(device, *pairs, 2, 1, 64, BF16), window_size=window)


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
def test_long_sequences(device, run, dtype):
    args = packed(device, (385, 1, 384, 70), (385, 1000, 383, 0), 4, 2, 128, dtype)
    check_varlen(run, "triton", *args, causal=True, rounding=2)


def test_features(device, run):
    """All at once: each alone is what dense tensors have too."""
    args = packed(device, (70, 3, 130), (90, 0, 140), 4, 2, 64, BF16)
    check_varlen(run, "triton", *args, causal=True, **cases.together(cases.features(device, BF16, 4, 203, 140)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_slopes_of_each_sequence(device, run, backend):
    args = packed(device, (20, 30), (40, 30), 4, 2, 64, BF16)
    slopes = torch.rand(2, 4, generator=torch.Generator().manual_seed(0)).to(device)
    check_varlen(run, backend, *args, alibi_slopes=slopes)


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_rows_of_sequences_are_written(device, run, backend):
    """Strided tensors; rows behind the last sequence keep what they had, and so does the memory between rows."""
    q, k, v, starts_q, starts_k, longest_q, longest_k = packed(device, (5, 40, 19), (9, 70, 1), 4, 2, 64, BF16)
    views = [strided_like(tensor, (2, 1, 8)) for tensor in (q, k, v)]
    starts_q = starts_q[:3]
    out = torch.full((70, 6, 80), 7.0, dtype=BF16, device=device)
    returned, lse = run(backend, VARLEN, *views, starts_q, starts_k[:3], longest_q, longest_k, causal=True,
                        return_lse=True, out=out[:64, :4, :64], how_v3_bf16_cvt=0)
    check_attention(returned[:45], lse[:, :45], q[:45], k[:79], v[:79], causal=True, cu_seqlens_q=starts_q,
                    cu_seqlens_k=starts_k[:3])
    out[:45, :4, :64] = 7.0
    assert (out == 7.0).all()


@pytest.mark.parametrize("starts", ((0, 90, 60), (-5, 30, 10**9), (50, 10, 60), (60, 60, 60), (-(2**31), 2**31 - 1, 7)),
                         ids=str)
def test_lengths_that_lie_stay_inside(device, starts):
    """The public function would say so on the CPU; on a GPU nobody looks. The checker of bounds does, here."""
    q, k, v = (tensor[0] for tensor in dense(device, 1, 60, 70, 2, 1, 64, BF16))
    wrong = torch.tensor(starts, dtype=torch.int32, device=device)
    right = torch.tensor((0, 25, 60), dtype=torch.int32, device=device)
    pairs, windows = ((wrong, right), (right, wrong), (wrong, wrong)), ((-1, -1), (-1, 0), (9, 4))
    for pair, window, backend in itertools.product(pairs, windows, BACKENDS):
        out, lse = torch.zeros_like(q), torch.zeros(2, 60, device=device)
        flash_attn_fwd(AttentionCall(
            out, lse, q, k, v, cu_seqlens_q=pair[0], cu_seqlens_k=pair[1], max_seqlen_q=40, max_seqlen_k=40,
            softmax_scale=0.125, window_left=window[0], window_right=window[1]), backend=backend)
        assert not out.isnan().any()


def test_returns_and_repeats(device, run):
    args = packed(device, (33, 70), (90, 20), 2, 1, 64, BF16)
    call = functools.partial(run, "triton", VARLEN, *args, causal=True)
    out, lse = call(return_lse=True)
    assert out.shape == args[0].shape and lse.shape == (2, 103) and lse.dtype == torch.float32
    assert torch.equal(call(), out) and torch.equal(call(min_seqlen_q=50, deterministic=True), out)
    assert torch.equal(call(round_mode="rtna", cu_seqlens_q_padded=args[3], cu_seqlens_k_padded=args[4]), out)
    assert [part.shape for part in call(return_lse=True, return_attn_probs=True)] == [out.shape, lse.shape, (0,)]
    for lengths in ((), (0, 0)):
        empty = packed(device, lengths, lengths, 2, 1, 64, BF16)
        assert VARLEN(*empty).shape == (0, 2, 64)


def test_block_table_takes_the_paged_kernel(device):
    """The keys in pages of 16, in another order than in memory."""
    q, k, v, starts_q, starts_k, longest_q, longest_k = packed(device, (20, 1), (37, 64), 4, 2, 64, BF16)
    pages = torch.zeros(2, 8, 16, 2, 64, dtype=BF16, device=device)  # keys, values
    table = torch.tensor(((5, 1, 7, 0), (2, 6, 0, 3)), dtype=torch.int32, device=device)
    for index, length in enumerate((37, 64)):
        for page in range(-(-length // 16)):
            rows = slice(starts_k[index] + 16 * page, starts_k[index] + min(16 * page + 16, length))
            for kind, tensor in enumerate((k, v)):
                pages[kind, table[index, page], :rows.stop - rows.start] = tensor[rows]
    out, lse = VARLEN(q, *pages, starts_q, starts_k, longest_q, longest_k, causal=True, return_lse=True,
                      block_table=table, backend="triton")
    check_attention(out, lse, q, k, v, causal=True, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k)


def spread(tensor, lengths, gaps, dtype=None):
    """Packed rows with so many rows of NaN behind each sequence, and where the sequences begin."""
    gaps = list(itertools.islice(gaps, len(lengths)))
    parts = [part for rows, gap in zip(tensor.split(lengths), gaps)
             for part in (rows, torch.full((gap, *rows.shape[1:]), math.nan, dtype=tensor.dtype, device=tensor.device))]
    starts = [0, *itertools.accumulate(length + gap for length, gap in zip(lengths, gaps))]
    return torch.cat(parts), torch.tensor(starts, dtype=torch.int32, device=tensor.device)


@pytest.mark.parametrize("padded", ("q", "k", "both"))
@pytest.mark.parametrize("backend", cases.WITH_CK)
def test_padding_between_sequences(device, run, backend, padded):
    """What the padding holds reaches no sequence; the last sequence's is longer than any sequence."""
    slopes = torch.rand(4, 4, generator=torch.Generator().manual_seed(0)).to(device)
    check_padded(device, run, backend, padded, ((20, 70, 1, 9), (33, 5, 70, 90)), (4, 2), 64, BF16, causal=True,
                 **({} if backend == "hip" else {"alibi_slopes": slopes}))


def check_padded(device, run, backend, padded, lengths, heads, head_dim, dtype, rounding=0, **options):
    q, k, v, starts_q, starts_k, longest_q, longest_k = packed(device, *lengths, *heads, head_dim, dtype)
    places, (rows, keys, values) = {}, (q, k, v)
    if padded in ("q", "both"):
        rows, places["cu_seqlens_q_padded"] = spread(q, lengths[0], itertools.cycle((3, 0, 15, 80)))
    if padded in ("k", "both"):
        (keys, places["cu_seqlens_k_padded"]), (values, _) = (
            spread(x, lengths[1], itertools.cycle((0, 31, 2, 100))) for x in (k, v))
    out, lse = run(backend, VARLEN, rows, keys, values, starts_q, starts_k, longest_q, longest_k, return_lse=True,
                   how_v3_bf16_cvt=rounding, **places, **options)
    begins = places.get("cu_seqlens_q_padded", starts_q).tolist()
    own = torch.cat([torch.arange(begin, begin + length) for begin, length in zip(begins, lengths[0])])
    check_attention(out[own], lse[:, own], q, k, v, rounding=cases.rounding_of(backend, dtype, rounding),
                    cu_seqlens_q=starts_q, cu_seqlens_k=starts_k, **cases.reference_options(options))


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(6))
def test_everything(device, run, seed, part):
    """A covering design, new in each run (--seed repeats one): each value with each of every other factor."""
    rows = covering({
        "backend": cases.WITH_CK[:-1], "padded": ("none", "q", "k", "both"), "heads": ((4, 2), (3, 3), (8, 1), (6, 2)),
        "lengths": (((1, 15, 63), (385, 0, 64)), ((383, 384), (385, 1000)), ((64, 65, 127), (127, 65, 15)),
                    ((1000, 1), (1, 384)), ((0, 385, 0, 1), (63, 383, 1, 0)),
                    ((1,) * 9, (5, 0, 64, 1, 65, 200, 3, 7, 9))),
        "head_dim": (64, 128), "dtype": cases.DTYPES, "rounding": (0, 1, 2),
        "window_size": ((-1, -1), (-1, 0), (40, 3), (70, 0), (0, -1)), "causal": (False, True)}, seed)
    for row in rows[part::6]:
        check_padded(device, run, **row)


def test_places_too_short_for_their_sequences(device):
    if device.type != "cpu":
        pytest.skip("looking at them would wait for the GPU")
    args = packed(device, (3, 5), (6, 2), 4, 2, 64, BF16)
    for places, message in (((0, 2, 8), "room for every sequence of cu_seqlens_q, got 2 rows from 0 on for sequence 0"),
                            ((0, 4, 8), "got 4 rows from 4 on for sequence 1 of 5"), ((0, 3, 9), "end at 8 at most")):
        with pytest.raises(ValueError, match=message):
            VARLEN(*args, cu_seqlens_q_padded=torch.tensor(places, dtype=torch.int32))
    with pytest.raises(ValueError, match="cu_seqlens_k_padded must have shape"):
        VARLEN(*args, cu_seqlens_k_padded=args[4][:2])


@pytest.mark.parametrize("layout", ("bshd", "bhsd"))
@pytest.mark.parametrize("keys", ("some", "all"))
def test_padded_queries_of_dense_tensors(device, run, layout, keys):
    lengths_q, lengths_k = (20, 7), (33, 40) if keys == "some" else (40, 40)
    q, k, v, starts_q, starts_k, *_ = packed(device, lengths_q, lengths_k, 4, 2, 64, BF16)
    (rows, _), (all_k, _), (all_v, _) = (spread(x, lengths, [size - length for length in lengths]) for x, lengths, size
                                         in ((q, lengths_q, 24), (k, lengths_k, 40), (v, lengths_k, 40)))
    axes = (1, 2) if layout == "bhsd" else (1, 1)
    tensors = [x.unflatten(0, (2, -1)).transpose(*axes) for x in (rows, all_k, all_v)]
    given = torch.empty(2, 24, 4, 64, dtype=BF16, device=device).transpose(*axes)
    for out in (None, given):
        found, lse = run("triton", aiter_like.flash_attn_func, *tensors, layout=layout, return_lse=True, causal=True,
                         cu_seqlens_q=starts_q, cu_seqlens_kv=starts_k if keys == "some" else None, out=out,
                         how_v3_bf16_cvt=0)
        assert found.shape == tensors[0].shape and (out is None or found is out) and lse.shape == (2, 4, 24)
        found = torch.cat([part[:length] for part, length in zip(found.transpose(*axes), lengths_q)])
        lse = torch.cat([part[:, :length] for part, length in zip(lse, lengths_q)], 1)
        check_attention(found, lse, q, k, v, causal=True, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_padded_sequences(device, run, backend):
    """The derivative knows the places too."""
    lengths_q, lengths_k = (20, 9), (12, 30)
    *tensors, starts_q, starts_k, longest_q, longest_k = packed(device, lengths_q, lengths_k, 4, 2, 64, BF16)
    separate = [tensor.detach().requires_grad_() for tensor in tensors]
    VARLEN(*separate, starts_q, starts_k, longest_q, longest_k, causal=True, backend="torch").float().square().sum(
        ).backward()
    wide, places = [], []
    for tensor, lengths, gaps in zip(tensors, (lengths_q, lengths_k, lengths_k), ((4, 50), (0, 3), (0, 3))):
        spaced, begins = spread(tensor, lengths, gaps)
        wide.append(spaced.nan_to_num().requires_grad_())
        places.append(begins)
    out = run(backend, VARLEN, *wide, starts_q, starts_k, longest_q, longest_k, causal=True,
              cu_seqlens_q_padded=places[0], cu_seqlens_k_padded=places[1])
    sum(out[begin:begin + length].float().square().sum()
        for begin, length in zip(places[0].tolist(), lengths_q)).backward()
    for tensor, want, begins, lengths in zip(wide, separate, places, (lengths_q, lengths_k, lengths_k)):
        got = torch.cat([tensor.grad[begin:begin + length] for begin, length in zip(begins.tolist(), lengths)])
        torch.testing.assert_close(got.float(), want.grad.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_packed_sequences(device, run, backend):
    q, k, v, *lengths = packed(device, (20, 9), (12, 30), 4, 2, 64, BF16)
    separate, together = ([tensor.detach().requires_grad_() for tensor in (q, k, v)] for _ in range(2))
    run(backend, VARLEN, *together, *lengths, causal=True).float().square().sum().backward()
    for rows, keys in ((slice(0, 20), slice(0, 12)), (slice(20, 29), slice(12, 42))):
        one = (separate[0][None, rows], separate[1][None, keys], separate[2][None, keys])
        aiter_like.flash_attn_func(*one, causal=True, backend="torch").float().square().sum().backward()
    for got, want in zip(together, separate, strict=True):
        torch.testing.assert_close(got.grad.float(), want.grad.float(), rtol=2e-2, atol=2e-2)


def fp8(device, tensors):
    return [tensor.to(dtypes.fp8_of(devices.target_of(device).arch)) for tensor in tensors]


@pytest.mark.parametrize("out_dtype", (None, torch.float16))
@pytest.mark.parametrize("backend", BACKENDS)
def test_fp8(device, run, backend, out_dtype):
    q, k, v = fp8(device, dense(device, 2, 70, 130, 4, 2, 64, torch.float32))
    scales = [torch.tensor([value], device=device) for value in (0.5, 1.5, 2.0)]
    sink = cases.random(device, (4,), torch.float32)
    out = None if out_dtype is None else torch.empty(q.shape, dtype=out_dtype, device=device)
    for options in ({}, {"causal": True}, {"window_size": (30, 0), "sink_ptr": sink}):
        got = run(backend, aiter_like.flash_attn_fp8_pertensor_func, q, k, v, *scales, out=out, **options)
        assert got.dtype == (out_dtype or BF16)
        check_attention(got, None, q, k, v, descales=(0.5, 1.5, 2.0), **cases.reference_options(options))
    got = run(backend, aiter_like.flash_attn_fp8_pertensor_func, q, k, v, None, None, None)
    check_attention(got, None, q, k, v)


@pytest.mark.parametrize("backend", BACKENDS)
def test_fp8_of_packed_sequences(device, run, backend):
    q, k, v, starts_q, starts_k, longest_q, longest_k = packed(device, (70, 1, 9), (90, 30, 0), 4, 2, 64, torch.float32)
    q, k, v = fp8(device, (q, k, v))
    scales = [torch.tensor([value], device=device) for value in (0.5, 1.5, 2.0)]
    out = run(backend, aiter_like.flash_attn_varlen_fp8_pertensor_func, q, k, v, *scales, starts_q, starts_k, longest_q,
              longest_k, causal=True, logits_soft_cap=5.0)
    check_attention(out, None, q, k, v, causal=True, softcap=5.0, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k,
                    descales=(0.5, 1.5, 2.0))
    with pytest.raises(ValueError, match="q_descale is for fp8"):
        aiter_like.flash_attn_fp8_pertensor_func(*dense(device, 1, 1, 1, 1, 1, 64, BF16), *scales)


def test_workspace_size(device):
    if device.type == "cuda" and torch.version.hip is None:
        q = torch.empty(1, 1, 1, 64, device=device)
        assert aiter_like.attention_workspace_bytes(q, q.expand(1, 2**20, 1, 64)) == 0
        return
    q, k = (torch.empty(1, 1, 1, 1, device=device).expand(1, length, 2, 128) for length in (300, 6400))
    parts = min(25, devices.target_of(device).cu_num // 2)  # of each of 2 query blocks: one round, 4 of 100 key blocks
    for options in ({}, {"window_size": None}, {"window_size": (-1, -1)}):
        assert aiter_like.attention_workspace_bytes(q, k, **options) == 2 * parts * 384 * (128 + 2) * 4
    swapped = aiter_like.attention_workspace_bytes(q.transpose(1, 2), k.transpose(1, 2), layout="bhsd")
    assert swapped == 2 * parts * 384 * (128 + 2) * 4
    for options in ({"window_size": (9, 0)}, {"num_splits": 1}, {"causal": True, "num_splits": 1}):
        assert aiter_like.attention_workspace_bytes(q, k, **options) == 0
    assert aiter_like.attention_workspace_bytes(q, k, causal=True) == 2 * parts * 384 * (128 + 2) * 4
    assert aiter_like.attention_workspace_bytes(q, k[:, :900], causal=True) == 0, "few keys"
    assert aiter_like.attention_workspace_bytes(q[..., :96], k[..., :96]) == 0
    one = aiter_like.attention_workspace_bytes(q[:, :1], k)
    assert aiter_like.attention_workspace_bytes(q[:, :1], k, causal=True) == one > 0, "a causal mask hides nothing"

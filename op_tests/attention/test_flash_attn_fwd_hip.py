# SPDX-License-Identifier: MIT
"""The hand-scheduled kernel of flash_attn_fwd (backend "hip"): edges of blocks, masks, packed sequences, split keys,
workspace, order of waves. What holds for every backend is in test_flash_attn_fwd.py.
"""

import attention_cases as cases
import pytest
import torch

import aiter_like
from aiter_like import sim
from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention.call import AttentionCall
from aiter_like.ops.attention.flash_attn_fwd import flash_attn_fwd
from aiter_like.testing.attention import check_attention

BF16 = torch.bfloat16
ROWS = {64: 512, 128: 384}  # query rows of a workgroup


def call_of(q, k, v, *, window=(-1, -1), seqlens_k=None, workspace=None, num_splits=0, rounding=0,
            cu_seqlens=(None, None)):
    """A call of the operator itself: what the public functions do not hand through."""
    is_varlen = cu_seqlens[0] is not None
    out = torch.full_like(q, torch.nan)
    shape = (q.shape[1], q.shape[0]) if is_varlen else (q.shape[0], q.shape[2], q.shape[1])
    lse = torch.full(shape, torch.nan, dtype=torch.float32, device=q.device)
    row = 0 if is_varlen else 1
    return AttentionCall(
        out, lse, q, k, v, cu_seqlens_q=cu_seqlens[0], cu_seqlens_k=cu_seqlens[1], seqlens_k=seqlens_k,
        workspace=workspace, max_seqlen_q=q.shape[row], max_seqlen_k=k.shape[row], softmax_scale=q.shape[-1] ** -0.5,
        window_left=window[0], window_right=window[1], num_splits=num_splits, how_v3_bf16_cvt=rounding)


@pytest.fixture
def attend(run):
    """attend(q, k, v, **options of call_of): out, lse."""

    def outputs(q, k, v, **options):
        call = call_of(q, k, v, **options)
        run("hip", flash_attn_fwd, call)
        return call.out, call.lse

    return outputs


@pytest.mark.parametrize("head_dim", (64, 128))
def test_edges_of_blocks(device, run, head_dim):
    rows = ROWS[head_dim]
    for index, (seqlen_q, seqlen_k) in enumerate((
            (rows - 1, 65), (rows, 128), (rows + 1, 127), (1, 1), (17, 63), (2 * rows + 1, 64), (128, 193), (3, 0))):
        for causal in (False, True):
            cases.check_dense(run, "hip", *cases.dense(device, 1 + index % 2, seqlen_q, seqlen_k, 2, 1 + index % 2,
                                                       head_dim, BF16, index), causal=causal)


@pytest.mark.parametrize("head_dim", (64, 128))
def test_windows(device, run, head_dim):
    """Left and right edges in the same block, in neighbouring ones, and with whole blocks hidden on both sides."""
    shapes = ((ROWS[head_dim] + 80, ROWS[head_dim] + 80), (100, 700), (500, 90))
    for seqlen_q, seqlen_k in shapes:
        args = cases.dense(device, 1, seqlen_q, seqlen_k, 2, 1, head_dim, BF16)
        for window in ((0, 0), (100, 0), (64, 63), (10, -1), (3000, 3), (200, 300)):
            cases.check_dense(run, "hip", *args, window_size=window)


def test_right_limit_alone(device, run):
    """It takes the build of the causal mask."""
    args = cases.dense(device, 1, 450, 300, 2, 2, 128, BF16)
    for right in (0, 1, 64, 200, 1000):
        cases.check_dense(run, "hip", *args, window_size=(-1, right))


@pytest.mark.parametrize("head_dim", (64, 128))
def test_packed_sequences(device, run, head_dim):
    """Empty ones, ones without keys, ones that fill a block exactly; more sequences than lanes."""
    rows = ROWS[head_dim]
    long = cases.packed(device, (5, 0, rows, 1, rows + 30), (70, 3, 0, 129, rows + 30), 4, 2, head_dim, BF16)
    many = cases.packed(device, [1 + index % 3 for index in range(150)], [index % 5 for index in range(150)], 2, 1,
                        head_dim, BF16)
    for args in (long, many):
        for options in ({}, {"causal": True}):
            cases.check_varlen(run, "hip", *args, **options)


def test_lengths_that_lie(device, attend):
    """Whatever cu_seqlens and seqlens_k hold, nothing outside the tensors is touched: the bounds checker says."""
    q, k, v = (tensor[0] for tensor in cases.dense(device, 1, 600, 700, 2, 1, 64, BF16))
    for starts in ((0, 900, 600), (-5, 300, 10**9), (500, 100, 600), (-(2**31), 2**31 - 1, 7), (600, 600, 600)):
        wrong = torch.tensor(starts, dtype=torch.int32, device=device)
        for pair in ((wrong, wrong), (torch.tensor((0, 250, 600), dtype=torch.int32, device=device), wrong)):
            for window in ((-1, -1), (-1, 0)):
                attend(q, k, v, window=window, cu_seqlens=pair)
    q, k, v = cases.dense(device, 3, 20, 150, 2, 1, 64, BF16)
    lengths = torch.tensor((-3, 10**9, 64), dtype=torch.int32, device=device)
    out, lse = attend(q, k, v, seqlens_k=lengths)
    for index, length in enumerate((0, 150, 64)):
        part = slice(index, index + 1)
        check_attention(out[part], lse[part], q[part], k[part, :length], v[part, :length], rounding="rtne")


@pytest.mark.parametrize("window", ((-1, -1), (-1, 0), (40, 0)))
def test_lengths_per_sequence(device, attend, window):
    q, k, v = cases.dense(device, 3, 70, 300, 4, 2, 128, BF16)
    out, lse = attend(q, k, v, window=window, rounding=1,
                      seqlens_k=torch.tensor((300, 64, 5), dtype=torch.int32, device=device))
    for index, length in enumerate((300, 64, 5)):
        part = slice(index, index + 1)
        check_attention(out[part], lse[part], q[part], k[part, :length], v[part, :length], rounding="rtna",
                        window_size=window)


@pytest.mark.parametrize("dtype", (BF16, torch.float16))
def test_keys_split_between_workgroups(device, attend, dtype):
    """One query block on 304 CUs: 10 parts. Equal within the bound, not bit by bit; and only the workspace is used."""
    q, k, v = cases.dense(device, 1, 20, 3100, 1, 1, 64, dtype)
    whole = attend(q, k, v, num_splits=1)
    size = aiter_like.attention_workspace_bytes(q, k)
    assert size == 10 * 512 * (64 + 2) * 4
    memory = torch.full((size + 512,), 0x5A, dtype=torch.uint8, device=device)
    out, lse = attend(q, k, v, workspace=memory[256:256 + size])
    assert (memory[:256] == 0x5A).all() and (memory[256 + size:] == 0x5A).all()
    for result in ((out, lse), whole):
        check_attention(*result, q, k, v, rounding="rtne")
    assert not torch.equal(out, whole[0])
    again = attend(q, k, v)  # into memory of torch's allocator
    assert torch.equal(out, again[0]) and torch.equal(lse, again[1])
    with pytest.raises(ValueError, match=f"workspace must have {size} bytes"):
        attend(q, k, v, workspace=memory[:size - 1])


@pytest.mark.parametrize(("head_dim", "lengths", "heads", "right", "num_splits", "parts"), [
    (64, (3300, 3100), (1, 1), 0, 0, 7 * 10),  # rows without keys; parts without blocks, and with ones that hide rows
    (64, (600, 3075), (3, 3), 0, 3, 2 * 3 * 3),
    (128, (60, 3200), (6, 2), 40, 2, 2 * 2)])  # a group's heads share a query block
def test_causal_keys_split_between_workgroups(device, attend, head_dim, lengths, heads, right, num_splits, parts):
    q, k, v = cases.dense(device, 1, *lengths, *heads, head_dim, BF16)
    window, how = (-1, right), {"window_size": (-1, right), "rounding": "rtne"}
    whole = attend(q, k, v, window=window, num_splits=1)
    size = aiter_like.attention_workspace_bytes(q, k, window_size=window, num_splits=num_splits)
    assert size == parts * ROWS[head_dim] * (head_dim + 2) * 4
    memory = torch.full((size + 512,), 0x5A, dtype=torch.uint8, device=device)
    memory[256:256 + size] = 0xFF  # NaN: what is read was written
    split = attend(q, k, v, window=window, num_splits=num_splits, workspace=memory[256:256 + size])
    assert (memory[:256] == 0x5A).all() and (memory[256 + size:] == 0x5A).all()
    for result in (split, whole):
        check_attention(*result, q, k, v, **how)
    assert not torch.equal(split[0], whole[0])
    again = attend(q, k, v, window=window, num_splits=num_splits)  # into memory of torch's allocator
    assert torch.equal(split[0], again[0]) and torch.equal(split[1], again[1])
    with pytest.raises(ValueError, match=f"workspace must have {size} bytes"):
        attend(q, k, v, window=window, num_splits=num_splits, workspace=memory[:size - 1])


def test_causal_split_of_many_heads(device, attend):
    """Whole query blocks and split ones of heads that do not fill all XCDs, of sequences with few keys."""
    q, k, v = cases.dense(device, 2, 3200, 3100, 6, 3, 64, BF16)
    out, lse = attend(q, k, v, window=(-1, 0), num_splits=2,
                      seqlens_k=torch.tensor((150, 0), dtype=torch.int32, device=device))
    assert aiter_like.attention_workspace_bytes(q, k, causal=True, num_splits=2) == 10 * 6 * 2 * 512 * (64 + 2) * 4
    check_attention(out[:1], lse[:1], q[:1], k[:1, :150], v[:1, :150], causal=True, rounding="rtne")
    assert not out[1].any() and (lse[1] == -torch.inf).all()


@pytest.mark.parametrize("causal", (False, True))
def test_keys_of_one_packed_sequence_are_split(device, run, causal):
    """Of several the host knows no lengths. Rows of four heads share a workgroup."""
    if device.type != "cpu":
        pytest.skip("the simulator's counters")
    one, two = (cases.packed(device, lengths, [1500] * len(lengths), 8, 2, 128, BF16) for lengths in ((150,), (75, 75)))
    launches = []
    for args in (one, two):
        with sim.enabled(counters=True) as session:
            cases.check_varlen(run, "hip", *args, causal=causal)
        launches.append(len(session.launches))
    assert launches == [2, 1]


@pytest.mark.parametrize("value", (torch.nan, torch.inf))
def test_causal_split_keeps_what_is_not_finite(device, attend, value):
    """In the rows that see it, and only there, split or not."""
    q, k, v = cases.dense(device, 1, 40, 3100, 1, 1, 64, BF16)
    k[0, 3080] = value
    results = [attend(q, k, v, window=(-1, 0), num_splits=num_splits) for num_splits in (0, 1)]
    for out, lse in results:
        assert out[0, 20:].isnan().all() and lse[..., 20:].isnan().all()
        check_attention(out[:, :20], lse[..., :20], q[:, :20], k[:, :3080], v[:, :3080], causal=True, rounding="rtne")


def test_float16_towards_zero(device, attend):
    q, k, v = cases.dense(device, 1, 50, 130, 2, 1, 64, torch.float16)
    out, lse = attend(q, k, v, rounding=2)
    check_attention(out, lse, q, k, v, rounding="rtz")
    shrunk = out.double().abs().mean() / attend(q, k, v)[0].double().abs().mean()
    assert shrunk < 1 - 2e-4


def test_order_of_waves_does_not_matter(device, attend):
    """Two groups of waves, one slot apart, share two buffers: seeds of the simulator draw who runs first."""
    if device.type != "cpu":
        pytest.skip("the simulator's schedules")
    q, k, v = cases.dense(device, 1, 400, 330, 2, 1, 128, BF16)
    first = attend(q, k, v, window=(-1, 0))
    for seed in range(1, 9):
        with sim.enabled("strict", fuzz=seed):
            again = attend(q, k, v, window=(-1, 0))
        assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1]), seed


@pytest.fixture
def matrix_instructions(device, attend):
    """matrix_instructions(q, k, v, **options of call_of): of a launch, all waves together, and loads of K and V."""
    if device.type != "cpu":
        pytest.skip("the simulator's counters")

    def counted(*args, **options):
        with sim.enabled(checks=False) as session:
            attend(*args, **options)
        (counts,) = session.counters.values()
        return counts["by_class"]["mfma"], counts["by_class"]["mubuf"]

    return counted


@pytest.mark.parametrize("head_dim", (64, 128))
def test_hidden_tiles_are_not_multiplied(device, matrix_instructions, head_dim):
    """A product of a tile of `width` rows and keys is `each` instructions, and each tile that is seen takes two. The
    scores of the first block, and of one behind a block that hides nothing, are those of all its tiles.
    """
    width, each = {64: (32, 64 // 8), 128: (16, 128 // 16)}[head_dim]
    rows, keys, tiles = ROWS[head_dim], ROWS[head_dim] + 192, 64 // width
    q, k, v = cases.dense(device, 1, rows, keys, 1, 1, head_dim, BF16)
    assert matrix_instructions(q, k, v)[0] == 2 * (rows // width) * (keys // width) * each
    row, key = torch.arange(rows // width)[:, None], torch.arange(keys // width)
    for left, right in ((-1, 0), (-1, 40), (128, 0), (5, 7)):
        distance = width * (row - key) + keys - rows  # from a tile's first key to its first row
        seen, is_whole = distance + width - 1 + right >= 0, distance - width + 1 + right >= 0
        if left >= 0:
            seen, is_whole = seen & (distance - width + 1 <= left), is_whole & (distance + width - 1 <= left)
        blocks = [(part.any(), whole.all()) for part, whole in zip(seen.split(tiles, 1), is_whole.split(tiles, 1))]
        extra = sum(int((~seen[:, tiles * index:tiles * (index + 1)]).sum())
                    for index, (is_seen, _) in enumerate(blocks)
                    if is_seen and (index == 0 or blocks[index - 1][1] or not blocks[index - 1][0]))
        assert matrix_instructions(q, k, v, window=(left, right))[0] == (2 * int(seen.sum()) + extra) * each


@pytest.mark.parametrize("head_dim", (64, 128))
def test_heads_share_a_workgroup(device, run, head_dim):
    """Where the rows of a KV head's group fit: decode, short queries, the last length that fits, one more."""
    rows = ROWS[head_dim]
    shapes = ((1, 8, 2), (5, 6, 2), (rows // 8, 8, 1), (rows // 8 + 1, 8, 1))
    for index, (seqlen_q, heads, kv_heads) in enumerate(shapes):
        q, k, v = cases.dense(device, 1 + index % 2, seqlen_q, 150, heads, kv_heads, head_dim, BF16, index)
        for options in ({}, {"causal": True}, {"window_size": (40, 3)}):
            cases.check_dense(run, "hip", q, k, v, **options)
    swapped = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k, v)]
    cases.check_dense(run, "hip", *swapped, causal=True)


def test_heads_of_packed_sequences_share_workgroups(device, run):
    """As max_seqlen_q says; where it lies, as for 65 queries here, the result is right all the same."""
    many = [1] * 70, [index % 40 for index in range(70)]
    for lengths in (many, ((3, 0, 64, 1), (70, 3, 64, 0)), ((64, 65), (9, 300))):
        args = cases.packed(device, *lengths, 8, 1, 64, BF16)
        for options in ({}, {"causal": True}):
            cases.check_varlen(run, "hip", *args, **options)
    q, k, v, *starts, _, _ = args
    call = call_of(q, k, v, window=(-1, 0), cu_seqlens=starts)._replace(max_seqlen_q=1)
    run("hip", flash_attn_fwd, call)
    check_attention(call.out, call.lse, q, k, v, None, True, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1],
                    rounding="rtne")


def test_keys_are_read_once_for_shared_heads(device, matrix_instructions):
    q, k, v = cases.dense(device, 1, 1, 200, 8, 1, 64, BF16)
    assert matrix_instructions(q, k, v) == matrix_instructions(q[:, :, :1], k, v)


def test_shared_heads_split_keys(device, attend):
    """Decoding: one workgroup for 8 heads, 10 parts of its keys."""
    q, k, v = cases.dense(device, 1, 2, 3100, 8, 1, 64, BF16)
    size = aiter_like.attention_workspace_bytes(q, k)
    out, lse = attend(q, k, v, workspace=torch.empty(size, dtype=torch.uint8, device=device))
    assert size == 10 * 512 * (64 + 2) * 4
    check_attention(out, lse, q, k, v, rounding="rtne")


def test_addresses_that_are_not_aligned(device, attend, caplog):
    """They go to the next backend, before and after others of the same shape; asked for by name, it is an error."""
    q, k, v = cases.dense(device, 1, 5, 9, 1, 1, 64, BF16)
    attend(q[:, :3], k, v)
    shifted = torch.empty(k.numel() + 1, dtype=BF16, device=device)[1:].view_as(k).copy_(k)
    with caplog.at_level("WARNING", logger="aiter_like"):
        for keys in (shifted, k, shifted):
            call = call_of(q, keys, v)
            flash_attn_fwd(call)
            check_attention(call.out, call.lse, q, k, v, rounding="rtne")
    assert "not hip but the next backend serves calls where k does not begin at a multiple of 16 bytes" in caplog.text
    reason = "k does not begin at a multiple of 16 bytes"
    with pytest.raises(UnsupportedError, match=f"hip: {reason}"):
        flash_attn_fwd(call_of(q, shifted, v), backend="hip")
    found = aiter_like.explain(aiter_like.flash_attn_func, q, shifted, v)
    assert found.backend == "ck" and found.rejected["hip"] == reason
    assert aiter_like.explain(aiter_like.flash_attn_func, q, k, v).backend == "hip"


def test_strides_that_are_not_aligned_are_refused(device, attend):
    q, k, v = cases.dense(device, 1, 5, 9, 1, 1, 64, BF16)
    attend(q, k, v)
    with pytest.raises(UnsupportedError, match="strides of q must be multiples of 8 elements"):
        flash_attn_fwd(call_of(torch.empty(1, 5, 1, 65, dtype=BF16, device=device)[..., :64], k, v), backend="hip")

# SPDX-License-Identifier: MIT
"""What compilers make of csrc/attention/flash_attn_bwd.hip: registers, LDS, and what the cycle model says of it."""

import itertools
import re

import pytest
import torch
from kernel_gates import COMPILERS

from aiter_like import sim
from aiter_like.ops.attention.call import AttentionCall, backward_call
from aiter_like.ops.attention.flash_attn_bwd import flash_attn_bwd
from aiter_like.ops.attention.flash_attn_bwd_hip import flash_attn_bwd_hip

KEYS = {64: 256, 128: 192, 192: 128}
"""Keys of a workgroup by the widest head dimension."""
LEAST_SHARES = {(64, 64): (0.60, 0.53), (128, 128): (0.70, 0.60), (192, 128): (0.71, 0.66)}
"""Of a workgroup's time that its matrix instructions take, modelled: without a mask, and where scores are looked at."""
WHOLE, LOOKED_AT = (-1, -1), (-1, 1 << 20)
BUILT = (128, 128), LOOKED_AT, COMPILERS[1]
"""The one build that other tests have, too; the others are exhaustive."""
_COLUMNS = 304  # sequences, most of them empty: with as many as CUs no task is divided, and all key blocks are a chain


def call_of(head_dims, window, rows, keys):
    """One head of one sequence, packed beside empty ones; only its sizes mean anything."""
    generator = torch.Generator().manual_seed(0)
    q, dout, k, v = (torch.randn(count, 1, dim, generator=generator).bfloat16() for count, dim in zip(
        (rows, rows, keys, keys), (head_dims[0], head_dims[1], *head_dims)))
    starts = [torch.tensor([0, *[count] * _COLUMNS], dtype=torch.int32) for count in (rows, keys)]
    forward = AttentionCall(
        torch.zeros_like(dout), torch.full((1, rows), 10.0), q, k, v, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1],
        max_seqlen_q=rows, max_seqlen_k=keys, softmax_scale=head_dims[0] ** -0.5, window_left=window[0],
        window_right=window[1])
    return backward_call(forward, dout)


def cases(*windows):
    for case in itertools.product(LEAST_SHARES, windows, COMPILERS):
        yield pytest.param(*case, marks=() if case == BUILT else pytest.mark.exhaustive)


def main_kernel(head_dims, window, rows):
    """The counts and the model of the launch that multiplies, of three blocks of keys."""
    call = call_of(head_dims, window, rows, 3 * KEYS[max(head_dims)])
    with sim.enabled(checks=False, counters=True, model="whole") as session:
        flash_attn_bwd(call, backend="hip")
    (found,) = [{**modelled, **counted} for counted, modelled in zip(session.launches, session.modelled, strict=True)
                if "flash_attn_bwd_kernel" in counted["kernel"]]
    return found


@pytest.mark.parametrize("head_dims, window, compiler", [*cases(WHOLE, LOOKED_AT)], ids=str)
def test_fit_and_share_of_the_matrix_unit(simulated, compiled_by, head_dims, window, compiler):
    """One workgroup has a CU, its sums are in registers; 16 more blocks of rows take not much longer than their matrix
    instructions, turns and sums of dQ included."""
    compiled_by(compiler, flash_attn_bwd_hip)
    first, second = (main_kernel(head_dims, window, rows) for rows in (512, 1024))
    assert second["private_bytes"] == second["registers"]["vgpr_spills"] == 0
    assert second["lds_bytes"] <= 65536 and second["occupancy"]["workgroups_per_cu"] == 1
    conflicts, passes = (second["totals"][name] - first["totals"][name] for name in ("lds_conflict_clk", "mfma_passes"))
    assert conflicts == second.get("unmet", 0) == 0  # K is transposed with some, once
    clk = second["modelled_clk"] - first["modelled_clk"]
    waves = 4 * 3
    assert 4 * passes / waves >= LEAST_SHARES[head_dims][window != WHOLE] * clk


def check_turn_end(launch):
    """A loop's stores of dQ have arrived, by a wait, and all waves have met, before it is said that a turn is over: the
    simulator stores at once, so that no result shows it."""
    said = [one for one in launch["instructions"] if re.match(r"buffer_store_dword\b.* sc1", one["text"])]
    sums = [one for one in launch["instructions"] if re.match(r"buffer_store_dwordx4\b.* sc1", one["text"])]
    behind = launch["instructions"].index(sums[-1]) + 1
    loop = [one for one in launch["instructions"][behind:] + launch["instructions"][:behind]
            if one["executed"] == sums[-1]["executed"]]
    rest = [one for one in launch["instructions"][behind:] if one["executed"] == said[-1]["executed"]]
    assert len(said) == 2 and said[0]["executed"] == sums[-1]["executed"]
    for path, end in ((loop, said[0]), (rest, said[1])):
        accesses, has_arrived, has_met = 0, False, False
        for one in path[:path.index(end)]:
            accesses += one["text"].startswith(("buffer_", "global_"))
            wait = re.search(r"vmcnt\((\d+)\)", one["text"])
            has_arrived |= wait is not None and int(wait[1]) <= accesses
            has_met |= has_arrived and one["text"].startswith("s_barrier")
        assert has_met


@pytest.mark.parametrize("head_dims, window, compiler", [*cases(LOOKED_AT)], ids=str)
def test_turns_end_behind_their_stores(simulated, compiled_by, head_dims, window, compiler):
    compiled_by(compiler, flash_attn_bwd_hip)
    check_turn_end(main_kernel(head_dims, window, 512))

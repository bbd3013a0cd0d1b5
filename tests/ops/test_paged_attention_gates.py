# SPDX-License-Identifier: MIT
"""What compilers make of csrc/attention/paged_attention.hip: registers, loads under way, bytes, the modelled rate."""

import re

import pytest
import torch
from attention_gates import assembly
from kernel_gates import COMPILERS, READ_TB_PER_S, modelled

from aiter_like import sim
from aiter_like.ops.attention import paged_attention as operator
from aiter_like.ops.attention import paged_attention_hip as backend
from aiter_like.ops.attention.paged_attention_call import parts_of, workspace_bytes

pytestmark = pytest.mark.rotating

LDS_BYTES = 32768  # two workgroups of a CU
READ_SHARE, BYTES_SHARE = 0.85, 0.8
"""Of READ_TB_PER_S, what the kernels reach at least where keys and values are 256 MB, of 16 bits or of bytes."""
BYTES = {"kv_dtype": "fp8_e4m3fnuz", "scale_layout": "tensor"}
KEY = {"batch": 2, "seqlen_q": 1, "seqlen_k": 64, "num_heads": 8, "num_kv_heads": 2, "head_dim": 128, "page_size": 16,
       "layout": "rows", "features": "none", "scale_layout": "none", "dtype": "bf16", "kv_dtype": "bf16"}
FORMS = {"bf16": (8, {}), "two strips of rows": (4, {"seqlen_q": 8}), "wide": (8, {"head_dim": 256}),
         "shuffled": (8, {"layout": "shuffled"}),
         "bytes with scales": (8, {"kv_dtype": "fp8_e4m3fnuz", "scale_layout": "token"})}
"""Name → loads of a lane that are under way while it multiplies, of K or of V; what is different from KEY."""


def call_of(**changed):
    return operator.paged_attention_op.tuning.case({**KEY, **changed}, torch.device("cpu"), 0)


def loop_of(text: str) -> list[str]:
    """The instructions of the loop over tiles."""
    body = text[text.index("22paged_attention_kernel"):].split(".Lfunc_end")[0]
    blocks = re.split(r"^(?=\.LBB\w+:)", body, flags=re.MULTILINE)
    inside = [block for block in blocks if "Loop" in block.split("\n", 1)[0] or "in Loop" in block[:200]]
    return [line.split(";")[0].strip() for block in inside if "v_mfma" in block for line in block.splitlines()[1:]]


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("form", FORMS)
def test_registers_and_loads(simulated, compiler, form):
    """Nothing in local memory; two workgroups fit a CU; while a tile is multiplied, the next one's K or V is on its
    way: behind what the loop waits for there are so many accesses that it does not wait for.
    """
    loads, changed = FORMS[form]
    text = assembly(backend._instance(call_of(**changed)), compiler, backend.paged_attention_hip)
    entry = next(part for part in text.split("amdhsa.kernels:")[1].split("  - .") if "22paged_attention_kernel" in part)
    found = {name: int(re.search(rf"\.{name}: +(\d+)", entry)[1])
             for name in ("vgpr_count", "vgpr_spill_count", "private_segment_fixed_size", "group_segment_fixed_size")}
    assert found["vgpr_count"] <= 256 and found["vgpr_spill_count"] == found["private_segment_fixed_size"] == 0, found
    assert found["group_segment_fixed_size"] <= LDS_BYTES
    loop = loop_of(text)
    assert sum(line.startswith("global_load") for line in loop) >= 2 * loads
    waits = [int(found[1]) for line in loop if (found := re.search(r"s_waitcnt.*vmcnt\((\d+)\)", line))]
    assert waits and min(waits) >= loads, waits


@pytest.mark.parametrize("form", ("bf16", "shuffled"))
def test_bytes(simulated, form):
    """A sequence's keys and values are read once; with partial sums, tables and lengths it is 5 % more at most."""
    call = call_of(seqlen_k=8192, batch=1, **FORMS[form][1])
    with sim.enabled(counters=True) as session:
        operator.paged_attention_op(call._replace(num_splits=4), backend="hip")
    read = sum(tensor.numel() * tensor.element_size() for tensor in (call.k, call.v))
    assert len(session.launches) == 2
    assert read <= sum(launch["totals"]["global_bytes"] for launch in session.launches) <= 1.05 * read


def with_splits(call):
    """The call with a workspace in which is what the first part of each sequence writes for the merge: the model runs a
    few workgroups alone. All sequences are as long.
    """
    batch, longest, bounds = call.batch, call.max_seqlen_k, parts_of(call)
    parts = -(-longest // max(-(-batch * longest // bounds.share), bounds.least))
    workspace = torch.zeros(workspace_bytes(call), dtype=torch.uint8)
    splits = torch.stack((torch.arange(batch) * parts, torch.full((batch,), parts)), 1).int()
    workspace[-splits.nbytes:] = splits.view(torch.uint8).flatten()
    return call._replace(workspace=workspace)


@pytest.mark.parametrize("batch, seqlen_k, share, changed", (
    (16, 4096, READ_SHARE, {}), (1, 65536, READ_SHARE, {}), (16, 4096, READ_SHARE, {"layout": "shuffled"}),
    (32, 4096, BYTES_SHARE, BYTES)), ids=str)
def test_modelled_share_of_the_read_rate(simulated, batch, seqlen_k, share, changed):
    """Of 256 MB, by the kernel that reads and the one that adds up, start and end of both included."""
    call = with_splits(call_of(batch=batch, seqlen_k=seqlen_k, num_heads=32, num_kv_heads=8, **changed))
    moved = sum(tensor.nbytes for tensor in (call.k, call.v))
    assert moved >= 2**28
    reads, merges = (launch["modelled_us"] for launch in modelled(operator.paged_attention_op, call, "hip"))
    assert moved / (reads + merges) / 1e6 > share * READ_TB_PER_S
    assert merges < 0.08 * reads

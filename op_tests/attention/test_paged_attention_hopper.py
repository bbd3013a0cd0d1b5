# SPDX-License-Identifier: MIT
"""What the compiler makes of the Triton kernel of paged_attention for Hopper: tiles under way, wide loads, no spill."""

import re
from typing import Any

import pytest
import torch
from hopper_code import compiled_for_hopper, disassembled

from aiter_like.device import Target
from aiter_like.ops.attention import paged_attention_call
from aiter_like.ops.attention.paged_attention import paged_attention_op
from aiter_like.ops.attention.triton import paged_attention

pytestmark = pytest.mark.rotating


def decoding(kv_dtype: str, most: int) -> Any:
    """64 sequences of up to `most` keys, whose tensors nobody reads."""
    scales = "none" if kv_dtype == "bf16" else "tensor"
    key = {"batch": 2, "seqlen_q": 1, "seqlen_k": 32, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128,
           "page_size": 16, "layout": "rows", "features": "none", "scale_layout": scales, "dtype": "bf16",
           "kv_dtype": kv_dtype}
    call = paged_attention_op.tuning.case(key, torch.device("cpu"), 0)
    return call._replace(max_seqlen_k=most, block_table=call.block_table.repeat(32, most // 1024), num_splits=1,
                         q=call.q.repeat(32, 1, 1), seqlens_k=call.seqlens_k.repeat(32), out=call.out.repeat(32, 1, 1))


@pytest.mark.parametrize("kv_dtype, most, tiles, keys, waits", (
    ("bf16", 8192, 2, 16, 2), ("bf16", 1024, 3, 32, 3), ("fp8_e4m3fn", 1024, 2, 16, 2)))
def test_code_for_hopper(monkeypatch, tmp_path, kv_dtype, most, tiles, keys, waits):
    """Tiles of keys and values in shared memory, copied 16 bytes at a time; matrices are read by LDSM alone, of fp8
    too, each by one wave; the loop waits for the other waves before a tile is read and overwritten. keys: of a tile's
    64, a wave's own.
    """
    call, hopper = decoding(kv_dtype, most), Target("cuda", "sm_90", 132, 32, False, 0)
    monkeypatch.setattr(paged_attention_call, "target_of", lambda _: hopper)
    with compiled_for_hopper(monkeypatch, paged_attention) as built:
        paged_attention.paged_attention(call)
    assert len(built) == 1
    code, tile = disassembled(built[0], tmp_path), 2 * 64 * 128 * call.k.element_size()
    assert tiles * tile <= built[0].metadata.shared <= tiles * tile + 1024
    assert not re.search(r"\b(LDL|STL)\b", code)
    lines = [line for line in code.splitlines() if re.search(r"/\*[0-9a-f]{4}\*/", line)]
    copies = [line for line in lines if "LDGSTS" in line]
    assert copies and all(".128" in line for line in copies)
    first = next(index for index, line in enumerate(lines) if "HMMA" in line)
    last = max(index for index, line in enumerate(lines) if "HMMA" in line)
    loop = "\n".join(lines[first:last])
    assert loop.count("LDSM") >= 4 and "LDS.U" not in loop and loop.count("BAR.SYNC") <= waits
    assert loop.count("HMMA") + 1 == 2 * 16 * keys * 128 // (16 * 8 * 16)  # 16 rows times a wave's own keys

# SPDX-License-Identifier: MIT
"""Arguments of flash_attn_bwd for test_flash_attn_bwd*.py: random inputs, exact `out` and `lse`.

A build of the HIP kernels takes longer than all tests of it: cases which are not exhaustive share seven builds.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from aiter_like.ops.attention.call import AttentionBackwardCall, AttentionCall, backward_call
from aiter_like.testing.attention_bwd import fill_forward

BF16, FP16 = torch.bfloat16, torch.float16

FEATURES = {
    "plain": {"lengths": (63, 65), "heads": (4, 2)},
    "causal": {"lengths": (65, 200), "heads": (2, 1), "window": (-1, 0), "head_dims": (128, 128), "dtype": FP16},
    "causal, more rows than keys": {"lengths": (127, 63), "heads": (4, 1), "window": (-1, 0), "dlse": True},
    "window": {"lengths": (100, 120), "window": (17, 5), "batch": 2},
    "softcap, ALiBi, sink tokens": {"lengths": (150, 200), "heads": (4, 2), "window": (20, 0), "sink_size": 5,
                                    "softcap": 2.0, "alibi": 1, "sink": True},
    "window, sink tokens": {"lengths": (200, 200), "heads": (6, 2), "window": (20, 0), "sink_size": 5},
    "softcap, bias, ALiBi": {"lengths": (65, 127), "window": (-1, 0), "softcap": 2.0, "bias": "heads", "alibi": 2},
    "one bias for all": {"lengths": (40, 70), "heads": (4, 2), "batch": 2, "bias": "shared", "alibi": 1,
                         "dtype": FP16},
    "learned sink": {"lengths": (150, 63), "heads": (4, 2), "window": (-1, 0), "sink": True, "dlse": True, "batch": 2},
    "dropout": {"lengths": (65, 127), "heads": (4, 2), "dropout_p": 0.3, "batch": 2},
    "dropout, causal": {"lengths": (65, 66), "window": (-1, 0), "dropout_p": 0.7, "dtype": FP16, "sink": True},
    "two head dimensions": {"lengths": (40, 70), "head_dims": (96, 32), "window": (-1, 0)},
    "packed": {"packed": ((5, 63, 1, 100, 0), (5, 130, 0, 65, 7)), "heads": (4, 2), "window": (-1, 0), "bias": "shared",
               "alibi": 2, "sink": True, "dropout_p": 0.2},
}
SHARED = ("causal, more rows than keys", "window", "learned sink", "softcap, ALiBi, sink tokens", "packed")
"""Of FEATURES, those whose builds other tests have, too."""


def rare(*values: Any) -> Any:
    """Parameters of an exhaustive case, which needs a build that no other test has."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def make(device: torch.device, *, lengths: tuple[int, int] = (0, 0), heads: tuple[int, int] = (2, 2),
         head_dims: tuple[int, int] = (64, 64), window: tuple[int, int] = (-1, -1), batch: int = 1,
         dtype: torch.dtype = BF16, packed: Sequence[Sequence[int]] | None = None, sink_size: int = 0,
         softcap: float = 0.0, bias: str = "", alibi: int = 0, sink: bool = False, dropout_p: float = 0.0,
         dlse: bool = False, seed: int = 0) -> AttentionBackwardCall:
    """A call whose outputs hold NaN. packed: lengths of the sequences of q, and of k; bias: "heads", "shared" or none;
    alibi: dimensions of the slopes; window: left and right."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    (num_heads, num_kv_heads), (dim, dim_v), starts = heads, head_dims, (None, None)
    if packed is None:
        of_q, of_k, of_lse = (batch, lengths[0]), (batch, lengths[1]), (batch, num_heads, lengths[0])
    else:
        starts = tuple(torch.tensor([0, *part]).cumsum(0).to(device, torch.int32) for part in packed)
        of_q, of_k = (sum(packed[0]),), (sum(packed[1]),)
        of_lse, batch, lengths = (num_heads, *of_q), len(packed[0]), (max(packed[0]), max(packed[1]))
    q, dout = random(*of_q, num_heads, dim), random(*of_q, num_heads, dim_v)
    k, v = random(*of_k, num_kv_heads, dim), random(*of_k, num_kv_heads, dim_v)
    bias_shape = (*of_q, lengths[1]) if packed else (1, num_heads if bias == "heads" else 1, *lengths)
    nan = functools.partial(torch.full_like, fill_value=math.nan)
    gradients = {"dq": nan(q), "dk": nan(k), "dv": nan(v),
                 "dsink": torch.full((num_heads,), math.nan, device=device) if sink else None,
                 "dlse": random(*of_lse).float() if dlse else None}
    forward = AttentionCall(
        torch.empty_like(dout), torch.empty(of_lse, device=device), q, k, v, cu_seqlens_q=starts[0],
        cu_seqlens_k=starts[1], bias=random(*bias_shape[:-2], *bias_shape[:-3:-1]).mT if bias else None,
        alibi_slopes=random(*(batch, num_heads)[-alibi:]).float().abs() * 0.2 if alibi else None,
        sink=random(num_heads).float() if sink else None,
        rng_state=torch.tensor([77 << 33, 5], device=device) if dropout_p else None, max_seqlen_q=lengths[0],
        max_seqlen_k=lengths[1], softmax_scale=dim ** -0.5, window_left=window[0], window_right=window[1],
        sink_size=sink_size, softcap=softcap, dropout_p=dropout_p)
    return fill_forward(backward_call(forward, dout, **gradients))


def again(call: AttentionBackwardCall) -> AttentionBackwardCall:
    """The same call with outputs of its own."""
    return call._replace(**{name: None if tensor is None else torch.full_like(tensor, math.nan)
                            for name, tensor in zip(("dq", "dk", "dv", "dsink"), call.results)})

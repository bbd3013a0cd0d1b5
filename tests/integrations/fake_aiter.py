# SPDX-License-Identifier: MIT
"""A small package `aiter`, written to disk by the tests: AITER's layout, originals in torch that record their calls."""

from __future__ import annotations

from pathlib import Path

FILES = {
    "__init__.py": """
from .record import calls
from .ops.rmsnorm import *
from .ops.activation import *
from .ops.gemm_op_a8w8 import *
""",
    "record.py": """
import functools
calls = []
def recorded(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        calls.append(function.__name__)
        return function(*args, **kwargs)
    return wrapper
""",
    "ops/__init__.py": "",
    "ops/rmsnorm.py": """
import torch
from ..record import recorded
@recorded
def rms_norm(input, weight, epsilon, use_model_sensitive_rmsnorm=0):
    x = input.double()
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight.double()).to(input.dtype)
@recorded
def rmsnorm(out, input, weight, epsilon, gemma_norm=True):  # another default than the one that callers rely on
    out.fill_(7)
""",
    "ops/activation.py": """
import torch
from ..record import recorded
@recorded
def silu_and_mul(out, input, limit=0.0, newer=None):
    gate, up = input.chunk(2, -1)
    out.copy_(torch.nn.functional.silu(gate) * up)
@recorded
def gelu_and_mul(result, input):  # another name for its first parameter
    result.fill_(7)
""",
    "ops/gemm_op_a8w8.py": """
from ..record import recorded
@recorded
def gemm_a8w8(XQ, WQ, x_scale, w_scale, bias=None, dtype=None, splitK=None):
    return "original"
""",
    "ops/triton/__init__.py": """
import sys
from .attention import unified_attention  # the old path is the same module
sys.modules[__name__ + ".unified_attention"] = unified_attention
""",
    "ops/triton/attention/__init__.py": "",
    "ops/triton/attention/unified_attention.py": """
from ...._names import recorded
@recorded
def unified_attention(q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal,
                      window_size, block_table, softcap, q_descale, k_descale, v_descale, q_scales=None,
                      alibi_slopes=None, output_scale=None, qq_bias=None, sinks=None):
    return "original"
""",
    "_names.py": "from .record import recorded",
    "ops/triton/activation.py": "raise RuntimeError('no GPU, as Triton says where there is none')",
}


def write(folder: Path) -> Path:
    """Writes the package below `folder`, which belongs on the path."""
    for name, text in FILES.items():
        file = folder / "aiter" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder

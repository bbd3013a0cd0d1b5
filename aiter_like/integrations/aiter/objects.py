# SPDX-License-Identifier: MIT
"""AITER's classes and constants that engines import and that have no counterpart here."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum, IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from aiter_like import dtypes, paths
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.norm.group_norm import group_norm

_TABLES = Path(__file__).with_name("configs")

AITER_CONFIGS = SimpleNamespace(**{f"AITER_CONFIG_{name}_FILE": str(_TABLES / f"{file}.csv") for name, file in (
    ("GEMM_A8W8", "a8w8_tuned_gemm"), ("GEMM_A8W8_BPRESHUFFLE", "a8w8_bpreshuffle_tuned_gemm"),
    ("GEMM_A8W8_BLOCKSCALE", "a8w8_blockscale_tuned_gemm"), ("FMOE", "tuned_fmoe"),
    ("GEMM_A8W8_BLOCKSCALE_BPRESHUFFLE", "a8w8_blockscale_bpreshuffle_tuned_gemm"),
    ("A8W8_BATCHED_GEMM", "a8w8_tuned_batched_gemm"), ("BF16_BATCHED_GEMM", "bf16_tuned_batched_gemm"),
    ("GEMM_BF16", "bf16_tuned_gemm"), ("GEMM_A4W4", "a4w4_blockscale_tuned_gemm"))})
"""Tables of AITER's form, with its columns and no row: this package reads tuned_csv/. gemm/gemm.py knows by the name
of the file what is asked about."""

AITER_CSRC_DIR = str(paths.csrc())
ENABLE_CK = False  # nothing here is composable_kernel


@aiter("aiter aiter.ops.enum", callers="V", stays=True)
class MlaVersion(IntEnum):
    """Form of an MLA cache."""

    V32 = 0
    V40 = 1


@aiter("aiter.ops.triton.rope.rope", stays=True)
class RotateStyle(IntEnum):
    """Which elements of a head rotate together: the halves, or neighbours."""

    NEOX = 0
    GPTJ = 1


@aiter("aiter.utility.mx_types aiter.utility.fp4_utils", "aiter.utility.mx_types:MxDtype", stays=True)
class MxDtypeInt(IntEnum):
    """Formats of elements that share a scale with the 31 beside them."""

    FP4_E2M1 = 0
    FP8_E4M3 = 1
    FP8_E4M3_FNUZ = 2


@aiter("aiter.utility.mx_types", "aiter.utility.mx_types aiter.ops.quant:MxScaleRoundMode", stays=True)
class MxScaleRoundModeInt(IntEnum):
    """How such a scale becomes a power of two."""

    RoundDown = 0
    RoundUp = 1
    Even = 2
    Ceil = 3


@aiter("aiter.aot.flydsl.common", stays=True)
@contextmanager
def override_env(var_name: str, value: str | None) -> Iterator[None]:
    """A variable of the environment has this value meanwhile; None: it is not set."""
    before = os.environ.get(var_name)
    _set_variable(var_name, value)
    try:
        yield
    finally:
        _set_variable(var_name, before)


@aiter("aiter.aot.flydsl.common", stays=True)
def run_only_env() -> AbstractContextManager[None]:
    """AITER compiles nothing meanwhile; here nothing of its kind is compiled at any time."""
    return nullcontext()


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


MX_DEFAULT_ROUND_MODE = MxScaleRoundModeInt.RoundUp


@aiter("aiter.ops.flydsl.moe_common", callers="V S", stays=True)
class GateMode(str, Enum):  # noqa: UP042 (engines compare and print it as AITER's, which is no StrEnum)
    """How gate and up projection lie in an expert's first matrix."""

    SEPARATED = "separated"
    MOCK_GATE_ONLY = "mock_gate_only"
    GATE_ONLY = "gate_only"
    INTERLEAVE = "interleave"


@aiter("aiter.ops.groupnorm", callers="S", stays=True)
class GroupNorm(torch.nn.GroupNorm):
    """torch's layer, with `group_norm` behind it."""

    def forward(self, x: Tensor, use_torch: bool = False) -> Tensor:
        """`use_torch`: torch's own function."""
        if use_torch:
            return super().forward(x)
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


@aiter("aiter.dist.device_communicators.custom_all_reduce", callers="V S", stays=True)
class CustomAllreduce:
    """An all-reduce that is switched off: engines that find `disabled` use RCCL, so that tensor parallelism works."""

    disabled = True
    fully_connected = False

    def __init__(self, group: Any, device: Any, max_size: int = 1 << 30,
                 enable_register_for_capturing: bool = True):
        self.group, self.device, self.max_size = group, device, max_size
        is_ready = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.world_size = torch.distributed.get_world_size(group) if is_ready else 1

    def should_custom_ar(self, inp: Tensor, prefill_support: bool = False) -> bool:
        """Never."""
        return False

    should_custom_ag = should_custom_rs = should_custom_ar

    def custom_all_reduce(self, input: Tensor, use_new: bool = True, open_fp8_quant: bool = False) -> None:
        """None: nothing was reduced."""

    def custom_all_gather(self, inp: Tensor, dim: int = 0) -> None:
        """None: nothing was gathered."""

    def custom_reduce_scatter(self, input: Tensor, output: Tensor, dim: int = 0) -> None:
        """None: nothing was scattered."""

    def custom_fused_ar_rms(self, input: Tensor, residual_inp: Tensor, weight: Tensor, eps: float, use_1stage: bool,
                            out_hidden_dim: int = 0, gemma_norm: bool = False) -> None:
        """None: nothing was reduced."""

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Nothing needs to be known of a graph's buffers."""
        yield

    def close(self) -> None:
        """Nothing is held."""


@functools.cache
def _logger() -> logging.Logger:
    """The logger "aiter", by which AITER's programs print their results: from INFO on, unless somebody set it up."""
    logger = logging.getLogger("aiter")
    if logger.level == logging.NOTSET and not logger.handlers:
        logger.setLevel(logging.INFO)
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    return logger


def __getattr__(name: str) -> Any:
    """`e4m3_dtype` and `logger`: asking for the device, and setting a logger up, wait until somebody wants them."""
    if name == "e4m3_dtype":
        return dtypes.fp8
    if name == "logger":
        return _logger()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

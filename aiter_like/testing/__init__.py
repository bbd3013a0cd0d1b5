# SPDX-License-Identifier: MIT
"""Tools that the package's tests, benchmarks and demo share, with which users may test their own kernels, too."""

from aiter_like.dtypes import ROUNDINGS
from aiter_like.testing.compare import (
    HIDDEN_SIZES,
    LENGTHS,
    TOLERANCES,
    Tolerance,
    assert_within,
    check_rms_norm,
    relative_l2,
    rms_norm_float64,
    strided_like,
)
from aiter_like.testing.timing import host_time_us

__all__ = ["HIDDEN_SIZES", "LENGTHS", "ROUNDINGS", "TOLERANCES", "Tolerance", "assert_within", "check_rms_norm",
           "host_time_us", "relative_l2", "rms_norm_float64", "strided_like"]

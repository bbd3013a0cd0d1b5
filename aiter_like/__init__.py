# SPDX-License-Identifier: MIT
"""GPU operators for AMD MI300X. Importing this compiles, probes and configures nothing."""

from aiter_like.dispatch import explain, is_tuned, use_backend
from aiter_like.ops.attention import *  # noqa: F403
from aiter_like.ops.norm import *  # noqa: F403

__version__ = "0.1.0"

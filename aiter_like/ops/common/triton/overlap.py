# SPDX-License-Identifier: MIT
"""The constant OVERLAPS of kernels that a `Launch` repeats: it hands its constants over in order, this one among them.

`launch` in launch.py finds the same out by itself; it stands there too, since a change of that file ends the measured
rows of every operator. The next one who tunes them all makes one of the two.
"""

from __future__ import annotations

import triton.language.extra.cuda as cuda_extra

from aiter_like.device import Target


def overlaps(target: Target) -> bool:
    """Whether a kernel that begins with await_stream may start before the previous one has ended: since Hopper."""
    is_known = hasattr(cuda_extra, "gdc_wait")
    return is_known and target.platform == "cuda" and int(target.arch.removeprefix("sm_").rstrip("af")) >= 90

# SPDX-License-Identifier: MIT
"""How long rows are cut into slices, a workgroup each, by kernels that read a row twice, in two launches.

Read by ops/norm/group_norm.py and ops/norm/triton/group_norm.py.
"""

from __future__ import annotations

from typing import NamedTuple

from aiter_like.device import Target, model_of
from aiter_like.ops.common.headers import constant

LEAST_BYTES, MOST_BYTES = 2**13, 2**16  # sizes of a slice; a workgroup of 512 lanes keeps the most, 128 bytes each
# Default sizes, the longest first: 64 bytes of each lane leave room for several workgroups
_DEFAULT_BYTES = (2**15, 2**14)


class Slices(NamedTuple):
    """Numbers of configs/gfx942/norm.toml, for every device."""

    whole_bytes: int
    groups_per_cu: int


def model() -> Slices:
    return model_of("gfx942", "norm.slices", Slices)


def default(target: Target, rows: int, size: int, element_size: int) -> int:
    """Elements of a slice; `size` where a workgroup shall take a whole row.

    Up to MOST_BYTES it shall, however few rows there are: all CUs together are faster, but they read twice and take a
    second launch.
    """
    row_bytes = size * element_size
    if row_bytes <= MOST_BYTES:
        return size
    enough = model().groups_per_cu * target.cu_num
    found = next((most for most in _DEFAULT_BYTES if rows * -(-row_bytes // most) >= enough), LEAST_BYTES)
    return found // element_size


def of_cluster(target: Target, size: int, element_size: int) -> int | None:
    """Elements of a slice with which the workgroups of a cluster of sm_90 keep a row and read it once; None where there
    are no clusters, or one cannot keep it.
    """
    row_bytes = size * element_size
    if target.platform != "cuda" or int(target.arch.removeprefix("sm_").rstrip("af")) < 90:
        return None
    most_of_cluster = constant("include/aiter_like/cluster.h", "kMostOfCluster")
    if not MOST_BYTES < row_bytes <= most_of_cluster * MOST_BYTES:
        return None
    return max(1 << (-(-row_bytes // most_of_cluster) - 1).bit_length(), LEAST_BYTES) // element_size


def of_positions(target: Target, samples: int, positions: int, position_bytes: int) -> int:
    """Slices of a sample whose positions stand one after another, all channels of each together: enough for all CUs,
    and none of less than twice LEAST_BYTES, unless that is one.
    """
    enough = -(-model().groups_per_cu * target.cu_num // samples)
    return max(min(enough, positions * position_bytes // (2 * LEAST_BYTES), positions), 1)


def most(size: int, element_size: int) -> int:
    """The slices of a row for which a caller shall have room, whatever their length: 1 where it is never cut."""
    row_bytes = size * element_size
    return 1 if row_bytes <= model().whole_bytes else -(-row_bytes // LEAST_BYTES)


def space(size: int, element_size: int) -> list[int]:
    """The elements of a slice that a tuner should try: powers of two."""
    if most(size, element_size) == 1:
        return []
    lengths = (2**exponent for exponent in range(LEAST_BYTES.bit_length() - 1, MOST_BYTES.bit_length()))
    return [length // element_size for length in lengths if length < size * element_size]

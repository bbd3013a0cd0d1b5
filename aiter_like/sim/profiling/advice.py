# SPDX-License-Identifier: MIT
"""Explains what it means that a launch is bound by something, and what its author can do about it. Text and page show
these."""

from __future__ import annotations

_ADVICE = {
    "matrix": ("The matrix pipes work nearly all of the time: this is what a matrix product should look like.",
               "Less work is the way on: smaller types, blocks that are masked out skipped, no padding."),
    "vector": ("Vector arithmetic fills the issue cycles of the SIMDs.",
               "Fewer instructions: packed arithmetic, cheaper conversions, addresses computed outside of the loop."),
    "LDS": ("The banks of the LDS work nearly all of the time.",
            "Remove bank conflicts (see LDS banks), read 16 bytes a lane, keep more in registers."),
    "address": ("The address units are busy: many memory instructions, or lanes that lie far apart.",
                "Load 16 bytes a lane, and let neighbouring lanes read neighbouring addresses."),
    "L2": ("The channels of the L2 are busy.",
           "Read less often: larger tiles, so that what was loaded is used more times; LDS for what waves share."),
    "beyond L2": ("Memory is busy: the kernel moves bytes as fast as it can.",
                  "Move fewer bytes: smaller types, fused operators, an order of workgroups that the L2 can reuse."),
    "grid": ("The grid has too few workgroups for the chip, and CUs stand idle.",
             "Smaller tiles, or a split of the long dimension (keys, K) over several workgroups."),
    "issue": ("Waves hardly wait: they issue one instruction after the other.",
              "Fewer instructions for the same work, or more waves per SIMD."),
    "vmcnt": ("Waves stand at s_waitcnt vmcnt: they need what vector memory (global or buffer loads) has not answered "
              "yet, and no other work is left meanwhile.",
              "Issue the loads earlier (prefetch the next tile before computing this one, double buffer), keep more of "
              "them in flight, load 16 bytes a lane, or have more waves per SIMD to take turns."),
    "lgkmcnt": ("Waves stand at s_waitcnt lgkmcnt: they need what LDS or scalar memory has not answered yet.",
                "Read from the LDS one step ahead of its use, remove bank conflicts, load arguments once at the "
                "beginning."),
    "barrier": ("Waves stand at a barrier until the others of their workgroup arrive.",
                "Give waves equal work, use fewer barriers (double buffered LDS needs one per step), or several "
                "workgroups per CU."),
    "matrix result": ("Waves need the result of a matrix operation that is still in the pipe.",
                      "Put independent matrix operations between it and its use: more accumulators, or the next tile's "
                      "product before this one's softmax."),
    "matrix pipe": ("The matrix pipe is taken by an earlier operation, of this wave or another one.",
                    "This is good where the pipe is busy most of the time; else spread the operations of the waves."),
    "vector port": ("Another wave of the SIMD issues vector arithmetic.",
                    "Fewer vector instructions: packed arithmetic, cheaper conversions, less address arithmetic."),
    "issue port": ("The unit takes another wave's instruction in this cycle.", "Fewer instructions of that unit."),
    "memory queue": ("The queue of the address unit is full: too many memory instructions at once.",
                     "Fewer and wider ones (16 bytes a lane), spread between the arithmetic."),
    "LDS queue": ("The queue of the LDS is full: too many LDS instructions at once.",
                  "Fewer and wider ones, without bank conflicts, spread between the arithmetic."),
    "fetch": ("The next instructions have not been fetched yet.",
              "Shorter code: less unrolling, so that a loop stays in the instruction cache."),
}


def of(bound: str) -> dict[str, str]:
    """`meaning` and `remedy` of what figures.bound says."""
    name = bound.removeprefix("waits: ").partition(" (")[0].partition(":")[0]
    meaning, remedy = _ADVICE[name]
    return {"meaning": meaning, "remedy": remedy}

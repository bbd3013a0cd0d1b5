# SPDX-License-Identifier: MIT
"""A flag that goes from workgroup 0 to another one and back, as public measurements have it: release, atomic, polling
beside s_sleep, acquire."""

from __future__ import annotations

from aiter_like.sim.validation.kernels import Kernel

ROUNDS = 64
"""Most rounds: as many dwords does the second buffer need."""

_PATIENCE = 0x40000  # looks at a flag before it is given up

# s23: the round, from 1. v3: 0; v4: 1. The flag that a side raises is at s[4:5] + {own}, the other's at {other}.
_RAISE = """buffer_wbl2 sc1
s_waitcnt vmcnt(0)
global_atomic_add v3, v4, s[4:5] offset:{own}
s_waitcnt vmcnt(0)
"""
_AWAIT = """s_mov_b32 s22, {patience:#x}
{label}:
s_sub_u32 s22, s22, 1
s_cbranch_scc1 9f
s_sleep 1
global_load_dword v5, v3, s[4:5] offset:{other} sc1
s_waitcnt vmcnt(0)
v_readfirstlane_b32 s21, v5
s_cmp_lt_u32 s21, s23
s_cbranch_scc1 {label}b
buffer_inv sc1
s_waitcnt vmcnt(0)
"""


def round_trip(is_loaded: bool, passes: int = 600) -> Kernel:
    """s9: the other workgroup. The loop's runs are rounds; the second buffer gets each one's ticks of s_memrealtime, or
    0 where the answer did not come. With `is_loaded` all workgroups but the two read from the memory that the last
    argument points at, 1 GiB of it, in `passes` of four loads; 600 take a device about a millisecond."""
    first = _RAISE.format(own=1024) + _AWAIT.format(patience=_PATIENCE, label=3, other=2048)
    second = _AWAIT.format(patience=_PATIENCE, label=4, other=1024) + _RAISE.format(own=2048)
    body = f"""s_add_u32 s23, s23, 1
s_cmp_lg_u32 s2, 0
s_cbranch_scc1 2f
s_memrealtime s[24:25]
s_waitcnt lgkmcnt(0)
{first}s_memrealtime s[26:27]
s_waitcnt lgkmcnt(0)
s_sub_u32 s26, s26, s24
s_max_u32 s26, s26, 1
v_mov_b32 v7, s26
global_store_dword v6, v7, s[6:7]
v_add_u32 v6, 4, v6
s_branch 5f
2:
{second}s_branch 5f
9:
s_endpgm
5:"""
    others = _stream(passes) if is_loaded else "s_endpgm\n"
    prepare = f"""s_mov_b32 s23, 0
v_mov_b32 v3, 0
v_mov_b32 v4, 1
v_mov_b32 v6, 0
s_cmp_eq_u32 s2, 0
s_cbranch_scc1 6f
s_cmp_eq_u32 s2, s9
s_cbranch_scc1 6f
{others}6:
v_readfirstlane_b32 s20, v1
s_cmp_lg_u32 s20, 0
s_cbranch_scc0 8f
s_endpgm
8:
s_mov_b64 exec, 1"""
    return Kernel(body, prepare, unroll=1, waves=4 if is_loaded else 1)


def _stream(passes: int) -> str:
    """Four loads of 16 bytes in flight; v2 is the place in 1 GiB."""
    loads = "\n".join(f"global_load_dwordx4 v[{k}:{k + 3}], v2, s[30:31]\nv_add_u32 v2, 0x130000, v2\n"
                      "v_and_b32 v2, 0x3fffffff, v2" for k in (12, 16, 20, 24))
    return f"""s_load_dwordx2 s[30:31], s[0:1], 0x18
s_lshl_b32 s28, s2, 12
v_lshl_add_u32 v2, v1, 4, s28
s_movk_i32 s29, {passes}
s_waitcnt lgkmcnt(0)
7:
{loads}
s_waitcnt vmcnt(0)
s_sub_u32 s29, s29, 1
s_cmp_lg_u32 s29, 0
s_cbranch_scc1 7b
s_endpgm
"""

# SPDX-License-Identifier: MIT
"""Open points of memory and of where waves run, as kernels; part of questions.py."""

from __future__ import annotations

from collections.abc import Iterator

from aiter_like.sim.names import spans
from aiter_like.sim.validation.kernels import Kernel
from aiter_like.sim.validation.question import LANES, UNTOUCHED, Question, Rows, each, once

_FILL, _PLACE = 0x5A5A5A5A, 4 * LANES
_NUMBERS = tuple(range(0x100, 0x100 + LANES))
_DESCRIPTOR = "s_mov_b64 s[12:13], s[4:5]\ns_mov_b32 s14, 128\ns_mov_b32 s15, 0x20000"


def memory_questions() -> Iterator[Question]:
    """LDS-DMA, d16, range checks, caches of two XCDs, where workgroups and waves run."""
    yield from _lds_dma()
    yield _d16()
    yield from _range_check()
    yield _coherence()
    yield from _placement()


def _lds_dma() -> Iterator[Question]:
    dma = f"v_mov_b32 v3, {_FILL:#x}\nds_write_b32 v60, v3\n{_DESCRIPTOR}\ns_mov_b32 m0, 0\n{{more}}" \
          "s_waitcnt lgkmcnt(0)\ns_nop 4\nbuffer_load_dword v60, s[12:15], 0 offen lds\ns_waitcnt vmcnt(0)\n" \
          "s_mov_b64 exec, -1\nds_read_b32 v20, v60"

    def beyond(rows: Rows) -> str:
        within, after = list(rows[0][:32]), set(rows[0][32:])
        if within != list(_NUMBERS[:32]):
            return f"unexpected: {within[0]:#x} in range"
        return {(0,): "they write zero", (_FILL,): "they leave LDS as it is"}.get(tuple(after), f"unexpected: {after}")

    yield Question("LDS-DMA out of range", "what do lanes beyond a buffer's end do to LDS?",
                   once(dma.format(more=""), ["v20"], lds_bytes=_PLACE), beyond, "they write zero", "isa/mubuf.cpp",
                   inputs=_NUMBERS)

    def inactive(rows: Rows) -> str:
        own = [_NUMBERS[lane] if lane % 2 == 0 and lane < 32 else _FILL for lane in range(32)]
        if list(rows[0][:32]) == own:
            return "every lane keeps its place"
        return "active lanes lie together" if list(rows[0][:16]) == list(_NUMBERS[:32:2]) else "unexpected"

    yield Question("LDS-DMA with inactive lanes", "where in LDS do lanes beside inactive ones write?",
                   once(dma.format(more="s_mov_b32 exec_lo, 0x55555555\ns_mov_b32 exec_hi, 0\n"), ["v20"],
                        lds_bytes=_PLACE), inactive, "every lane keeps its place", "isa/mubuf.cpp", inputs=_NUMBERS)


def _d16() -> Question:
    loads = ("global_load_short_d16 {}, v60, s[4:5]", "global_load_short_d16_hi {}, v60, s[4:5]",
             "global_load_ubyte_d16 {}, v60, s[4:5]", "global_load_sbyte_d16_hi {}, v60, s[4:5]",
             "buffer_load_short_d16 {}, v60, s[12:15], 0 offen", "buffer_load_short_d16_hi {}, v60, s[12:15], 0 offen",
             "ds_read_u16_d16 {}, v60", "ds_read_u16_d16_hi {}, v60")
    names = [load.split(" ")[0] for load in loads]
    registers = [f"v{20 + k}" for k in range(len(loads))]
    body = "\n".join([_DESCRIPTOR, "v_mov_b32 v3, 0x77", "ds_write_b32 v60, v3",
                      *(f"v_mov_b32 {register}, {_FILL:#x}" for register in registers),
                      "s_waitcnt lgkmcnt(0)", *map(str.format, loads, registers)])

    def decide(rows: Rows) -> str:
        other = [row[0] & 0xFFFF if name.endswith("_hi") else row[0] >> 16 for name, row in zip(names, rows)]
        kept = {_FILL & 0xFFFF: "keeps it", 0: "clears it"}
        return each(names, [kept.get(half, f"{half:#x}") for half in other])

    return Question("d16 loads", "what does a load of 16 bits do to the other half of its register (sramecc is on)?",
                    once(body, registers, lds_bytes=_PLACE), decide, "keeps it", "isa/access.h", rows=len(loads),
                    inputs=[0x77] * LANES)


def _range_check() -> Iterator[Question]:
    """Asks whether soffset counts in the range check. The buffer has 128 bytes, offsets are 4 * lane, soffset is 64: 16
    lanes are in range when it counts, else 32."""
    far = f"{_DESCRIPTOR}\ns_movk_i32 s16, 64\n"
    answers = {tuple(range(16)): "it counts", tuple(range(32)): "it does not count"}

    def of(lanes: list[int]) -> str:
        return answers.get(tuple(lanes), f"in range are {spans(lanes)}")

    def loaded(rows: Rows) -> str:
        return of([lane for lane, value in enumerate(rows[0]) if value])

    more = tuple(range(0x100, 0x100 + 2 * LANES))
    yield Question("soffset in the range check of loads", "does soffset count in a raw buffer's range check?",
                   once(f"{far}buffer_load_dword v20, v60, s[12:15], s16 offen", ["v20"]), loaded, "it counts",
                   "isa/buffer.h", inputs=more)
    yield Question("soffset in the range check of structured loads",
                   "does soffset count where an index is compared with the number of records?",
                   once(f"{far}s_or_b32 s13, s13, 0x40000\ns_mov_b32 s14, 32\n"
                        "buffer_load_dword v20, v0, s[12:15], s16 idxen", ["v20"]), loaded, "it does not count",
                   "isa/buffer.h", inputs=more)

    def written(rows: Rows) -> str:
        return of([place - 16 for place, value in enumerate([*rows[1], *rows[2]]) if value != UNTOUCHED])

    store = f"{far}s_add_u32 s12, s6, {_PLACE}\ns_addc_u32 s13, s7, 0\nbuffer_store_dword v60, v60, s[12:15], s16 offen"
    yield Question("soffset in the range check of stores", "does soffset count in the range check of a store?",
                   once(store, ["v60"]), written, "it counts", "isa/buffer.h", rows=3, inputs=more)


# Waits until the dword at v3 + {flag} of the first buffer is {count}; gives up after a million looks.
_AWAIT = """s_mov_b32 s20, 0x100000
2:
s_sleep 1
global_load_dword v5, v3, s[4:5] offset:{flag} sc1
s_waitcnt vmcnt(0)
v_readfirstlane_b32 s21, v5
s_sub_u32 s20, s20, 1
s_cbranch_scc1 3f
s_cmp_lt_u32 s21, {count}
s_cbranch_scc1 2b
3:
"""
_RAISE = "global_atomic_add v3, v4, s[4:5] offset:{flag}\ns_waitcnt vmcnt(0)\n"


def _coherence() -> Question:
    """Workgroup 0 writes, workgroup 1, of another XCD, has read the line before and reads it again."""
    reads = ("", " sc1", " nt", " sc0 sc1")
    look = "\n".join(f"global_load_dword v{{first}}{k}, v3, s[4:5]{kind}\ns_waitcnt vmcnt(0)"
                     for k, kind in enumerate(reads))
    reader = f"""global_load_dword v5, v3, s[4:5]
s_waitcnt vmcnt(0)
{_RAISE.format(flag=1024)}{_AWAIT.format(flag=2048, count=1)}v_mov_b32 v40, s21
{look.format(first=2)}
{_RAISE.format(flag=1024)}{_AWAIT.format(flag=2048, count=2)}{look.format(first=3)}
buffer_inv sc1
s_waitcnt vmcnt(0)
global_load_dword v34, v3, s[4:5]
s_waitcnt vmcnt(0)
"""
    writer = f"""global_load_dword v5, v3, s[4:5]
s_waitcnt vmcnt(0)
{_AWAIT.format(flag=1024, count=1)}v_mov_b32 v6, 2
global_store_dword v3, v6, s[4:5]
s_waitcnt vmcnt(0)
{_RAISE.format(flag=2048)}{_AWAIT.format(flag=1024, count=2)}buffer_wbl2 sc1
s_waitcnt vmcnt(0)
{_RAISE.format(flag=2048)}s_endpgm
"""
    registers = ["v40", *(f"v{first}{k}" for first in (2, 3) for k in range(4)), "v34"]
    names = [f"{kind.strip() or 'plain'} {when}" for when in ("at once", "after buffer_wbl2") for kind in reads]
    names.append("plain after buffer_wbl2 and buffer_inv")
    head = "v_mov_b32 v3, 0\nv_mov_b32 v4, 1\ns_mov_b64 exec, 1\ns_cmp_lg_u32 s2, 0\ns_cbranch_scc1 4f\n"

    def decide(rows: Rows) -> str:
        if rows[0][0] < 1:
            return "unexpected: the other workgroup did not answer"
        return each(names, [{1: "old", 2: "new"}.get(row[0], f"{row[0]:#x}") for row in rows[1:]])

    return Question("coherence", "which loads see what another XCD has stored, to a line that this XCD's L2 holds?",
                    once(f"{head}{writer}4:\n{reader}", registers), decide, "new", "run/memory.cpp",
                    rows=len(registers), inputs=[1, *[0] * 1023], groups=2)


def _placement() -> Iterator[Question]:
    def one_word(register: str, place: str) -> Kernel:
        return Kernel(f"s_getreg_b32 s12, hwreg({register})\n{place}\nv_mov_b32 v4, s12\n"
                      "global_store_dword v3, v4, s[6:7]", "s_mov_b64 exec, 1", unroll=1,
                      waves=8 if register == "HW_REG_HW_ID" else 1)

    def xcds(rows: Rows) -> str:
        found = [value & 15 for value in rows[0]]
        return "workgroup i on XCD i mod 8" if found == [k % 8 for k in range(LANES)] else f"{found}"

    yield Question("XCDs of workgroups", "on which XCDs do the workgroups of a launch run?",
                   one_word("HW_REG_XCC_ID", "s_lshl_b32 s13, s2, 2\nv_mov_b32 v3, s13"), xcds,
                   "workgroup i on XCD i mod 8", "run/placement.h", groups=LANES)

    def simds(rows: Rows) -> str:
        found = [value >> 4 & 3 for value in rows[0][:8]]
        turns = [(found[0] + k) % 4 for k in range(8)]
        return "by turns" if found == turns else f"{found}"

    yield Question("SIMDs of waves", "on which SIMDs do the waves of a workgroup run?",
                   one_word("HW_REG_HW_ID", "v_lshrrev_b32 v3, 6, v1\nv_lshlrev_b32 v3, 2, v3"), simds, "by turns",
                   "run/placement.h")

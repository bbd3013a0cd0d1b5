# SPDX-License-Identifier: MIT
"""Which gfx942 instructions have a row: every opcode of every encoding goes through LLVM's disassembler.

The words below fill the opcode field of each encoding with every value, and the operand fields with a few patterns,
because forms differ in what they accept. What comes out as text is an instruction of gfx942. `MISSING` names those that
the simulator does not run, with the reason; a new row, or a new LLVM with more instructions, changes it.
"""

import functools
import re
from collections.abc import Iterator

from asm import assemble
from isa_model import table_names, tables
from test_decode import KERNEL

from aiter_like.sim.library import disassemble

MISSING = {
    "scalar scratch: no public text says where its base is under architected flat scratch": [
        f"s_scratch_{access}_dword{count}" for access in ("load", "store") for count in ("", "x2", "x4")],
    "branches of a fork stack that LLVM never emits": ["s_cbranch_g_fork", "s_cbranch_i_fork", "s_cbranch_join"],
    "trap handlers and context switches only": ["s_rfe_b64", "s_rfe_restore_b64", "s_endpgm_saved"],
    "graphics": ["s_endpgm_ordered_ps_done", "s_setkill", "v_screen_partition_4se_b32"],
    "throws dirty cache lines away; the model has no cache": ["s_dcache_discard", "s_dcache_discard_x2"],
    "no public text defines it": ["ds_condxchg32_rtn_b64"],
}


def vop3_operands(first: int, second: int, third: int = 0) -> int:
    return first | second << 9 | third << 18


def vgpr(index: int) -> int:
    return 256 + index


def short_words() -> Iterator[tuple[int, ...]]:
    """Encodings of one dword, some with a literal after it."""
    for op in range(256):
        yield (0xBE800000 | 2 << 16 | op << 8 | 4,)                                    # SOP1
        yield (0x7C000000 | op << 17 | 2 << 9 | vgpr(6),)                              # VOPC
        yield from ((0x7E000000 | 2 << 17 | op << 9 | source,) for source in (vgpr(6), 6, 4))      # VOP1
        yield (0x7E000000 | op << 9,)
    for op in range(128):
        yield (0x80000000 | op << 23 | 2 << 16 | 4 << 8 | 6,)                          # SOP2
        yield (0xBF000000 | op << 16 | 4 << 8 | 6,)                                    # SOPC
        yield (0xBF800000 | op << 16,)                                                 # SOPP
    for op in range(32):
        yield (0xB0000000 | op << 23 | 2 << 16 | 4,)                                   # SOPK
    for op in range(64):
        yield (op << 25 | 4 << 17 | 2 << 9 | vgpr(6),)                                 # VOP2
        yield (op << 25 | 4 << 17 | 2 << 9 | 255, 0x3F800001)


def vop3_words() -> Iterator[tuple[int, ...]]:
    patterns = [vop3_operands(vgpr(4), vgpr(6), vgpr(8)), vop3_operands(vgpr(4), vgpr(6)), vgpr(4),
                vop3_operands(4, 6, 8), vop3_operands(vgpr(4), 2, 8), vop3_operands(128, vgpr(6), 8),
                vop3_operands(vgpr(4), vgpr(6), 8), 0]
    for op in range(1024):
        yield from ((0xD0000000 | op << 16 | dst, pattern) for dst in (2, 4 | 6 << 8, 0) for pattern in patterns)
    packed = [vop3_operands(vgpr(32), vgpr(40), third) | high << 27 for third in (vgpr(64), vgpr(2), 0)
              for high in (0, 3)]
    for op in range(128):
        yield from ((0xD3800000 | op << 16 | 2 | low, pattern) for low in (0, 0x4000) for pattern in packed)


def memory_words() -> Iterator[tuple[int, ...]]:
    for op in range(256):
        for low in (0, 1 << 17, 1 << 16 | 1 << 17, 4 << 6 | 2, 4 << 6 | 2 | 1 << 17, 4 << 6 | 2 | 1 << 16):
            yield from ((0xC0000000 | op << 18 | low, high) for high in (0, 2, 1 << 30))          # SMEM
        yield from ((0xD8000000 | op << 17, high)                                                 # DS
                    for high in (0, 0x02040608, 0x02000008, 0x00040608, 0x08000000))
    for op in range(128):
        for segment in range(3):                                       # FLAT, SCRATCH, GLOBAL
            for low in (0, 1 << 13, 1 << 16):
                yield from ((0xDC000000 | op << 18 | segment << 14 | low, high)
                            for high in (0x027F0408, 0x02060408, 0x007F0408, 0x007F0008, 0x02000408))
        for low in (0, 1 << 12, 1 << 14, 1 << 16):
            yield from ((0xE0000000 | op << 18 | low, high) for high in (0x80010408, 0, 0x80020200))  # MUBUF
        yield from ((0xF0000000 | op << 18 | 0xF00, high) for high in (0, 0x00020408))            # MIMG
    for op in range(16):
        yield from ((0xE8000000 | op << 15 | form << 19, 0x80010408) for form in (0, 7))          # MTBUF
        yield (0xD4000000 | op << 16,)                                                            # VINTRP
        yield (0xC4000000 | op << 16, 0)                                                          # EXP


@functools.cache
def scan() -> dict[str, tuple[str, str]]:
    """Mnemonic without encoding suffix → (text, error) of its first form that decodes, else of any form."""
    words = [word for group in (short_words, vop3_words, memory_words) for words in group() for word in words]
    body = "\n".join(f".long {word:#x}" for word in words)
    found: dict[str, tuple[str, str]] = {}
    for _, text, error in disassemble(assemble(KERNEL.format(body=body))):
        mnemonic = re.sub(r"_(e32|e64|dpp|sdwa)$", "", text.split(" ")[0])
        if not text.startswith("<") and (mnemonic not in found or found[mnemonic][1] and not error):
            found[mnemonic] = text, error
    return found


def missing() -> set[str]:
    return {name for names in MISSING.values() for name in names}


def test_every_instruction_has_a_row_or_a_reason():
    unknown = {name for name, (_, error) in scan().items() if "is not implemented" in error}
    assert unknown == missing()


def test_every_row_is_an_instruction_of_gfx942():
    """A misspelt row would never run."""
    names = table_names(*tables())
    assert len(names) > 1000
    assert names <= set(scan()), sorted(names - set(scan()))


def test_every_instruction_decodes_in_some_form():
    broken = {text: error for name, (text, error) in scan().items() if error and name not in missing()}
    assert not broken

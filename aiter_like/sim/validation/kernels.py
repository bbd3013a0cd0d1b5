# SPDX-License-Identifier: MIT
"""Small gfx942 kernels made of assembly: a preparation, and a body that a loop repeats."""

from __future__ import annotations

import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aiter_like.errors import BuildError
from aiter_like.modules import processes, toolchain

_ARGUMENTS = "<QQIIQ"
_ARGUMENT_BYTES = struct.calcsize(_ARGUMENTS)


@dataclass(frozen=True)
class Kernel:
    """The code that each wave runs. v0: its lane; v1: the work-item in the workgroup; s2: the workgroup; s[4:5],
    s[6:7]: buffers;
    s8: how often the loop runs; s9: a number of the case's own. s10 counts the loop.

    Attributes:
        body: assembly that the loop repeats `unroll` times; "{k}" is the number of the repetition.
        prepare: assembly before the loop.
        waves: of a workgroup.
        registers, accumulators: v registers of each lane, before and after ACCUM_OFFSET.
        lds_bytes: of a workgroup.
        scalars: s registers.
    """

    body: str
    prepare: str = ""
    waves: int = 1
    unroll: int = 16
    registers: int = 64
    accumulators: int = 32
    lds_bytes: int = 0
    scalars: int = 64

    def text(self, name: str, unroll: int, timed: bool = False) -> str:
        """Its function and descriptor. s[0:1] holds the address of the arguments. With `timed` each wave stores what
        s_memtime and s_memrealtime said before the loop and after it; s[40:51] are then not the body's."""
        body = "\n".join(self.body.replace("{k}", str(k)) for k in range(unroll))
        before, after = (_before(), _after(self.waves)) if timed else ("", "")
        return f"""
.text
.globl {name}
.p2align 8
.type {name},@function
{name}:
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  s_load_dwordx2 s[8:9], s[0:1], 0x10
  v_mov_b32 v1, v0
  v_and_b32 v0, 63, v0
  s_waitcnt lgkmcnt(0)
  s_mov_b32 s10, s8
{self.prepare}
  s_waitcnt vmcnt(0) lgkmcnt(0)
  s_barrier{before}
.p2align 7
1:
{body}
  s_sub_u32 s10, s10, 1
  s_cmp_lg_u32 s10, 0
  s_cbranch_scc1 1b
  s_waitcnt vmcnt(0) lgkmcnt(0){after}
  s_endpgm
.size {name}, .-{name}
.rodata
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_group_segment_fixed_size {self.lds_bytes}
  .amdhsa_kernarg_size {_ARGUMENT_BYTES}
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_next_free_vgpr {self.registers + self.accumulators}
  .amdhsa_accum_offset {self.registers}
  .amdhsa_next_free_sgpr {self.scalars}
.end_amdhsa_kernel
"""

    def metadata(self, name: str) -> str:
        """Its entry in the list of kernels."""
        return f"""
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: {_ARGUMENT_BYTES}
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {self.lds_bytes}
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: {self.scalars}
    .vgpr_count: {self.registers + self.accumulators}
    .agpr_count: {self.accumulators}
    .max_flat_workgroup_size: 1024
    .args:
      - {{.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.offset: 16, .size: 4, .value_kind: by_value}}
      - {{.offset: 20, .size: 4, .value_kind: by_value}}
      - {{.offset: 24, .size: 8, .value_kind: global_buffer, .address_space: global}}"""


TIMES = 4
"""Numbers of 64 bits that a timed wave stores: s_memtime and s_memrealtime before its loop, the same after it."""


def _before() -> str:
    return """
  s_load_dwordx2 s[50:51], s[0:1], 0x18
  s_waitcnt lgkmcnt(0)
  s_memrealtime s[42:43]
  s_memtime s[40:41]
  s_waitcnt lgkmcnt(0)"""


def _after(waves: int) -> str:
    """The loop's registers are free by now. Each wave's place: (workgroup * waves + wave) * 32 bytes."""
    return f"""
  s_memrealtime s[46:47]
  s_memtime s[44:45]
  s_mov_b64 exec, 1
  v_lshrrev_b32 v1, 6, v1
  s_nop 0
  v_readfirstlane_b32 s48, v1
  s_mul_i32 s49, s2, {waves}
  s_add_u32 s48, s48, s49
  s_lshl_b32 s48, s48, 5
  s_add_u32 s50, s50, s48
  s_addc_u32 s51, s51, 0
  v_mov_b32 v3, 0
  s_waitcnt lgkmcnt(0)
  v_mov_b32 v4, s40
  v_mov_b32 v5, s41
  v_mov_b32 v6, s42
  v_mov_b32 v7, s43
  v_mov_b32 v8, s44
  v_mov_b32 v9, s45
  v_mov_b32 v10, s46
  v_mov_b32 v11, s47
  global_store_dwordx4 v3, v[4:7], s[50:51]
  global_store_dwordx4 v3, v[8:11], s[50:51] offset:16
  s_waitcnt vmcnt(0)"""


def arguments(first: int, second: int, loops: int, number: int, times: int = 0) -> bytes:
    """The argument segment: two addresses, how often the loop runs, a number of the case's own, and where a timed
    kernel's waves store their times."""
    return struct.pack(_ARGUMENTS, first, second, loops, number, times)


def name_of(index: int) -> str:
    """The kernel of that place in `code_object`."""
    return f"measured{index}"


def code_object(kernels: Sequence[tuple[Kernel, int]], timed: bool = False) -> bytes:
    """Kernels, each with how often its loop's body is repeated, as one code object, by the clang that builds the
    project's own.

    Raises:
        BuildError: there is none, or an instruction is wrong.
    """
    texts = [kernel.text(name_of(index), unroll, timed) for index, (kernel, unroll) in enumerate(kernels)]
    entries = [kernel.metadata(name_of(index)) for index, (kernel, _) in enumerate(kernels)]
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "measured.s"), Path(folder, "measured.co")
        source.write_text(f"""{"".join(texts)}
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.kernels:{"".join(entries)}
...
.end_amdgpu_metadata
""")
        command = [toolchain.find("hip").host_compiler, "-x", "assembler", "--target=amdgcn-amd-amdhsa",
                   "-mcpu=gfx942", "-nogpulib", "-o", str(output), str(source)]
        with processes.child(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
            said, _ = child.communicate()
        if child.returncode:
            raise BuildError("sim validate: the kernels do not assemble", module="sim", command=" ".join(command),
                             output=said)
        return output.read_bytes()

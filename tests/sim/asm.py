# SPDX-License-Identifier: MIT
"""Runs gfx942 assembly on the simulator and gives registers back as NumPy arrays. Read by tests/sim/test_*.py.

    result = run("v_add_f32 v2, v0, v1", {"v0": x, "v1": y}, {"v2": np.float32})
    np.testing.assert_array_equal(result["v2"], x + y)          # x, y: [64], or [n, 64] for n workgroups at once

Assembling costs about 50 ms per code object: give many inputs as [n, 64], and many bodies to `run_many`.
"""

import ctypes
import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from hip_runtime import Runtime, runtime

LANES = 64
# The harness keeps s92-s101 and v252-v255 for itself; a body may use every other register.
_SCALAR_TEMP, _SCC, _EXEC, _IN, _OUT = "s92", "s93", "s[94:95]", "s[96:97]", "s[98:99]"
_DATA, _LANE_OFFSET, _ROW_OFFSET = "v253", "v254", "v255"
_NAMED = {"vcc": ("vcc_lo", "vcc_hi"), "exec": ("s94", "s95"), "scc": ("s93",), "m0": ("m0",)}


class AssemblyError(RuntimeError):
    """The body does not assemble."""


@dataclass(frozen=True)
class Case:
    """One kernel: its body, what is in the registers before it, which registers come back.

    Args:
        body: assembly; labels must be numeric local ones ("1:", "1b").
        inputs: register ("v0", "v[2:3]", "a4", "s8", "s[8:9]", "vcc", "exec", "scc", "m0") → value. Vector registers
            take [lanes], [n, lanes] or, with several elements per lane, a last axis of them; scalar ones a number or
            [n]. n is the number of workgroups. A 16-bit element without a last axis goes to the low half.
        outputs: register → dtype; a plain sequence means uint32, or uint64 for register pairs.
        buffers: SGPR pair → array that the device sees at the address in that pair; it holds the device's
            contents after the launch.
        waves: waves per workgroup; lanes = 64 * waves.
        accum_offset: the v registers before a0.
        directives: further `.amdhsa_` lines of the kernel descriptor, without that prefix.
    """

    body: str
    inputs: Mapping[str, object] = field(default_factory=dict)
    outputs: Mapping[str, object] | Sequence[str] = ()
    buffers: Mapping[str, np.ndarray] = field(default_factory=dict)
    waves: int = 1
    lds_bytes: int = 0
    scratch_bytes: int = 0
    sgprs: int = 102
    accum_offset: int = 256
    directives: Sequence[str] = ("float_denorm_mode_32 3",)


def run(body: str, inputs: Mapping[str, object] | None = None, outputs: Mapping[str, object] | Sequence[str] = (),
        **options) -> dict[str, np.ndarray]:
    """Runs one `Case`; its arguments are described there.

    Returns:
        register → array: vector registers [n, lanes] (and a last axis when a lane holds several elements of the
        dtype), scalar ones [n, waves]; axis n is dropped when no input has it, axis waves when there is one.

    Raises:
        AssemblyError: the body does not assemble.
        HipError: the simulator refused or stopped the launch.
    """
    return run_many([Case(body, inputs or {}, outputs, **options)])[0]


def run_many(cases: Sequence[Case]) -> list[dict[str, np.ndarray]]:
    """Runs many cases as the kernels of one code object; see `run`."""
    return [result() for result in launches(cases)]


def launches(cases: Sequence[Case]) -> Iterator[Callable[[], dict[str, np.ndarray]]]:
    """The cases of `run_many`, each as a function that launches it: one that is refused does not end the others."""
    hip = runtime()
    with hip.module(code_object(cases)) as module:
        for index, case in enumerate(cases):
            yield functools.partial(_Layout(case).launch, hip, module.function(f"case{index}"))


def code_object(cases: Sequence[Case]) -> bytes:
    """The cases as kernels case0, case1, …"""
    kernels = "".join(_Layout(case).assembly(f"case{index}") for index, case in enumerate(cases))
    return assemble(f'.amdgcn_target "amdgcn-amd-amdhsa--gfx942"\n{kernels}{_metadata_text(cases)}')


@functools.lru_cache(maxsize=64)
def assemble(text: str) -> bytes:
    """Assembles and links a gfx942 source into a code object."""
    with tempfile.TemporaryDirectory() as folder:
        source, obj, linked = (Path(folder, name) for name in ("case.s", "case.o", "case.co"))
        source.write_text(text)
        for command in (
            [tool("llvm-mc"), "-triple=amdgcn-amd-amdhsa", "-mcpu=gfx942", "-filetype=obj", source, "-o", obj],
            [tool("ld.lld"), "-shared", obj, "-o", linked],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise AssemblyError(done.stderr)
        return linked.read_bytes()


@functools.lru_cache(maxsize=8)
def tool(name: str) -> str:
    """Path of an LLVM tool, of version 22 where that is installed."""
    for candidate in (f"{name}-22", name, f"/opt/rocm/llvm/bin/{name}"):
        if path := shutil.which(candidate):
            return path
    raise FileNotFoundError(f"tests/sim needs {name}-22 (Debian packages llvm-22 and lld-22)")


def _registers(name: str) -> list[str]:
    """The 32-bit registers that `name` names: "v[2:3]" → ["v2", "v3"]."""
    if name in _NAMED:
        return list(_NAMED[name])
    found = re.fullmatch(r"([vas])(?:(\d+)|\[(\d+):(\d+)\])", name)
    if not found:
        raise ValueError(f"not a register: {name}")
    kind, single, first, last = found.groups()
    return [f"{kind}{index}" for index in range(int(single or first), int(single or last) + 1)]


def _is_vector(name: str) -> bool:
    return name[0] in "va" and name != "vcc"


def _vector_bytes(name: str, value: object, num_registers: int, lanes: int) -> np.ndarray:
    """`value` as u32 [n or nothing, lanes, num_registers]."""
    value = _typed(value, num_registers)
    elements = 4 * num_registers // value.itemsize
    has_axis = value.ndim > 1 and value.shape[-2:] == (lanes, elements) or elements > 1 and value.shape == (elements,)
    if not has_axis:
        if elements > 1:
            if value.itemsize > 2 or num_registers > 1:
                raise ValueError(f"{name}: the last axis must hold {elements} elements of {value.dtype}")
            value = value.view(f"u{value.itemsize}").astype(np.uint32)
        value = value[..., None]
    shape = (*value.shape[:-2], lanes, value.shape[-1])
    return np.ascontiguousarray(np.broadcast_to(value, shape)).view(np.uint32)


def _scalar_bytes(value: object, num_registers: int) -> np.ndarray:
    """`value` as u32 [n or nothing, num_registers]."""
    value = np.ascontiguousarray(_typed(value, num_registers)[..., None])
    return np.ascontiguousarray(value.view(np.uint32).reshape(*value.shape[:-1], -1)[..., :num_registers])


def _typed(value: object, num_registers: int) -> np.ndarray:
    """A Python number becomes the number of the register's width; booleans and arrays keep their type."""
    bits = 32 if num_registers == 1 else 64
    if isinstance(value, float):
        return np.array(value, f"f{bits // 8}")
    if isinstance(value, int):
        return np.array(int(value) & (1 << bits) - 1, f"u{bits // 8}")
    value = np.asarray(value, order="C")              # ascontiguousarray would make a 0-d array 1-d
    return value.astype(np.uint32) if value.dtype == bool else value


class _Layout:
    """Where a case's inputs and outputs are in the two buffers of its launch, per workgroup."""

    def __init__(self, case: Case):
        self.case, self.lanes = case, LANES * case.waves
        self.vectors: list[tuple[str, np.ndarray]] = []
        self.scalars: list[tuple[str, np.ndarray]] = []
        for name, value in case.inputs.items():
            registers = _registers(name)
            if _is_vector(name):
                data = _vector_bytes(name, value, len(registers), self.lanes)        # [n, lanes, registers]
                self.vectors += [(register, data[..., index]) for index, register in enumerate(registers)]
            else:
                data = _scalar_bytes(value, len(registers))                          # [n, registers]
                self.scalars += [(register, data[..., index]) for index, register in enumerate(registers)]
        counts = {data.shape[0] for _, data in self.vectors if data.ndim > 1}
        counts |= {data.shape[0] for _, data in self.scalars if data.ndim > 0}
        if len(counts) > 1:
            raise ValueError(f"inputs disagree about the number of workgroups: {sorted(counts)}")
        self.batched, self.groups = bool(counts), max(counts, default=1)
        outputs = case.outputs
        if not isinstance(outputs, Mapping):
            outputs = {name: np.uint64 if len(_registers(name)) == 2 else np.uint32 for name in outputs}
        self.outputs = {name: np.dtype(dtype) for name, dtype in outputs.items()}
        self.pointer_registers = [register for name in case.buffers for register in _registers(name)]
        self.in_dwords = len(self.vectors) * self.lanes + len(self.scalars) + len(self.pointer_registers)
        self.out_dwords = sum(len(_registers(name)) for name in self.outputs) * self.lanes

    def assembly(self, kernel: str) -> str:
        lines = ["s_load_dwordx4 s[96:99], s[0:1], 0x0", f"v_and_b32_e32 {_LANE_OFFSET}, 0x3ff, v0",
                 f"v_lshlrev_b32_e32 {_LANE_OFFSET}, 2, {_LANE_OFFSET}", f"v_mov_b32_e32 {_ROW_OFFSET}, {_LANE_OFFSET}",
                 "s_waitcnt lgkmcnt(0)",
                 *_advance(_IN, 4 * self.in_dwords), *_advance(_OUT, 4 * self.out_dwords)]
        bump = f"v_add_u32_e32 {_ROW_OFFSET}, {4 * self.lanes:#x}, {_ROW_OFFSET}"
        for register, _ in self.vectors:
            if register[0] == "v":
                lines.append(f"global_load_dword {register}, {_ROW_OFFSET}, {_IN}")
            else:
                lines += [f"global_load_dword {_DATA}, {_ROW_OFFSET}, {_IN}", "s_waitcnt vmcnt(0)",
                          f"v_accvgpr_write_b32 {register}, {_DATA}"]
            lines.append(bump)
        offset = 4 * len(self.vectors) * self.lanes
        given = [register for register, _ in self.scalars] + self.pointer_registers
        for register in given:
            target = _SCALAR_TEMP if register == "m0" else register
            lines.append(f"s_load_dword {target}, {_IN}, {offset:#x}")
            offset += 4
        lines.append("s_waitcnt vmcnt(0) lgkmcnt(0)")
        lines += ["s_mov_b32 m0, s92"] if "m0" in given else []
        lines += ["s_cmp_lg_u32 s93, 0"] if _SCC in given else []
        lines += [f"s_mov_b64 exec, {_EXEC}"] if "s94" in given else []
        lines += ["s_nop 7", self.case.body, f"s_cselect_b32 {_SCC}, 1, 0", f"s_mov_b64 {_EXEC}, exec",
                  "s_mov_b64 exec, -1", "s_waitcnt vmcnt(0) lgkmcnt(0)", "s_nop 15", "s_nop 7",
                  f"v_mov_b32_e32 {_ROW_OFFSET}, {_LANE_OFFSET}"]
        for register in (register for name in self.outputs for register in _registers(name)):
            move = "v_accvgpr_read_b32" if register[0] == "a" else "v_mov_b32_e32"
            lines += [f"{move} {_DATA}, {register}", f"global_store_dword {_ROW_OFFSET}, {_DATA}, {_OUT}", bump]
        return _kernel_text(kernel, "\n".join([*lines, "s_endpgm"]), self.case)

    def launch(self, hip: Runtime, function: ctypes.c_void_p) -> dict[str, np.ndarray]:
        case = self.case
        with hip.memory() as memory:
            pointers = [memory.upload(data) for data in case.buffers.values()]
            data_in = memory.upload(self._pack(pointers))
            out = np.zeros((self.groups, self.out_dwords), np.uint32)
            data_out = memory.upload(out)
            hip.launch(function, self.groups, self.lanes, 0, (data_in, data_out))
            memory.download(data_out, out)
            for pointer, data in zip(pointers, case.buffers.values(), strict=True):
                memory.download(pointer, data)
        return self._unpack(out)

    def _pack(self, pointers: list[int]) -> np.ndarray:
        """The input buffer: u32 [groups, in_dwords]."""
        parts = [np.broadcast_to(data, (self.groups, self.lanes)) for _, data in self.vectors]
        parts += [np.broadcast_to(data, (self.groups,))[:, None] for _, data in self.scalars]
        if pointers:
            addresses = np.array(pointers, np.uint64).view(np.uint32)
            parts.append(np.broadcast_to(addresses, (self.groups, addresses.size)))
        return np.concatenate(parts, axis=1) if parts else np.zeros((self.groups, 1), np.uint32)

    def _unpack(self, out: np.ndarray) -> dict[str, np.ndarray]:
        result, first = {}, 0
        for name, dtype in self.outputs.items():
            count = len(_registers(name))
            rows = out[:, first:first + count * self.lanes].reshape(self.groups, count, self.lanes)
            first += count * self.lanes
            lanes = np.ascontiguousarray(rows.transpose(0, 2, 1))                    # [groups, lanes, registers]
            if not _is_vector(name):
                lanes = np.ascontiguousarray(lanes[:, ::LANES])                      # one value per wave
            value = lanes.view(dtype)
            value = value[..., 0] if value.shape[-1] == 1 else value
            if not _is_vector(name) and self.case.waves == 1:
                value = value[:, 0]
            result[name] = value if self.batched else value[0]
        return result


def _advance(pair: str, bytes_per_group: int) -> list[str]:
    low, high = _registers(pair)
    return [f"s_mul_i32 {_SCALAR_TEMP}, s2, {bytes_per_group:#x}", f"s_add_u32 {low}, {low}, {_SCALAR_TEMP}",
            f"s_addc_u32 {high}, {high}, 0"]


def _kernel_text(name: str, body: str, case: Case) -> str:
    directives = "\n".join(f"  .amdhsa_{line}" for line in case.directives)
    return f"""
.text
.globl {name}
.p2align 8
.type {name},@function
{name}:
{body}
.size {name}, .-{name}
.rodata
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_group_segment_fixed_size {case.lds_bytes}
  .amdhsa_private_segment_fixed_size {case.scratch_bytes}
  .amdhsa_enable_private_segment {int(case.scratch_bytes > 0)}
  .amdhsa_kernarg_size 16
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_next_free_vgpr 512
  .amdhsa_accum_offset {case.accum_offset}
  .amdhsa_next_free_sgpr {case.sgprs}
{directives}
.end_amdhsa_kernel
"""


def _metadata_text(cases: Sequence[Case]) -> str:
    kernels = "".join(f"""
  - .name: case{index}
    .symbol: case{index}.kd
    .kernarg_segment_size: 16
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {case.lds_bytes}
    .private_segment_fixed_size: {case.scratch_bytes}
    .wavefront_size: 64
    .sgpr_count: 108
    .vgpr_count: 512
    .agpr_count: 256
    .max_flat_workgroup_size: {LANES * case.waves}
    .args:
      - {{.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}}"""
                      for index, case in enumerate(cases))
    return f"""
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.kernels:{kernels}
...
.end_amdgpu_metadata
"""

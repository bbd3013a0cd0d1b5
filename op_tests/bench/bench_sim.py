# SPDX-License-Identifier: MIT
"""Speed of the simulator: kernels and single instructions, unchecked and with all default checkers, launch cost.

`python op_tests/bench/bench_sim.py`. Every figure is CPU time of the process, not wall time, so that other work on the
host counts little; it still costs what shared caches and hardware threads cost. Bars are per core.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

import aiter_like
from aiter_like import device as devices
from aiter_like import sim
from aiter_like.modules import toolchain
from aiter_like.testing import check_rms_norm
from aiter_like.testing.attention import check_attention

_BARS = {"matrix": (10.0, 4.0), "vector": (25.0, 8.0)}  # million wave-instructions/s: unchecked, checked
_LAUNCH_BAR_US = 50.0
_LOOPS, _UNROLL = 400, 64


def _matrix(name: str, inputs: int, accumulators: int) -> str:
    """An MFMA on `inputs` registers of A and of B."""
    def registers(first: int, count: int) -> str:
        return f"v[{first}:{first + count - 1}]" if count > 1 else f"v{first}"

    out = registers(16, accumulators)
    return f"v_mfma_{name} {out}, {registers(2, inputs)}, {registers(4, inputs)}, {out}"


# Family → bar in ns per instruction, unchecked, and instructions. v0 holds 16 * lane, s[4:5] a buffer of 64 KiB,
# s[8:11] its descriptor. Registers rotate by {d} where a chain of results would serialise the host.
_FAMILIES: dict[str, tuple[float, tuple[str, ...]]] = {
    "SALU": (10, ("s_add_u32 s20, s21, s22", "s_and_b64 s[20:21], s[22:23], s[24:25]", "s_mul_i32 s20, s21, s22",
                  "s_cmp_eq_u32 s20, s21\ns_cbranch_scc1 2f", "s_waitcnt vmcnt(0)", "s_nop 0")),
    "SMEM": (20, ("s_load_dword s24, s[4:5], 0x0", "s_load_dwordx4 s[24:27], s[4:5], 0x0")),
    "VALU int": (40, ("v_mov_b32 v{d}, v1", "v_add_u32 v{d}, v1, v2", "v_lshl_add_u32 v{d}, v1, 3, v2",
                      "v_mul_lo_u32 v{d}, v1, v2", "v_perm_b32 v{d}, v1, v2, s29", "v_cndmask_b32 v{d}, v1, v2, vcc",
                      "v_readlane_b32 s20, v1, 5", "v_accvgpr_read_b32 v{d}, a0",
                      "v_lshlrev_b64 v[{d}:{d1}], 3, v[2:3]", "v_mad_u64_u32 v[{d}:{d1}], vcc, v1, v2, v[4:5]")),
    "VALU float": (40, ("v_add_f32 v{d}, v1, v2", "v_mul_f32 v{d}, s20, v2", "v_fma_f32 v{d}, v1, v2, v3",
                        "v_fmac_f32 v{d}, v1, v2", "v_max_f32 v{d}, v1, v2", "v_cmp_lt_f32 vcc, v1, v2",
                        "v_cvt_f16_f32 v{d}, v1", "v_add_f64 v[{d}:{d1}], v[2:3], v[4:5]",
                        "v_fma_f64 v[{d}:{d1}], v[2:3], v[4:5], v[6:7]", "v_cvt_f32_fp8 v{d}, v1",
                        "v_cvt_pk_fp8_f32 v{d}, v1, v2")),
    "VALU packed": (40, ("v_pk_fma_f32 v[{d}:{d1}], v[2:3], v[4:5], v[6:7]", "v_pk_mul_f16 v{d}, v1, v2",
                         "v_pk_add_u16 v{d}, v1, v2")),
    "transcendental": (125, tuple(f"v_{name}_f32 v{{d}}, v1" for name in ("exp", "log", "rcp", "rsq", "sqrt", "sin"))
                       + ("v_rcp_f64 v[{d}:{d1}], v[2:3]", "v_rcp_f16 v{d}, v1")),
    "DPP": (30, ("v_mov_b32_dpp v{d}, v1 row_ror:1 row_mask:0xf bank_mask:0xf",
                 "v_add_f32_dpp v{d}, v1, v2 row_shr:1 row_mask:0xf bank_mask:0xf",
                 "v_add_f32_dpp v{d}, v1, v2 row_bcast:15 row_mask:0xa bank_mask:0xf")),
    "SDWA": (40, (
        "v_add_f32_sdwa v{d}, v1, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:DWORD",
        "v_or_b32_sdwa v{d}, v1, v2 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_0 src1_sel:BYTE_2")),
    "LDS": (85, ("ds_read_u8 v{d}, v0", "ds_read_b32 v{d}, v0", "ds_read_b64 v[{d}:{d1}], v0",
                 "ds_read_b128 v[16:19], v0", "ds_read2_b32 v[{d}:{d1}], v0 offset1:1", "ds_write_b8 v0, v2",
                 "ds_write_b32 v0, v2", "ds_write_b64 v0, v[2:3]", "ds_write_b128 v0, v[2:5]",
                 "ds_bpermute_b32 v{d}, v0, v1", "ds_swizzle_b32 v{d}, v1 offset:0x041f")),
    "global": (145, ("global_load_ubyte v{d}, v0, s[4:5]", "global_load_ushort v{d}, v0, s[4:5]",
                     "global_load_dword v{d}, v0, s[4:5]", "global_load_dwordx2 v[{d}:{d1}], v0, s[4:5]",
                     "global_load_dwordx4 v[16:19], v0, s[4:5]", "global_store_short v0, v2, s[4:5]",
                     "global_store_dword v0, v2, s[4:5]", "global_store_dwordx4 v0, v[2:5], s[4:5]")),
    "buffer": (145, ("buffer_load_ushort v{d}, v0, s[8:11], 0 offen", "buffer_load_dword v{d}, v0, s[8:11], 0 offen",
                     "buffer_load_dwordx4 v[16:19], v0, s[8:11], 0 offen",
                     "buffer_store_dwordx4 v[2:5], v0, s[8:11], 0 offen")),
    "atomics": (145, ("ds_add_u32 v0, v1", "ds_add_rtn_u32 v{d}, v0, v1", "global_atomic_add v0, v1, s[4:5]",
                      "global_atomic_add_f32 v0, v1, s[4:5]", "buffer_atomic_add v1, v0, s[8:11], 0 offen")),
    "MFMA 16-bit": (200, (_matrix("f32_16x16x16_bf16", 2, 4), _matrix("f32_16x16x16_f16", 2, 4),
                          _matrix("f32_32x32x8_bf16", 2, 16), _matrix("f32_32x32x8_f16", 2, 16),
                          _matrix("f32_4x4x4_16b_f16", 2, 4), _matrix("f32_16x16x4_4b_f16", 2, 16),
                          _matrix("f32_32x32x4_2b_f16", 2, 32))),
    "MFMA f32": (200, (_matrix("f32_16x16x4_f32", 1, 4), _matrix("f32_32x32x2_f32", 1, 16),
                       _matrix("f32_4x4x1_16b_f32", 1, 4), _matrix("f32_16x16x8_xf32", 2, 4),
                       _matrix("f32_32x32x4_xf32", 2, 16))),
    "MFMA f64": (200, (_matrix("f64_16x16x4_f64", 2, 8), _matrix("f64_4x4x4_4b_f64", 2, 2))),
    "MFMA 8-bit 16x16": (250, (_matrix("i32_16x16x32_i8", 2, 4), _matrix("f32_16x16x32_fp8_fp8", 2, 4),
                               _matrix("f32_16x16x32_bf8_bf8", 2, 4))),
    "MFMA 8-bit 32x32": (500, (_matrix("i32_32x32x16_i8", 2, 16), _matrix("f32_32x32x16_fp8_fp8", 2, 16),
                               _matrix("f32_32x32x16_bf8_bf8", 2, 16))),
    "SMFMAC": (500, ("v_smfmac_f32_16x16x32_bf16 v[16:19], v[2:3], v[4:7], v8",
                     "v_smfmac_f32_32x32x16_f16 v[16:31], v[2:3], v[4:7], v8")),
}

_KERNEL = """
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
.text
.globl loop
.p2align 8
.type loop,@function
loop:
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  s_waitcnt lgkmcnt(0)
  s_mov_b32 s8, s4
  s_and_b32 s9, s5, 0xffff
  s_mov_b32 s10, 0x10000
  s_mov_b32 s11, 0x20000
  v_lshlrev_b32 v0, 4, v0
{setup}
  s_mov_b32 s12, {loops}
1:
{body}
2:
  s_sub_u32 s12, s12, 1
  s_cmp_lg_u32 s12, 0
  s_cbranch_scc1 1b
  s_endpgm
.rodata
.p2align 6
.amdhsa_kernel loop
  .amdhsa_group_segment_fixed_size 16384
  .amdhsa_kernarg_size 8
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_next_free_vgpr 128
  .amdhsa_accum_offset 64
  .amdhsa_next_free_sgpr 32
  .amdhsa_float_denorm_mode_32 3
.end_amdhsa_kernel
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.kernels:
  - {{.name: loop, .symbol: loop.kd, .kernarg_segment_size: 8, .kernarg_segment_align: 8,
     .group_segment_fixed_size: 16384, .private_segment_fixed_size: 0, .wavefront_size: 64, .sgpr_count: 32,
     .vgpr_count: 128, .agpr_count: 64, .max_flat_workgroup_size: 256,
     .args: [{{.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}}]}}
...
.end_amdgpu_metadata
"""


def assemble(instruction: str) -> bytes:
    """A code object that repeats `instruction`."""
    body = "\n".join(instruction.format(d=16 + 2 * (n % 16), d1=17 + 2 * (n % 16)) for n in range(_UNROLL))
    setup = "\n".join(f"  v_mov_b32 v{register}, 1.0" for register in range(1, 64))
    setup += "\n" + "\n".join(f"  s_mov_b32 s{register}, {register}" for register in range(13, 28))
    setup += "\n  v_accvgpr_write_b32 a0, v1\n  s_mov_b64 vcc, 0x5555\n  s_mov_b32 s29, 0x07060302"
    with tempfile.TemporaryDirectory() as folder:
        source, linked = Path(folder, "loop.s"), Path(folder, "loop.co")
        source.write_text(_KERNEL.format(setup=setup, loops=_LOOPS, body=body))
        compiler = toolchain.find("hip").host_compiler
        subprocess.run([compiler, "-x", "assembler", "-target", "amdgcn-amd-amdhsa", "-mcpu=gfx942",
                        str(source), "-o", str(linked)], check=True)
        return linked.read_bytes()


class Rate(NamedTuple):
    """Of CPU time: million wave-instructions and million MFMA per second."""

    instructions: float
    mfma: float


def measure(function: Callable[[], object], *, checks: bool = False, threads: int = 1, seconds: float = 0.5) -> Rate:
    """The best of several rounds of `function`, in CPU time of the process: of `threads` threads a rate per core."""
    with sim.enabled(checks=checks, threads=threads) as session:
        function()
        instructions = sum(kernel["wave_instructions"] for kernel in session.counters.values())
        mfma = sum(kernel["by_class"].get("mfma", 0) for kernel in session.counters.values())
        rounds = []
        while len(rounds) < 3 or sum(rounds) < seconds:
            start = time.process_time()
            function()
            rounds.append(time.process_time() - start)
    return Rate(instructions / min(rounds) / 1e6, mfma / min(rounds) / 1e6)


def _mark(good: bool) -> str:
    return "pass" if good else "MISS"


def print_instructions(pattern: str) -> None:
    """Host time of each instruction, by family."""
    print(f"\nOne thread, unchecked: per wave-instruction\n  {'':38s} {'ns':>7s} {'M/s':>6s} {'bar ns':>7s}")
    buffer = torch.zeros(1 << 16, dtype=torch.uint8)
    kernargs = buffer.data_ptr().to_bytes(8, "little")
    for family, (bar, instructions) in _FAMILIES.items():
        chosen = [text for text in instructions if pattern in family or pattern in text]
        if chosen:
            print(family)
        for text in chosen:
            code = assemble(text)

            def call(code=code) -> None:
                sim.launch(code, "loop", (1, 1, 1), (64, 1, 1), 0, kernargs)

            rate = measure(call, seconds=0.03).instructions
            name = " + ".join(line.split()[0] for line in text.split("\n"))
            print(f"  {name:38s} {1e3 / rate:7.1f} {rate:6.1f} {bar:7.0f} {_mark(1e3 / rate <= bar)}")


def operators() -> dict[str, tuple[str, Callable[[], object]]]:
    """Name → kind of code and call. Each result is checked before it is timed."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    calls = {}
    for rows, hidden, dtype in ((256, 4096, torch.bfloat16), (512, 1024, torch.float16), (64, 8192, torch.float32)):
        x, weight = normal(rows, hidden, dtype=dtype), normal(hidden, dtype=dtype)
        check_rms_norm(aiter_like.rms_norm(x, weight, 1e-6, backend="hip"), x, weight, 1e-6)
        calls[f"rms_norm {rows}x{hidden} {str(dtype).removeprefix('torch.')}"] = (
            "vector", lambda x=x, weight=weight: aiter_like.rms_norm(x, weight, 1e-6, backend="hip"))
    for backend, length, head_dim, dtype, causal in (("hip", 512, 128, torch.bfloat16, False),
                                                     ("hip", 512, 64, torch.float16, True),
                                                     ("ck", 256, 32, torch.bfloat16, False)):
        q, k, v = (normal(1, length, 4, head_dim, dtype=dtype) for _ in range(3))

        def attention(q=q, k=k, v=v, causal=causal, backend=backend) -> torch.Tensor:
            return aiter_like.flash_attn_func(q, k, v, causal=causal, backend=backend)

        check_attention(attention(), None, q, k, v, causal=causal)
        name = f"flash_attn 1x{length}x4x{head_dim} {str(dtype).removeprefix('torch.')}{' causal' if causal else ''}"
        calls[name] = "matrix", attention
    return calls | triton_kernels(normal)


def triton_kernels(normal: Callable[..., torch.Tensor]) -> dict[str, tuple[str, Callable[[], object]]]:
    """Kernels that Triton compiles for gfx942, launched by its own launcher on the simulator."""
    import bench_sim_triton as kernels

    sim.enable_triton()
    a, b, x = normal(512, 1024), normal(1024, 512), normal(256, 2000, dtype=torch.float32)
    calls = {}
    for size in (16, 32):
        def gemm(size=size) -> torch.Tensor:
            return kernels.gemm(a, b, size)

        torch.testing.assert_close(gemm().double(), a.double() @ b.double(), rtol=0.01, atol=1e-3)
        calls[f"Triton GEMM 512x512x1024 bf16 {size}x{size}"] = "matrix", gemm
    torch.testing.assert_close(kernels.softmax(x), x.softmax(-1))
    calls["Triton softmax 256x2000 float32"] = "vector", lambda: kernels.softmax(x)
    return calls


def print_kernels() -> None:
    """Unchecked and checked rates, and what one of two threads reaches."""
    print(f"\nMillion wave-instructions per second of CPU time and core (host: {len(os.sched_getaffinity(0))} cores)\n"
          f"  {'':36s} {'MFMA':>5s} {'unchecked':>10s} {'bar':>4s}      {'checked':>8s} {'bar':>4s}      "
          f"{'on 2 threads, per core':>24s}")
    for name, (kind, call) in operators().items():
        bar, checked_bar = _BARS[kind]
        rate, checked = measure(call), measure(call, checks=True).instructions
        two, two_checked = (measure(call, threads=2, checks=checks).instructions for checks in (False, True))
        print(f"  {name:36s} {rate.mfma:5.1f} {rate.instructions:10.1f} {bar:4.0f} {_mark(rate.instructions >= bar)} "
              f"{checked:8.1f} {checked_bar:4.0f} {_mark(checked >= checked_bar)} "
              f"{two:8.1f} ({two / rate.instructions:4.2f}) {two_checked:6.1f} ({two_checked / checked:4.2f})")


def print_launch_cost() -> None:
    """Cost of a launch that computes next to nothing, and of one that is not executed at all."""
    x, weight, out = torch.ones(1, 64), torch.ones(64), torch.empty(1, 64)

    def call() -> None:
        aiter_like.rms_norm(x, weight, 1e-6, out=out, backend="hip")

    def cost(**settings) -> float:
        with sim.enabled(threads=1, **settings):
            rounds = []
            for _ in range(20):
                start = time.process_time()
                for _ in range(200):
                    call()
                rounds.append((time.process_time() - start) / 200)
        return statistics.median(rounds) * 1e6

    plain = cost(checks=False)
    print(f"\nLaunch of one workgroup (rms_norm 1x64): {plain:.1f} us, bar {_LAUNCH_BAR_US:.0f} us "
          f"{_mark(plain <= _LAUNCH_BAR_US)}; without execution {cost(checks=False, dry=True):.1f} us, "
          f"with all default checkers {cost(checks=True):.1f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--instructions", nargs="?", const="", metavar="PATTERN",
                        help="only the table of single instructions (families or instructions that contain PATTERN)")
    options = parser.parse_args()
    devices.use_simulator(True)
    sim.load()
    print("Device: simulated MI300X (gfx942); rates are of the host that simulates, in CPU time, not of a GPU")
    if options.instructions is None:
        print_kernels()
        print_launch_cost()
    print_instructions(options.instructions or "")


if __name__ == "__main__":
    main()

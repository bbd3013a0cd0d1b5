# SPDX-License-Identifier: MIT
"""Speed of the simulator: wave-instructions per second of operators and of single instructions, launch cost, scaling.

`python op_tests/bench_sim.py`; targets on one core, unchecked: 8 M/s for attention, 15 M/s for vector code.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import aiter_like
from aiter_like import device as devices
from aiter_like import sim
from aiter_like.jit import toolchain
from aiter_like.testing import check_attention, check_rms_norm

_TARGETS = {"attention": 8e6, "vector": 15e6}  # wave-instructions/s, one thread, unchecked
_LOOPS, _UNROLL = 400, 64

# Bodies of 64 equal instructions in a loop; v0 holds 16 * lane, s[4:5] a buffer of 64 KiB, s[8:11] its descriptor.
# Registers rotate by {n} where a chain of results would serialise the host.
_INSTRUCTIONS = {
    "s_add_u32": "s_add_u32 s20, s21, s22",
    "s_cmp + s_cbranch": "s_cmp_eq_u32 s20, s21\ns_cbranch_scc1 2f",
    "v_mov_b32": "v_mov_b32 v{d}, v1",
    "v_add_f32": "v_add_f32 v{d}, v1, v2",
    "v_fma_f32": "v_fma_f32 v{d}, v1, v2, v3",
    "v_mul_f32 s": "v_mul_f32 v{d}, s20, v2",
    "v_fmac_f32": "v_fmac_f32 v{d}, v1, v2",
    "v_max_f32": "v_max_f32 v{d}, v1, v2",
    "v_exp_f32": "v_exp_f32 v{d}, v1",
    "v_lshl_add_u32": "v_lshl_add_u32 v{d}, v1, 3, v2",
    "v_mul_lo_u32": "v_mul_lo_u32 v{d}, v1, v2",
    "v_perm_b32": "v_perm_b32 v{d}, v1, v2, s29",
    "v_cmp_lt_f32": "v_cmp_lt_f32 vcc, v1, v2",
    "v_cndmask_b32": "v_cndmask_b32 v{d}, v1, v2, vcc",
    "v_cvt_f16_f32": "v_cvt_f16_f32 v{d}, v1",
    "v_pk_fma_f32": "v_pk_fma_f32 v[{d}:{d1}], v[2:3], v[4:5], v[6:7]",
    "v_pk_mul_f16": "v_pk_mul_f16 v{d}, v1, v2",
    "v_add_f32 dpp": "v_add_f32_dpp v{d}, v1, v2 row_shr:1 row_mask:0xf bank_mask:0xf",
    "v_readlane_b32": "v_readlane_b32 s20, v1, 5",
    "v_accvgpr_read": "v_accvgpr_read_b32 v{d}, a0",
    "mfma 16x16x16 bf16": "v_mfma_f32_16x16x16_bf16 v[16:19], v[2:3], v[4:5], v[16:19]",
    "mfma 32x32x8 f16": "v_mfma_f32_32x32x8_f16 v[16:31], v[2:3], v[4:5], v[16:31]",
    "mfma 16x16x32 fp8": "v_mfma_f32_16x16x32_fp8_fp8 v[16:19], v[2:3], v[4:5], v[16:19]",
    "ds_read_b32": "ds_read_b32 v{d}, v0",
    "ds_read_b64": "ds_read_b64 v[{d}:{d1}], v0",
    "ds_read_b128": "ds_read_b128 v[16:19], v0",
    "ds_write_b64": "ds_write_b64 v0, v[2:3]",
    "ds_write_b128": "ds_write_b128 v0, v[2:5]",
    "ds_bpermute_b32": "ds_bpermute_b32 v{d}, v0, v1",
    "ds_swizzle_b32": "ds_swizzle_b32 v{d}, v1 offset:0x041f",
    "global_load_dword": "global_load_dword v{d}, v0, s[4:5]",
    "global_load_dwordx4": "global_load_dwordx4 v[16:19], v0, s[4:5]",
    "global_load_ushort": "global_load_ushort v{d}, v0, s[4:5]",
    "global_store_dwordx4": "global_store_dwordx4 v0, v[2:5], s[4:5]",
    "buffer_load_dwordx4": "buffer_load_dwordx4 v[16:19], v0, s[8:11], 0 offen",
    "s_load_dwordx4": "s_load_dwordx4 s[24:27], s[4:5], 0x0",
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
        compiler = toolchain.find("hip").path
        subprocess.run([compiler, "-x", "assembler", "-target", "amdgcn-amd-amdhsa", "-mcpu=gfx942",
                        str(source), "-o", str(linked)], check=True)
        return linked.read_bytes()


def measure(function: Callable[[], object], *, checks: bool = False, threads: int = 1,
            seconds: float = 0.5) -> tuple[float, float]:
    """Wave-instructions per second and seconds per call of `function`, the best of several rounds.

    One thread: the simulator works in the calling thread and its CPU time counts, whatever else the machine does.
    """
    clock = time.thread_time if threads == 1 else time.perf_counter
    with sim.enabled(checks=checks, threads=threads) as session:
        function()
        instructions = sum(kernel["wave_instructions"] for kernel in session.counters.values())
        rounds = []
        while len(rounds) < 3 or sum(rounds) < seconds:
            start = clock()
            function()
            rounds.append(clock() - start)
    return instructions / min(rounds), min(rounds)


def print_instructions(pattern: str) -> None:
    """Host time of each kind of instruction."""
    print("\nHost time per wave-instruction, one thread, unchecked")
    buffer = torch.zeros(1 << 16, dtype=torch.uint8)
    kernargs = buffer.data_ptr().to_bytes(8, "little")
    for name, text in _INSTRUCTIONS.items():
        if pattern not in name:
            continue
        code = assemble(text)
        rate, _ = measure(lambda code=code: sim.launch(code, "loop", (1, 1, 1), (64, 1, 1), 0, kernargs), seconds=0.05)
        print(f"  {name:22s} {1e9 / rate:7.1f} ns")


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
    for length, head_dim, dtype, causal in ((512, 128, torch.bfloat16, False), (512, 64, torch.float16, True),
                                            (256, 32, torch.bfloat16, False)):
        q, k, v = (normal(1, length, 4, head_dim, dtype=dtype) for _ in range(3))

        def attention(q=q, k=k, v=v, causal=causal) -> torch.Tensor:
            return aiter_like.flash_attn_func(q, k, v, causal=causal, backend="hip")

        check_attention(attention(), None, q, k, v, causal=causal)
        name = f"flash_attn 1x{length}x4x{head_dim} {str(dtype).removeprefix('torch.')}{' causal' if causal else ''}"
        calls[name] = "attention", attention
    return calls


def print_operators() -> None:
    """Unchecked and checked rate on one thread, and the gain from all cores."""
    cores = len(os.sched_getaffinity(0))
    print(f"\nMillion wave-instructions per second (host: {cores} cores)")
    print(f"  {'':34s} {'1 thread':>9s} {'target':>7s} {'checked':>8s} {f'{cores} threads':>10s} {'scaling':>8s}")
    for name, (kind, call) in operators().items():
        rate, _ = measure(call)
        checked, _ = measure(call, checks=True)
        parallel, _ = measure(call, threads=cores)
        print(f"  {name:34s} {rate / 1e6:9.1f} {_TARGETS[kind] / 1e6:7.0f} {checked / 1e6:8.1f} {parallel / 1e6:10.1f} "
              f"{parallel / rate:7.2f}x")


def print_launch_cost() -> None:
    """Cost of a launch that computes next to nothing, and of one that is not executed at all."""
    x, weight, out = torch.ones(1, 64), torch.ones(64), torch.empty(1, 64)

    def call() -> None:
        aiter_like.rms_norm(x, weight, 1e-6, out=out, backend="hip")

    def cost(**settings) -> float:
        with sim.enabled(checks=False, threads=1, **settings):
            rounds = []
            for _ in range(20):
                start = time.thread_time()
                for _ in range(200):
                    call()
                rounds.append((time.thread_time() - start) / 200)
        return statistics.median(rounds) * 1e6

    print(f"\nLaunch of one workgroup (rms_norm 1x64): {cost():.1f} us, of which the call without execution takes "
          f"{cost(dry=True):.1f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--instructions", nargs="?", const="", metavar="PATTERN",
                        help="only the table of single instructions (those whose name contains PATTERN)")
    options = parser.parse_args()
    devices.use_simulator(True)
    sim.load()
    print("Device: simulated MI300X (gfx942); rates are of the host that simulates, not of a GPU")
    if options.instructions is None:
        print_operators()
        print_launch_cost()
    print_instructions(options.instructions or "")


if __name__ == "__main__":
    main()

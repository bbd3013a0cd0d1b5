# SPDX-License-Identifier: MIT
"""Runs a Triton kernel: by Triton's own launcher on a GPU, on the simulated MI300X as a compiled code object.

The interpreter is never used: its bf16 dot product is wrong. Read by the families beside this file.
"""

from __future__ import annotations

import struct
import tomllib
from functools import cache
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from aiter_like import paths
from aiter_like.device import Target, target_of
from aiter_like.errors import UnsupportedError

_POINTER = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.int32: "*i32",
            torch.int64: "*i64"}
_PACK = {"i1": "?", "i32": "i", "i64": "q", "fp32": "f"}  # native alignment, as the kernel argument segment has
_AMD_ONLY = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")

_compiled: dict[tuple, Any] = {}


def launch(kernel: triton.JITFunction, grid: tuple[int, ...], *args: Any, options: dict[str, int],
           **constants: Any) -> None:
    """Launch `kernel` over `grid` on the device of its first tensor argument.

    Args:
        kernel: the `@triton.jit` function.
        grid: up to three counts of programs.
        args: the kernel's run-time arguments, in order: tensors, None, int, float, bool.
        options: num_warps, num_stages and the AMD-only ones, which NVIDIA never sees.
        constants: the kernel's constexpr arguments.
    """
    options = {"enable_fp_fusion": True, **options}  # Triton's default, which a later version reverses
    target = target_of(next(arg.device for arg in args if isinstance(arg, torch.Tensor)))
    if target.simulated:
        _launch_simulated(kernel, grid, args, options, constants, target)
        return
    if target.platform != "hip":
        options = {name: value for name, value in options.items() if name not in _AMD_ONLY}
    kernel[grid](*args, **constants, **options)


@cache
def config(op: str, arch: str, variant: str) -> dict[str, int]:
    """Table `variant` of `configs/triton/<op>.toml`: the one for `arch`, else the default one.

    Raises:
        UnsupportedError: neither is there.
    """
    tables = tomllib.loads((paths.configs() / "triton" / f"{op}.toml").read_text())
    for name in (arch, "default"):
        if variant in tables.get(name, {}):
            return tables[name][variant]
    raise UnsupportedError(f"{op}: configs/triton/{op}.toml has no configuration {variant!r} for {arch} or default", op)


def _launch_simulated(kernel: triton.JITFunction, grid: tuple[int, ...], args: tuple, options: dict[str, int],
                      constants: dict[str, Any], target: Target) -> None:
    from aiter_like import sim

    run_time = [parameter for parameter in kernel.params if parameter.name not in constants]
    signature = tuple(_specialise(arg, not parameter.do_not_specialize)
                      for arg, parameter in zip(args, run_time, strict=True))
    key = (kernel, signature, tuple(options.items()), tuple(constants.items()))
    code = _compiled.get(key)
    if code is None:
        code = _compiled[key] = _compile(kernel, signature, options, constants, target)
    values = [value.data_ptr() if isinstance(value, torch.Tensor) else value
              for value, (kind, _) in zip(args, signature, strict=True) if kind != "constexpr"]
    kinds = [kind for kind, _ in signature if kind != "constexpr"]
    # Triton appends two pointers, to global and profile scratch; _compile made sure that nothing uses them.
    layout = "@" + "".join("P" if kind[0] == "*" else _PACK[kind] for kind in kinds) + "PP"
    kernargs = struct.pack(layout, *values, 0, 0)
    block = (code.metadata.num_warps * target.wave_size, 1, 1)
    sim.launch(code.asm["hsaco"], code.metadata.name, (*grid, 1, 1)[:3], block, code.metadata.shared, kernargs)


def _compile(kernel: triton.JITFunction, signature: tuple, options: dict[str, int], constants: dict[str, Any],
             target: Target) -> Any:
    names = [name for name in kernel.arg_names if name not in constants]
    kinds = {name: kind for name, (kind, _) in zip(names, signature, strict=True)}
    fixed = {name: value for name, (kind, value) in zip(names, signature, strict=True) if kind == "constexpr"}
    attributes = {(kernel.arg_names.index(name),): [list(attribute) for attribute in found]
                  for name, (kind, found) in zip(names, signature, strict=True) if kind != "constexpr" and found}
    source = ASTSource(kernel, {name: kinds.get(name, "constexpr") for name in kernel.arg_names},
                       {**constants, **fixed}, attributes)
    code = triton.compile(source, target=GPUTarget("hip", target.arch, target.wave_size), options=options)
    if code.metadata.global_scratch_size or code.metadata.profile_scratch_size:
        raise UnsupportedError(f"{kernel.__name__}: the simulated launch provides no scratch memory")
    return code


def _specialise(value: Any, is_specialised: bool) -> tuple[str, Any]:
    """(type, attributes) of a run-time argument or ("constexpr", value), as Triton's own launcher specialises it."""
    if isinstance(value, torch.Tensor):
        attributes = []
        if value.data_ptr() % 16 == 0:
            attributes.append(("tt.divisibility", 16))
        if value.untyped_storage().size() < 2**31:
            attributes.append(("tt.pointer_range", 32))
        return _POINTER[value.dtype], tuple(attributes)
    if isinstance(value, bool):
        return "i1", ()
    if isinstance(value, int):
        if value == 1 and is_specialised:
            return "constexpr", value
        kind = "i32" if -(2**31) <= value < 2**31 else "i64"
        return kind, (("tt.divisibility", 16),) if value % 16 == 0 and is_specialised else ()
    if isinstance(value, float):
        return "fp32", ()
    if value is None:
        return "constexpr", None
    raise TypeError(f"a Triton kernel takes tensors, None and numbers, got {type(value).__name__}")

# SPDX-License-Identifier: MIT
"""Builds HIP, CUDA and assembly modules on first use and binds their functions. Importing it compiles and probes
nothing."""

from aiter_like.jit.asm import Launch, asm_kernel
from aiter_like.jit.compile_ops import Instance, JitFunction, compile_ops

__all__ = ["Instance", "JitFunction", "Launch", "asm_kernel", "compile_ops"]

# SPDX-License-Identifier: MIT
"""Builds HIP and CUDA modules on first use and binds their functions. Importing it compiles and probes nothing."""

from aiter_like.jit.compile_ops import Instance, JitFunction, compile_ops

__all__ = ["Instance", "JitFunction", "compile_ops"]

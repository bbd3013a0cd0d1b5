# SPDX-License-Identifier: MIT
"""Triton kernels of attention."""

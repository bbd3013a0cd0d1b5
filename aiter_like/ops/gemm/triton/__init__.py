# SPDX-License-Identifier: MIT
"""Triton kernels of the matrix products."""

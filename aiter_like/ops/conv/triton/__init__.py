# SPDX-License-Identifier: MIT
"""Triton kernels of the convolutions."""

# SPDX-License-Identifier: MIT
"""Triton kernels of multi-head latent attention."""

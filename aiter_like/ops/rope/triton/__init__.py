# SPDX-License-Identifier: MIT
"""Triton kernels of rotary position embedding."""

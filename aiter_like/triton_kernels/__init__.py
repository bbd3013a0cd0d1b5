# SPDX-License-Identifier: MIT
"""Triton kernels, one file per family, imported on first use. `launch.py` runs them on GPU and simulator."""

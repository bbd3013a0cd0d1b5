# SPDX-License-Identifier: MIT
"""Mutants of the project's own gfx942 kernels, run under the simulator's checkers. `campaign.py` is the entry."""

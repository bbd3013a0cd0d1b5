# SPDX-License-Identifier: MIT
"""Weights and scales in the order in which matrix kernels read them."""

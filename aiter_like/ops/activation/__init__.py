# SPDX-License-Identifier: MIT
"""Activations and their fused forms."""

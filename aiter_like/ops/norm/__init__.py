# SPDX-License-Identifier: MIT
"""Normalisations and their fused forms."""

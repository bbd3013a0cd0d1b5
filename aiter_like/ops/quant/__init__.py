# SPDX-License-Identifier: MIT
"""Quantisers."""

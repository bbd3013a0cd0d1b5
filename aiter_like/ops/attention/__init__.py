# SPDX-License-Identifier: MIT
"""Attention: forward, backward, packed, paged, appending."""

# SPDX-License-Identifier: MIT
"""Operators of the family moe."""

# SPDX-License-Identifier: MIT
"""Adapters of AITER's names that belong to no family."""

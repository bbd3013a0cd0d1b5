# SPDX-License-Identifier: MIT
"""Adapters of AITER's matrix products."""

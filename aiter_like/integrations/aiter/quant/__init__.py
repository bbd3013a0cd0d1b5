# SPDX-License-Identifier: MIT
"""Adapters of AITER's quantisers and formats."""

# SPDX-License-Identifier: MIT
"""Adapters of AITER's layers of experts."""

# SPDX-License-Identifier: MIT
"""AITER's names served by aiter_like, for engines that import `aiter` where it is not installed (../../shim.py)."""

from aiter_like.integrations.aiter import shim

shim.fill(__name__)

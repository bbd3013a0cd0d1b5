# SPDX-License-Identifier: MIT
"""Runs programs in the manner of AITER's own tests."""

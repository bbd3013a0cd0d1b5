# SPDX-License-Identifier: MIT
"""Convolutions of models with linear attention."""

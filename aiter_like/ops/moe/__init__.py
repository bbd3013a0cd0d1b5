# SPDX-License-Identifier: MIT
"""Mixtures of experts: routing, sorting, products of experts, sums."""

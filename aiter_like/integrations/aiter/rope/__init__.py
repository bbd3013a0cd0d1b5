# SPDX-License-Identifier: MIT
"""Adapters of AITER's rotary position embeddings and their fusions."""

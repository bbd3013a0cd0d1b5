# SPDX-License-Identifier: MIT
"""Samplers, softmax and top-k over a vocabulary, penalties, verification of drafts."""

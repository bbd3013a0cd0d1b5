# SPDX-License-Identifier: MIT
"""Adapters of AITER's latent attention."""

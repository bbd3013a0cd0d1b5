# SPDX-License-Identifier: MIT
"""Matrix products: out = a · bᵀ, as linear layers have them."""

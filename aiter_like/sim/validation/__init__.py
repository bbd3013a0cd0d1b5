# SPDX-License-Identifier: MIT
"""The cycle model against what is publicly measured on an MI300X: small kernels of our own, published figures."""

# SPDX-License-Identifier: MIT
"""The commands of `aiter-like sim`."""

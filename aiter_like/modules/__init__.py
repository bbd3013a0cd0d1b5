# SPDX-License-Identifier: MIT
"""From source to a library on disk: toolchains, recipes, the cache, revisions of kernels."""

# SPDX-License-Identifier: MIT
"""Writing, copying and gathering paged KV caches."""

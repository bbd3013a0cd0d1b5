# SPDX-License-Identifier: MIT
"""AITER's names: their table, adapters where parameters differ, the package `aiter` for programs that import it."""

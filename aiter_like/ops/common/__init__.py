# SPDX-License-Identifier: MIT
"""Shared by families of operators, by subject; imports no family."""

# SPDX-License-Identifier: MIT
"""What families of operators share, by subject; it imports no family."""

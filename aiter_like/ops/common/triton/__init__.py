# SPDX-License-Identifier: MIT
"""Parts of Triton kernels that families share, and their launcher."""

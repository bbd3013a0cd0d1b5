# SPDX-License-Identifier: MIT
"""`aiter-like sim race`: other people's code objects beside this package's own choice for the same call."""

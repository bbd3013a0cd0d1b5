# SPDX-License-Identifier: MIT
"""`aiter-like sim validate --hardware` and `--answers`: what an MI300X says, in one file, and what the model said."""

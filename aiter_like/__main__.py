# SPDX-License-Identifier: MIT
"""`python -m aiter_like` is `aiter-like`."""

from aiter_like.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

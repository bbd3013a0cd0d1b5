# SPDX-License-Identifier: MIT
"""The operators, one file per family: reference, stubs, Op, public function, in that order."""

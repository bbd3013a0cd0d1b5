# SPDX-License-Identifier: MIT
"""Stand-ins for a call's tensors and numbers that note what a decision asks of them.

A decision that has seen stand-ins holds for every call of which the same questions have the same answers: dispatch
makes a plan of it (dispatch/classes.py), and nobody has to say which sizes may vary. A number becomes exact only where
Python's own code needs it: as a key, a bound of `range`, a macro.
"""

from aiter_like.traced.number import Number, Shape, Untraceable, answered, computed, exactly, known, text_in
from aiter_like.traced.tensor import Traced
from aiter_like.traced.trace import Trace, leaves_of, showing

__all__ = ["Number", "Shape", "Trace", "Traced", "Untraceable", "answered", "computed", "exactly", "known", "leaves_of",
           "showing", "text_in"]

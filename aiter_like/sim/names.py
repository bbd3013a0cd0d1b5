# SPDX-License-Identifier: MIT
"""Names of kernels as people read them, which csrc/sim/names.h has for reports, and lists of lanes. Loads nothing."""

import ctypes
from collections.abc import Iterable
from functools import cache


@cache
def demangled(name: str) -> str:
    """A symbol as C++ has it, "scale(float*, int)"; one that is no C++ name as it is."""
    library = ctypes.CDLL("libstdc++.so.6")
    library.__cxa_demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    text = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not text:
        return name
    found = ctypes.string_at(text).decode(errors="replace")
    ctypes.CDLL(None).free(ctypes.c_void_p(text))
    return found.removeprefix("void ")  # an instance of a template tells its result's type


def short(name: str) -> str:
    """A symbol's name without the types of its arguments: "scale<4>"."""
    text = demangled(name)
    if text == name:
        return name
    depth = 0
    for at in range(len(text) - 1, -1, -1):  # a parameter list closes the name
        depth += (text[at] in ")>") - (text[at] in "(<")
        if depth == 0 and text[at] == "(":
            return text[:at]
    return text


def spans(numbers: Iterable[int]) -> str:
    """"0-3,8" of lanes, waves or bits by their numbers; "none" where there are none."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs) or "none"

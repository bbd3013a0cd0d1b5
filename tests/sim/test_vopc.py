# SPDX-License-Identifier: MIT
"""VOPC against NumPy: every comparison of every type, of equal operands too; v_cmpx writes VCC or any SGPR pair."""

import numpy as np
import pytest
from asm import LANES, Case, run_many
from isa_model import Row, is_signaling, pack_mask, random_exec, unpack_mask, values

pytestmark = pytest.mark.filterwarnings("ignore:overflow|invalid value")


def unordered(a, b):
    return np.isnan(a) | np.isnan(b)


FLOAT = {
    "f": lambda a, b: np.zeros(a.shape, bool), "lt": lambda a, b: a < b, "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "lg": lambda a, b: (a != b) & ~unordered(a, b),
    "ge": lambda a, b: a >= b, "o": lambda a, b: ~unordered(a, b), "u": unordered,
    "nge": lambda a, b: ~(a >= b), "nlg": lambda a, b: (a == b) | unordered(a, b), "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b), "neq": lambda a, b: a != b, "nlt": lambda a, b: ~(a < b),
    "tru": lambda a, b: np.ones(a.shape, bool),
}
INTEGER = {
    "f": FLOAT["f"], "lt": FLOAT["lt"], "eq": FLOAT["eq"], "le": FLOAT["le"], "gt": FLOAT["gt"], "ne": FLOAT["neq"],
    "ge": FLOAT["ge"], "t": FLOAT["tru"],
}


def classes(x, wanted):
    kind = np.select([np.isinf(x), x == 0, np.abs(x) < np.finfo(x.dtype).tiny], [9, 6, 7], 8)
    kind = np.where(np.signbit(x), 11 - kind, kind)
    kind = np.where(np.isnan(x), np.where(is_signaling(x), 0, 1), kind)
    return wanted >> kind.astype(np.uint32) & 1 == 1


COMPARISONS = {(name, kind): model for kind in ("f16", "f32", "f64") for name, model in FLOAT.items()}
COMPARISONS |= {(name, kind): model for kind in ("i16", "u16", "i32", "u32", "i64", "u64")
                for name, model in INTEGER.items()}
ROWS = [Row(f"v_cmp_{name}_{kind}", "mask", f"{kind} {kind}", model) for (name, kind), model in COMPARISONS.items()]
ROWS += [Row(f"v_cmp_class_{kind}", "mask", f"{kind} u32", classes) for kind in ("f16", "f32", "f64")]


def half_equal(a, b):
    """Random pairs are hardly ever equal; every other lane is made so."""
    return np.where(np.arange(LANES) % 2 == 0, a, b)


def test_equal_operands():
    cases, expected = [], []
    for (name, kind), model in COMPARISONS.items():
        a, b = values(kind, 3), values(kind, 4)
        b = half_equal(a, b)
        first, second = ("v[0:1]", "v[2:3]") if a.itemsize == 8 else ("v0", "v2")
        cases.append(Case(f"v_cmp_{name}_{kind} vcc, {first}, {second}", {first: a, second: b}, ["vcc"]))
        expected.append((f"{name}_{kind}", pack_mask(model(a, b))))
    for (label, wanted), result in zip(expected, run_many(cases), strict=True):
        np.testing.assert_array_equal(result["vcc"], wanted, label)


@pytest.mark.parametrize("dst", ["vcc", "s[8:9]"])
def test_cmpx_writes_its_destination_and_exec(dst):
    cases, expected, exec_in = [], [], random_exec(8)
    for (name, kind), model in COMPARISONS.items():
        a, b = values(kind, 5), values(kind, 6)
        first, second = ("v[0:1]", "v[2:3]") if a.itemsize == 8 else ("v0", "v2")
        inputs = {first: a, second: b, "exec": exec_in}
        cases.append(Case(f"v_cmpx_{name}_{kind} {dst}, {first}, {second}", inputs, [dst, "exec"]))
        expected.append(pack_mask(model(a, b) & unpack_mask(exec_in)))
    for wanted, result in zip(expected, run_many(cases), strict=True):
        np.testing.assert_array_equal(result[dst], wanted)
        np.testing.assert_array_equal(result["exec"], wanted)

# SPDX-License-Identifier: MIT
"""What people read of the simulator: kernels' names, lanes of a register, what binds a launch."""

import struct

import pytest

from aiter_like.sim import names
from aiter_like.sim.debugging import data_types
from aiter_like.sim.debugging.wave_view import Value
from aiter_like.sim.profiling import figures, sources

ALL = 2**64 - 1


@pytest.mark.parametrize(("symbol", "whole", "short"), [
    ("_Z9transposePKfPfi", "transpose(float const*, float*, int)", "transpose"),
    ("_Z5scaleILi4EEvPf", "scale<4>(float*)", "scale<4>"),
    ("_Z5applyIPFviEEvT_", "apply<void (*)(int)>(void (*)(int))", "apply<void (*)(int)>"),
    ("plain", "plain", "plain"), ("", "", ""), ("_Zbroken", "_Zbroken", "_Zbroken")])
def test_names_of_kernels(symbol, whole, short):
    assert (names.demangled(symbol), names.short(symbol)) == (whole, short)


def test_lanes_are_rows_and_untyped_ones_have_another_reading():
    lanes = tuple(struct.pack("<f", lane / 2) for lane in range(64))
    value = Value("$v1", data_types.scalar_type("u32"), lanes, ALL & ~2, False, "", True)
    lines = value.lines()
    assert len(lines) <= 20 and lines[0] == "$v1 (u32):" and "$v1 (as f32):" in lines
    floats = lines[lines.index("$v1 (as f32):") + 1:]
    shown = " ".join(line.partition(":")[2] for line in floats).split()
    assert len(shown) == 64 and shown[5].startswith("2.5") and shown[1].startswith("(0.5")     # lane 1 is off
    assert all(len(line) <= 120 for line in lines)
    small = tuple(struct.pack("<i", lane - 3) for lane in range(64))
    assert data_types.guessed(small).name == "i32"
    assert data_types.guessed([struct.pack("<I", lane) for lane in range(64)]) is None
    assert data_types.guessed([None, b"\0\0\0\0"]) is None and data_types.guessed([b"\0" * 8]) is None
    two = Value("$v2", data_types.scalar_type("u32"), (b"\1\0\0\0",) * 32 + (b"\2\0\0\0",) * 32, ALL, False)
    assert two.lines() == ["$v2 (u32):", "  lane 0-31: 1", "  lane 32-63: 2"]


def test_whatever_binds_a_launch_is_explained():
    stalls = ("vmcnt", "lgkmcnt", "barrier", "matrix result", "matrix pipe", "vector port", "issue port",
              "memory queue", "LDS queue", "fetch")
    units = ("matrix", "vector", "LDS", "address", "L2", "beyond L2")
    for bound in (*(f"{unit} (70% busy)" for unit in units), "grid: no workgroup for 9 of 38 CUs", "issue",
                  *(f"waits: {why}" for why in stalls)):
        assert all(len(text) > 30 for text in figures.advice(bound).values()), bound


def test_a_profile_of_before_has_no_callers():
    old, new = {"source": "/a/gpu.h:35"}, {"source": "/a/gpu.h:35", "caller": "/b/softmax.hip:62"}
    assert (sources.where(old), sources.author(old)) == ("gpu.h:35", "/a/gpu.h:35")
    assert (sources.where(new), sources.author(new)) == ("gpu.h:35 in softmax.hip:62", "/b/softmax.hip:62")

# SPDX-License-Identifier: MIT
"""op_tests/bench/MODELLED_CASES.md: it has every case of bench_modelled.py, and says of each that misses the aims why;
and HOT_LIST.md: every operator of the hot list, with the rows that it has.
"""

from __future__ import annotations

import re

import bench_hot_list
import modelled_attention
import modelled_decode
import modelled_gemm
import modelled_moe
import modelled_page
import modelled_rows
import pytest
from modelled_page import rows

from aiter_like import device as devices


@pytest.fixture
def names() -> set[str]:
    devices.use_simulator(True)
    found = {name for group in (modelled_attention, modelled_decode, modelled_gemm, modelled_moe)
             for name, _ in group.cases()}
    found |= {f"{name} × {count}" for name, _ in modelled_rows.cases(64) for count in (8192, 64)}
    devices.reset()
    return found


def test_cases(names):
    assert {*rows()} == names


def test_what_misses_an_aim_has_a_reason():
    share = {"": 0.0, **{f"{percent}%": percent / 100 for percent in range(1000)}}
    missed = 0
    for name, cells in rows().items():
        one = dict(zip(("rate", "matrix", "vector"), (share[cell] for cell in cells[5:8])))
        assert cells[8] == modelled_page.reason(name, one), name
        missed += bool(cells[8])
    assert missed > 20


def test_times_are_those_of_a_table():
    for name, cells in rows().items():
        assert re.fullmatch(r"(\d+\.\d\d → )?\d+\.\d\d", cells[1]), name


def test_a_reason_is_asked_for():
    slow = {"rate": 0.5, "matrix": 0.0, "vector": 0.2}
    assert modelled_page.reason("a new kernel × 8192", {**slow, "rate": 0.9}) == ""
    with pytest.raises(KeyError, match="a new kernel × 8192: modelled_page.REASONS must say why"):
        modelled_page.reason("a new kernel × 8192", slow)
    with pytest.raises(KeyError, match="80% vector busy"):
        modelled_page.reason("a new kernel × 8192", {**slow, "rate": 0.9, "vector": 0.8})


def test_operators_of_the_hot_list():
    table = rows("hot list")
    expected = {op.name: (len(keys), sum(bench_hot_list.text(key) in bench_hot_list.with_rows(op) for key in keys))
                for op, keys in bench_hot_list.operators()}
    assert {name: (int(cells[1]), int(cells[2] or 0)) for name, cells in table.items()} == expected
    assert all(int(cells[3] or 0) + int(cells[2] or 0) <= int(cells[1]) for cells in table.values())
    assert sum(int(cells[3] or 0) for cells in table.values()) > 100


def test_operators_without_figures_keep_their_comparison():
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in bench_hot_list.lines({})][2:]
    assert {cells[0]: cells for cells in lines} == rows("hot list")


@pytest.mark.parametrize("others, expected", [
    ({"hip": 10.0, "triton": 9.0}, 0.0), ({"ck": 8.0}, 0.25), ({"triton": 6.0}, 0.0), ({"triton": 4.0}, 1.5),
    ({"hip": 10.0, "ck": 9.9, "triton": 4.9}, 10 / 4.9 - 1), ({}, 0.0)])
def test_gain_of_another_backend(others, expected):
    """Beyond what the model tells apart, and for Triton also by more than 5 us."""
    assert bench_hot_list.gain({"own": 10.0, **others}, 0.2) == pytest.approx(expected)

# SPDX-License-Identifier: MIT
"""The mark of shuffle_weight is read at the public edge: below it an argument says what it said."""

import ast
import importlib
from pathlib import Path

import pytest
import torch

import aiter_like
from aiter_like import paths
from aiter_like.ops.common import marks

PACKAGE = Path(paths.__file__).parent
MARKS = Path(marks.__file__)
ATTRIBUTES = ("is_shuffled", "shuffle_layout")
OF_OTHERS = ("call", "layer", "marks", "self")  # fields of calls and keys, and the reader itself


def trees():
    return ((path, ast.parse(path.read_text())) for path in sorted(PACKAGE.rglob("*.py")) if path != MARKS)


def test_one_module_names_the_attributes():
    found = []
    for path, tree in trees():
        for node in ast.walk(tree):
            is_read = isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES and \
                getattr(node.value, "id", "") not in OF_OTHERS
            is_asked = isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("attr") and any(
                isinstance(one, ast.Constant) and one.value in ATTRIBUTES for one in node.args)
            if is_read or is_asked:
                found.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
    assert not found, "\n".join(found)


def test_operators_ask_in_public_functions_alone():
    public, asked = set(), set()
    for path, tree in trees():
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)
                     and "marks." in ast.unparse(node)}
        if PACKAGE / "ops" in path.parents and functions:
            module = importlib.import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
            asked |= functions
            public |= set(module.__all__)
    assert asked <= public
    assert {"gemm_a16w16", "gemm_a8w8", "gemm_a8w8_bpreshuffle", "grouped_gemm", "fused_moe"} <= asked


@pytest.mark.parametrize("is_marked", (False, True))
def test_graphs_have_it_as_an_argument(is_marked):
    """Fake tensors have no attributes: a graph that took the mark from one would be that of other weights."""
    a, weights, graphs = torch.randn(4, 32).bfloat16(), torch.randn(16, 32).bfloat16(), []

    def keep(graph, inputs):
        graphs.append(graph.code)
        return graph.forward

    product = torch.compile(lambda a, b: aiter_like.gemm_a16w16(a, b, backend="torch"), backend=keep)
    out = product(a, aiter_like.shuffle_weight(weights) if is_marked else weights)
    assert torch.equal(out, aiter_like.gemm_a16w16(a, weights, backend="torch"))
    (code,) = graphs
    assert f"None, None, 'none', {is_marked}, backend = 'torch'" in code


def test_weights_that_a_caller_says_are_shuffled():
    """They are marked for the call alone, by a tensor of the same memory; a mark that is there stays."""
    weights = torch.randn(16, 32)
    given = marks.marked(weights)
    assert marks.layouts(weights, given) == (None, marks.LAYOUT) and given.data_ptr() == weights.data_ptr()
    wide = aiter_like.shuffle_weight(torch.randn(32, 32), layout=(32, 16))
    assert marks.marked(wide) is wide and marks.layout_named(wide) == (32, 16)
    assert marks.layout_of(wide[:]) is None and marks.marked(None) is None

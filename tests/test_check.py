# SPDX-License-Identifier: MIT
"""The text of each argument check, and what each accepts."""

import enum
import re

import pytest
import torch

from aiter_like import check


def raises(kind, text):
    return pytest.raises(kind, match=f"^{re.escape(text)}$")


class TestTensor:
    def accepts(self, value, **rules):
        assert check.tensor("op", "x", value, **rules) is None

    def test_accepts(self):
        x = torch.randn(3, 4)
        self.accepts(x, rank=2, dtypes=(torch.float32,), shape=(3, None), device=torch.device("cpu"))
        self.accepts(torch.randn(6, 4)[::2])
        self.accepts(x.t(), last_contiguous=False)
        self.accepts(torch.randn(4, 1).expand(4, 1).as_strided((4, 1), (1, 7)))
        self.accepts(torch.empty(0, 4))
        self.accepts(torch.tensor(1.0))
        self.accepts(torch.nn.Parameter(x))
        self.accepts(torch._neg_view(x))

    @pytest.mark.parametrize(("value", "rules", "kind", "text"), [
        (3.0, {}, TypeError, "op: x must be a tensor, got float"),
        (None, {}, TypeError, "op: x must be a tensor, got NoneType"),
        (torch.eye(2).to_sparse(), {}, TypeError, "op: x must be a dense tensor, got torch.sparse_coo"),
        pytest.param(
            torch._neg_view(torch.ones(2).to(torch.float8_e4m3fn)), {}, TypeError,
            "op: x must be a dense tensor, got a conjugate or negative view of torch.float8_e4m3fn", id="negative"),
        (torch.ones(2), {"dtypes": (torch.bfloat16, torch.float16)}, TypeError,
         "op: x must have dtype torch.bfloat16 or torch.float16, got torch.float32"),
        (torch.ones(2), {"rank": 2}, ValueError, "op: x must have 2 dimensions, got shape (2,)"),
        (torch.ones(2), {"shape": (3,)}, ValueError, "op: x must have shape (3,), got (2,)"),
        (torch.ones(2, 3), {"shape": (None, 4)}, ValueError, "op: x must have shape (*, 4), got (2, 3)"),
        (torch.ones(2, 3), {"shape": (2,)}, ValueError, "op: x must have shape (2,), got (2, 3)"),
        (torch.ones(2), {"device": torch.device("meta")}, ValueError,
         "op: x must be on meta like the other tensors, got cpu"),
        (torch.ones(2, 3).t(), {}, ValueError, "op: x must be contiguous in its last dimension, got stride 3 there"),
    ], ids=str)
    def test_refuses(self, value, rules, kind, text):
        with raises(kind, text):
            check.tensor("op", "x", value, **rules)


class TestScalars:
    def test_real(self):
        for value in (0, 1.5, -2):
            check.real("op", "s", value)
        check.real("op", "s", 0.0, low=0.0)

    @pytest.mark.parametrize(("value", "rules", "kind", "text"), [
        (True, {}, TypeError, "op: s must be a number, got bool True"),
        ("1", {}, TypeError, "op: s must be a number, got str '1'"),
        (None, {}, TypeError, "op: s must be a number, got None"),
        (float("nan"), {}, ValueError, "op: s must be finite, got nan"),
        (float("-inf"), {}, ValueError, "op: s must be finite, got -inf"),
        (-0.5, {"low": 0.0}, ValueError, "op: s must be at least 0.0, got -0.5"),
        (0.0, {"above": 0.0}, ValueError, "op: s must be greater than 0.0, got 0.0"),
    ], ids=str)
    def test_real_refuses(self, value, rules, kind, text):
        with raises(kind, text):
            check.real("op", "s", value, **rules)

    def test_integer(self):
        check.integer("op", "n", -(2**31))
        check.integer("op", "n", 2**31 - 1)
        for value, text in ((2**31, "op: n must be between -2147483648 and 2147483647, got 2147483648"),
                            (-1, "op: n must be between 0 and 2, got -1"), (3, "op: n must be between 0 and 2, got 3")):
            limits = () if value == 2**31 else (0, 2)
            with raises(ValueError, text):
                check.integer("op", "n", value, *limits)
        for value, text in ((True, "bool True"), (1.0, "float 1.0")):
            with raises(TypeError, f"op: n must be an integer, got {text}"):
                check.integer("op", "n", value)

    def test_flag(self):
        check.flag("op", "causal", False)
        with raises(TypeError, "op: causal must be True or False, got int 1"):
            check.flag("op", "causal", 1)

    def test_together(self):
        check.together("op", bias=1, ids=0)
        check.together("op", bias=None, ids=None, out=None)
        with raises(ValueError, "op: bias and ids must come together, got one of them"):
            check.together("op", bias=None, ids=0)
        with raises(ValueError, "op: bias, ids and out must come together, got some of them"):
            check.together("op", bias=1, ids=0, out=None)

    def test_choice(self):
        check.choice("op", "mode", 1, (0, 1))
        check.choice("op", "mode", "a", ("a",))
        for value, text in ((2, "int 2"), (True, "bool True"), (1.0, "float 1.0")):
            with raises(ValueError, f"op: mode must be 0 or 1, got {text}"):
                check.choice("op", "mode", value, (0, 1))
        with raises(ValueError, "op: mode must be 'a', 'b' or 'c', got str 'd'"):
            check.choice("op", "mode", "d", ("a", "b", "c"))

    def test_choice_takes_members_of_enums_of_numbers_and_words(self):
        number = enum.IntEnum("number", {"one": 1, "two": 2})
        word = enum.Enum("word", {"silu": "silu"}, type=str)
        plain = enum.Enum("plain", {"one": 1})
        check.choice("op", "style", number.one, (0, 1))
        check.choice("op", "style", word.silu, ("silu", "gelu"))
        for value in (number.two, plain.one, True, 1.0):
            with pytest.raises(ValueError, match="op: style must be 0 or 1"):
                check.choice("op", "style", value, (0, 1))

    def test_a_long_value_is_cut(self):
        with pytest.raises(TypeError) as caught:
            check.real("op", "s", "x" * 1000)
        assert len(str(caught.value)) < 120

# SPDX-License-Identifier: MIT
"""Taking a function over: ours first, the original for what ours refuses; counts, messages, signatures, undoing."""

import inspect
import logging
import types

import pytest
import torch

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.integrations import takeover
from aiter_like.integrations.takeover import Counts, counters, take


@pytest.fixture(autouse=True)
def fresh(fresh_takeover):
    yield
    takeover.restore_attributes()


def original(x, scale=1.0, newer=None):
    """The engine's own."""
    return "original", x, scale, newer


def ours(x, scale=1.0):
    if isinstance(x, str):
        raise TypeError("scaled: x must be a tensor, got str")
    if x > 2:
        raise UnsupportedError("scaled: no backend serves the call on gfx942", "scaled", {"hip": f"x is {x}"})
    if x < 0:
        raise ValueError(f"scaled: x must be at least 0, got {x}")
    if x == 2:
        raise RuntimeError("a fault of ours")
    return "ours", x, scale


def test_ours_serves_and_is_counted():
    taken = take("toy.scaled", ours, original)
    assert taken(1, scale=3.0) == ("ours", 1, 3.0) and counters() == {"toy.scaled": Counts(1, 0)}


@pytest.mark.parametrize(("args", "kwargs"), [((3,), {}), ((-1, 2.0), {}), (("text",), {}), ((1,), {"newer": 5})])
def test_a_refused_call_goes_to_the_original(args, kwargs):
    assert take("toy.scaled", ours, original)(*args, **kwargs) == original(*args, **kwargs)
    assert counters()["toy.scaled"] == Counts(0, 1)


def test_a_call_that_is_left_goes_to_the_original_without_a_message(caplog):
    taken = take("toy.scaled", lambda x, scale=1.0: takeover.LEFT if x > 9 else ours(x, scale), original)
    assert taken(10, scale=3.0) == original(10, 3.0) and taken(1) == ("ours", 1, 1.0)
    assert counters() == {"toy.scaled": Counts(1, 0, 1)}
    assert [record.message for record in caplog.records] == ["toy.scaled: taken"]
    takeover.reset_counters()
    assert counters() == {"toy.scaled": Counts()}


def test_a_fault_is_not_hidden():
    with pytest.raises(RuntimeError, match="fault of ours"):
        take("toy.scaled", ours, original)(2)


def test_an_error_of_the_original_is_its_own():
    def strict(x):
        raise ValueError("the engine refuses too")

    with pytest.raises(ValueError, match="engine refuses") as raised:
        take("toy.scaled", ours, strict)(3)
    assert raised.value.__context__ is None


def test_without_an_original_the_refusal_is_raised():
    with pytest.raises(UnsupportedError, match="x is 3"):
        take("toy.scaled", ours, None)(3)
    assert counters()["toy.scaled"] == Counts(0, 1)


def test_signature_and_name_are_those_of_the_original():
    taken = take("toy.scaled", ours, original)
    assert inspect.signature(taken) == inspect.signature(original)
    assert (taken.__name__, taken.__doc__) == ("original", "The engine's own.")
    assert inspect.signature(take("toy.other", ours, None)) == inspect.signature(ours)


def test_one_line_when_taken_and_one_per_reason(caplog):
    taken = take("toy.scaled", ours, original)
    take("toy.scaled", ours, original)
    assert caplog.messages == ["toy.scaled: taken"]
    caplog.clear()
    for x in (3, 4, 500, -1, -2):
        taken(x)
    assert caplog.messages == [
        "toy.scaled falls back to the engine's own: scaled: no backend serves the call on gfx942; hip: x is 3",
        "toy.scaled falls back to the engine's own: scaled: x must be at least 0, got -1"]
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_reasons_without_end_are_not_all_logged(caplog):
    def endless(x):
        raise ValueError("x" * x)

    taken = take("toy.endless", endless, original)
    caplog.clear()
    for x in range(100):
        taken(x)
    assert len(caplog.messages) == takeover._REASONS_PER_NAME and counters()["toy.endless"].fell_back == 100


@pytest.mark.parametrize("name", ["toy.scaled", "scaled", "scale_op", "ours"])
def test_denied_names_stay_with_the_engine(monkeypatch, caplog, name):
    monkeypatch.setenv("AITER_LIKE_DISABLE", f"other,{name}")
    assert take("toy.scaled", ours, original, op="scale_op") is original
    assert counters() == {} and takeover.denied() == ("toy.scaled",) and "AITER_LIKE_DISABLE" in caplog.text
    assert take("toy.scaled", ours, None, op="scale_op")(1) == ("ours", 1, 1.0)  # nothing else could serve


def test_an_operator_stands_for_the_functions_made_of_it(monkeypatch):
    monkeypatch.setenv("AITER_LIKE_DISABLE", "act_and_mul")
    assert take("aiter.silu_and_mul", aiter_like.silu_and_mul, original) is original
    assert take("aiter.rms_norm", aiter_like.rms_norm, original) is not original


def test_reset_counters_keeps_names():
    take("toy.scaled", ours, original)(1)
    takeover.reset_counters()
    assert counters() == {"toy.scaled": Counts(0, 0)}


def test_attributes_come_back_in_reverse_order():
    engine = types.ModuleType("engine")
    engine.first = "stock"
    for value in ("ours", "ours again"):
        takeover.replace_attribute(engine, "first", value)
    takeover.replace_attribute(engine, "second", "ours")
    assert (engine.first, engine.second) == ("ours again", "ours")
    assert takeover.replaced() == ("engine.first", "engine.first", "engine.second")
    takeover.restore_attributes()
    assert engine.first == "stock" and not hasattr(engine, "second")
    takeover.restore_attributes()
    assert engine.first == "stock"


def test_attributes_of_classes_come_back_as_they_were():
    class Base:
        def inherited(self):
            return "stock"

    class Layer(Base):
        @staticmethod
        def fixed():
            return "stock"

    for attr in ("inherited", "fixed"):
        takeover.replace_attribute(Layer, attr, lambda *args: "ours")
    assert (Layer().inherited(), Layer().fixed()) == ("ours", "ours")
    takeover.restore_attributes()
    assert (Layer().inherited(), Layer().fixed()) == ("stock", "stock") and "inherited" not in vars(Layer)


def test_one_adapter_is_undone_alone():
    engine = types.ModuleType("engine")
    engine.first = engine.second = "stock"
    takeover.replace_attribute(engine, "first", "ours", owner="vllm")
    takeover.replace_attribute(engine, "second", "ours", owner="sglang")
    takeover.restore_attributes("vllm")
    assert (engine.first, engine.second) == ("stock", "ours")


def test_what_somebody_replaced_since_stays(caplog):
    engine = types.ModuleType("engine")
    engine.first = "stock"
    takeover.replace_attribute(engine, "first", "ours")
    engine.first = "somebody's"
    takeover.restore_attributes()
    assert engine.first == "somebody's" and "stays" in caplog.text


@pytest.mark.parametrize("size", [2, 5])
def test_a_taken_function_compiles_without_a_graph_break(size):
    """Size 2 is served, size 5 falls back; neither is counted, since the decision is part of the graph."""

    def small(x):
        if x.shape[0] > 4:
            raise UnsupportedError("small: at most 4 rows")
        return x * 2

    taken = take("toy.small", small, lambda x: x * 3)
    x = torch.ones(size, 3)
    result = torch.compile(taken, fullgraph=True, backend="eager")(x)
    assert torch.equal(result, x * (2 if size == 2 else 3)) and counters()["toy.small"] == Counts(0, 0)


def test_an_operator_that_is_taken_compiles():
    """With the checks, the allocation and the registered operator of a real one."""

    def stock(input, weight, epsilon):
        raise AssertionError("not for this call")

    def layer(x, weight):
        return taken(x, weight, 1e-6) * 2

    taken = take("toy.rms_norm", aiter_like.rms_norm, stock)
    x, weight = torch.randn(3, 64).to(torch.bfloat16), torch.rand(64).to(torch.bfloat16)
    with torch.no_grad():
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, weight)
    assert torch.equal(compiled, aiter_like.rms_norm(x, weight, 1e-6) * 2)

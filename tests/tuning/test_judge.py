# SPDX-License-Identifier: MIT
"""The judge: float64 where the reference takes it, poisoned or kept outputs, 8-bit and integer results."""

import math
from types import SimpleNamespace

import pytest
import torch

from aiter_like.dispatch.tuning import Tuning
from aiter_like.tuning import judge

CPU = torch.device("cpu")


def op(reference, *outputs, x=None, name="toy"):
    """An operator (outputs…, x) of one shape."""
    def case(key, device, seed):
        data = torch.randn(4, 64, generator=torch.Generator().manual_seed(seed)) if x is None else x
        return (*(output.clone() for output in outputs), data)

    indices = tuple(range(len(outputs)))
    return SimpleNamespace(name=name, reference=reference, write_indices=indices, result_indices=indices,
                           tune_key=lambda *args: {"rows": 4}, tuning=Tuning(case))


def make(reference, *outputs, **more):
    return judge.case(op(reference, *outputs, **more), {"rows": 4}, CPU)


def double(out, x):
    out.copy_(2 * x)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn,
                                   torch.float8_e4m3fnuz))
def test_what_each_dtype_forgives(dtype):
    made = make(double, torch.empty(4, 64, dtype=dtype))
    assert made.is_exact and not made.outputs[0].is_kept and made.fresh()[0].double().isnan().all()
    assert judge.check(made, double)[1] is None
    assert judge.check(made, lambda out, x: out.copy_(2.5 * x))[1].startswith("relative L2 error ")
    assert judge.check(made, lambda out, x: None) == (math.inf, "NaN or Inf differ")

    def one_element(out, x):
        double(out, x)
        out.view(-1)[5] = 100.0

    assert judge.check(made, one_element)[1] is not None


def test_an_output_that_others_are_made_of_is_kept_though_all_of_it_is_written():
    def stepped(out, state, x):
        out.copy_(x + state)
        state.copy_(x)

    made = make(stepped, torch.empty(4, 64), torch.ones(4, 64))
    assert [output.is_kept for output in made.outputs] == [False, True]
    assert judge.check(made, stepped)[1] is None


def test_memory_of_the_kernels_is_no_result():
    toy = op(lambda out, parts, x: double(out, x), torch.empty(4, 64), torch.empty(4))
    toy.result_indices = (0,)
    made = judge.case(toy, {"rows": 4}, CPU)
    assert [output.index for output in made.outputs] == [0]

    def kernel(out, parts, x):
        torch.sum(x, 1, out=parts)
        double(out, x)

    assert judge.check(made, kernel)[1] is None


def test_sums_in_fp32_pass_where_the_reference_makes_wider_ones():
    x = torch.randn(4, 50_000)

    def exact(out, x):
        out.copy_(x.double().sum(1))

    made = make(exact, torch.empty(4), x=x)
    assert judge.check(made, lambda out, x: torch.sum(x, 1, out=out))[1] is None
    _, fault = judge.check(made, lambda out, x: out.copy_(x.double().sum(1) * (1 + 2e-6)))
    assert fault.startswith("relative L2 error ")


def test_noise_of_the_dtype_passes_and_more_does_not():
    made = make(double, torch.empty(4, 64, dtype=torch.bfloat16))

    def scaled(factor):
        return judge.check(made, lambda out, x: out.copy_(2 * x * factor))[1]

    assert scaled(1.004) is None and scaled(1.04) is not None


def test_nan_and_infinity_must_be_where_the_reference_has_them():
    x = torch.ones(4, 64)
    x[0, 0], x[1, 1] = math.nan, math.inf
    made = make(double, torch.empty(4, 64), x=x)
    assert judge.check(made, double)[1] is None
    for change in ((0, 0), (1, 1)):
        def wrong(out, x, change=change):
            double(out, x)
            out[change] = 2.0

        assert judge.check(made, wrong)[1] == "NaN or Inf differ"


def test_an_output_that_is_read_or_partly_written_keeps_its_contents():
    def accumulate(out, x):
        out.add_(x)

    def first_row(out, x):
        out[0] = x[0]

    for reference in (accumulate, first_row):
        made = make(reference, torch.ones(4, 64))
        assert made.outputs[0].is_kept and torch.equal(made.fresh()[0], torch.ones(4, 64))
        assert judge.check(made, reference)[1] is None
        assert judge.check(made, lambda out, x: out.zero_())[1] is not None
        assert judge.check(made, lambda out, x: None)[1] is not None
    assert make(first_row, torch.ones(4, 64, dtype=torch.int32)).outputs[0].is_kept


def test_integers():
    def codes(out, x):
        out.copy_((x * 30).round())

    small, large = (make(codes, torch.empty(4, 64, dtype=dtype)) for dtype in (torch.int8, torch.int32))

    def off_by_one(count):
        def call(out, x):
            codes(out, x)
            out.view(-1)[:count] += 1

        return call

    assert judge.check(small, off_by_one(2))[1] is None, "a tie that rounds to the other side"
    assert judge.check(small, off_by_one(9))[1] == "3.516% of the integers differ"
    assert judge.check(large, codes) == (0.0, None) and judge.check(large, off_by_one(1))[1] is not None


def test_a_reference_that_refuses_float64_runs_in_the_dtypes_of_the_call():
    def picky(out, x):
        if x.dtype == torch.float64:
            raise TypeError("no float64")
        double(out, x)

    made = make(picky, torch.empty(4, 64))
    assert not made.is_exact and judge.check(made, double) == (0.0, None)

    def never(out, x):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        make(never, torch.empty(4, 64))


def test_two_outputs_one_of_them_absent():
    def both(out, scale, x):
        out.copy_(x)
        if scale is not None:
            scale.copy_(x.amax(-1))

    made = make(both, torch.empty(4, 64), torch.empty(4))
    assert judge.check(made, both)[1] is None
    assert judge.check(made, lambda out, scale, x: out.copy_(x))[1] == "NaN or Inf differ"


def test_a_case_of_another_key_is_an_error():
    toy = op(double, torch.empty(4, 64))
    with pytest.raises(ValueError, match=r"toy: the tuning case for {'rows': 5} has the key {'rows': 4}"):
        judge.case(toy, {"rows": 5}, CPU)

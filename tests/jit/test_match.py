# SPDX-License-Identifier: MIT
"""What csrc/include/aiter_like/match.h takes of a call's tensors, and what it says of the others."""

import pytest
import torch
import tvm_ffi
from jit_project import make_hip_project

from aiter_like.modules.build import load_or_build
from aiter_like.modules.recipe import ModuleSpec

# `told` is what a kernel would be told: strides of q, bias and x, which vectors fit, which ids there are.
FITS_HIP = """
#include "aiter_like/ffi.h"

#if AITER_LIKE_HOST_PASS
namespace ffi = aiter_like::ffi;

struct Matrix {
  const float* data;
  int64_t stride;
};

void fits(ffi::Tensor told, ffi::Tensor q, ffi::OptionalTensor bias, ffi::OptionalTensor x, ffi::OptionalTensor scale,
          ffi::OptionalTensor ids, ffi::OptionalTensor bytes, int64_t heads_of_module) {
  ffi::Match match("fits");
  ffi::Size tokens{"tokens", 1000}, heads{"heads"}, length{"length"};
  const auto queries = match.take<const aiter_like::bf16>(q, {tokens, heads, 8}, "q");
  match.built(heads == heads_of_module, "heads");
  match.require(tokens != 13, "unlucky");
  match.require(heads != 13, "heads", "must not be 13");
  const auto biases = match.take<const float>(bias, {heads, ffi::at_least(2)}, "bias", ffi::kStrided);
  const Matrix rows = match.rows<const float>(x, tokens, length, "x");
  const float* one = match.elements<const float>(scale, 1, "scale");
  const int64_t which = ids.has_value() ? match.one_of<int32_t, int64_t>(*ids, "ids") : -1;
  match.take<const void>(ids, {tokens}, "ids");
  match.take<const ffi::Opaque<1>>(bytes, {4, 2}, "bytes", ffi::kDense);
  const int64_t found[] = {queries.stride(0), queries.step(0), biases.stride(0), biases.step(1), rows.stride,
                           length, one != nullptr, which, ffi::takes_vectors(4, x, scale)};
  for (int i = 0; i < 9; ++i) match.take<int64_t>(told, {9}, "told")[i] = found[i];
}
AITER_LIKE_EXPORT(fits, fits);
#endif
"""


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    root = make_hip_project(tmp_path_factory.mktemp("match") / "csrc")
    (root / "op" / "fits.hip").write_text(FITS_HIP)
    spec = ModuleSpec("op/fits", ("op/fits.hip",), arch="gfx942", root=root)
    function = tvm_ffi.load_module(str(load_or_build(spec, root=root / "cache"))).fits

    def call(q, bias=None, x=None, scale=None, ids=None, bytes=None, heads=2):
        told = torch.zeros(9, dtype=torch.int64)
        function(told, q, bias, x, scale, ids, bytes, heads)
        return told.tolist()

    yield call


def queries(tokens=3, heads=2, dim=8, dtype=torch.bfloat16):
    return torch.zeros(tokens, heads, dim, dtype=dtype)


def test_strides_of_what_is_there_and_of_what_is_not(fits):
    assert fits(queries()) == [16, 16, 0, 0, 0, -1, 0, -1, 1]
    # One token: whatever stride(0) says, nothing follows. bias and x as they lie, scale of any shape with one element.
    q = torch.zeros(1, 2, 8, dtype=torch.bfloat16).as_strided((1, 2, 8), (99, 8, 1))
    bias, x = torch.zeros(3, 2).T, torch.zeros(1, 20)[:, :12]
    assert fits(q, bias, x, torch.ones(1, 1), torch.zeros(1, dtype=torch.int64)) == [99, 0, 1, 2, 0, 12, 1, 1, 0]
    assert fits(queries(), x=torch.zeros(3, 20)[:, :12])[4:6] == [20, 12]
    assert fits(queries(6), x=torch.zeros(2, 3, 12), bytes=torch.zeros(4, 2, dtype=torch.bool))[4:6] == [12, 12]


@pytest.mark.parametrize(("start", "stride", "expected"), [(0, 20, 1), (1, 20, 0), (0, 18, 0)])
def test_vectors_need_every_row_at_a_multiple(fits, start, stride, expected):
    x = torch.zeros(80)[start:].as_strided((3, 12), (stride, 1))
    assert fits(queries(), x=x)[-1] == expected


WRONG = {
    "element": (TypeError, "q must have dtype bfloat16, got float16", {"q": queries(dtype=torch.float16)}),
    "rank": (ValueError, r"q must have shape \(tokens, heads, 8\) = \(\*, \*, 8\), got \(3, 8\)",
             {"q": queries()[:, 0]}),
    "number": (ValueError, r"q must have shape \(tokens, heads, 8\) = \(3, 2, 8\), got \(3, 2, 4\)",
               {"q": queries()[..., :4]}),
    "size": (ValueError, r"bias must have shape \(heads, at least 2\) = \(2, at least 2\), got \(3, 2\)",
             {"bias": torch.zeros(3, 2)}),
    "least": (ValueError, r"bias must have shape .*, got \(2, 1\)", {"bias": torch.zeros(2, 1)}),
    "limit": (ValueError, "q must have less than 1000 tokens, got 1000", {"q": queries(1000)}),
    "last dimension": (ValueError, r"q must be contiguous in its last dimension, got \(3, 2, 8\)",
                       {"q": queries(dim=16)[..., ::2]}),
    "dense": (ValueError, "bytes must be contiguous, got", {"bytes": torch.zeros(4, 3, dtype=torch.int8)[:, :2]}),
    "bits": (TypeError, "bytes must have dtype of 8 bits, got float16",
             {"bytes": torch.zeros(4, 2, dtype=torch.float16)}),
    "rows": (ValueError, r"x must have rows \(tokens, length\) = \(3, \*\), got \(2, 2, 12\)",
             {"x": torch.zeros(2, 2, 12)}),
    "uneven rows": (ValueError, "x must have contiguous, evenly spaced rows, got",
                    {"x": torch.zeros(3, 4, 12)[:, :2], "q": queries(6)}),
    "scalar": (ValueError, r"x must have at least 1 dimension, got \(\)", {"x": torch.zeros(())}),
    "elements": (ValueError, r"scale must have \(1\) elements, contiguous, got \(2\)", {"scale": torch.zeros(2)}),
    "types": (TypeError, "ids must have dtype int32 or int64, got int16", {"ids": torch.zeros(3, dtype=torch.int16)}),
    "module": (ValueError, "fits: this module was built for other heads", {"heads": 3}),
    "no shape": (ValueError, "fits: unlucky", {"q": queries(13)}),
    "named": (ValueError, "fits: heads must not be 13", {"q": queries(heads=13), "heads": 13}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_is_said_in_the_words_of_the_call(fits, wrong):
    error, message, arguments = WRONG[wrong]
    with pytest.raises(error, match=f"fits: {message.removeprefix('fits: ')}"):
        fits(**{"q": queries()} | arguments)

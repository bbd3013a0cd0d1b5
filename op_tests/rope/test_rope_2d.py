# SPDX-License-Identifier: MIT
"""rope_2d: each backend against float64, forward and backward, in place, strided; bad input."""

import pytest
import torch
from rope_cases import check_rope

import aiter_like
from aiter_like.testing import strided_like

BACKENDS = ("hip", "triton", "torch")
SIZES = ((3, 5, 64, 32), (4, 1, 40, 8), (1, 6, 12, 6))  # height, width, head_dim, rotated elements of half a head


def make(device: torch.device, height: int, width: int, head_dim: int, table_width: int, spare: int = 2):
    """Patches [2, height · width, 3, head_dim]; tables of the rows and of the columns, longer than needed."""
    generator = torch.Generator().manual_seed(head_dim)
    x = torch.randn(2, height * width, 3, head_dim, generator=generator).to(device, torch.bfloat16)
    found = []
    for size in (height, width):
        angles = torch.rand(size + spare, table_width, generator=generator) * 9
        found += [function(angles).bfloat16() for function in (torch.cos, torch.sin)]
    return x, [table[None, :, None].to(device) for table in found], [table.double() for table in found]


def check_image(out, x, exact, height, width, *flags) -> None:
    patch = torch.arange(height * width)
    for half, rows in ((0, patch // width), (1, patch % width)):
        cos, sin = (table[rows] for table in exact[2 * half:2 * half + 2])
        check_rope(out.chunk(2, -1)[half], x.chunk(2, -1)[half], cos, sin, *flags)


@pytest.mark.parametrize("flags", ((0, True, False), (1, True, True), (0, False, True), (1, False, False)), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_float64(device, run, backend, flags):
    for height, width, head_dim, rotary in SIZES[:1] if backend == "triton" else SIZES:
        x, found, exact = make(device, height, width, head_dim, rotary // 2 if flags[1] else rotary)
        args = (*found, height, width, *flags)
        out = run(backend, aiter_like.rope_2d_fwd, x, *args)
        check_image(out, x, exact, height, width, *flags)
        check_image(run(backend, aiter_like.rope_2d_bwd, x, *args), x, exact, height, width, *flags, True)
        odd = strided_like(x, (1, 0, 2, 3), offset=1)
        assert torch.equal(run(backend, aiter_like.rope_2d_fwd, odd, *args), out)
        assert torch.equal(run(backend, aiter_like.rope_2d_fwd_inplace, x, *args), out) and torch.equal(x, out)


def test_empty(device):
    x, found, _ = make(device, 2, 2, 16, 4)
    assert aiter_like.rope_2d_fwd(x[:0], *found, 2, 2, 0, True, False).shape == (0, 4, 3, 16)
    assert aiter_like.rope_2d_fwd(x[:, :0], *found, 0, 2, 0, True, False).shape == (2, 0, 3, 16)


def test_bad_arguments_are_named(device):
    x, found, _ = make(device, 2, 3, 16, 4, spare=0)
    flags = (0, True, False)
    cos_h, sin_h, cos_w, sin_w = found
    for message, error, args in (
            (r"input must have shape \(\*, 8, \*, \*\), got \(2, 6,", ValueError, (x, *found, 2, 4, *flags)),
            ("img_height must be between 0", ValueError, (x, *found, -2, 3, *flags)),
            ("cos_h must have at least 2 rows", ValueError,
             (x, cos_h[:, :1], sin_h[:, :1], cos_w, sin_w, 2, 3, *flags)),
            ("cos_w must have at least 3 rows", ValueError, (x, cos_h, sin_h, cos_h, sin_h, 2, 3, *flags)),
            ("sin_w must have shape", ValueError, (x, cos_h, sin_h, cos_w, sin_h, 2, 3, *flags)),
            ("cos_w must have rows of 4 like cos_h", ValueError,
             (x, cos_h, sin_h, cos_w[..., :2], sin_w[..., :2], 2, 3, *flags)),
            ("cos_h must turn an even number of elements, at most 8, got 16", ValueError,
             (x, *(table.repeat(1, 1, 1, 2) for table in found), 2, 3, *flags)),
            ("input must have an even head dimension", ValueError, (x[..., :15], *found, 2, 3, *flags))):
        with pytest.raises(error, match=message):
            aiter_like.rope_2d_fwd(*args)

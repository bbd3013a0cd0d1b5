# SPDX-License-Identifier: MIT
"""dtypes: the fp8 of an architecture, and AITER's names."""

import pytest
import torch

from aiter_like import device, dtypes


@pytest.mark.parametrize(("arch", "expected"), [("gfx942", torch.float8_e4m3fnuz), ("gfx950", torch.float8_e4m3fn),
                                                ("sm_90", torch.float8_e4m3fn)])
def test_fp8_is_that_of_the_device(monkeypatch, arch, expected):
    monkeypatch.setattr(device, "default_target", lambda: device.Target("hip", arch, 1, 64))
    assert dtypes.fp8_of(arch) == dtypes.fp8 == dtypes.d_dtypes["fp8"] == expected


def test_dictionary_of_names_is_aiters():
    assert list(dtypes.d_dtypes) == ["fp8", "fp8_e8m0", "fp16", "bf16", "fp32", "i4x2", "fp4x2", "u32", "i32", "i16",
                                     "i8", "u8", "i64", "u64"]  # the position is AITER's id
    assert all(isinstance(dtype, torch.dtype) for dtype in dtypes.d_dtypes.values())
    assert (dtypes.d_dtypes["bf16"], dtypes.i8, dtypes.u32) == (torch.bfloat16, torch.int8, torch.uint32)


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'fp9'"):
        _ = dtypes.fp9

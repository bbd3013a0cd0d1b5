# SPDX-License-Identifier: MIT
"""4-bit numbers packed into bytes and back: every backend against integers; bad input."""

import benching
import pytest
import torch
from quant_cases import BACKENDS

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.testing import strided_like

PACK, UNPACK = aiter_like.pack_int4, aiter_like.unpack_int4


def numbers(device: torch.device, *shape: int, low: int = -8, high: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(low, high, shape, generator=generator, dtype=torch.int8).to(device)


def packed_integers(x: torch.Tensor) -> torch.Tensor:
    """By division with remainder, in 64 bits."""
    low, high = x.cpu().long().remainder(16).unflatten(-1, (-1, 2)).unbind(-1)
    byte = high * 16 + low
    return torch.where(byte < 128, byte, byte - 256).to(torch.int8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_low_half_is_first(device, run, backend):
    x = torch.tensor([[-8, 7, 0, -1], [3, -4, 1, 2]], dtype=torch.int8, device=device)
    packed = run(backend, PACK, x)
    assert packed.view(torch.uint8).tolist() == [[0x78, 0xF0], [0xC3, 0x21]]
    assert torch.equal(run(backend, UNPACK, packed), x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_byte(device, run, backend):
    """All 65536 pairs of bytes: upper bits are lost; every packed byte unpacks to numbers from -8 to 7."""
    x = torch.cartesian_prod(*[torch.arange(-128, 128).to(torch.int8)] * 2).view(256, 512).to(device)
    packed = run(backend, PACK, x)
    assert torch.equal(packed.cpu(), packed_integers(x))
    back = run(backend, UNPACK, packed)
    assert torch.equal(back.cpu().long(), (x.cpu().long() + 8) % 16 - 8)
    assert torch.equal(run(backend, PACK, back), packed)


@pytest.mark.parametrize("backend", BACKENDS)
def test_shapes_and_strides(device, run, backend):
    for shape in ((2,), (5, 6), (3, 7, 64), (70, 1056)):
        x = numbers(device, *shape)
        packed = run(backend, PACK, x)
        assert packed.shape == (*shape[:-1], shape[-1] // 2) and torch.equal(packed.cpu(), packed_integers(x))
        assert torch.equal(run(backend, UNPACK, packed), x)
    x = numbers(device, 6, 64)
    expected = PACK(x, backend="torch")
    for view in (strided_like(x, (0, 16)), strided_like(x, (0, 3), offset=1), x[::2], x.view(2, 3, 64)):
        result = run(backend, PACK, view)
        assert torch.equal(result.cpu(), packed_integers(view)) and result.is_contiguous()
    for view in (strided_like(expected, (0, 8)), strided_like(expected, (0, 1), offset=3)):
        assert torch.equal(run(backend, UNPACK, view), x)


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_many_shapes(device, run, backend):
    for rows in (1, 2, 33, 1000):
        for columns in range(2, 300, 2):
            x = numbers(device, rows, columns)
            packed = run(backend, PACK, x)
            assert torch.equal(packed.cpu(), packed_integers(x)) and torch.equal(run(backend, UNPACK, packed), x)


def test_empty(device):
    assert PACK(torch.empty(0, 4, dtype=torch.int8, device=device)).shape == (0, 2)
    assert UNPACK(torch.empty(3, 0, dtype=torch.int8, device=device)).shape == (3, 0)


def test_other_strides_are_for_torch_alone(device):
    x = numbers(device, 6, 64)
    turned = x.t().contiguous().t()
    assert torch.equal(PACK(turned, backend="torch").cpu(), packed_integers(x))
    for backend in ("hip", "triton"):
        with pytest.raises(UnsupportedError, match="input must be contiguous in its last dimension, got stride 6"):
            PACK(turned, backend=backend)


def test_bad_input_is_named(device):
    x = numbers(device, 3, 4)
    for message, kind, function, args in (
            ("x must have an even last dimension", ValueError, PACK, (x[:, :3],)),
            ("x must have dtype torch.int8", TypeError, PACK, (x.int(),)),
            ("x must have dtype torch.int8", TypeError, UNPACK, (x.view(torch.uint8),)),
            ("x must have at least 1 dimension", ValueError, PACK, (x[0, 0],)),
            ("x must have at least 1 dimension", ValueError, UNPACK, (x[0, 0],))):
        with pytest.raises(kind, match=message):
            function(*args)


def bench() -> None:
    benching.of("pack_int4", "rows columns is_unpacking", (
        (*shape, is_unpacking) for shape in ((16384, 8192), (4096, 14336), (64, 8192)) for is_unpacking in (0, 1)))

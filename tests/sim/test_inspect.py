# SPDX-License-Identifier: MIT
"""What is said of a damaged code object, by the simulator and by the reader that needs none: an error that says what is
wrong, on one line, in no time and little memory."""

import random
import struct

import pytest
from damage import damaged, places

from aiter_like import sim
from aiter_like.errors import SimulatorError
from aiter_like.modules import code_object
from aiter_like.modules.build import load_or_build
from aiter_like.ops.norm.rms_norm import _rms_norm_asm

READERS = {"inspect": (sim.inspect, SimulatorError, "code object: "), "kernels": (code_object.kernels, ValueError, "")}
KERNELS = ("rms_norm_bf16_h4096", "rms_norm_bf16_h8192")


@pytest.fixture(scope="module")
def image() -> bytes:
    """A code object with two kernels and one note."""
    return load_or_build(_rms_norm_asm.instance_spec(_rms_norm_asm.instances()[0], "hip", "gfx942")).read_bytes()


@pytest.fixture(scope="module", params=READERS)
def reader(request):
    """read(image): the kernels, or the text of the error."""
    function, kind, prefix = READERS[request.param]

    def read(data: bytes) -> dict | str:
        try:
            return function(data)
        except kind as error:
            text = str(error)
            assert type(error) is kind, "an exception of something inside, not of the reader"
            assert text.startswith(prefix) and text.isprintable() and 20 < len(text) < 400, text
            return text

    return read


def note_damaged(image: bytes, rng: random.Random) -> bytes:
    """A copy with damage in its note: bits, lengths that lie, endless nesting, noise; or cut short."""
    out = bytearray(image)
    start, size = places(image)["notes"][0]
    at = start + rng.randrange(size)
    match rng.randrange(5):
        case 0:
            for _ in range(rng.choice((1, 1, 2, 8))):
                out[start + rng.randrange(size)] ^= 1 << rng.randrange(8)
        case 1:
            out[at:at + 5] = rng.choice((b"\xdb", b"\xdd", b"\xdf", b"\xc6")) + b"\xff" * 4
        case 2:
            stretch = min(64, start + size - at)
            out[at:at + stretch] = rng.choice((b"\x91", b"\x81", b"\xff", b"\xc1", b"\0")) * stretch
        case 3:
            out[at:start + size] = rng.randbytes(start + size - at)
        case _:
            del out[rng.randrange(len(out)):]
    return bytes(out)


def test_an_undamaged_one(image):
    assert tuple(sim.inspect(image)) == tuple(code_object.kernels(image)) == KERNELS


@pytest.mark.parametrize("damage", [note_damaged, damaged])
def test_damage_is_named(image, reader, damage):
    refused = sum(isinstance(reader(damage(image, random.Random(seed))), str) for seed in range(300))
    assert refused > 75


@pytest.mark.parametrize("name", [b"\xff" * 8, b"\xf7orm_bf1", b"rms\nnorm", b"rms_\x1b[2J"])
def test_names_that_are_no_text(image, reader, name):
    """Of a descriptor, which the error quotes, and of all: bytes that only are no UTF-8 can be shown."""
    start, size = places(image)["notes"][0]
    other = b"rms_norm_bf16_h4096.kd", name + b"_bf16_h4096.kd"
    found = reader(image[:start] + image[start:start + size].replace(*other) + image[start + size:])
    assert isinstance(found, str) or set(found) == set(KERNELS)
    found = reader(image.replace(b"rms_norm_bf16_h4096", name + b"_bf16_h4096"))
    assert isinstance(found, str) or any("\ufffd" in kernel for kernel in found)


@pytest.mark.parametrize("key", [b"amdhsa.kernels", b".name", b".max_flat_workgroup_size", b".kernarg_segment_size",
                                 b".value_kind"])
def test_a_key_that_is_gone_is_no_default(image, reader, key):
    text = reader(image.replace(key, key[:-1] + b"?"))
    assert isinstance(text, str) and (key.decode() in text or "name" in text)


@pytest.mark.parametrize("key", [b".vgpr_count", b".sgpr_count"])
def test_counts_that_are_gone(image, key):
    with pytest.raises(SimulatorError, match=f"kernel rms_norm_bf16_h4096: {key.decode()} is missing or damaged"):
        sim.inspect(image.replace(key, key[:-1] + b"?"))


def test_notes_that_are_read_again_and_again(image, reader):
    """65,535 headers of one segment with all of the file as notes: to read them all would take minutes."""
    table, count = struct.unpack_from("<Q", image, 32)[0], struct.unpack_from("<H", image, 56)[0]
    segments = [image[table + 56 * k:table + 56 * k + 56] for k in range(count)]
    load = [segment for segment in segments if segment[:4] == struct.pack("<I", 1)]
    padding = struct.pack("<3I", 4, 2**14, 7) + b"XYZ\0" + bytes(2**14)       # notes that say nothing
    start = len(image) + 56 * 65_535
    note = struct.pack("<IIQQQQQQ", 4, 4, start, 0, 0, 8 * len(padding), 8 * len(padding), 4)
    out = bytearray(image)
    struct.pack_into("<Q", out, 32, len(image))
    struct.pack_into("<H", out, 56, 65_535)
    text = reader(bytes(out) + b"".join(load).ljust(56 * len(load)) + note * (65_535 - len(load)) + 8 * padding)
    assert "more notes than bytes" in text


def test_what_is_no_file(image):
    for value in (None, "text", bytearray(image)):
        with pytest.raises(TypeError, match="sim.inspect: code_object must be the bytes of a file, got "):
            sim.inspect(value)
    with pytest.raises(SimulatorError, match="the code object is empty"):
        sim.inspect(b"")

# SPDX-License-Identifier: MIT
"""`aiter-like sim run` of damaged descriptions, files and code objects: it runs, or one line says what is wrong."""

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from asm import assemble
from damage import damaged
from negate import ARGUMENTS, BUFFERS, NEGATE

from aiter_like import cli, sim

SEEDS = 250
VALUES = (None, True, False, "", "x", "x" * 5000, "\0", "\ud800", "a\nb", "../x", ".", [], {}, [[]], [None], -1, 0, 1,
          2**40, 2**63, 2**64, 10**40, 0.5, -0.0, 1e308, float("nan"), float("inf"), -float("inf"), [10**12], [1] * 100,
          [2**62, 4], [-1], [0], [1.5], {"file": "weight.npy"}, {"buffer": None}, {"type": "u64", "value": 2**64},
          "zeros", "random", "fp8_e4m3fn", "bool", "data", "more")
FILES = ("missing.npy", "folder", "loop", "empty.npy", "text.npy", "bundle.npz", "/dev/zero", "fifo", "y" * 300,
         "objects.npy", "big_endian.npy", "nothing.npy", "spec.json", "weight.npy/x", "weight.npy")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A valid code object, a valid .npy file, and files of every wrong kind."""
    (tmp_path / "negate.co").write_bytes(assemble(NEGATE))
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty.npy").touch()
    (tmp_path / "text.npy").write_text("no array")
    os.mkfifo(tmp_path / "fifo")
    np.savez(tmp_path / "bundle.npz", np.zeros(3))
    np.save(tmp_path / "objects.npy", np.array([{}, None]), allow_pickle=True)
    np.save(tmp_path / "big_endian.npy", np.zeros(64, ">i4"))
    np.save(tmp_path / "nothing.npy", np.zeros((0, 3)))
    np.save(tmp_path / "weight.npy", np.zeros(65, np.int32))
    return tmp_path


def nodes(value, path=()):
    """The paths of all values in a description."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from nodes(child, (*path, key))


def replaced(spec, rng: random.Random):
    """A copy with a value exchanged, a key renamed, or an entry gone."""
    spec = json.loads(json.dumps(spec))
    *path, last = rng.choice([path for path in nodes(spec) if path])
    place = spec
    for key in path:
        place = place[key]
    match rng.randrange(4):
        case 0:
            del place[last]
        case 1 if isinstance(place, dict):
            place[rng.choice(("", "x" * 300, "a\nb", "\ud800", "../x", "value", "offset"))] = place.pop(last)
        case _:
            place[last] = rng.choice(VALUES)
    return spec


def text_of(rng: random.Random) -> bytes:
    """A description with one to three things wrong with it."""
    spec = {"buffers": {**BUFFERS, "file": {"file": rng.choice((*FILES, *FILES[-1:] * 15))}}, "arguments": ARGUMENTS}
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        spec = replaced(spec, rng)
    text = bytearray(json.dumps(spec).encode())
    at = rng.randrange(len(text))
    match rng.randrange(12):
        case 0:
            del text[at:]
        case 1:
            text[at] ^= 1 << rng.randrange(8)
        case 2:
            text[at:at] = rng.choice((b"[", b'{"a":')) * 50_000
        case 3:
            text[at:at] = rng.choice((b"\xff", b"\0", b"9" * 6000, b"\xef\xbb\xbf"))
    return bytes(text)


def outcome(folder: Path, capsys, file: str = "negate.co") -> str:
    """The command's one line, or "" where it ran; anything else is an error."""
    words = ["sim", "run", str(folder / file), "--kernel", "negate", "--grid", "2", "--block", "64", "--check",
             "--args", str(folder / "spec.json"), "--output", str(folder / "outputs")]
    status = cli.main(words)  # raises: the traceback that a user would see
    out, err = capsys.readouterr()
    assert status in (0, 1), err
    if status == 0 or ("[sim:" in out and not err):
        return ""
    assert err.startswith("aiter-like sim: ") and (err.count("\n") == 1 or "kernel negate wg" in err), err
    assert len(err) < 2000, err
    return err


def test_damaged_descriptions(folder, capsys):
    ran, said = 0, set()
    for seed in range(SEEDS):
        (folder / "spec.json").write_bytes(text_of(random.Random(seed)))
        error = outcome(folder, capsys)
        ran += not error
        said.add(error.partition("spec.json: ")[2][:24])
    assert ran > 10 and len(said) > 25  # most damage is seen, and told apart


def test_damaged_arrays(folder, capsys):
    spec = {"buffers": {**BUFFERS, "more": {"file": "damaged.npy", "output": True}}, "arguments": ARGUMENTS}
    (folder / "spec.json").write_text(json.dumps(spec))
    good, refused = (folder / "weight.npy").read_bytes(), 0
    for seed in range(100):
        rng, data = random.Random(seed), bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(128)
            data[at:at + 1] = rng.choice((bytes([data[at] ^ 1 << rng.randrange(8)]), b"9", b"(", b"", b"\0", b"'",
                                          b"[" * 50))
        (folder / "damaged.npy").write_bytes(data[:rng.choice((len(data), len(data), rng.randrange(len(data))))])
        error = outcome(folder, capsys)
        assert not error or "damaged.npy" in error or "buffers.more" in error or "arguments[1]" in error
        refused += bool(error)
    assert refused > 50


def test_damaged_code_objects(folder, capsys):
    (folder / "spec.json").write_text(json.dumps({"buffers": BUFFERS, "arguments": ARGUMENTS}))
    good, refused = (folder / "negate.co").read_bytes(), 0
    for seed in range(80):
        (folder / "damaged.co").write_bytes(damaged(good, random.Random(seed)))
        with sim.enabled(False, instruction_limit=20_000):
            error = outcome(folder, capsys, "damaged.co")
        assert "code object" not in error.partition(": ")[2][:12], "the file is not named"
        refused += bool(error)
    assert refused > 25

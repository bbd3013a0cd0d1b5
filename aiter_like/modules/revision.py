# SPDX-License-Identifier: MIT
"""The revision of a kernel's text: a hash of what the device runs, found without a compiler. What a tuned row or a
verdict says of another revision no longer holds.

It is made of declarations: those of the kernel's source, and those that they name, wherever they stand and whatever
they are called (revision_cpp.py, revision_python.py). How a kernel is launched is dispatch/launched.py's.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path

Piece = tuple[str, Sequence[Sequence[Hashable]]]
"""A declaration: its text, in which a number stands for each name of another one; and in this order the keys of the
declarations that these names may mean."""


def files_hash(*files: Path) -> str:
    """12 hex digits of the content of files."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def short_hash(text: str) -> str:
    """8 hex digits: one part of a tuned row's revision."""
    return _hash(text).hex()[:8]


def of_pieces(roots: Iterable[Hashable], piece: Callable[[Hashable], Piece]) -> str:
    """The revision of declarations and of all that they name.

    Each is first known by its text, then by its text and what is known of those that it names, until this tells no
    more apart: then the set of what is known says how all of them hang together, and nothing of names, places or order.
    """
    pieces: dict[Hashable, Piece] = {}
    waiting = [*roots]
    while waiting:
        if (key := waiting.pop()) not in pieces:
            pieces[key] = piece(key)
            waiting += [named for meant in pieces[key][1] for named in meant]
    known = {key: _hash(text) for key, (text, _) in pieces.items()}
    kinds = 0
    while len(set(known.values())) > kinds:
        kinds = len(set(known.values()))
        joined: dict[Sequence[Hashable], bytes] = {}
        for _, names in pieces.values():
            for meant in names:
                if meant not in joined:
                    joined[meant] = b"".join(sorted({known[one] for one in meant})) + b"|"
        known = {key: _hash(text, *(joined[meant] for meant in names)) for key, (text, names) in pieces.items()}
    return short_hash(b"".join(sorted(set(known.values()))).hex())


def _hash(text: str, *more: bytes) -> bytes:
    return hashlib.blake2b(b"".join((text.encode(), b"\0", *more)), digest_size=16).digest()

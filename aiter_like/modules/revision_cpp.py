# SPDX-License-Identifier: MIT
"""The revision of a HIP or assembly source: of what its device pass compiles on one platform.

A source is cut into the declarations of its namespaces. All of the source itself count, and of the project's headers
those that they name. Conditions on the pass and on the platform are decided; others stay as text. What cannot be cut
with certainty counts as a whole: a kernel may be timed once more, but never goes by the time of another.
"""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from aiter_like import paths
from aiter_like.modules import revision
from aiter_like.modules.declarations import Cutter, Declared, Unclear

# A literal stays as it is, a comment goes.
_COMMENT = re.compile(r'R"\(.*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TOKEN = re.compile(r'R"\(.*?\)"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])*\'|[A-Za-z_]\w*'
                    r"|\.?[0-9](?:[eEpP][+-]|'?[\w.])*|::|->|[<>=!]=|\+\+|--|\n|\S", re.DOTALL)
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w*)[ \t]*(.*)")
_TERM = re.compile(r"(!?)[ \t]*(AITER_LIKE_HOST_PASS|defined[ \t]*\([ \t]*(\w+)[ \t]*\))")
_MACRO = re.compile(r"[A-Z][A-Z0-9_]*")
_OF_TYPE = re.compile(r"\w|>")
_OF_SOMETHING = (".", "->", "::")
_ANY = "any name"  # A macro of the command line stands for any, after the name of a namespace.
_PLATFORM_OF = {"__HIP__": "hip", "__HIP_DEVICE_COMPILE__": "hip", "__CUDACC__": "cuda", "__CUDA_ARCH__": "cuda"}


class File(NamedTuple):
    """A file as one platform's device pass reads it: declarations, namespaces, names of included files."""

    declared: tuple[Declared, ...]
    namespaces: frozenset[str]
    includes: tuple[str, ...]


def text_revision(source: Path, platform: str) -> str:
    """8 hex digits: what the device runs of a .hip source on "hip" or "cuda"."""
    files = _with_headers(source, platform)
    by_name: dict[str, tuple] = {}
    places: dict[str, int | str] = {}  # index among the names of its declaration, but for the first
    namespaces: set[str] = set()
    roots = []
    for path, file in files.items():
        namespaces |= file.namespaces
        for index, declared in enumerate(file.declared):
            if path == source or not declared.names or declared.is_emitted or f"launch_{source.stem}" in declared.names:
                roots.append((path, index))
            for place, name in enumerate(declared.names):
                places[name] = place or places.get(name, "")
                by_name[name] = (*by_name.get(name, ()), (path, index))
    by_name[_ANY] = tuple((path, index) for path, file in files.items() for index, _ in enumerate(file.declared))

    def piece(key: tuple[Path, int]) -> revision.Piece:
        words, numbers, before, scope = [], {}, "", ""
        for token in files[key[0]].declared[key[1]].tokens:
            is_free = before not in _OF_SOMETHING or (before == "::" and _is_outside(scope, namespaces))
            name = _ANY if before == "::" and token not in by_name and _MACRO.fullmatch(token) else token
            is_name = is_free and name in by_name
            words.append(f"{numbers.setdefault(name, len(numbers))}\1{places.get(name, '')}" if is_name else token)
            scope, before = before, token
        return " ".join(words), [by_name[name] for name in numbers]

    return revision.of_pieces(roots, piece)


def assembly_revision(source: Path, facts: str) -> str:
    """8 hex digits: what a .s source says with all that it includes, and what a manifest says of its kernels."""
    texts, waiting = {}, [source]
    while waiting:
        if (path := waiting.pop()) not in texts:
            texts[path] = "\n".join(" ".join(line.split()) for line in _lines(path.read_text(encoding="utf-8")))
            waiting += [found for match in map(_DIRECTIVE.fullmatch, texts[path].splitlines())
                        if match and match[1] == "include" and (found := _found(path, match[2]))]
    return revision.short_hash("\n".join((*sorted(texts.values()), facts)))


def _is_outside(scope: str, namespaces: set[str]) -> bool:
    """Whether what stands before :: is a namespace, or nothing: what belongs to a type is text of its declaration."""
    return scope in namespaces or scope == "return" or not _OF_TYPE.match(scope)


def _with_headers(source: Path, platform: str) -> dict[Path, File]:
    """A source and all files of the project that it includes."""
    found, waiting = {}, [source]
    while waiting:
        if (path := waiting.pop()) not in found:
            found[path] = _cut(path.read_text(encoding="utf-8"), platform)
            waiting += [other for name in found[path].includes if (other := _found(path, name))]
    return found


def _found(path: Path, name: str) -> Path | None:
    """A file that a source includes, beside it or below csrc/include; others are not the project's."""
    if name[:1] != '"':
        return None
    places = (path.parent / name.strip('"'), paths.csrc() / "include" / name.strip('"'), paths.csrc() / name.strip('"'))
    return next((place.resolve() for place in places if place.is_file()), None)


# ---- the preprocessor


def _lines(text: str) -> list[str]:
    """The lines that say something, without comments."""
    said = _COMMENT.sub(lambda match: match[0] if match[0][0] in "R\"'" else " ", text.replace("\\\n", " "))
    return [line for line in said.splitlines() if line.strip()]


def _compiled(platform: str, lines: list[str]) -> Iterator[str]:
    """The lines without those that a condition on platform or pass excludes, and without such conditions."""
    chains: list[list[bool]] = []  # an open condition has: its branch may count, one surely does, all are decided
    for line in lines:
        match = _DIRECTIVE.match(line)
        kind = match[1] if match else ""
        is_branch = kind in ("elif", "else", "endif")
        outside = all(chain[0] for chain in (chains[:-1] if is_branch else chains))
        if not is_branch and not kind.startswith("if"):
            if outside:
                yield line
            continue
        if kind == "endif":
            if outside and not chains[-1][2]:
                yield line
            chains.pop()
            continue
        holds = True if kind == "else" else _holds(platform, match[2]) if kind in ("if", "elif") else None
        if kind.startswith("if"):
            chains.append([False, False, True])
        chain = chains[-1]
        chain[0] = outside and not chain[1] and holds is not False
        chain[1] = chain[1] or holds is True
        chain[2] = chain[2] and holds is not None
        if chain[0] and not chain[2]:
            yield line


def _holds(platform: str, condition: str) -> bool | None:
    """Whether a condition holds in the device pass of a platform; None where it asks for more than these two."""
    if "&&" in condition and "||" in condition:
        return None
    separator, decisive = ("||", True) if "||" in condition else ("&&", False)
    known = []
    for term in condition.split(separator):
        match = _TERM.fullmatch(term.strip())
        is_decided = match is not None and (match[3] is None or match[3] in _PLATFORM_OF)
        known.append((match[3] is not None and _PLATFORM_OF[match[3]] == platform) != (match[1] == "!")
                     if is_decided else None)
    return decisive if decisive in known else None if None in known else not decisive


@functools.lru_cache(maxsize=512)
def _cut(text: str, platform: str) -> File:
    lines = [*_compiled(platform, _lines(text))]
    tokens = []
    for line in lines:
        tokens += [*_TOKEN.findall(line), "\n"] if _DIRECTIVE.match(line) else _TOKEN.findall(line)
    includes = tuple(match[2].strip() for match in map(_DIRECTIVE.match, lines) if match and match[1] == "include")
    try:
        return File(*Cutter(tokens).all(), includes)
    except (Unclear, IndexError):
        return File((Declared((), tuple(tokens)),), frozenset(), includes)

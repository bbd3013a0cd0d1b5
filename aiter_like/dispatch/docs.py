# SPDX-License-Identifier: MIT
"""The docstring of a public function as `help` shows it: what its file says, and what all of them promise.

A file says what differs. `Like `name`` before a docstring's sections takes over what another function says, parameter
by parameter and section by section, but for the source, which is AITER's function of the same name where a docstring
names none; what all operators have in common stands here alone.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable

from aiter_like.dispatch.backend import KINDS
from aiter_like.dispatch.declaration import Declaration

SECTIONS = ("Args", "Returns", "Raises", "Notes", "Source")
_HEADING = re.compile(rf"^({'|'.join(SECTIONS)}):[ ]*(.*)$")
_ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): ")
_SIBLING = re.compile(r"\bLike\s+`(\w+)`")
_OUT = "tensor to write, of the result's shape and dtype; default: a new contiguous one."
_RAISES = {
    "TypeError": "an argument is of another kind or dtype.",
    "ValueError": "shapes, devices, layout or numbers do not fit.",
    "UnsupportedError": "no backend serves the call, or not the one asked for; the message has the reason of each.",
    "BuildError": "the kernel of the backend asked for does not compile."}
_OF_BACKENDS = ("UnsupportedError", "BuildError")
_CHECKED = "All arguments are checked before anything is written."
_NOTES = {"empty": "An empty call gives an empty result.", "captured": "Can be captured in a graph."}
"""Word → what is said of it where tensors are made or written, unless the file has it."""


def completed(name: str, function: Callable) -> str:
    """The whole docstring of a function of an operator's file, which is public as `name`."""
    head, sections = _parts(name, function)
    signature = inspect.signature(function)
    args = {each: sections["Args"].get(each, f"{each}: {_default(each, function)}") for each in signature.parameters}
    raises = {error: f"{error}: {text}" for error, text in _RAISES.items()
              if "backend" in signature.parameters or error not in _OF_BACKENDS}
    for error, text in sections["Raises"].items():
        raises[error] = f"{raises[error]}\n    Also: {text.partition(': ')[2]}" if error in raises else text
    result, said = _result(function), " ".join(sections["Notes"].values()).lower()
    returns = sections["Returns"] or {"": "`out`." if result else "Nothing."}
    notes = [*sections["Notes"].values(), _CHECKED]
    if not result or "Tensor" in result:
        notes += [note for word, note in _NOTES.items() if word not in said]
    text = {"Args": dict.fromkeys(args.values()), "Returns": returns.values(), "Raises": raises.values(),
            "Notes": notes}
    blocks = [head, *(f"{title}:\n" + "\n".join(_indented(line) for line in lines) for title, lines in text.items())]
    source = sections["Source"].get("", f"AITER's `{name}`.")
    return "\n\n".join([*blocks, f"Source: {source}"])


def _parts(name: str, function: Callable) -> tuple[str, dict[str, dict[str, str]]]:
    """Cuts a docstring into what stands before its sections, and these: title → entry → text, "" without entries.
    Those of the function that it refers to come in where it has none itself."""
    lines = inspect.cleandoc(function.__doc__ or "").splitlines()
    sections: dict[str, dict[str, str]] = {title: {} for title in SECTIONS}
    head, title = [], ""
    for line in lines:
        if heading := _HEADING.match(line):
            title = heading[1]
            if heading[2]:
                sections[title][""] = heading[2]
        elif not title:
            head.append(line)
        elif line.strip():
            _add(sections[title], line, title in ("Args", "Raises"))
    said = "\n".join(head).strip()
    if sibling := _SIBLING.search(said):
        other = _of_name(sibling[1])
        _, theirs = _parts(sibling[1], other)
        if _result(function) != _result(other):
            theirs["Returns"] = {}
        theirs["Source"] = {}
        for title, entries in theirs.items():
            sections[title] = {**entries, **sections[title]} if title == "Args" else sections[title] or entries
    return said, sections


def _result(function: Callable) -> str:
    """The annotation of a function's result; "" where it has none."""
    found = inspect.signature(function).return_annotation
    return "" if found in (None, "None") else str(found)


def _add(section: dict[str, str], line: str, has_entries: bool) -> None:
    """Puts a line of a section where it belongs: it begins an entry, or goes on with the last one."""
    entry = _ENTRY.match(line) if has_entries else None
    if entry:
        section.update(dict.fromkeys(entry[1].split(", "), line.strip()))
    else:
        last = next(reversed(section.values()), None)
        text = line.strip() if last is None else f"{last}\n{line[4:]}"
        section.update({name: text for name, said in section.items() if said is last} or {"": text})


def _of_name(name: str) -> Callable:
    # No file of the package imports what serves its names
    return inspect.unwrap(getattr(sys.modules["aiter_like"], name))


def _default(parameter: str, function: Callable) -> str:
    if parameter == "out":
        return _OUT
    return f"{backends(function)} instead of the automatic choice." if parameter == "backend" else "not described."


def backends(function: Callable) -> str:
    """The backends of the operators that a function's module has, as a list in words."""
    found = {backend.name for value in vars(sys.modules[function.__module__]).values()
             if isinstance(value, Declaration) for backend in value.backends}
    names = [f'"{kind}"' for kind in KINDS if kind in found]
    return f"{', '.join(names[:-1])} or {names[-1]}" if names else "one that every operator inside has,"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())

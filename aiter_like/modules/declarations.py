# SPDX-License-Identifier: MIT
"""Cuts C++ into the declarations of its namespaces, as far as revision_cpp.py needs it. What is not cut with certainty
is Unclear.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

NAME = re.compile(r"[A-Za-z_]\w*")
_END = ""
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_NOT_CALLED = {"__attribute__", "__launch_bounds__", "alignas", "asm", "decltype", "explicit", "noexcept", "requires",
               "sizeof"}
_NO_FUNCTION = {"#", "class", "enum", "namespace", "struct", "union", "using"}
_ON_DEMAND = {"=", "template", "inline", "constexpr", "consteval", "static", "__forceinline__"}
_NOTHING_TO_RUN = {"static_assert", "include", "error", "undef"}


class Unclear(Exception):
    """A source that cannot be cut into declarations."""


class Declared(NamedTuple):
    """One declaration; one without names counts wherever its file is included."""

    names: tuple[str, ...]
    tokens: tuple[str, ...]

    @property
    def is_emitted(self) -> bool:
        """Whether it is a function or a kernel that is compiled whoever names it."""
        tokens = self.tokens
        head = tokens[:tokens.index("{")] if "{" in tokens else ()
        return "(" in head and tokens[0] not in _NO_FUNCTION and not _ON_DEMAND.intersection(head)


class Cutter:
    """Cuts the tokens of a file into declarations. A line of the preprocessor begins with # and ends with a newline."""

    def __init__(self, tokens: list[str]):
        self.tokens, self.place = [*tokens, _END], 0
        self.declared: list[Declared] = []
        self.namespaces: set[str] = set()
        self.conditions: list[list[str]] = []

    def all(self) -> tuple[tuple[Declared, ...], frozenset[str]]:
        depth = 0
        while self.tokens[self.place] != _END:
            token = self.tokens[self.place]
            if token == "#":
                self._directive()
            elif token == "}":
                depth, self.place = depth - 1, self.place + 1
            elif token == ";":
                self.place += 1
            elif opened := self._opened_scope():
                depth, self.place = depth + 1, opened
            else:
                self._declaration()
            if depth < 0:
                raise Unclear
        if depth or self.conditions:
            raise Unclear
        return tuple(self.declared), frozenset(self.namespaces)

    def _add(self, names: Sequence[str], tokens: Sequence[str]) -> None:
        condition = [token for each in self.conditions for token in each]
        self.declared.append(Declared(tuple(dict.fromkeys(names)), (*condition, *tokens)))

    def _directive(self) -> None:
        end = self.tokens.index("\n", self.place) + 1
        line, self.place = self.tokens[self.place:end], end
        kind = line[1]
        if kind.startswith("if"):
            self.conditions.append(line)
        elif kind in ("elif", "else"):
            self.conditions[-1] = self.conditions[-1] + line
        elif kind == "endif":
            self.conditions.pop()
        elif kind == "define":
            self._add(line[2:3], line)
        elif (kind == "pragma" and line[2] != "once") or (kind == "include" and self.conditions):
            self._add((), line)
        elif kind not in ("pragma", *_NOTHING_TO_RUN):
            raise Unclear

    def _opened_scope(self) -> int:
        """Finds the place behind the brace of a namespace or extern "C" that begins here; 0: none begins."""
        end = self.place
        if self.tokens[end:end + 2] == ["extern", '"C"'] and self.tokens[end + 2] == "{":
            return end + 3
        end += self.tokens[end] == "inline"
        if self.tokens[end] != "namespace":
            return 0
        while self.tokens[end] not in ("{", "=", ";"):
            end += 1
        names = [token for token in self.tokens[self.place:end] if token not in ("inline", "namespace", "::")]
        self.namespaces.update(names)
        return end + 1 if self.tokens[end] == "{" else 0

    def _declaration(self) -> None:
        start = self.place
        head = self._after_templates(start)
        is_value = is_function = False
        end = head
        while (token := self.tokens[end]) != ";":
            if token == "}":
                raise Unclear
            if token == "#":
                end = self._after_condition(end)
                continue
            is_value = is_value or token == "="
            is_function = is_function or token == "("
            after = self._after_group(end) if token in "([{" else end + 1
            if token == "{" and self.tokens[after] != ";" and is_function and not is_value:
                end = after - 1
                break
            end = after
        self.place = end + 1
        first = self.tokens[head]
        if first in _NOTHING_TO_RUN or self.tokens[head:head + 2] == ["using", "namespace"]:
            return
        self._add([] if "operator" in self.tokens[head:self._head_end(head)] else self._names(head, end),
                  self.tokens[start:self.place])

    def _after_group(self, place: int) -> int:
        """Behind the bracket that closes the one at `place`."""
        open_ones = []
        while True:
            token = self.tokens[place]
            if token == "#":
                place = self._after_condition(place)
                continue
            if token in ("(", "[", "{"):
                open_ones.append(_CLOSING[token])
            elif token in (")", "]", "}") and open_ones.pop() != token:
                raise Unclear
            place += 1
            if not open_ones:
                return place

    def _after_condition(self, place: int) -> int:
        """Behind a line of the preprocessor within a declaration: each branch of a condition must close what it opens,
        so that braces can be counted through all of them."""
        end = self.tokens.index("\n", place) + 1
        if self.tokens[place + 1] in ("define", "include"):
            raise Unclear
        if self.tokens[place + 1] in ("else", "elif", "endif", "pragma", "error"):
            return end
        depth, balance = 1, 0
        while depth:
            token = self.tokens[end]
            if token == "#":
                kind = self.tokens[end + 1]
                if kind in ("else", "elif", "endif") and balance:
                    raise Unclear
                depth += kind.startswith("if") - (kind == "endif")
                end = self.tokens.index("\n", end) + 1
                continue
            balance += (token in ("(", "[", "{")) - (token in (")", "]", "}"))
            if balance < 0:
                raise Unclear
            end += 1
        return end

    def _after_templates(self, place: int) -> int:
        while self.tokens[place] == "template" and self.tokens[place + 1] == "<":
            place = self._after_angle(place + 1)
        return place + (self.tokens[place] == "template")

    def _after_angle(self, place: int) -> int:
        depth = 0
        while True:
            token = self.tokens[place]
            if token in "([{":
                place = self._after_group(place)
                continue
            depth += (token == "<") - (token == ">")
            if token == ";":
                raise Unclear
            place += 1
            if depth == 0:
                return place

    # ---- names

    def _head_end(self, head: int) -> int:
        while self.tokens[head] not in ("{", "=", ";"):
            head += 1
        return head

    def _names(self, head: int, end: int) -> list[str]:
        """The names that a declaration gives; none where it gives none, or in a form that is not known here."""
        if not NAME.fullmatch(self.tokens[head]) and self.tokens[head] not in ("::", "["):
            raise Unclear
        if self.tokens[head] == "typedef":
            return []
        if self.tokens[head] == "using":
            names = [token for token in self.tokens[head + 1:self._head_end(head)] if NAME.fullmatch(token)]
            return names[:1] if "=" in self.tokens[head:end] else names[-1:]
        if self.tokens[head] in ("struct", "class", "union", "enum"):
            return self._type_names(head)
        return self._declarators(head, end)

    def _type_names(self, head: int) -> list[str]:
        is_enum, place = self.tokens[head] == "enum", head + 1
        is_scoped = is_enum and self.tokens[place] in ("class", "struct")
        place += is_scoped
        while (token := self.tokens[place]) == "[" or token in _NOT_CALLED:
            place = self._after_group(place + (token != "["))
        names = [token] if NAME.fullmatch(token) else []
        if names and self.tokens[place + 1] not in ("{", ":", ";", "<", "final"):
            raise Unclear  # it only begins with a type
        if is_enum and not is_scoped and (opening := self._head_end(head)) and self.tokens[opening] == "{":
            body = self.tokens[opening:self._after_group(opening)]
            names += [token for before, token in zip(body, body[1:]) if before in ("{", ",") and NAME.fullmatch(token)]
        return names

    def _declarators(self, head: int, end: int) -> list[str]:
        """Finds the names of a function, which stand before its parameters, or of variables, before their values; with
        those of the type that it is a member of."""
        names: list[str] = []
        last: list[str] = []
        is_value, place = False, head
        while place <= end:
            token = self.tokens[place]
            if token in _NOT_CALLED:
                place = self._after_group(place + 1) if self.tokens[place + 1] == "(" else place + 1
                continue
            if token == "template" and self.tokens[place - 1] != "::":
                raise Unclear
            if NAME.fullmatch(token) and not is_value:
                last = [*last, token] if self.tokens[place - 1] == "::" else [token]
            elif token == "<" and not is_value:
                place = self._after_angle(place)
                continue
            elif token == "(" and not is_value and not names:
                return last
            elif not is_value and (token in ("=", "{", ";", ",") or (token == "[" and last)):
                names, last, is_value = names + last, [], token != ","
            elif token == ",":
                is_value = False
            place = self._after_group(place) if token in ("(", "[", "{") else place + 1
        return names

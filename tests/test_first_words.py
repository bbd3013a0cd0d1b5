# SPDX-License-Identifier: MIT
"""Docstrings and comments begin with their verb or their subject: counts those that begin with Of, As, What and so on.

`python tests/test_first_words.py` prints each of them.
"""

import ast
import collections
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from test_repo_rules import files, text, tree

WORDS = {"of", "as", "what", "where", "by", "which"}
MOST, MOST_OF_FUNCTIONS = 170, 120
COMMENT = {".py": re.compile(r"(^ *|  )# "), ".s": re.compile(r"//|;"),
           **dict.fromkeys((".h", ".hip", ".cpp"), re.compile(r"(?<![:\"])//|^ */\*"))}


def first_word(comment: str) -> str:
    found = re.search(r"\w+", comment)
    return found[0].lower() if found else ""


def docstrings(name: str) -> Iterator[tuple[str, int, str]]:
    """Those of functions and classes, of the module, and of constants, which stand below them."""
    owners = {id(node.body[0]): node for node in ast.walk(tree(name))
              if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body}
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            owner = owners.get(id(node))
            kind = "other docstring" if owner is None or isinstance(owner, ast.Module) else "function or class"
            yield kind, node.lineno, node.value.value


def comments(name: str) -> Iterator[tuple[str, int, str]]:
    """The first line of each comment: one that has a line of its own goes on in the lines below it."""
    pattern, last = COMMENT[Path(name).suffix], -1
    for number, line in enumerate(text(name).splitlines(), 1):
        if found := pattern.search(line):
            is_alone = not line[:found.start()].strip()
            if not is_alone or number != last + 1:
                yield "comment", number, line[found.start():]
            last = number if is_alone else -1


def found() -> list[tuple[str, str, str]]:
    """(kind, file:line, text) of each docstring and comment that begins with one of WORDS."""
    every = [(name, one) for name in files(".py", under="aiter_like/") for one in docstrings(name)]
    every += [(name, one) for folder in ("aiter_like/", "csrc/", "hsa/") for name in files(*COMMENT, under=folder)
              for one in comments(name)]
    return [(kind, f"{name}:{line}", said) for name, (kind, line, said) in every if first_word(said) in WORDS]


def test_docstrings_and_comments_begin_with_verb_or_subject():
    kinds = collections.Counter(kind for kind, _, _ in found())
    words = collections.Counter(first_word(said) for _, _, said in found())
    print(dict(kinds), dict(words))
    assert kinds.total() <= MOST and kinds["function or class"] <= MOST_OF_FUNCTIONS, (kinds, words)


if __name__ == "__main__":
    for _, place, said in found():
        sys.stdout.write(f"{place}: {said.splitlines()[0]}\n")

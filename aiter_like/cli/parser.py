# SPDX-License-Identifier: MIT
"""The command line's parser: its errors about an unknown command, choice or option name the one that is like it."""

import argparse
import re
from collections.abc import Iterator
from typing import NoReturn

from aiter_like.errors import did_you_mean


class Parser(argparse.ArgumentParser):
    """argparse's own, also of subcommands."""

    def error(self, message: str) -> NoReturn:
        """Exits with 2, as argparse does."""
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice:
            message += did_you_mean(choice[1], [known.strip("'") for known in choice[2].split(", ")])
        option = re.search(r"unrecognized arguments: (--[\w-]+)", message)
        if option:
            message += did_you_mean(option[1], _options(self))
        super().error(message)


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The options of a parser and of its subcommands; of commands only the one that was asked for has any."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _options(command)

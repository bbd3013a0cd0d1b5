# SPDX-License-Identifier: MIT
"""Files that a command writes at its end: what stands in their way is found before it starts."""

from collections.abc import Sequence
from pathlib import Path


def require_writable(path: Path | None, option: str) -> None:
    """Makes the folder of `path` and tries to write the file; what is in it stays, and no new one is left behind. None:
    nothing is to be written.

    Raises:
        ValueError: it cannot be written; the message begins with `option`.
    """
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        exists = path.exists()
        if exists and not path.is_file():
            raise ValueError(f"{option}: {path} exists and is no regular file")
        with path.open("ab"):
            pass
        if not exists:
            path.unlink()
    except OSError as error:
        raise ValueError(f"{option}: cannot write {path}: {error.strerror or error}") from error


def put_section(path: Path, name: str, command: str, lines: Sequence[str], title: str) -> None:
    """Writes `lines` between the marks of a section of a page; the rest of the page stays.

    Args:
        name: of the section; its marks have it.
        command: that writes it, for whoever reads the page's source.
        title: the first line of a page that is not there yet.
    """
    begin, end = f"<!-- {name}: written by `{command}` -->", f"<!-- end of {name} -->"
    page = path.read_text(encoding="utf-8") if path.exists() else f"{title}\n"
    before, found, rest = page.partition(begin)
    after = rest.partition(end)[2] if found else ""
    before = before if found else f"{page.rstrip()}\n\n"
    path.write_text("\n".join([f"{before}{begin}", *lines, f"{end}{after or chr(10)}"]), encoding="utf-8")

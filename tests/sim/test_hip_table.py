# SPDX-License-Identifier: MIT
"""Pages of HIP's functions are what the sources and the tests say, and the library exports what they list."""

import re

import hip_table

from aiter_like import sim


def test_the_pages_are_up_to_date():
    pages = {path.name: path.read_text() for path in hip_table.FOLDER.glob("*.md")}
    assert pages == hip_table.texts(), "python tests/sim/hip_table.py writes them"


def test_every_function_is_on_a_page_once():
    rows = re.findall(r"^\| (hip.*?) \|", "\n".join(hip_table.texts().values()), re.MULTILINE)
    listed = [name for names in rows for name in names.split(", ")]
    assert sorted(listed) == sorted([*hip_table.exported(), *hip_table.refused()])


def test_the_library_exports_what_the_pages_list():
    library = sim.load()
    names = [*hip_table.exported(), *hip_table.refused()]
    assert len(names) == len(set(names)) > 530
    assert [name for name in names if not hasattr(library, name)] == []


def test_what_refuses_refuses():
    """Each one, by its number: their arguments are not read."""
    library = sim.load()
    assert {getattr(library, name)() for name in hip_table.refused()} == {801}
    library.hipGetLastError()

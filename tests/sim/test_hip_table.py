# SPDX-License-Identifier: MIT
"""The page that lists HIP's functions is what the sources and the tests say, and the library exports what it lists."""

import hip_table

from aiter_like import sim


def test_the_page_is_up_to_date():
    assert hip_table.PAGE.read_text() == hip_table.text(), "python tests/sim/hip_table.py writes it"


def test_the_library_exports_what_the_page_lists():
    library = sim.load()
    names = [*hip_table.exported(), *hip_table.refused()]
    assert len(names) == len(set(names)) > 530
    assert [name for name in names if not hasattr(library, name)] == []


def test_what_refuses_refuses():
    """Each one, by its number: their arguments are not read."""
    library = sim.load()
    assert {getattr(library, name)() for name in hip_table.refused()} == {801}
    library.hipGetLastError()

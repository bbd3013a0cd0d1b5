# SPDX-License-Identifier: MIT
"""The pages of this folder are those of its runs, and a page says of a run what a reader asks."""

import importlib.util
import re
from pathlib import Path

from aiter_like.integrations.aiter import checks as aiter_checks
from aiter_like.integrations.aiter.tests import runs
from aiter_like.integrations.aiter.tests.runs import Result

_FILE = Path(__file__).with_name("pages.py")
_SPEC = importlib.util.spec_from_file_location("aiter_runs_pages", _FILE)
written = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(written)


def test_pages_are_the_runs():
    """`python op_tests/aiter_runs/pages.py` brings them up to date."""
    assert {path.name: path.read_text() for path in _FILE.parent.glob("*.md")} == written.pages()


def test_runs_of_aiters_own_tests_are_on_the_page(tmp_path):
    counts = dict.fromkeys(aiter_checks.KINDS, 0)
    results = [Result("test_a.py", counts, "aiter.x | y", "", {}, "missing", 1.0,
                      {"served": 1, "raising": 2, "absent": 3}, []),
               Result("test_b.py", counts | {"passed": 5, "failed": 1}, "", "50%",
                      {"50%": 7, f"in {runs.__file__}": 1, "it is not served by aiter_like": 2}, "", 1.0,
                      {"served": 4}, [])]
    about = {"note": "Of today.", "names": {"served": 5, "absent": 3}, "device": "toy", "arch": "gfx1", "limit_s": 9.5,
             "torch": "1", "arguments": {"test_b.py": ["-m", "2 3"]}}
    runs.write(tmp_path / "toy.json", about, results)
    pages = written.pages(tmp_path)
    assert pages["README.md"].endswith("| [toy (gfx1)](TOY.md) | 1 of 2 | 5 | 1 |\n")
    # The sums are broken at 120 columns.
    page = re.sub(r"(?<=\w|,|;|:|\.)\n(?=\w|\*)", " ", pages["TOY.md"])
    assert page.startswith("# AITER's own tests on toy (gfx1)\n")
    assert "Of today. Limit 9.5 s a file" in page and "5 served, 3 absent." in page
    assert "**1 of 2 files count**: 5 checks passed, 1 failed" in page
    assert page.rstrip().endswith("- `test_b.py`: 50% (7); in aiter_like/integrations/aiter/tests/runs.py (1)")
    assert page.index("| `test_b.py -m '2 3'` | 5 | 1 | 0 | 0 | 0 | 0 | itself | 4 | 50% |") < page.index(
        "| `test_a.py` | 0 | 0 | 0 | 0 | 0 | 0 | missing | 1 / 2 / 3 | aiter.x \\| y |")

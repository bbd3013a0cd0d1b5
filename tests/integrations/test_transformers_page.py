# SPDX-License-Identifier: MIT
"""aiter_like/integrations/TRANSFORMERS.md is true."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from aiter_like import dispatch, integrations

pytest.importorskip("transformers")


def test_the_page_is_true(tmp_path):
    """Its Python runs, one block after the other; its table of names is what `enable` asks for."""
    page = (Path(integrations.__file__).parent / "TRANSFORMERS.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 3
    run = subprocess.run([sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, capture_output=True, text=True,
                         check=False)
    assert run.returncode == 0, run.stderr
    assert re.search(r"^transformers\.rms_norm 5 0$", run.stdout, re.MULTILINE), run.stdout
    for name in re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE):
        assert name in dispatch.OPS

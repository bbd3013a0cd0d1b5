# SPDX-License-Identifier: MIT
"""A kernel's revision changes with each file of the project that the kernel is made with, and with no other."""

from __future__ import annotations

import pytest

from aiter_like import paths
from aiter_like.build import revision

FILES = {
    "csrc/norm/scale.hip": '#include "aiter_like/rows.h"\n  #  include "beside.h"\n#include <vector>\n'
                           '#include "elsewhere.h"\n',
    "csrc/norm/beside.h": "int beside;\n",
    "csrc/norm/apart.h": "int apart;\n",
    "csrc/include/aiter_like/rows.h": '#include "aiter_like/gpu.h"\n',
    "csrc/include/aiter_like/gpu.h": '#include "aiter_like/rows.h"  // a circle\n',
    "aiter_like/ops/norm/triton/rms_norm.py": "from aiter_like import env\n"
                              "from aiter_like.ops.common.triton import quant_rule\n\n\n"
                              "def late():\n    from aiter_like.ops.common.triton.launch import launch\n",
    "aiter_like/ops/common/triton/quant_rule.py": "import triton\n",
    "aiter_like/ops/common/triton/launch.py": "from aiter_like.triton_kernels.rows import (\n    one,\n    two)\n",
    "aiter_like/triton_kernels/rows.py": "one = two = 1\n",
    "aiter_like/ops/rope/triton/rope.py": "",
    "aiter_like/triton_kernels/env.py": "",
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    def make(name):
        root = tmp_path / name
        for path, content in FILES.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
        monkeypatch.setattr(paths, "csrc", lambda: root / "csrc")
        return root

    return make


@pytest.mark.parametrize("source, counted", [
    ("csrc/norm/scale.hip", ("csrc/norm/scale.hip", "csrc/norm/beside.h", "csrc/include/aiter_like/rows.h",
                             "csrc/include/aiter_like/gpu.h")),
    ("aiter_like/ops/norm/triton/rms_norm.py",
     ("aiter_like/ops/norm/triton/rms_norm.py", "aiter_like/ops/common/triton/quant_rule.py",
      "aiter_like/ops/common/triton/launch.py", "aiter_like/triton_kernels/rows.py"))])
def test_depends_on_the_files_that_make_the_kernel(project, source, counted):
    root = project("here")
    before = revision.of(root / source)
    assert len(before) == 12 and int(before, 16) >= 0
    for path, content in FILES.items():
        (root / path).write_text(f"{content}\n")
        assert (revision.of(root / source) != before) == (path in counted), path
        (root / path).write_text(content)
    assert revision.of(root / source) == before


def test_is_the_same_wherever_the_project_lies(project):
    assert revision.of(project("here") / "csrc/norm/scale.hip") == revision.of(project("there") / "csrc/norm/scale.hip")


def test_kernels_of_the_project():
    kernels = paths.csrc() / "norm"
    assert revision.of(kernels / "rms_norm.hip") != revision.of(kernels / "layer_norm.hip")

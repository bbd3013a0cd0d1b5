# SPDX-License-Identifier: MIT
"""A kernel's revision changes with all that decides what runs, with no other file, and with no comment."""

from __future__ import annotations

import pytest

from aiter_like import paths
from aiter_like.build.revision import source_hash

FILES = {
    "csrc/norm/scale.hip": '#include "aiter_like/rows.h"\n  #  include "beside.h"\n#include <vector>\n'
                           '#include "elsewhere.h"\nint scale; char quoted[] = "// no comment";\n',
    "csrc/norm/beside.h": "int beside;\n",
    "csrc/norm/apart.h": "int apart;\n",
    "csrc/include/aiter_like/rows.h": '#include "aiter_like/gpu.h"\n',
    "csrc/include/aiter_like/gpu.h": '#include "aiter_like/rows.h"  // a circle\n',
    "configs/triton/scale.toml": "a = 1\n",
    "configs/triton/other.toml": "a = 1\n",
    "aiter_like/env.py": "",
    "aiter_like/ops/norm/scale.py": "from aiter_like import env\nfrom aiter_like.ops.common import rows\n",
    "aiter_like/ops/common/rows.py": "one = two = 1\n",
    "aiter_like/ops/common/slices.py": "",
    "aiter_like/ops/norm/triton/scale.py": "from aiter_like import env\n"
                                           "from aiter_like.ops.common.triton import launch\n\n\n"
                                           "def late():\n    return launch.config('scale', 'gfx942', 'd64')\n",
    "aiter_like/ops/common/triton/launch.py": "from aiter_like.ops.common.slices import (\n    one,\n    two)\n",
}
HEADERS = {"csrc/norm/beside.h", "csrc/include/aiter_like/rows.h", "csrc/include/aiter_like/gpu.h"}
OPERATOR = {"aiter_like/ops/norm/scale.py", "aiter_like/ops/common/rows.py"}
TRITON = {"aiter_like/ops/norm/triton/scale.py", "aiter_like/ops/common/triton/launch.py",
          "aiter_like/ops/common/slices.py", "configs/triton/scale.toml"}


@pytest.fixture
def project(tmp_path, monkeypatch):
    def make(name):
        root = tmp_path / name
        for path, content in FILES.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
        monkeypatch.setattr(paths, "csrc", lambda: root / "csrc")
        monkeypatch.setattr(paths, "configs", lambda: root / "configs")
        return root

    return make


@pytest.mark.parametrize("sources, counted", [
    (("csrc/norm/scale.hip", "aiter_like/ops/norm/scale.py"), {"csrc/norm/scale.hip"} | HEADERS | OPERATOR),
    (("aiter_like/ops/norm/triton/scale.py", "aiter_like/ops/norm/scale.py"), TRITON | OPERATOR)])
def test_depends_on_all_that_decides_what_runs(project, sources, counted):
    root = project("here")

    def revision() -> str:
        return source_hash(*(root / source for source in sources))

    before = revision()
    assert len(before) == 12 and int(before, 16) >= 0
    for path, content in FILES.items():
        (root / path).write_text(f"{content}another_statement = 1\n")
        assert (revision() != before) == (path in counted), path
        (root / path).write_text(content)
    assert revision() == before


def test_comments_and_docstrings_do_not_count(project):
    root = project("here")
    files = [root / "csrc/norm/scale.hip", root / "aiter_like/ops/norm/scale.py"]
    files[0].write_text("// First.\n" + files[0].read_text().replace("int scale;", "int /* of\nrows */ scale;  // x\n"))
    files[1].write_text('"""Märchen: what it is for."""\n\n' + files[1].read_text() + "\n# The end.\n")
    python = source_hash(files[1])
    files[1].write_text(files[1].read_text().replace("Märchen", "Something else").replace("# The end.", ""))
    assert source_hash(files[1]) == python
    device = source_hash(files[0])
    files[0].write_text(files[0].read_text().replace("// First.", "// Second.").replace("  // x\n", "\n"))
    assert source_hash(files[0]) == device
    files[0].write_text(files[0].read_text().replace("// no comment", "// another text"))
    assert source_hash(files[0]) != device, "a literal is no comment"


def test_is_the_same_wherever_the_project_lies(project):
    there = source_hash(project("there") / "csrc/norm/scale.hip")
    assert source_hash(project("here") / "csrc/norm/scale.hip") == there


def test_kernels_of_the_project():
    kernels = paths.csrc() / "norm"
    assert source_hash(kernels / "rms_norm.hip") != source_hash(kernels / "layer_norm.hip")


PORTABLE = """#if defined(__HIP__)
hip 1
#include "beside.h"
#if defined(ELSE)
hip 2
#else
hip 3
#endif
#elif defined(__CUDACC__) && FAST
cuda 1
#else
cuda 2
#endif
#if !defined(__HIP__) && ARCH >= 900
cuda 3
#elif !defined(__HIP__)
cuda 4
#else
hip 4
#endif
#ifdef __HIP__
both 1
#endif
#if defined(__HIP__) && FAST || SLOW
both 2
#endif
both 3
"""


def test_what_the_other_platform_compiles_does_not_count(project):
    root = project("here")
    source = root / "csrc/norm/scale.hip"
    source.write_text(PORTABLE)
    before = {platform: source_hash(source, platform=platform) for platform in ("hip", "cuda", "")}
    for line in (line for line in PORTABLE.splitlines() if not line.startswith("#")):
        source.write_text(PORTABLE.replace(line, f"{line} changed"))
        changed = {platform for platform, was in before.items() if source_hash(source, platform=platform) != was}
        assert changed == {"", *({"hip", "cuda"} if line.startswith("both") else {line.split()[0]})}, line
    source.write_text(PORTABLE)
    (root / "csrc/norm/beside.h").write_text("int other;\n")
    assert source_hash(source, platform="cuda") == before["cuda"]
    assert source_hash(source, platform="hip") != before["hip"], "a header that one platform includes"
    (root / "csrc/norm/beside.h").write_text(FILES["csrc/norm/beside.h"])
    guarded = PORTABLE + "#if defined(__HIP__)\nhip 5\n#endif\n"
    source.write_text(guarded)
    assert source_hash(source, platform="cuda") == before["cuda"], "the guard itself says nothing"
    for condition in ("ELSE", "FAST", "ARCH >= 900"):
        source.write_text(PORTABLE.replace(condition, "OTHER"))
        assert source_hash(source) != before[""], condition

# SPDX-License-Identifier: MIT
"""Device code knows no macros of a build: a .hip file makes one Config of them, and all else takes them from it, so
that two builds share a translation unit.
"""

import functools
import re
import subprocess
from pathlib import Path

import pytest

from aiter_like import paths
from aiter_like.cli.build import selected
from aiter_like.modules import toolchain

GUARD = re.compile(r"#if !defined(?:.*\\\n)*.*\n#error.*\n#endif\n")
CONFIG = re.compile(r"^struct Config .*?^\};\n", re.DOTALL | re.MULTILINE)
INSTANTIATED = re.compile(r"^template void (\w+(?:<.*?>)?)(\([^;]*\));", re.MULTILINE)
HOST_HALF = "#if AITER_LIKE_HOST_PASS\n"
# Builds of an edge that no case of its operator takes.
TILES = {"ELEMENT": "bf16", "HEAD_DIM": "64", "NUM_WAVES": "4", "IS_MASKED": "1", "HAS_ALIBI": "0", "HAS_SOFTCAP": "1"}
BY_HAND = {"attention/unified_attention_tiles.h": [TILES, {**TILES, "ELEMENT": "f16", "HEAD_DIM": "256"}]}


@functools.cache
def texts() -> dict[str, str]:
    """The families' sources and headers."""
    return {str(path.relative_to(paths.csrc())): path.read_text() for path in sorted(paths.csrc().glob("*/*.h*"))}


def edges() -> dict[str, set[str]]:
    """The files that macros of a build reach, with their names: each begins with a guard that has them."""
    guards = {name: GUARD.search(text) for name, text in texts().items()}
    return {name: set(re.findall(r"defined\((\w+)\)", guard[0])) for name, guard in guards.items() if guard}


@functools.cache
def builds() -> dict[str, list[dict[str, str]]]:
    """The macros of the builds that the operators' cases take, by edge: the .hip file, or a header that it includes."""
    found: dict[str, list[dict[str, str]]] = {}
    for spec in selected([], "gfx942"):
        if spec.kind == "hip" and spec.defines:
            names = [spec.sources[0], *(str(Path(spec.sources[0]).parent / header) for header in re.findall(
                r'#include "(\w+\.h)"', texts()[spec.sources[0]]))]
            macros = dict(spec.defines)
            name = next((name for name in names if edges().get(name, {"none"}) <= macros.keys()), None)
            assert name, f"macros of {spec.name} have no guard that names them"
            found.setdefault(name, []).append(macros)
    return found


def edge(name: str, defines: dict[str, str], number: int) -> str:
    """An edge's device half in a namespace of its own, with macros for its Config alone."""
    guard = GUARD.search(texts()[name])
    device = texts()[name][guard.end():].split(HOST_HALF)[0].replace("namespace aiter_like {", "", 1)
    config = CONFIG.search(device)
    assert config, "no Config is made of the macros"
    defined = "".join(f"#define {macro} {value}\n" for macro, value in defines.items())
    gone = "".join(f"#undef {macro}\n" for macro in defines)
    before, after = device[:config.start()], device[config.end():]
    used = INSTANTIATED.sub(lambda found: f"void (*const used_{found.start()}){found[2]} = &{found[1]};", after)
    closed = "" if used.rstrip().endswith("}  // namespace aiter_like") else "}\n"
    included = texts()[name][:guard.start()].replace("#pragma once\n", "")
    return (f"{included}namespace aiter_like {{\nnamespace build_{number} {{\n"
            f"{before}{defined}{config[0]}{gone}{used}\n}}\n{closed}")


@pytest.mark.parametrize("name", sorted(edges()))
def test_two_builds_in_one_translation_unit(tmp_path, name):
    """The first one, and one with most other values."""
    found = builds().get(name) or BY_HAND[name]
    other = max(found, key=lambda macros: len(macros.items() - found[0].items()))
    (tmp_path / "both.hip").write_text(edge(name, found[0], 0) + edge(name, other, 1))
    subprocess.run([toolchain.find("hip").host_compiler, "-x", "hip", "--offload-arch=gfx942", "-std=c++17",
                    "-nogpuinc", "-nogpulib", "--offload-device-only", "-fsyntax-only",
                    f"-I{paths.csrc() / 'include'}", f"-I{(paths.csrc() / name).parent}", "both.hip"],
                   cwd=tmp_path, check=True)


def test_no_condition_names_a_macro():
    macros = "|".join(set().union(*edges().values()))
    asks = re.compile(rf"^#(?:if|ifdef|ifndef|elif)\b.*\b(?:{macros})\b.*", re.MULTILINE)
    shared = {str(path): path.read_text() for path in (paths.csrc() / "include").rglob("*.h")}
    asked = {name: asks.findall(GUARD.sub("", text)) for name, text in (texts() | shared).items()}
    assert {name: found for name, found in asked.items() if found} == {
        "attention/unified_attention.hip": ["#if defined(MASK)"]}, "it chooses one of two edges"

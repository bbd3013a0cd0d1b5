# SPDX-License-Identifier: MIT
"""The wait-state table against LLVM's hazard recogniser: each pair as machine IR, and the s_nop that llc inserts."""

import functools
import re
import shutil
import subprocess

import pytest
from wait_pairs import FREE, INSTRUCTIONS, PAIRS

LLC = shutil.which("llc-22") or shutil.which("llc")
pytestmark = pytest.mark.skipif(not LLC, reason="llc is not installed (Debian package llvm-22)")


def _machine_ir(text: str) -> str:
    """The shorthand of wait_pairs.py in LLVM's words: $v8:11 → $vgpr8_vgpr9_vgpr10_vgpr11."""

    def registers(found: re.Match) -> str:
        first, last = int(found[2]), int(found[3] or found[2])
        return "$" + "_".join(f"{found[1]}gpr{index}" for index in range(first, last + 1))

    text = text.replace("MODE", "implicit $mode, EXEC").replace("EXEC", "implicit $exec")
    return re.sub(r"\$([vs])(\d+)(?::(\d+))?\b", registers, text)


@functools.cache
def _states() -> dict[tuple[str, str], int]:
    """(earlier, later) → wait states that LLVM puts between."""
    keys = list(dict.fromkeys([*((pair.earlier, pair.later) for pair in PAIRS), *FREE]))
    functions = [f"---\nname: f{index}\nbody: |\n  bb.0:\n    {_machine_ir(INSTRUCTIONS[earlier][1])}\n"
                 f"    {_machine_ir(INSTRUCTIONS[later][1])}\n    S_ENDPGM 0\n..." for index, (earlier, later)
                 in enumerate(keys)]
    done = subprocess.run([LLC, "-mtriple=amdgcn", "-mcpu=gfx942", "-run-pass=post-RA-hazard-rec", "-x", "mir", "-",
                           "-o", "-"], input="\n".join(functions) + "\n", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    bodies = re.findall(r"^  bb\.0:\n(.*?)S_ENDPGM", done.stdout, re.MULTILINE | re.DOTALL)
    assert len(bodies) == len(keys)
    return {key: sum(int(n) + 1 for n in re.findall(r"S_NOP (\d+)", body))
            for key, body in zip(keys, bodies, strict=True)}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.earlier} - {pair.later}")
def test_llvm_wants_the_same_distance(pair):
    assert _states()[pair.earlier, pair.later] == pair.states


@pytest.mark.parametrize("earlier, later", FREE)
def test_llvm_wants_nothing_either(earlier, later):
    assert _states()[earlier, later] == 0

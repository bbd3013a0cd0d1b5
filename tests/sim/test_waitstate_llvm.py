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
    bodies = [f"  bb.0:\n    {INSTRUCTIONS[earlier][1]}\n    {INSTRUCTIONS[later][1]}\n    S_ENDPGM 0\n"
              for earlier, later in keys]
    return dict(zip(keys, _inserted(bodies), strict=True))


def _inserted(bodies: list[str]) -> list[int]:
    """Wait states that LLVM inserts in each function."""
    functions = [f"---\nname: f{index}\nbody: |\n{_machine_ir(body)}...\n" for index, body in enumerate(bodies)]
    done = subprocess.run([LLC, "-mtriple=amdgcn", "-mcpu=gfx942", "-run-pass=post-RA-hazard-rec", "-x", "mir", "-",
                           "-o", "-"], input="".join(functions), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = re.findall(r"^body: +\|\n(.*?)^\.\.\.", done.stdout, re.MULTILINE | re.DOTALL)
    assert len(printed) == len(bodies)
    return [sum(int(n) + 1 for n in re.findall(r"S_NOP (\d+)", body)) for body in printed]


@functools.cache
def _version() -> int:
    text = subprocess.run([LLC, "--version"], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"LLVM version (\d+)", text)[1])


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.earlier} - {pair.later}")
def test_llvm_wants_the_same_distance(pair):
    wanted = max(one.states for one in PAIRS if (one.earlier, one.later) == (pair.earlier, pair.later))
    assert _states()[pair.earlier, pair.later] == (wanted if _version() >= pair.llvm else 0)


@pytest.mark.parametrize("earlier, later", FREE)
def test_llvm_wants_nothing_either(earlier, later):
    assert _states()[earlier, later] == 0


_MISCOUNTED = pytest.mark.xfail(raises=AssertionError, strict=True,
                                reason="LLVM also counts the branch that the loop does not take")


@pytest.mark.parametrize("leave", ("", pytest.param("S_BRANCH %bb.2", marks=_MISCOUNTED)))
def test_a_branch_back_is_one_wait_state(leave):
    store, write = INSTRUCTIONS["wide buffer store"][1], INSTRUCTIONS["write v9"][1]
    assert _inserted([f"""
  bb.0:
    successors: %bb.1

    S_CMP_LG_U32 $s20, 0, implicit-def $scc

  bb.1:
    successors: %bb.1, %bb.2

    {write}
    {store}
    S_CBRANCH_SCC1 %bb.1, implicit $scc
    {leave}

  bb.2:
    S_ENDPGM 0
"""]) == [1]

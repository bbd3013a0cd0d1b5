# SPDX-License-Identifier: MIT
"""`aiter-like sim coverage DIR`, and what it finds in code objects that AITER_LIKE_TEST_CODE_OBJECTS names."""

import json
import os
import sys
from pathlib import Path

import pytest
from asm import assemble
from test_decode import KERNEL

from aiter_like import cli
from aiter_like.cli.sim import coverage as sim_coverage

FORMS = {
    "v_add_f32_e64 v1, -v2, |v3| clamp mul:2": "v_add_f32_e64 v, -v, |v| clamp mul:2",
    "v_mfma_f32_16x16x16_f16 a[0:3], v[2:3], v[4:5], 0": "v_mfma_f32_16x16x16_f16 a[4], v[2], v[2], inline",
    "global_load_dword v2, v1, s[8:9] offset:-8 sc1": "global_load_dword v, v, s[2] offset sc1",
    "s_mov_b32 s0, 0xdeadbeef": "s_mov_b32 s, literal",
    "v_mul_f32_e32 v1, 0.5, v2": "v_mul_f32_e32 v, inline, v",
    "v_mov_b32_dpp v1, v2 quad_perm:[3,2,1,0] row_mask:0xf bank_mask:0xf":
        "v_mov_b32_dpp v, v quad_perm row_mask:0xf bank_mask:0xf",
    "v_pk_fma_f16 v1, v2, v3, v4 op_sel:[0,1,0] op_sel_hi:[1,0,1]":
        "v_pk_fma_f16 v, v, v, v op_sel:[0,1,0] op_sel_hi:[1,0,1]",
    "buffer_load_dword v2, s[4:7], 0 offen offset:4095 lds": "buffer_load_dword v, s[4], inline offen offset lds",
    "s_waitcnt vmcnt(3) lgkmcnt(0)": "s_waitcnt vmcnt(inline) lgkmcnt(inline)",
    "v_fma_f32 v1, v2, -1.0, lit(0x3f800000)": "v_fma_f32 v, v, inline, literal",
}


@pytest.mark.parametrize("text, form", FORMS.items())
def test_the_form_of_an_instruction(text, form):
    assert sim_coverage.form_of(text) == form


@pytest.fixture
def folder(tmp_path):
    """Two code objects, one of them with an instruction that no handler has, among other files."""
    objects = tmp_path / "objects"
    (objects / "deep").mkdir(parents=True)
    clean = "v_mov_b32_e32 v1, v2\nv_mov_b32_e32 v2, 0\ns_nop 0"
    (objects / "clean.co").write_bytes(assemble(KERNEL.format(body=clean)))
    odd = f"{clean}\ns_rfe_b64 s[2:3]\nv_mov_b32 v1, v127"
    (objects / "deep" / "odd").write_bytes(assemble(KERNEL.format(body=odd)))
    (objects / "notes.txt").write_text("no code")
    (objects / "host").write_bytes(Path(sys.executable).read_bytes()[:4096])
    return objects


def test_a_folder(folder, tmp_path, capsys):
    report = tmp_path / "report.json"
    assert cli.main(["sim", "coverage", str(folder), "--json", str(report)]) == 1
    printed = capsys.readouterr().out
    assert "2 files, 10 instructions, 4 mnemonics, 5 forms" in printed
    assert "would not run, in 1 files:" in printed
    assert printed.splitlines()[-1].endswith("s_rfe_b64 s[2]: instruction 's_rfe_b64' is not implemented  (deep/odd)")
    told = json.loads(report.read_text())
    assert told["files"] == 2
    assert told["forms"]["v_mov_b32_e32 v, inline"] == {"count": 2, "files": ["clean.co", "deep/odd"]}
    assert [use["count"] for use in told["refused"].values()] == [1]


def test_forms_of_a_clean_folder(folder, capsys):
    (folder / "deep" / "odd").unlink()
    assert cli.main(["sim", "coverage", "--forms", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "v_mov_b32_e32 v, inline  (clean.co)" in printed and "all of it is known" in printed


def test_files_that_do_not_load_and_folders_without_any(folder, tmp_path, capsys):
    whole = (folder / "clean.co").read_bytes()
    (folder / "half.co").write_bytes(whole[:len(whole) // 2])
    assert cli.main(["sim", "coverage", str(folder)]) == 1
    assert "the file: code object: " in capsys.readouterr().out
    (folder / "empty").mkdir()
    for place, reason in ((tmp_path / "nowhere", "no such folder"), (folder / "empty", "no code objects there")):
        assert cli.main(["sim", "coverage", str(place)]) == 1
        assert reason in capsys.readouterr().err


def test_the_code_objects_that_the_environment_names():
    """E.g. AITER's hsa/gfx942: everything in them is known to the simulated MI300X."""
    name = os.environ.get("AITER_LIKE_TEST_CODE_OBJECTS")
    if not name:
        pytest.skip("AITER_LIKE_TEST_CODE_OBJECTS names no folder of code objects")
    found = sim_coverage.read(Path(name))
    assert found.files and not found.refused, "\n".join(found.refused)

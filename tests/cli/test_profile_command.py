# SPDX-License-Identifier: MIT
"""`aiter-like sim profile` of a kernel of a code object, with the options of `aiter-like sim run`."""

import json

import pytest
from asm import assemble
from negate import ARGUMENTS, BUFFERS, NEGATE

from aiter_like import cli


@pytest.fixture
def words(tmp_path):
    """Those that name a small kernel of assembly: its file, then its options."""
    (tmp_path / "negate.co").write_bytes(assemble(NEGATE))
    (tmp_path / "spec.json").write_text(json.dumps({"buffers": BUFFERS, "arguments": ARGUMENTS}))
    return [str(tmp_path / "negate.co"), "--kernel", "negate", "--grid", "1", "--block", "64", "--args",
            str(tmp_path / "spec.json")]


def test_a_code_object(words, tmp_path, capsys):
    profiles, page = tmp_path / "profiles.json", tmp_path / "page.html"
    assert cli.main(["sim", "profile", *words, "--json", str(profiles)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("negate, grid 1, block 64\n") and "grid: no workgroup for 37 of 38 CUs" in out
    (one,) = json.loads(profiles.read_text())
    assert one["kernel"] == one["name"] == "negate" and "call" not in one
    assert {line["text"].split(" ")[0] for line in one["instructions"]} >= {"global_load_dword", "s_endpgm"}
    # The options may stand before the file, too.
    file, *options = words
    assert cli.main(["sim", "profile", *options, "--page", str(page), "--json", str(profiles), file]) == 0
    assert json.loads(profiles.read_text()) == [one] and "negate" in page.read_text()


def test_mistakes(words, capsys):
    assert cli.main(["sim", "profile", *words, "x=1"]) == 1
    assert "no arguments but its options, got 'x=1'" in capsys.readouterr().err
    words[2] = "negat"
    assert cli.main(["sim", "profile", *words]) == 1
    assert "has no kernel negat; it has: negate" in capsys.readouterr().err

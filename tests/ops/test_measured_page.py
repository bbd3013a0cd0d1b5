# SPDX-License-Identifier: MIT
"""op_tests/bench/MEASURED.md, its plot and the README's figures are what the JSON says; held-out shapes are held out,
and what is timed there computes the same in ours and in torch.
"""

import json
import random
import re

import held_out
import held_out_calls
import measured
import measured_page
import pytest
import torch

from aiter_like.dispatch import OPS

SMALL = {"rows": 7, "hidden": 256, "columns": 256, "tokens": 20, "m": 33, "n": 128, "k": 256, "batch": 2,
         "channels": 128, "experts": 4, "slots": 2, "inner": 128, "heads": 4, "kv_heads": 2, "num_heads": 16,
         "num_kv_heads": 16, "seqlen_k": 64}
FIXED = {"flash_attn_fwd": {"num_heads": 4, "num_kv_heads": 2, "seqlen_q": 64},
         "flash_attn_bwd": {"num_heads": 4, "num_kv_heads": 2, "seqlen_q": 64},
         "paged_attention": {"num_heads": 8, "num_kv_heads": 2}, "topk": {"columns": 1024, "k": 20},
         "sample": {"columns": 1024}, "softmax": {"columns": 1024}}
ON_CPU = {"gemm_a8w8_blockscale"}  # torch has its product by blocks on a GPU alone


def figures() -> tuple:
    return tuple(json.loads(path.read_text(encoding="utf-8")) for path in (
        measured_page.MEASURED, measured_page.MODELLED, measured_page.PUBLISHED))


def test_pages_are_what_the_json_says():
    found, modelled, published = figures()
    assert "\n".join(measured_page.page(found)) + "\n" == measured_page.PAGE.read_text(encoding="utf-8")
    for path, text in measured_page.plots(found, modelled):
        assert text == path.read_text(encoding="utf-8")
    readme = measured_page.README.read_text(encoding="utf-8")
    assert "\n".join(measured_page.readme_rows(found, modelled, published)) in readme
    alt = re.search(r'<img alt="(.*?)"', readme).group(1)
    assert "\n".join(measured_page.picture(alt, "op_tests/bench/")) in readme


def test_all_families_were_measured():
    found = figures()[0]
    assert set(found["families"]) == set(held_out.FAMILIES)
    for name, family in held_out.FAMILIES.items():
        rows = found["families"][name]["rows"]
        assert [row["op"] for row in rows] == [op for op in family.draws for _ in range(found["count"])]
        assert [row for row in rows if "failed" in row] == []


@pytest.mark.parametrize("name", held_out.FAMILIES)
def test_shapes_are_drawn_by_the_seed(name):
    family = held_out.FAMILIES[name]
    first, again, other = (list(held_out.keys(family, seed, 20)) for seed in (1, 1, 2))
    assert first == again and first != other and len(first) == 20 * len(family.draws)
    for op, key in first:
        assert tuple(map(str, key.values())) not in held_out._tuned(op, tuple(key))
        assert op not in OPS or set(key) == set(OPS[op].tune_fields)
        assert op in held_out_calls.CALLS


@pytest.mark.rotating
@pytest.mark.parametrize("name, op", [(name, op) for name, family in held_out.FAMILIES.items() for op in family.draws])
def test_ours_and_torch_compute_the_same(name, op):
    """On the simulated device, small: ours is right, and a peer that runs here is compared."""
    key = held_out.FAMILIES[name].draws[op](random.Random(1))
    key |= {field: value for field, value in (SMALL | FIXED.get(op, {})).items() if field in key}
    made = held_out._judged(op, key, torch.device("cpu"))
    calls = held_out_calls.CALLS[op](made.args, lambda function: function)
    calls.peers.pop("FlexAttention", None)  # its compilation takes half a minute
    with torch.no_grad():
        _, peers, left_out = held_out._right(made, calls)
    assert peers or op in ON_CPU, left_out
    assert held_out._served(op, calls.ours, made.args, torch.device("cpu")).split()[0] in ("hip", "ck", "asm", "triton")


def test_a_family_is_built_first_and_timed_when_it_is_told_to(monkeypatch, tmp_path):
    """Two processes in place of families: both are ready before either gets its line."""
    script = tmp_path / "family.py"
    script.write_text(f"import sys\nname, rows = sys.argv[1], sys.argv[-1]\nprint('beside toy 1')\n"
                      f"print('{measured.READY}', flush=True)\nassert sys.stdin.readline() == 'go\\n'\n"
                      "open(rows, 'w').write('{\"op\": \"' + name + '\"}\\n')\nsys.exit(name == 'two')\n")
    monkeypatch.setattr(measured, "_SCRIPT", script)
    monkeypatch.setattr(measured, "_families", lambda: ["one", "two"])
    monkeypatch.setattr(measured, "_about", lambda seed, count, commit: {
        "seed": seed, "count": count, "device": "toy", "commit": commit, "peers": [], "families": {}})
    measured.run(5, 2, tmp_path / "out.json", [], 600.0, [], "abc")
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["peers"] == ["beside toy 1"] and [one["rows"] for one in found["families"].values()] == [
        [{"op": "one"}], [{"op": "two"}]]
    assert "exit code 1" in found["families"]["two"]["said"] and "exit" not in found["families"]["one"]["said"]
    with pytest.raises(SystemExit, match="is of another seed, device or commit"):
        measured.run(6, 2, tmp_path / "out.json", [], 600.0, [], "abc")

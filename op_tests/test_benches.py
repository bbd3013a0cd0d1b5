# SPDX-License-Identifier: MIT
"""The tables of bench() that are made of tune keys, on small calls: keys, peers and checks, by the reference."""

import functools
import importlib.util

import pytest
import run as scripts
import torch

from aiter_like.dispatch import OPS

OF_KEYS = {name: path for name, path in scripts.scripts().items() if "benching.of(" in path.read_text()}
KEPT = {"block", "block_rows", "group_size", "head_dim", "head_dim_v", "page_size", "rank", "rotary_dim"}
"""Sizes that other ones follow from."""


@pytest.fixture(scope="module")
def benching():
    pytest.importorskip("triton")
    import benching

    return benching


def smaller(key: dict) -> dict:
    return {name: min(value, 256) if isinstance(value, int) and name not in KEPT else value
            for name, value in key.items()}


@pytest.mark.parametrize("name", sorted(OF_KEYS))
def test_first_shapes(monkeypatch, benching, name):
    monkeypatch.syspath_prepend(str(OF_KEYS[name].parent))
    spec = importlib.util.spec_from_file_location(f"bench_of_{name}", OF_KEYS[name])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    checked = []

    def first_of(op, fields, shapes, *, beside=None, changed=lambda call: call, **others):
        key = smaller({**dict(zip(fields.split(), next(iter(shapes)), strict=True)), **others})
        case = benching._of_key(OPS[op], "small", key, changed, beside, lambda function: function, 0)
        assert set(case.calls) - {"hip", "triton"} or beside is benching.alone
        call = functools.partial(OPS[op], backend="torch")
        checked.append(case.check(call(case.calls["triton" if "triton" in case.calls else "hip"].args[0])))

    monkeypatch.setattr(benching, "_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(benching, "of", first_of)
    module.bench()
    assert checked and all(error <= 1 for error in checked)

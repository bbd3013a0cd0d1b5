# SPDX-License-Identifier: MIT
"""The revisions of tuned rows: those of the packaged tables are what runs here, text and launch; and another rule for a
launch ends the rows that it changes, and no others.
"""

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from aiter_like.dispatch.backend import Candidate
from aiter_like.dispatch.registry import OPS
from aiter_like.dispatch.table import Row
from aiter_like.ops.common import elements
from aiter_like.ops.norm.triton import rms_norm

pytest.importorskip("triton.tools.tensor_descriptor")


def packaged(*names: str) -> Iterator[tuple[Row, str]]:
    """Rows of operators, of all where none is named, with the revision that they would have if they were made now."""
    for op in [OPS[name] for name in names] or OPS.values():
        for row in op.table.rows() if op.tune_key is not None else ():
            yield row, op.revision(Candidate(op.backend(row.backend), row.kernel, row.params, row.source), row.key)


def test_packaged_rows_are_of_what_runs_here():
    found = [(row.source, row.kernel_rev, here) for row, here in packaged() if row.kernel_rev]
    assert len(found) > 400 and all(len(revision) == 17 for _, revision, _ in found)
    assert [one for one in found if one[1] != one[2]] == []


def test_another_launch_is_stale_where_no_call_asks():
    op = OPS["rms_norm"]
    row = dataclasses.replace(next(op.table.rows()), toolchain="")  # whatever is installed here
    text, _, launch = row.kernel_rev.partition("-")
    assert op.staleness(row) is None and launch
    other = dataclasses.replace(row, kernel_rev=f"{text}-00000000")
    assert op.staleness(other) == f"it timed {text}-00000000 of kernel and launch, this is {row.kernel_rev}"
    assert op.backend(row.backend).staleness(other) is None
    assert op.staleness(dataclasses.replace(row, kernel_rev=text)) is None, "no claim about the launch"


@pytest.mark.parametrize("holder, name, value, names, is_ended", [
    (rms_norm, "_MAX_BLOCK", 2048, ("rms_norm", "layer_norm"),
     lambda row: (row.backend, row.kernel) == ("triton", "rms_norm") and row.key[3] > 2048),
    (elements.CPP, torch.float32, "double", ("softmax", "rms_norm"), lambda row: "float_float" in row.kernel)])
def test_another_rule_ends_its_own_rows(monkeypatch, holder, name, value, names, is_ended):
    before = [here for _, here in packaged(*names)]
    (monkeypatch.setitem if isinstance(holder, dict) else monkeypatch.setattr)(holder, name, value)
    after = list(packaged(*names))
    ended = {row.source for was, (row, here) in zip(before, after) if was != here}
    assert ended == {row.source for row, _ in after if is_ended(row)} != set()
    texts = [revision.partition("-")[0] for revision in before]
    assert texts == [here.partition("-")[0] for _, here in after]

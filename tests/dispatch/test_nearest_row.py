# SPDX-License-Identifier: MIT
"""Which tuned rows `explain` may show as the nearest one."""

from aiter_like.dispatch import OPS, explanation, table


def test_the_nearest_row_differs_in_amounts_alone():
    """Of every operator: no other bits, flags, dimensions of heads, pages or dtypes, and nothing that is not there."""
    amounts = set()
    for op in OPS.values():
        ours = tuple("bf16" if table.is_text(name) else 64 for name in op.tune_fields)
        for index, name in enumerate(op.tune_fields):
            near = (*ours[:index], "fp16" if table.is_text(name) else 4, *ours[index + 1:])
            is_kind = table.is_text(name) or name.split("_")[0] in ("is", "has", "use") or name in (
                "bits", "rank", "block", "width") or name.endswith(("_dim", "_size", "_style"))
            assert not (is_kind and table.is_amount(name)), name
            assert explanation._is_same_kind(op.tune_fields, near, ours) == table.is_amount(name), (op.name, name)
            assert not explanation._is_same_kind(op.tune_fields, (*ours[:index], 0, *ours[index + 1:]), ours)
            amounts |= {name} if table.is_amount(name) else set()
    assert table._AMOUNTS <= amounts, "names that no operator has"
    assert {"rows", "m", "n", "k", "tokens", "num_heads", "seqlen_k"} <= amounts

# SPDX-License-Identifier: MIT
"""Every operator's cases with one argument damaged: a right result or a refusal in the operator's words, and nothing
written where it is refused. Plain calls come first, so that their plans are there to be taken wrongly.
"""

import pytest
import torch
from damages import bits, damaged
from torch import Tensor

from aiter_like.dispatch import OPS
from aiter_like.errors import UnsupportedError

KINDS_OF_CASES = 3  # of an operator: those whose arguments are of different types come first

def _chosen(name: str) -> list[tuple]:
    cases = [*OPS[name].cases(torch.device("cpu")).values()]
    kinds = {tuple(map(type, case)): case for case in reversed(cases)}
    return [*kinds.values()][-KINDS_OF_CASES:]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", sorted(OPS))
def test_one_damaged_argument(name):
    op = OPS[name]
    for case in _chosen(name):
        fresh = lambda case=case: [arg.clone() if isinstance(arg, Tensor) else arg for arg in case]  # noqa: E731
        for _ in range(2):
            op(fresh(), backend="torch")
        for index, field in enumerate(op.call._fields):
            for damage, value in damaged(case[index]):
                args = fresh()
                args[index] = value
                before = [*map(bits, args)]
                try:
                    op(args, backend="torch")
                except (ValueError, TypeError, UnsupportedError) as refusal:
                    words = str(refusal)
                    assert name in words, (field, damage)
                    assert [*map(bits, args)] == before, (field, damage)
                except Exception as error:  # noqa: BLE001
                    pytest.fail(f"{field}, {damage}: {type(error).__name__}: {error}")

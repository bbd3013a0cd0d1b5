# SPDX-License-Identifier: MIT
"""token_bitmask: every backend against the bits in Python."""

import pytest
import torch
from sampling_cases import BACKENDS, DTYPES, logits_like

import aiter_like


def words(rows, columns, seed=0):
    """A mask with whole words of zeros and of ones; bits beyond the columns are zeros or ones at random."""
    random = torch.Generator().manual_seed(seed)
    mask = torch.randint(-2**31, 2**31, (rows, -(-columns // 32) + 2), generator=random, dtype=torch.int32)
    mask[:, 1::3] = 0
    mask[0, ::2] = -1
    return mask


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns, stride", ((1, None), (31, None), (512, None), (9001, 9013)))
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_bits(device, run, backend, dtype, columns, stride):
    x, mask = logits_like(device, 3, columns, dtype, stride=stride), words(3, columns)
    allowed = torch.tensor([[row[c // 32] >> c % 32 & 1 for c in range(columns)] for row in mask.tolist()]).bool()
    wanted = torch.where(allowed, x.cpu(), float("-inf"))
    assert run(backend, aiter_like.apply_token_bitmask_inplace, x, mask.to(device)) is x
    assert torch.equal(x.cpu(), wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_chosen_rows(device, run, backend):
    x, mask = logits_like(device, 4, 700), torch.zeros(4, 22, dtype=torch.int32, device=device)
    before = x.clone()
    rows = torch.tensor([3, -1, 1, 4, 3], dtype=torch.int32, device=device)
    run(backend, aiter_like.apply_token_bitmask_inplace, x, mask, rows)
    assert torch.equal(x[::2], before[::2]) and x[1::2].isneginf().all()


def test_empty_and_bad_input(device):
    x, mask = logits_like(device, 2, 64), torch.zeros(2, 2, dtype=torch.int32, device=device)
    aiter_like.apply_token_bitmask_inplace(x[:0], mask[:0])
    aiter_like.apply_token_bitmask_inplace(x, mask, mask[0, :0])
    assert not x.isinf().any()
    for message, kind, args in (
            ("bitmask must have at least 2 columns", ValueError, (x, mask[:, :1])),
            ("bitmask must have shape", ValueError, (x, mask[:1]))):
        with pytest.raises(kind, match=message):
            aiter_like.apply_token_bitmask_inplace(*args)


def bench() -> None:
    """Beside torch; V = 128256, all but a word of each row masked."""
    import functools

    import benching

    device = torch.device("cuda")

    def case(rows, seed):
        x = torch.randn(rows, 128256, device=device)
        mask = torch.zeros(rows, 4008, dtype=torch.int32, device=device)
        mask[:, 7] = -1
        calls = benching.by_backend(aiter_like.apply_token_bitmask_inplace, x, mask)
        return benching.Case(f"{rows}", x.nbytes, calls, lambda got: 0.0)

    rows = (1, 16, 128, 512)
    benching.table("token_bitmask", (benching.rotating(functools.partial(case, count)) for count in rows))

# SPDX-License-Identifier: MIT
"""The adapter to vLLM's latent attention and sampler without vLLM: with stand-ins for its classes, against float64."""

import enum
from types import SimpleNamespace

import pytest
import torch
import toy_vllm_parts
from seeded import numbers as random

from aiter_like.errors import UnsupportedError
from aiter_like.integrations import takeover
from aiter_like.integrations.vllm import mla, sampler
from aiter_like.testing import relative_l2

pytestmark = pytest.mark.usefixtures("simulated")

HEADS, LATENT, ROPE, PAGE_SIZE, LIMIT = 4, 512, 64, 16, 2**-8


def test_decoding_over_what_was_written():
    """Ragged lengths over pages in any order, whole ones among them; nothing else of the pages is read."""
    impl, lengths = SimpleNamespace(kv_lora_rank=LATENT, scale=0.06), [20, 1, 32]
    cache = torch.full((9, PAGE_SIZE, LATENT + ROPE), torch.nan, dtype=torch.bfloat16)
    table = torch.tensor([[7, 2, 0], [4, 0, 0], [1, 8, 0]], dtype=torch.int32)
    latents, rotated, slots = random(sum(lengths), LATENT), random(sum(lengths), 1, ROPE, seed=1), []
    for row, length in zip(table, lengths):
        places = torch.arange(length)
        slots.append(row[places // PAGE_SIZE].long() * PAGE_SIZE + places % PAGE_SIZE)
    mla.cache_write(impl, latents, rotated, cache, torch.cat(slots), "auto", torch.ones(1), False)
    q = random(3, HEADS, LATENT + ROPE, seed=2)
    metadata = SimpleNamespace(decode=SimpleNamespace(block_table=table, seq_lens=torch.tensor(lengths).int()))
    out, lse = mla.decode(impl, q.split((LATENT, ROPE), -1), cache, metadata, None)
    keys = torch.cat((latents, rotated[:, 0]), -1).double().split(lengths)
    scores = [(torch.einsum("hd,kd->hk", row.double(), k) * 0.06).softmax(-1) for row, k in zip(q, keys)]
    assert lse is None
    assert relative_l2(out, torch.stack([p @ k[:, :LATENT] for p, k in zip(scores, keys)])) < LIMIT
    with pytest.raises(UnsupportedError, match="6 tokens for 3 sequences"):
        mla.decode(impl, random(6, HEADS, LATENT + ROPE), cache, metadata, None)


@pytest.mark.parametrize("denied, expected", (
    ("", ("cpu.path", "amx.path", "cpu.path")), ("mla_decode", ("amx.path", "amx.path", "cpu.path"))))
def test_processors_with_amx(module, monkeypatch, denied, expected):
    """The backend that ours are in, of three selections: none, AMX's by name, and ours by name."""
    class Names(enum.Enum):
        AMX_MLA, CPU_MLA = "amx.path", "cpu.path"

        def get_path(self):
            return self.value

    class Platform:
        @classmethod
        def get_attn_backend_cls(cls, selected_backend, config, num_heads=None):
            return (selected_backend or Names.AMX_MLA).get_path()

    members = toy_vllm_parts.modules() | {"vllm.v1.attention.backends.registry": {"AttentionBackendEnum": Names},
                                          "vllm.platforms.cpu": {"CpuPlatform": Platform}}
    for path, parts in members.items():
        module(path, **parts)
    monkeypatch.setenv("AITER_LIKE_DISABLE", denied)

    def chosen():
        return tuple(Platform.get_attn_backend_cls(one, None, num_heads=4)
                     for one in (None, Names.AMX_MLA, Names.CPU_MLA))

    stock = chosen()
    mla.take_methods("cpu")
    assert chosen() == expected
    takeover.restore_attributes("vllm")
    assert chosen() == stock == ("amx.path", "amx.path", "cpu.path")


@pytest.mark.parametrize("causal", (True, False))
def test_prompts(causal):
    counts, backend = torch.tensor([0, 7, 8]), SimpleNamespace(scale=0.1)
    keys = counts if causal else torch.tensor([0, 20, 23])
    q, k, v = random(8, HEADS, 96), random(int(keys[-1]), HEADS, 96, seed=1), random(int(keys[-1]), HEADS, 32, seed=2)
    out, lse = mla.prefill(backend, q, k, v, counts, keys, causal, True)
    for index in range(2):
        rows, places = (slice(*starts[index:index + 2].tolist()) for starts in (counts, keys))
        scores = torch.einsum("qhd,khd->hqk", q[rows].double(), k[places].double()) * 0.1
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -torch.inf)
        assert relative_l2(out[rows], torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[places].double())) < LIMIT
        torch.testing.assert_close(lse[:, rows].double(), scores.logsumexp(-1), rtol=1e-3, atol=1e-3)
    with pytest.raises(UnsupportedError, match="float32"):
        mla.prefill(backend, q.float(), k, v, counts, keys, causal, False)


def vllms(**changes) -> SimpleNamespace:
    return SimpleNamespace(**{"logprobs_mode": "raw_logprobs", "use_fp64_gumbel": False, **changes})


def test_greedy_tokens():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    tokens = sampler.greedy_sample(logits)
    assert tokens.dtype == torch.int64 and torch.equal(tokens, logits.argmax(-1))


def sampled(k, p):
    """400 tokens of probabilities .1, .4, .2, .3."""
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log().repeat(400, 1)
    torch.manual_seed(0)
    tokens, rest = sampler.sample(vllms(), logits, {}, k, None if p is None else torch.full((400,), p))
    assert rest is None and tokens.dtype == torch.int64
    return tokens


def test_p_is_a_share_of_what_top_k_keeps():
    """Probabilities .4, .3, .2, .1: of the best three, .9, the first two are .78, so that 0.7 keeps two and 0.8 three;
    as shares of all four, 0.8 would keep three, too, and 0.75 three instead of two."""
    three = torch.full((400,), 3, dtype=torch.int32)
    for k, p, kept in ((three, 0.75, {1, 3}), (None, 0.75, {1, 3, 2}), (three, None, {1, 3, 2}),
                       (None, None, {0, 1, 2, 3})):
        assert set(sampled(k, p).tolist()) == kept


@pytest.mark.exhaustive
def test_shares_of_tokens():
    for p, kept in ((0.75, [1, 2, 3]), (None, [0, 1, 2, 3])):
        weights = torch.tensor([0.1, 0.4, 0.2, 0.3])[kept]
        shares = torch.bincount(sampled(None, p), minlength=4)[kept] / 400
        assert (shares - weights / weights.sum()).abs().max() < 0.1  # four standard deviations


@pytest.mark.parametrize("changes,generators,reason", [
    ({}, {0: torch.Generator()}, "generators of requests"), ({"use_fp64_gumbel": True}, {}, "noise in 64 bits"),
    ({"logprobs_mode": "processed_logits"}, {}, "logprobs_mode processed_logits")])
def test_what_stays_vllms(changes, generators, reason):
    with pytest.raises(UnsupportedError, match=reason):
        sampler.sample(vllms(**changes), torch.zeros(1, 8), generators, None, None)

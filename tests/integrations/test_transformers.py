# SPDX-License-Identifier: MIT
"""The attention of small transformers models, served by this package, against transformers' own; masks and options."""

from __future__ import annotations

import copy

import pytest
import torch

from aiter_like.errors import UnsupportedError

transformers = pytest.importorskip("transformers")

from aiter_like.integrations import transformers as integration  # noqa: E402

# Rounding q, k, v and P to bfloat16 gives 0.002 to 0.009 here, a softmax scale wrong by 5 % gives 0.03; 0 would mean
# that the operator did not run.
LIMIT = 0.012


def pair(config_class, model_class, **sizes):
    """The same random weights twice: eager attention, and this package's."""
    torch.manual_seed(0)
    config = config_class(hidden_size=64, num_hidden_layers=2, intermediate_size=128, vocab_size=100,
                          initializer_range=0.2, **sizes)  # the usual 0.02 makes attention uniform, any scale "passes"
    eager = model_class._from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    integration.register(compute_dtype=torch.bfloat16)
    ours = model_class._from_config(config, attn_implementation=integration.NAME).eval()
    ours.load_state_dict(eager.state_dict())
    return eager, ours


@pytest.fixture
def encoder():
    return pair(transformers.BertConfig, transformers.BertModel, num_attention_heads=2)


@pytest.fixture
def decoder():
    return pair(transformers.LlamaConfig, transformers.LlamaModel, num_attention_heads=2, num_key_value_heads=1)


def distance(models, **inputs) -> float:
    """Relative L2 distance of the last hidden states."""
    with torch.no_grad():
        expected, got = (model(**inputs).last_hidden_state.double() for model in models)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    return ((got - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("seqlen", [1, 17, 70])
def test_encoder_matches_eager(encoder, seqlen):
    ids = torch.randint(0, 100, (2, seqlen), generator=torch.Generator().manual_seed(1))
    error = distance(encoder, input_ids=ids, attention_mask=torch.ones_like(ids))
    assert 0 < error < LIMIT


def test_causal_grouped_decoder_matches_eager(decoder):
    ids = torch.randint(0, 100, (2, 33), generator=torch.Generator().manual_seed(1))
    assert 0 < distance(decoder, input_ids=ids) < LIMIT


def test_decoding_with_a_cache_matches_one_pass(decoder):
    ids = torch.randint(0, 100, (1, 9), generator=torch.Generator().manual_seed(1))
    _, ours = decoder
    with torch.no_grad():
        whole = ours(input_ids=ids).last_hidden_state
        prefix = ours(input_ids=ids[:, :8], use_cache=True)
        last = ours(input_ids=ids[:, 8:], past_key_values=prefix.past_key_values).last_hidden_state
    torch.testing.assert_close(last[:, -1], whole[:, -1], rtol=1e-2, atol=1e-2)


def test_padding_is_refused_and_not_dropped(encoder):
    ids = torch.randint(0, 100, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    with pytest.raises(UnsupportedError, match="no mask that masks something"):
        encoder[1](input_ids=ids, attention_mask=mask)


def call(mask=None, **options):
    q, k, v = torch.randn(3, 1, 2, 5, 32)
    return integration.attention_forward(torch.nn.Identity(), q, k, v, mask, compute_dtype=torch.bfloat16,
                                         is_causal=False, **options)


@pytest.mark.parametrize("option", [{"softcap": 30.0}, {"s_aux": torch.zeros(2)}, {"position_bias": torch.zeros(1)},
                                    {"output_attentions": True}])
def test_options_that_would_change_the_result_are_refused(option):
    with pytest.raises(UnsupportedError, match=next(iter(option))):
        call(**option)


@pytest.mark.parametrize("mask", [torch.ones(1, 1, 5, 5, dtype=torch.bool), torch.zeros(1, 1, 5, 5)])
def test_an_open_mask_and_neutral_options_are_taken(mask):
    out, weights = call(mask, sliding_window=None, position_ids=torch.arange(5), output_attentions=False)
    assert out.shape == (1, 5, 2, 32) and out.dtype == torch.float32 and weights is None


def test_without_a_compute_dtype_float32_is_refused():
    q, k, v = torch.randn(3, 1, 2, 5, 32)
    with pytest.raises(TypeError, match="float32"):
        integration.attention_forward(torch.nn.Identity(), q, k, v, None)

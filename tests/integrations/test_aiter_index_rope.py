# SPDX-License-Identifier: MIT
"""fused_qknorm_idxrqknorm against the formulas in float64, in each of its caches; refusals before the first write."""

import pytest
import torch
from seeded import numbers

import aiter_like as aiter
from aiter_like import sim
from aiter_like.errors import UnsupportedError

BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fnuz
HEADS, KV, INDEX, DIM, ROTARY, EPSILON, PAGE, BLOCKS, TOKENS = 4, 2, 3, 128, 64, 1e-6, 16, 2, 5
SLOTS = torch.tensor([7, -1, 0, 30, 17])
KEPT = [0, 2, 3, 4]


def arguments(has_index=True, dtype=BF16):
    width = HEADS + 2 * KV + (INDEX + 1 if has_index else 0)
    weights = [numbers(DIM, seed=seed, dtype=dtype) / 8 for seed in range(1, 5)]
    table = torch.rand(20, ROTARY, generator=torch.Generator().manual_seed(9)).to(dtype)
    call = {"qkv": numbers(TOKENS, width * DIM, dtype=dtype), "q_norm_weight": weights[0], "k_norm_weight": weights[1],
            "cos_sin_cache": table, "positions": torch.tensor([3, 0, 19, 4, 4]), "num_heads": HEADS, "num_kv_heads": KV,
            "rotary_dim": ROTARY, "eps": EPSILON}
    if has_index:
        call |= {"index_q_norm_weight": weights[2], "index_k_norm_weight": weights[3], "num_index_heads": INDEX}
    return call


def expect(call):
    """q, k, v, and with an index its q and k, in float64."""
    has_index = "num_index_heads" in call
    parts = call["qkv"].double().unflatten(1, (-1, DIM)).split([HEADS, KV, KV, *((INDEX, 1) if has_index else ())], 1)
    weights = [call.get(name) for name in ("q_norm_weight", "k_norm_weight", None, "index_q_norm_weight",
                                           "index_k_norm_weight")]
    cos, sin = call["cos_sin_cache"].double()[call["positions"]][:, None].chunk(2, -1)
    found = []
    for x, weight in zip(parts, weights):
        if weight is not None:
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * (1 + weight.double())
            a, b, rest = x.split((ROTARY // 2, ROTARY // 2, DIM - ROTARY), -1)
            x = torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)
        found.append(x)
    return found


def insertion(dtype=BF16, index_dtype=BF16, asm_layout=False):
    x = 16 // dtype.itemsize
    shapes = [(BLOCKS, PAGE, KV, DIM)] * 2
    if asm_layout:
        shapes = [(BLOCKS, KV, DIM // x, PAGE, x), (BLOCKS, KV, PAGE // x, DIM, x)]
    return {"slot_mapping": SLOTS, "kv_cache_k": torch.zeros(shapes[0]).to(dtype), "asm_layout": asm_layout,
            "kv_cache_v": torch.zeros(shapes[1]).to(dtype), "block_size": PAGE,
            "index_cache": torch.zeros(BLOCKS, PAGE, DIM).to(index_dtype),
            "q_out": torch.zeros(TOKENS, HEADS * DIM, dtype=BF16),
            "index_q_out": torch.zeros(TOKENS, INDEX, DIM, dtype=BF16), "index_slot_mapping": SLOTS.roll(1)}


def rows_of(call):
    """K and V by slot, [slots, KV, DIM]."""
    k, v = call["kv_cache_k"], call["kv_cache_v"]
    if call["asm_layout"]:
        k, v = k.permute(0, 3, 1, 2, 4).flatten(3), v.permute(0, 2, 4, 1, 3).flatten(1, 2)
    return k.flatten(0, 1).double(), v.flatten(0, 1).double()


def close(got, expected, rtol=2**-8):
    torch.testing.assert_close(got.double(), expected, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("has_index", (False, True))
@pytest.mark.parametrize("dtype", (BF16, F32), ids=str)
def test_in_place(has_index, dtype):
    call = arguments(has_index, dtype)
    expected = torch.cat(expect(call), 1).flatten(1)
    with aiter.use_backend("torch"):
        aiter.fused_qknorm_idxrqknorm(**call)
    close(call["qkv"], expected, 2**-8 if dtype == BF16 else 1e-5)


@pytest.mark.parametrize("asm_layout", (False, True))
@pytest.mark.parametrize("kind", ("auto", "fp8_e4m3_unit", "fp8_e4m3_static", "fp8_e4m3"))
def test_caches(kind, asm_layout):
    stored = BF16 if kind == "auto" else FP8
    call = arguments() | insertion(stored, stored, asm_layout) | {"kv_cache_dtype": kind}
    if kind == "fp8_e4m3":
        shape = (BLOCKS, KV, PAGE) if asm_layout else (KV, BLOCKS * PAGE)
        call |= {"k_scale": torch.zeros(shape), "v_scale": torch.zeros(shape)}
    if kind == "fp8_e4m3_static":
        call |= {"k_scale": torch.tensor(0.5), "v_scale": torch.tensor([0.25])}
    before, (q, k, v, index_q, index_k) = call["qkv"].clone(), expect(call)
    with aiter.use_backend("torch"):
        aiter.fused_qknorm_idxrqknorm(**call)
    assert torch.equal(call["qkv"], before)
    close(call["q_out"], q.flatten(1))
    close(call["index_q_out"], index_q)
    slots, bound = SLOTS[KEPT], 2**-8 if kind == "auto" else 0.07
    for found, expected, name in zip(rows_of(call), (k, v), ("k_scale", "v_scale")):
        scale = float(call[name]) if kind == "fp8_e4m3_static" else 1.0
        if kind == "fp8_e4m3":
            scales = call[name].transpose(1, 2).flatten(0, 1) if asm_layout else call[name].t()
            scale = scales.double()[..., None]
            close(scale[slots, :, 0], expected[KEPT].abs().amax(-1) / 240, 2**-7)
        torch.testing.assert_close((found * scale)[slots], expected[KEPT], rtol=bound, atol=0.02)
        assert not (found * scale)[[1, 2, 3, 8, 31]].any()
    index_slots = SLOTS.roll(1)
    rows = [token for token in range(TOKENS) if index_slots[token] >= 0]
    torch.testing.assert_close(call["index_cache"].flatten(0, 1).double()[index_slots[rows]], index_k[rows, 0],
                               rtol=bound, atol=0.01)


def test_bytes_and_absent_results():
    """Bytes are fp8; without q_out queries stay in qkv; the index takes the keys' slots."""
    call = arguments() | insertion(FP8) | {"kv_cache_dtype": "fp8_e4m3_unit", "index_cache_dtype": "auto"}
    call = {name: value for name, value in call.items() if name not in ("q_out", "index_q_out", "index_slot_mapping")}
    q, k, _, index_q, index_k = expect(call)
    call["kv_cache_k"] = call["kv_cache_k"].view(torch.uint8)
    with aiter.use_backend("torch"):
        aiter.fused_qknorm_idxrqknorm(**call)
    heads = call["qkv"].unflatten(1, (-1, DIM))
    close(heads[:, :HEADS], q)
    close(heads[:, HEADS + 2 * KV:-1], index_q)
    close(call["index_cache"].flatten(0, 1)[SLOTS[KEPT]], index_k[KEPT, 0])
    keys = call["kv_cache_k"].view(FP8).flatten(0, 1)[SLOTS[KEPT]]
    torch.testing.assert_close(keys.double(), k[KEPT], rtol=0.07, atol=0.02)


@pytest.mark.parametrize("is_inserted", (False, True))
def test_index_queries_in_fp8(is_inserted):
    """As MiniMax-M3 has them in vLLM where the index's keys are fp8: rounded once, and saturated."""
    call = arguments() | (insertion(index_dtype=FP8) | {"index_cache_dtype": "fp8"} if is_inserted else {})
    call["index_q_norm_weight"][::7] = 300
    call["index_q_out"] = torch.zeros(TOKENS, INDEX * DIM, dtype=FP8)
    _, _, _, index_q, _ = expect(call)
    assert (index_q.abs() > 240).any()
    with aiter.use_backend("torch"):
        aiter.fused_qknorm_idxrqknorm(**call)
    torch.testing.assert_close(call["index_q_out"].double(), index_q.flatten(1).clamp(-240, 240), rtol=2**-4 + 1e-4,
                               atol=2**-11 + 1e-5)
    with pytest.raises(TypeError, match="^fused_qknorm_idxrqknorm: index_q_out must have dtype"):
        aiter.fused_qknorm_idxrqknorm(**call | {"index_q_out": call["index_q_out"].float()})


@pytest.mark.parametrize("is_inserted", (False, True))
def test_an_index_that_is_skipped(is_inserted):
    """As if it were not in the projection, as vLLM has it for layers that choose no keys; without its weights."""
    call, other = (arguments() | (insertion() if is_inserted else {}) for _ in range(2))
    for name in [name for name in call if name.startswith("index_")]:
        del call[name]
    other["qkv"] = other["qkv"][:, :(HEADS + 2 * KV) * DIM].contiguous()
    del other["num_index_heads"]
    with aiter.use_backend("torch"):
        aiter.fused_qknorm_idxrqknorm(**call, skip_index_branch=True)
        aiter.fused_qknorm_idxrqknorm(**other)
    rest = (HEADS + 2 * KV) * DIM
    assert torch.equal(call["qkv"][:, :rest], other["qkv"])
    assert torch.equal(call["qkv"][:, rest:], arguments()["qkv"][:, rest:])
    for name in ("q_out", "kv_cache_k", "kv_cache_v") if is_inserted else ():
        assert call[name].any() and torch.equal(call[name], other[name])


def test_refusals():
    call = arguments() | insertion()
    before = {name: value.clone() for name, value in call.items() if isinstance(value, torch.Tensor)}
    for message, kind, changes in (
            ("qkv must have shape", ValueError, {"num_kv_heads": 3}),
            ("q_norm_weight must have dtype", TypeError, {"q_norm_weight": call["q_norm_weight"].float()}),
            ("index_k_norm_weight must be a tensor", TypeError, {"index_k_norm_weight": None}),
            ("cos_sin_cache must have shape", ValueError, {"rotary_dim": 32}),
            ("positions must have at least 5", ValueError, {"positions": call["positions"][:3]}),
            ("positions must be rows of the table", ValueError, {"positions": call["positions"] + 5}),
            ("slot_mapping must be a tensor", TypeError, {"slot_mapping": None}),
            ("kv_cache_v must be a tensor", TypeError, {"kv_cache_v": None}),
            ("kv_cache_k must have shape", ValueError, {"block_size": 8}),
            ("kv_cache_k must have dtype", TypeError, {"kv_cache_dtype": "fp8_e4m3_unit"}),
            ("kv_cache_dtype must be", ValueError, {"kv_cache_dtype": "int8"}),
            ("k_scale must be None", ValueError, {"k_scale": torch.ones(1)}),
            ("k_scale must have 1 element", ValueError, {
                "kv_cache_dtype": "fp8_e4m3_static", "k_scale": torch.ones(2), "index_cache_dtype": "auto",
                "kv_cache_k": call["kv_cache_k"].to(FP8), "kv_cache_v": call["kv_cache_v"].to(FP8)}),
            ("index_cache must be contiguous", ValueError, {"index_cache": call["index_cache"][:1]}),
            ("q_out must be contiguous", ValueError, {"q_out": call["q_out"][:2]})):
        with pytest.raises(kind, match=f"^fused_qknorm_idxrqknorm: {message}"):
            aiter.fused_qknorm_idxrqknorm(**call | changes)
    assert all(torch.equal(call[name], value) for name, value in before.items())


@pytest.mark.parametrize("kind", ("auto", "fp8_e4m3"))
def test_by_kernels(kind):
    """On the simulated device, by HIP."""
    results = []
    for backend in ("torch", "hip"):
        stored = BF16 if kind == "auto" else FP8
        call = arguments() | insertion(stored, stored) | {"kv_cache_dtype": kind}
        if kind == "fp8_e4m3":
            call |= {"k_scale": torch.zeros(KV, BLOCKS * PAGE), "v_scale": torch.zeros(KV, BLOCKS * PAGE)}
        with sim.enabled(), aiter.use_backend(backend):
            for explanation in aiter.explain(aiter.fused_qknorm_idxrqknorm, **call):
                assert explanation.backend == backend, str(explanation)
            aiter.fused_qknorm_idxrqknorm(**call)
        results.append(call)
    for name in ("q_out", "index_q_out", "kv_cache_k", "kv_cache_v", "index_cache"):
        one, other = (call[name].double() for call in results)
        assert one.any()
        torch.testing.assert_close(other, one, rtol=2**-7 if call[name].dtype == BF16 else 0.13, atol=1e-3)


def test_a_backend_that_has_no_cache_writes():
    with sim.enabled(), aiter.use_backend("asm"), pytest.raises(UnsupportedError):
        aiter.fused_qknorm_idxrqknorm(**arguments() | insertion())

# SPDX-License-Identifier: MIT
"""fused_qk_rope_concat_and_cache_mla: each backend against float64, over layouts, dtypes, slots; bad input."""

import math

import benching
import pytest
import torch

import aiter_like
from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.ops.common import quant_rule
from aiter_like.ops.rope.fused_qk_rope_concat_and_cache_mla import fused_mla_cache
from aiter_like.testing import TOLERANCES, assert_within

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
BACKENDS = ("hip", "torch")
SLOTS = (7, -1, 0, 200, 30, 3, 12)  # the second and the fourth are nowhere


def make(device, dtype=BF16, table_dtype=None, heads=3, rank=64, pe=32, kv_heads=1, blocks=4, page_size=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = len(SLOTS) + 1  # the last one has no slot at all

    def random(*shape, of=dtype):
        return torch.randn(*shape, generator=generator).to(of).to(device)

    angles = torch.rand(50, pe // 2, generator=generator) * 6
    tables = [table.to(table_dtype or dtype).to(device) for table in (angles.cos(), angles.sin())]
    return {"q_nope": random(tokens, heads, rank), "q_pe": random(tokens, heads, pe),
            "kv_c": random(tokens, kv_heads, rank), "k_pe": random(tokens, kv_heads, pe),
            "kv_cache": torch.full((blocks, page_size, kv_heads, rank + pe), 5.0, dtype=dtype, device=device),
            "q_out": torch.full((tokens, heads, rank + pe), 5.0, dtype=dtype, device=device),
            "slot_mapping": torch.tensor(SLOTS, device=device), "k_scale": None, "q_scale": None,
            "positions": torch.randint(0, 50, (tokens,), generator=generator).to(device), "cos_cache": tables[0],
            "sin_cache": tables[1], "is_neox": True, "is_nope_first": True}


def expect(call):
    """(queries, keys) in float64 on the CPU, by token."""
    results = []
    for latent, pe in ((call["q_nope"], call["q_pe"]), (call["kv_c"], call["k_pe"])):
        latent, pe = (x.cpu().double() for x in (latent, pe))
        cos, sin = (call[name].cpu().double()[call["positions"].cpu()][:, None] for name in ("cos_cache", "sin_cache"))
        a, b = pe.chunk(2, -1) if call["is_neox"] else (pe[..., 0::2], pe[..., 1::2])
        turned = a * cos - b * sin, b * cos + a * sin
        turned = torch.cat(turned, -1) if call["is_neox"] else torch.stack(turned, -1).flatten(-2)
        results.append(torch.cat((latent, turned) if call["is_nope_first"] else (turned, latent), -1))
    return results


def check(run, backend, call, **options):
    """Runs the backend; each element within half a unit of its dtype, and nothing else is written."""
    run(backend, aiter_like.fused_qk_rope_concat_and_cache_mla, **call, **options)
    queries, keys = expect(call)
    cache = call["kv_cache"].flatten(0, 1).cpu()
    kept = [index for index, slot in enumerate(SLOTS) if 0 <= slot < len(cache)]
    rows = range(len(SLOTS)) if options.get("compute_all_q_rope") else kept
    for name, found, expected, scale in (("q_out", call["q_out"].cpu(), queries, call["q_scale"]),
                                         ("kv_cache", cache, keys, call["k_scale"])):
        places = list(rows) if name == "q_out" else [SLOTS[index] for index in kept]
        expected = expected[list(rows) if name == "q_out" else kept]
        left = [index for index in range(len(found)) if index not in places]
        assert (found[left].double() == 5).all(), f"{name} was written elsewhere"
        is_fp8 = found.dtype.itemsize == 1
        expected = expected / (scale.item() if is_fp8 and scale is not None else 1.0)
        if is_fp8:
            limit = torch.finfo(found.dtype).max
            expected = expected.clamp(-limit, limit)
            bound = expected.abs() * 2**-4 + 2**-10
        else:
            bound = expected.abs() * TOLERANCES[found.dtype, "rtne"].unit if found.dtype != F32 else 0
            bound = bound + 1e-6 * (1 + expected.abs())
        assert_within(name, found[places].double(), expected, bound)


@pytest.mark.parametrize("is_nope_first", (True, False))
@pytest.mark.parametrize("is_neox", (True, False))
@pytest.mark.parametrize("backend", BACKENDS)
def test_orders(device, run, backend, is_neox, is_nope_first):
    check(run, backend, {**make(device), "is_neox": is_neox, "is_nope_first": is_nope_first})


@pytest.mark.parametrize("dtype, table_dtype, rank, pe", (
    (BF16, F32, 512, 64), (F16, None, 64, 16), (F32, None, 18, 6)), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_dtypes_and_dimensions(device, run, backend, dtype, table_dtype, rank, pe):
    for is_neox in (True, False):
        check(run, backend, {**make(device, dtype, table_dtype, rank=rank, pe=pe, kv_heads=2), "is_neox": is_neox})


@pytest.mark.parametrize("which", ("both", "cache"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_fp8(device, run, backend, which):
    """Values that saturate too."""
    fp8 = dtypes.fp8_of(target_of(device).arch)
    call = make(device)
    call["k_scale"], call["q_scale"] = (torch.tensor([value], device=device) for value in (0.004, 0.5))
    for name in ("kv_cache", "q_out")[:1 if which == "cache" else 2]:
        call[name] = call[name].to(fp8)
    check(run, backend, call)
    assert (call["kv_cache"].float().abs() == torch.finfo(fp8).max).any()
    assert quant_rule.refusal(target_of(device), fp8) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_queries(device, run, backend):
    """Tokens without a slot have their queries written, where that is asked for; heads apart, pages apart."""
    call = make(device)
    wide = torch.full((2, 4, 8, 2, 1, 104), math.nan, dtype=BF16, device=device)
    cache = wide[0, :, :, 1, :, 4:100]
    cache.fill_(5.0)
    call["kv_cache"], call["q_nope"] = cache, call["q_nope"].transpose(0, 1).contiguous().transpose(0, 1)
    check(run, backend, call, compute_all_q_rope=True)
    assert wide[1].isnan().all() and wide[0, :, :, 0].isnan().all() and wide[0, :, :, 1, :, :4].isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_forms_of_engines(device, run, backend):
    """Two dimensions for keys and three for the cache; slots of 32 bits; positions outside the tables give NaN."""
    call = make(device)
    call |= {"kv_c": call["kv_c"][:, 0], "k_pe": call["k_pe"][:, 0], "kv_cache": call["kv_cache"][:, :, 0],
             "slot_mapping": call["slot_mapping"].int()}
    run(backend, aiter_like.fused_qk_rope_concat_and_cache_mla, **call)
    _, keys = expect({**call, "kv_c": call["kv_c"][:, None], "k_pe": call["k_pe"][:, None]})
    found, expected = call["kv_cache"].flatten(0, 1)[7].double().cpu(), keys[0, 0]
    assert_within("kv_cache", found, expected, 2**-8 * expected.abs() + 1e-6)
    tensors = [call[name] for name in ("q_out", "kv_cache", "q_nope", "q_pe", "kv_c", "k_pe")]
    tensors[1], tensors[4:] = tensors[1].unsqueeze(2), [one.unsqueeze(1) for one in tensors[4:]]
    fused_mla_cache.run(*tensors, call["slot_mapping"], call["positions"] + 1000, cos=call["cos_cache"],
                        sin=call["sin_cache"], backend=backend)
    assert call["q_out"][0, :, 64:].isnan().all() and not call["q_out"][0, :, :64].isnan().any()


def test_bad_input(device):
    call = make(device)
    for message, kind, changes in (
            ("kv_cache must have shape", ValueError, {"kv_cache": call["kv_cache"][..., :64]}),
            ("kv_cache must have pages", ValueError, {"kv_cache": call["kv_cache"][:, :0]}),
            ("q_out must have dtype", TypeError, {"q_out": call["q_out"].half()}),
            ("slot_mapping must have at most", ValueError, {"slot_mapping": torch.arange(99, device=device)}),
            ("positions must have at least", ValueError, {"positions": call["positions"][:2]}),
            ("cos_cache must have 16 columns", ValueError, {"cos_cache": call["cos_cache"][:, :8],
                                                            "sin_cache": call["sin_cache"][:, :8]}),
            ("k_scale must have 1 element", ValueError, {"k_scale": torch.ones(2, device=device)})):
        with pytest.raises(kind, match=message):
            aiter_like.fused_qk_rope_concat_and_cache_mla(**{**call, **changes})
    assert (call["q_out"] == 5).all() and (call["kv_cache"] == 5).all()


def bench() -> None:
    """Decoding and prefill of DeepSeek-V3 on one of eight GPUs."""
    benching.of("fused_qk_rope_concat_and_cache_mla", "tokens heads", ((64, 16), (256, 16), (4096, 16), (4096, 128)),
                beside=benching.alone, rank=512, rotary_dim=64, page_size=64, dtype="bf16", q_dtype="bf16",
                cache_dtype="bf16")

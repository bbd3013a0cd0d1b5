# SPDX-License-Identifier: MIT
"""fused_qk_norm_rope_group_quant and fused_kv_norm_rope_group_quant: entries, scales and rotated parts against float64
on each backend, over head dimensions, groups, pages and pools; bad input.
"""

import pytest
import torch

import aiter_like
from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.testing import assert_within

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
BACKENDS = ("hip", "torch")
KEYS, BOTH = aiter_like.fused_kv_norm_rope_group_quant, aiter_like.fused_qk_norm_rope_group_quant
SLOTS = (7, -1, 0, 200, 11, 3, 12)  # the second and the fourth are nowhere
TOKENS = len(SLOTS)
UNIT = {BF16: 2.0**-8, F16: 2.0**-11, F32: 2.0**-22}
PAD = 0x55


def fp8(device) -> torch.dtype:
    return dtypes.fp8_of(target_of(device).arch)


def entries(device, *shape):
    return torch.full(shape, PAD, dtype=torch.uint8, device=device).view(fp8(device))


def keys(device, dtype=BF16, table_dtype=None, head_dim=512, pe=64, seed=0):
    """Arguments of fused_kv_norm_rope_group_quant: 4 pages of 4 tokens."""
    generator = torch.Generator().manual_seed(seed)
    angles = torch.rand(50, pe // 2, generator=generator) * 6
    tables = [table.to(table_dtype or dtype).to(device) for table in (angles.cos(), angles.sin())]
    return {"kv": torch.randn(TOKENS, head_dim, generator=generator).to(device, dtype),
            "kv_weight": (torch.rand(head_dim, generator=generator) + 0.5).to(device, dtype),
            "positions": torch.randint(0, 50, (TOKENS,), generator=generator).to(device),
            "slot_mapping": torch.tensor(SLOTS, device=device), "cos_cache": tables[0], "sin_cache": tables[1],
            "eps": 1e-6, "k_nope_scale_buff": entries(device, 4, 4, head_dim),
            "k_rope_buff": torch.full((4, 4, pe), 5.0, dtype=dtype, device=device), "is_neox": False}


def queries(device, dtype=BF16, heads=3, head_dim=512, pe=64, group=64, **options):
    """Arguments of fused_qk_norm_rope_group_quant with all results given, those of queries as entries."""
    call = keys(device, dtype, head_dim=head_dim, pe=pe, **options)
    del call["slot_mapping"]
    generator = torch.Generator().manual_seed(9)
    call["k_weight"] = call.pop("kv_weight")
    return call | {"q": torch.randn(TOKENS, heads, head_dim, generator=generator).to(device, dtype) * 3,
                   "k_nope_scale_buff": entries(device, TOKENS, head_dim), "quant_group_size": group,
                   "k_rope_buff": torch.full((TOKENS, pe), 5.0, dtype=dtype, device=device),
                   "q_nope_scale_buff": entries(device, TOKENS, heads, head_dim),
                   "q_rope_buff": torch.full((TOKENS, heads, pe), 5.0, dtype=dtype, device=device)}


def normed(x, weight, call):
    """Heads in float64 on the CPU: [tokens, heads, nope], [tokens, heads, pe]."""
    y = x.cpu().double()
    y = y / (y.square().mean(-1, keepdim=True) + call["eps"]).sqrt()
    y = y if weight is None else y * weight.cpu().double()
    cos, sin = (call[name].cpu().double()[call["positions"].cpu()][:, None] for name in ("cos_cache", "sin_cache"))
    nope, pe = y.split([y.shape[-1] - 2 * cos.shape[-1], 2 * cos.shape[-1]], -1)
    a, b = pe.chunk(2, -1) if call["is_neox"] else (pe[..., 0::2], pe[..., 1::2])
    turned = a * cos - b * sin, b * cos + a * sin
    return nope, torch.cat(turned, -1) if call["is_neox"] else torch.stack(turned, -1).flatten(-2)


def check_entries(name, found, rotated, expected, group):
    """Entries and rotated parts: scales are the power of two at or above amax / largest, values within half a unit of
    fp8, and the bytes behind are as they were.
    """
    nope, pe = expected
    width, raw, top = nope.shape[-1], found.view(torch.uint8).cpu(), torch.finfo(found.dtype).max
    groups = width // group
    scales = raw[..., width:width + 2 * groups].unflatten(-1, (groups, 2))
    assert (scales[..., 0] == scales[..., 1]).all(), f"{name}: a scale stands twice"
    assert (raw[..., width + 2 * groups:] == PAD).all(), f"{name}: bytes behind the scales were written"
    scale = torch.exp2(scales[..., 0].double() - 127)
    ideal = nope.unflatten(-1, (groups, group)).abs().amax(-1) / top
    assert ((ideal <= scale * (1 + 1e-6)) & (ideal * 2 > scale * (1 - 1e-6))).all(), f"{name}: scales"
    values = found[..., :width].cpu().double().unflatten(-1, (groups, group)) * scale[..., None]
    wanted = nope.unflatten(-1, (groups, group))
    assert_within(name, values, wanted, wanted.abs() * (2**-4 + 1e-5) + scale[..., None] * 2**-10)
    assert_within(f"{name}, rotated", rotated.cpu().double(), pe,
                  2 * UNIT[rotated.dtype] * pe.abs() + 4e-6 * pe.abs().amax())


@pytest.mark.parametrize("dtype, table_dtype, head_dim, pe, group", (
    (BF16, None, 512, 64, 64), (BF16, F32, 192, 64, 64), (BF16, None, 384, 128, 128), (F16, None, 640, 128, 32),
    (F32, F32, 96, 32, 64)), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_into_pages(device, run, backend, dtype, table_dtype, head_dim, pe, group):
    for is_neox in (False, True):
        call = keys(device, dtype, table_dtype, head_dim, pe) | {"is_neox": is_neox, "quant_group_size": group}
        cache, rope = run(backend, KEYS, **call)
        assert cache is call["k_nope_scale_buff"] and rope is call["k_rope_buff"]
        kept = [token for token, slot in enumerate(SLOTS) if 0 <= slot < 16]
        places = [SLOTS[token] for token in kept]
        nope, turned = (x[kept, 0] for x in normed(call["kv"][:, None], call["kv_weight"], call))
        check_entries("keys", cache.flatten(0, 1)[places], rope.flatten(0, 1)[places], (nope, turned), group)
        others = [slot for slot in range(16) if slot not in places]
        assert (cache.view(torch.uint8).flatten(0, 1)[others] == PAD).all() and (rope.flatten(0, 1)[others] == 5).all()


@pytest.mark.parametrize("group, has_weight", ((32, False), (64, True)))
@pytest.mark.parametrize("backend", BACKENDS)
def test_queries_as_entries(device, run, backend, group, has_weight):
    call = queries(device, group=group)
    call["q_weight"] = call["k_weight"].flip(0) if has_weight else None
    call["q"] = call["q"].transpose(0, 1).contiguous().transpose(0, 1)  # heads apart
    call["kv"] = call["kv"][:, None]
    found = run(backend, BOTH, **call)
    check_entries("q", found[0], found[1], normed(call["q"], call["q_weight"], call), group)
    check_entries("k", found[2][:, None], found[3][:, None], normed(call["kv"], call["k_weight"], call), 64)


@pytest.mark.parametrize("backend", BACKENDS)
def test_new_results(device, run, backend):
    """Nothing is given: queries are whole heads in their dtype, or entries."""
    given = {name: value for name, value in queries(device, head_dim=192).items() if "_buff" not in name}
    expected = normed(given["q"], None, given)
    q, q_rope, entry, rope = run(backend, BOTH, **given)
    assert q.dtype == BF16 and q_rope is None and entry.shape == (TOKENS, 192) and rope.shape == (TOKENS, 64)
    whole = torch.cat(expected, -1)
    assert_within("q", q.cpu().double(), whole, 2**-7 * whole.abs() + 1e-5)
    again = run(backend, BOTH, **given, q_out_dtype=fp8(device))
    again[0].view(torch.uint8)[..., 128 + 2 * 2:] = PAD
    check_entries("q", again[0], again[1], expected, 64)
    assert torch.equal(entry.view(torch.uint8)[..., :132], again[2].view(torch.uint8)[..., :132])


@pytest.mark.parametrize("mode", ("blocks", "rows"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_pool(device, run, backend, mode):
    """Keys go to the pool's rows too, byte for byte, except those of no sequence, block, row or position."""
    call = queries(device, heads=1)
    ids, positions = [0, 0, 1, 1, -1, 1, 5], [4, 5, 9, 2, 3, -2, 0]
    tables, size = [[-1, 2, 0], [0, 7, 1]], 4  # blocks of 4 rows; block 7 is outside
    rows = [2 * 4 + 0, 2 * 4 + 1, 1 * 4 + 1, 0 * 4 + 2, None, None, None]
    call |= {"positions": torch.tensor(positions, device=device), "swa_nope_scale_buff": entries(device, 12, 512),
             "swa_rope_buff": torch.full((12, 64), 5.0, dtype=BF16, device=device),
             "batch_id_per_token": torch.tensor(ids, dtype=torch.int32, device=device)}
    if mode == "blocks":
        call |= {"swa_block_tables": torch.tensor(tables, dtype=torch.int32, device=device), "swa_block_size": size}
    else:
        call["swa_dest_row"] = torch.tensor([-1 if row is None else row for row in rows[:2]] + [99, 2, 1, 3, 11],
                                            dtype=torch.int32, device=device)
        rows = [8, 9, None, 2, None, None, 11]
    _, _, entry, rope = run(backend, BOTH, **call)
    pool, pool_rope = call["swa_nope_scale_buff"].view(torch.uint8), call["swa_rope_buff"]
    expected, expected_rope = torch.full_like(pool, PAD), torch.full_like(pool_rope, 5.0)
    for token, row in enumerate(rows):
        if row is not None:
            expected[row], expected_rope[row] = entry.view(torch.uint8)[token], rope[token]
    assert torch.equal(pool, expected) and torch.equal(pool_rope, expected_rope)
    assert rope[5].isnan().all() and not rope[[0, 1, 2, 3, 4, 6]].isnan().any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_values(device, run, backend):
    """Zeros have the smallest scale, a NaN makes its key NaN; of no tokens nothing is written."""
    call = keys(device)
    call["slot_mapping"] = torch.arange(TOKENS, dtype=torch.int32, device=device)
    call["kv"][0], call["kv"][1, 3] = 0.0, torch.nan
    cache, rope = run(backend, KEYS, **call)
    flat, width = cache.flatten(0, 1), 448
    scales = flat.view(torch.uint8)[:, width:width + 14]
    top = torch.finfo(cache.dtype).max
    assert (flat[0, :width].float() == 0).all() and (scales[0] == 127 - (117 if top == 240 else 118)).all()
    assert flat[1, :width].float().isnan().all() and (scales[1] == 255).all() and rope.flatten(0, 1)[1].isnan().all()
    assert not flat[2:TOKENS, :width].float().isnan().any()
    empty = keys(device)
    KEYS(**empty | {name: empty[name][:0] for name in ("kv", "positions", "slot_mapping")}, backend=backend)
    assert (empty["k_nope_scale_buff"].view(torch.uint8) == PAD).all()


def test_bad_input(device):
    call = keys(device)
    on_host = [("positions must be rows of the table", ValueError, {"positions": call["positions"] + 50})]
    for message, kind, changes in (
            ("kv must have shape", ValueError, {"kv": call["kv"][:, None].expand(-1, 2, -1)}),
            ("kv must have dtype", TypeError, {"kv": call["kv"].double()}),
            ("kv_weight must have shape", ValueError, {"kv_weight": call["kv_weight"][:64]}),
            ("positions must have shape", ValueError, {"positions": call["positions"][:2]}),
            *(on_host if device.type == "cpu" else ()),  # A GPU is not waited for.
            ("slot_mapping must be a tensor", TypeError, {"slot_mapping": None}),
            ("sin_cache must have shape", ValueError, {"sin_cache": call["sin_cache"][:, :8]}),
            ("eps must be at least 0", ValueError, {"eps": -1.0}),
            ("k_nope_scale_buff must have dtype", TypeError, {"k_nope_scale_buff": call["k_rope_buff"]}),
            ("k_nope_scale_buff must have shape", ValueError, {"k_nope_scale_buff": entries(device, 4, 4, 448)}),
            ("k_rope_buff must have shape", ValueError, {"k_rope_buff": call["k_rope_buff"][:, :2]}),
            ("quant_group_size must be 32, 64 or 128", ValueError, {"quant_group_size": 16}),
            ("quant_group_size must divide", ValueError, {"quant_group_size": 128}),
            ("scale_dtype must be 'e8m0'", ValueError, {"scale_dtype": "fp32"})):
        with pytest.raises(kind, match=f"fused_kv_norm_rope_group_quant: {message}"):
            KEYS(**call | changes)
    assert (call["k_nope_scale_buff"].view(torch.uint8) == PAD).all() and (call["k_rope_buff"] == 5).all()
    call = queries(device)
    pool = {"swa_nope_scale_buff": entries(device, 8, 512), "swa_rope_buff": call["k_rope_buff"][:1].expand(8, -1)}
    for message, kind, changes in (
            ("q must have shape", ValueError, {"q": call["q"][:2]}),
            ("q_rope_buff must have shape", ValueError, {"q_rope_buff": call["q_rope_buff"][:, :1]}),
            ("q_out_dtype must be", ValueError, {"q_nope_scale_buff": None, "q_out_dtype": F16}),
            ("swa_nope_scale_buff and swa_rope_buff must come with one of", ValueError, pool),
            ("swa_block_size must be between 1", ValueError,
             pool | {"swa_block_tables": torch.zeros(1, 4, dtype=torch.int32, device=device)})):
        with pytest.raises(kind, match=f"fused_qk_norm_rope_group_quant: {message}"):
            BOTH(**call | changes)
    assert (call["q_nope_scale_buff"].view(torch.uint8) == PAD).all()


def test_what_the_kernel_refuses(device):
    """Rows at odd addresses, and parts that no accesses of 8 elements divide."""
    call = keys(device, head_dim=72, pe=8) | {"quant_group_size": 64}
    with pytest.raises(UnsupportedError, match="of which a multiple of 16 turns, got 72 and 8"):
        KEYS(**call, backend="hip")
    odd = torch.zeros(TOKENS, 513, dtype=BF16, device=device)[:, :512]
    with pytest.raises(UnsupportedError, match="kv has rows at multiples of 8 elements"):
        KEYS(**keys(device) | {"kv": odd}, backend="hip")

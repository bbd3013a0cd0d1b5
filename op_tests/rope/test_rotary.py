# SPDX-License-Identifier: MIT
"""Rotary embedding as engines call it: flat tensors, get_rope with each scaling, autograd functions."""

import pytest
import torch
from rope_cases import check_rope, tables

import aiter_like
from aiter_like.testing import strided_like

BACKENDS = ("hip", "triton", "torch")
ORIGINAL = 64  # positions before scaling
LISTS = {"short_factor": [1.0 + i / 50 for i in range(16)], "long_factor": [2.0 + i / 4 for i in range(16)]}
SCALINGS = {
    "linear": {"factor": 4.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": ORIGINAL},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL, "beta_fast": 16, "beta_slow": 2},
    "yarn, mscale": {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7,
                     "original_max_position_embeddings": ORIGINAL, "truncate": False},
    "longrope": {"original_max_position_embeddings": ORIGINAL, **LISTS},
}


def angles(rows: int, width: int) -> torch.Tensor:
    return torch.rand(rows, width, generator=torch.Generator().manual_seed(9)) * 50


def randn(*shape: int, device: torch.device, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


@pytest.mark.parametrize("is_neox", (True, False))
@pytest.mark.parametrize("backend", BACKENDS)
def test_rotary_embedding_fwd(device, run, backend, is_neox):
    """Flat and split heads, slices of one qkv tensor, positions of one and two dimensions; caches of both ranks."""
    (cos, sin), exact = tables(angles(40, 16), torch.bfloat16, device)
    positions = torch.randint(0, 40, (6,), generator=torch.Generator().manual_seed(1))
    rows = [table[positions] for table in exact]
    flags = (0 if is_neox else 1, True, False)
    qkv = randn(6, 8 * 32, device=device)
    for shape, where in (((6,), positions), ((6,), positions.view(2, 3)), ((2, 3), positions.view(2, 3))):
        for trailing in ((-1,), (-1, 32)):
            data = qkv.clone()
            query, key = (part.view(*shape, *trailing) for part in (data[:, :160], data[:, 160:224]))
            run(backend, aiter_like.rotary_embedding_fwd, where.to(device), query, key, 32, cos, sin, is_neox, False)
            check_rope(data[:, :160].reshape(6, 5, 32), qkv[:, :160].view(6, 5, 32), *rows, *flags)
            check_rope(data[:, 160:224].reshape(6, 2, 32), qkv[:, 160:224].view(6, 2, 32), *rows, *flags)
            assert torch.equal(data[:, 224:], qkv[:, 224:]), "the values"
    query = qkv[:, :160].clone()
    run(backend, aiter_like.rotary_embedding_fwd, positions.int().to(device), query, None, 32, cos[:, 0, 0],
        sin[:, 0, 0], is_neox, False)
    check_rope(query.view(6, 5, 32), qkv[:, :160].view(6, 5, 32), *rows, *flags)


@pytest.mark.parametrize("backend", BACKENDS)
def test_offsets_and_nope_first(device, run, backend):
    (cos, sin), exact = tables(angles(40, 8), torch.bfloat16, device)
    positions, offsets = torch.tensor([3, 0, 7]), torch.tensor([20, 5, 0])
    rows = [table[positions + offsets] for table in exact]
    query, key = randn(3, 4 * 32, device=device), randn(3, 32, device=device, seed=1)
    given = [query.clone(), key.clone()]
    run(backend, aiter_like.batched_rotary_embedding, positions.to(device), *given, 32, cos, sin, True, True, 16,
        offsets.to(device))
    for out, x in zip(given, (query, key), strict=True):
        check_rope(out.view(3, -1, 32), x.view(3, -1, 32), *rows, 0, True, True)
    heads = [query.view(3, 4, 32).clone(), key.view(3, 1, 32).clone()]
    function = aiter_like.rope_cached_thd_positions_offsets_2c_fwd_inplace
    outs = run(backend, function, *heads, cos, sin, positions.to(device), offsets.to(device), 0, True, True)
    assert outs[0] is heads[0] and outs[1] is heads[1]
    assert all(torch.equal(out.flatten(1), wanted) for out, wanted in zip(heads, given, strict=True))
    for form, no_offsets in (("positions", ()), ("positions_offsets", (None,))):
        heads = [query.view(3, 4, 32).clone(), key.view(3, 1, 32).clone()]
        run(backend, getattr(aiter_like, f"rope_cached_thd_{form}_2c_fwd_inplace"), *heads, cos, sin,
            (positions + offsets).to(device), *no_offsets, 0, True, True)
        assert all(torch.equal(out.flatten(1), wanted) for out, wanted in zip(heads, given, strict=True))


def test_bad_arguments_are_named(device):
    cos = sin = torch.ones(8, 16, dtype=torch.bfloat16, device=device)
    positions, query = torch.arange(3, device=device), randn(3, 64, device=device)
    rotate, flags = aiter_like.rotary_embedding_fwd, (True, False)
    for message, error, args in (
            ("query must be heads of 32 elements for 3 tokens, got shape \\(2, 64\\)", ValueError,
             (positions, query[:2], None, 32, cos, sin, *flags)),
            ("key must be heads of 32", ValueError, (positions, query, query[:, :63], 32, cos, sin, *flags)),
            ("cos_cache must turn an even number of elements, at most 16", ValueError,
             (positions, query, None, 16, cos, sin, *flags))):
        with pytest.raises(error, match=message):
            rotate(*args)
    batched = aiter_like.batched_rotary_embedding
    with pytest.raises(ValueError, match="rot_dim must be twice the width of cos_cache, 32, got 16"):
        batched(positions, query, None, 32, cos, sin, *flags, 16, positions)
    with pytest.raises(ValueError, match="cos_sin_cache_offsets must have one element per position, 3, got"):
        batched(positions, query, None, 32, cos, sin, *flags, 32, positions[:2])
    empty = torch.empty(0, 64, dtype=torch.bfloat16, device=device)
    assert rotate(positions[:0], empty, None, 32, cos, sin, *flags) is None


@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_of_public_models(name):
    """Against transformers' functions: the same tables."""
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    scaling = {"rope_type": name, **SCALINGS[name]}
    config = LlamaConfig(hidden_size=128, num_attention_heads=4, max_position_embeddings=4 * ORIGINAL,
                         rope_parameters={"rope_theta": 10000.0, **scaling})
    longest = 4 * ORIGINAL if name != "linear" else ORIGINAL
    module = aiter_like.get_rope(32, 32, longest, 10000.0, rope_scaling=scaling, dtype=torch.float32)
    for length in (ORIGINAL, 4 * ORIGINAL):
        inverse, scale = utils.ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu", seq_len=length)
        first = module.long_from if module.long_from and length > ORIGINAL else 0
        expected = torch.outer(torch.arange(length).float(), inverse)
        for table, function in ((module.cos_cache, torch.cos), (module.sin_cache, torch.sin)):
            torch.testing.assert_close(table[first:first + length, 0, 0], function(expected) * scale, rtol=0, atol=6e-5)
    assert module.cos_cache.shape[0] >= 4 * ORIGINAL


def test_dynamic_scaling_has_the_base_of_its_longest_sequence():
    module = aiter_like.get_rope(32, 32, ORIGINAL, 10000, rope_scaling={"type": "dynamic", "factor": 2.0},
                                 dtype=torch.float32)
    base = 10000 * (2 * 2 - 1) ** (32 / 30)
    expected = torch.outer(torch.arange(128).double(), base ** (-torch.arange(0, 32, 2).double() / 32))
    torch.testing.assert_close(module.sin_cache[:, 0, 0].double(), expected.sin(), rtol=0, atol=3e-5)
    alpha = aiter_like.get_rope(32, 32, ORIGINAL, 10000, rope_scaling={"type": "dynamic", "alpha": 3.0},
                                dtype=torch.float32)
    assert torch.equal(alpha.cos_cache, module.cos_cache[:ORIGINAL])


def turned(module, positions, x):
    """`x` [tokens, heads, 32] by the module's own table."""
    cos, sin = (table[positions, 0, 0].double() for table in (module.cos_cache.cpu(), module.sin_cache.cpu()))
    return cos, sin, 0 if module.is_neox_style else 1


def test_module_turns_in_place(device):
    module = aiter_like.get_rope(32, 32, 50, 10000.0, False, dtype=torch.bfloat16, partial_rotary_factor=0.5)
    assert module is aiter_like.get_rope(32, 32, 50, 10000.0, False, None, torch.bfloat16, 0.5)
    assert module.rotary_dim == 16 and not module.state_dict()
    module.to(device)
    positions = torch.tensor([4, 49, 0])
    query, key = randn(3, 64, device=device), randn(3, 32, device=device, seed=1)
    q, k = query.clone(), key.clone()
    out = module(positions.to(device), q, k)
    assert out[0] is q and out[1] is k
    cos, sin, style = turned(module, positions, q)
    check_rope(q.view(3, 2, 32), query.view(3, 2, 32), cos, sin, style)
    check_rope(k.view(3, 1, 32), key.view(3, 1, 32), cos, sin, style)
    alone = query.clone()
    assert module(positions.to(device), alone) is alone and torch.equal(alone, q)
    shifted = query.clone()
    module((positions - positions).to(device), shifted, offsets=positions.to(device))
    assert torch.equal(shifted, q)


def test_longrope_switches_the_whole_call(device):
    scaling = {"rope_type": "longrope", **SCALINGS["longrope"]}
    module = aiter_like.get_rope(32, 32, 4 * ORIGINAL, 10000.0, rope_scaling=scaling, dtype=torch.float32).to(device)
    x = randn(3, 32, device=device, dtype=torch.float32)
    for last, start in ((ORIGINAL - 1, 0), (ORIGINAL, ORIGINAL)):
        positions = torch.tensor([0, 5, last])
        out = module(positions.to(device), x.clone())
        cos, sin, _ = turned(module, positions + start, x)
        check_rope(out.view(3, 1, 32), x.view(3, 1, 32), cos, sin)


@pytest.mark.parametrize("is_interleaved", (False, True))
def test_mrope_takes_each_frequency_from_its_axis(device, is_interleaved):
    scaling = {"rope_type": "default", "mrope_section": [6, 6, 4], "mrope_interleaved": is_interleaved}
    module = aiter_like.get_rope(32, 32, 64, 10000.0, rope_scaling=scaling, dtype=torch.float32).to(device)
    positions = torch.randint(0, 64, (3, 5), generator=torch.Generator().manual_seed(3))
    axis = [0] * 6 + [1] * 6 + [2] * 4
    if is_interleaved:
        axis = [i % 3 if i < 3 * (6, 6, 4)[i % 3] else 0 for i in range(16)]
    x = randn(5, 32, device=device, dtype=torch.float32)
    out = module(positions.to(device), x.clone())
    cos, sin = (torch.stack([table.cpu()[positions[a], 0, 0, i] for i, a in enumerate(axis)], -1).double()
                for table in (module.cos_cache, module.sin_cache))
    check_rope(out.view(5, 1, 32), x.view(5, 1, 32), cos, sin)
    text = module(positions[0].to(device), x.clone())
    assert torch.equal(text, module(positions[:1].expand(3, 5).to(device), x.clone()))


def test_bad_configurations_are_named():
    for message, arguments in (
            ("rope_scaling must have a rope_type among .*, got 'ntk'", {"rope_scaling": {"type": "ntk"}}),
            ("must have an entry 'factor', got 'rope_type'", {"rope_scaling": {"rope_type": "linear"}}),
            (r"rope_scaling\['long_factor'\] must have 16 entries, got 15", {"rope_scaling": {
                "rope_type": "longrope", **SCALINGS["longrope"], "long_factor": [1.0] * 15}}),
            (r"mrope_section'\] must be three sizes with sum 16", {"rope_scaling": {"mrope_section": [8, 8, 8]}}),
            ("rotary_dim must be even and at most head_size 32, got 33", {"rotary_dim": 33}),
            ("dual_chunk_attention_config must be None", {"dual_chunk_attention_config": {}})):
        with pytest.raises(ValueError, match=message):
            aiter_like.get_rope(**{"head_size": 32, "rotary_dim": 32, "max_position": 64, "base": 1e4, **arguments})


def test_autograd_functions(device):
    """Each one's gradient is that of the formula."""
    freqs = angles(8, 8)[:, None, None].to(device)
    cos, sin = freqs.cos(), freqs.sin()
    rows = [function(angles(4, 4)).to(device)[None, :, None] for function in (torch.cos, torch.sin)]
    flags, starts = (0, True, False), torch.tensor([0, 3, 8], device=device)
    x4, x3 = (randn(*shape, device=device, dtype=torch.float32).requires_grad_()
              for shape in ((8, 2, 3, 16), (8, 3, 16)))
    cases = ((aiter_like.RoPE, aiter_like.rope_fwd, x4, (freqs, *flags, True)),
             (aiter_like.RoPECached, aiter_like.rope_cached_fwd, x4, (cos, sin, 1, True, False)),
             (aiter_like.RoPETHD, aiter_like.rope_thd_fwd, x3, (starts, freqs, *flags)),
             (aiter_like.RoPE2D, aiter_like.rope_2d_fwd, x4.detach().transpose(0, 1).requires_grad_(),
              (*rows, *rows, 2, 4, *flags)))
    for function, forward, x, args in cases:
        out = function.apply(x, *args)
        weight = randn(*out.shape, device=device, seed=2, dtype=torch.float32)
        got = torch.autograd.grad((out * weight).sum(), x)[0]
        expected = torch.autograd.grad((forward(x, *args, backend="torch") * weight).sum(), x)[0]
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_strided_query_is_written_where_it_is(device):
    (cos, sin), exact = tables(angles(8, 16), torch.bfloat16, device)
    x = randn(4, 3, 32, device=device)
    padded = strided_like(x, (0, 1, 4), offset=1)
    positions = torch.arange(4)
    aiter_like.rotary_embedding_fwd(positions.to(device), padded, None, 32, cos, sin, True, False)
    check_rope(padded, x, *(table[positions] for table in exact))

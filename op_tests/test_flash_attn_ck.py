# SPDX-License-Identifier: MIT
"""Backend "ck" of flash_attn_fwd: its instances' names and registers, and every feature against float64."""

from __future__ import annotations

import itertools

import pytest
import torch

import aiter_like
from aiter_like import sim
from aiter_like.errors import UnsupportedError
from aiter_like.jit import build
from aiter_like.ops.attention_tile import TileInstance, _flash_attn_fwd_ck
from aiter_like.testing import check_attention, strided_like

# dtype, head dimension, causal, rounding: the instances that the tests of values share
PLAIN = [(torch.bfloat16, 32, True, 0), (torch.bfloat16, 64, False, 2), (torch.float16, 96, True, 0),
         (torch.bfloat16, 128, True, 0), (torch.bfloat16, 128, False, 1), (torch.float16, 256, True, 2)]


def dense(device, batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, seqlen_q, heads, head_dim, generator=generator)
    k, v = torch.randn(2, batch, seqlen_k, kv_heads, head_dim, generator=generator)
    return q.to(device, dtype), k.to(device, dtype), v.to(device, dtype)


def check(run, q, k, v, causal, rounding, scale=None):
    """`out` of the backend, after comparison of it and its LSE with float64."""
    out, lse = run("ck", aiter_like.flash_attn_func, q, k, v, softmax_scale=scale, causal=causal, return_lse=True,
                   how_v3_bf16_cvt=rounding)
    check_attention(out, lse, q, k, v, scale, causal, ("rtne", "rtna", "rtz")[rounding])
    return out


@pytest.mark.parametrize("dtype, head_dim, causal, rounding", PLAIN)
def test_plain(device, run, dtype, head_dim, causal, rounding):
    """One key, fewer keys than rows, grouped heads, blocks of rows and keys that are not full."""
    for lengths, heads in (((1, 1), (1, 1)), ((70, 33), (2, 2)), ((140, 200), (4, 2))):
        check(run, *dense(device, 1 + lengths[0] % 2, *lengths, *heads, head_dim, dtype), causal, rounding)


def test_head_dims_between_are_padded(device, run):
    """80 in a module for 96: columns beyond are zeros in q, k, v and left alone in out."""
    q, k, v = dense(device, 1, 40, 70, 2, 1, 80, torch.float16)
    padded = strided_like(torch.zeros_like(q), (0, 0, 3, 21))
    out, _ = run("ck", aiter_like.flash_attn_func, q, k, v, causal=True, how_v3_bf16_cvt=0, return_lse=True, out=padded)
    check_attention(out, None, q, k, v, None, True)
    assert padded.as_strided((40, 2, 21), (5 * 101, 101, 1), 80).isnan().all()


def test_strides_are_free(device, run):
    """Padding between all dimensions and a base that is aligned to nothing: NaN around, and in no result."""
    q, k, v = dense(device, 2, 70, 100, 4, 2, 64, torch.bfloat16)
    views = (strided_like(tensor, (0, 1, 3, 5), offset=3) for tensor in (q, k, v))
    expected = check(run, q, k, v, False, 2)
    assert torch.equal(check(run, *views, False, 2), expected)
    swapped = (tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k, v))  # [batch, heads, rows, dim]
    assert torch.equal(check(run, *swapped, False, 2), expected)


def test_names_say_everything():
    """The name gives the instance back; two instances never share a name."""
    choices = (("bf16", "f16", "fp8"), ("bf16", "f16"), (32, 192), (64, 128), (1, 2), (False, True),
               ("", "bf16", "f16", "float"), (False, True), (False, True), (0, 1, 2))
    instances = [TileInstance(*fields) for fields in itertools.product(*choices)]
    assert all(TileInstance.parse(instance.name) == instance for instance in instances)
    assert len({instance.name for instance in instances}) == len(instances)
    assert instances[0].name == "bf16_obf16_d32x64_b64x64_w4_qrksvs_nmask_nbias_nalibi_ncap_rtne"
    with pytest.raises(ValueError, match="no name of an instance"):
        TileInstance.parse("bf16_obf16_d32x64_b64x64_w4_qrksvs_nmask_nbias_nalibi_rtne")


def test_explain_names_the_instance(device):
    q, k, v = dense(device, 1, 8, 8, 1, 1, 96, torch.bfloat16)
    explanation = aiter_like.explain(aiter_like.flash_attn_func, q, k, v, causal=True)
    if explanation.target.arch == "gfx942":
        assert explanation.kernel == "flash_attn_fwd[bf16_obf16_d96x96_b128x64_w4_qrksvs_mask_nbias_nalibi_ncap_rtna]"


def test_what_it_refuses(device):
    for head_dim in (12, 264):
        q, k, v = dense(device, 1, 8, 8, 1, 1, head_dim, torch.bfloat16)
        with pytest.raises(UnsupportedError, match="head dimensions must be multiples of 8, at most 256|MFMA"):
            aiter_like.flash_attn_func(q, k, v, backend="ck")
    q, k, v = dense(device, 1, 8, 8, 1, 1, 64, torch.bfloat16)
    with pytest.raises(UnsupportedError, match="row stride of k from 64|MFMA"):
        aiter_like.flash_attn_func(q, k[:, :1].expand(1, 8, 1, 64), v, backend="ck")


# instance → VGPRs and AGPRs that it may have: 128 let four waves share a SIMD's 512, 168 three, 256 two
REGISTERS = {
    "bf16_obf16_d32x32_b128x64_w4_qrksvs_mask_nbias_nalibi_ncap_rtne": 144,
    "bf16_obf16_d64x64_b128x64_w4_qrksvs_nmask_nbias_nalibi_ncap_rtz": 168,
    "f16_of16_d96x96_b128x64_w4_qrksvs_mask_nbias_nalibi_ncap_rtne": 256,
    "bf16_obf16_d128x128_b128x64_w4_qrksvs_mask_nbias_nalibi_ncap_rtne": 256,
    "bf16_obf16_d128x128_b128x64_w4_qrksvs_nmask_nbias_nalibi_ncap_rtna": 256,
    "bf16_obf16_d192x128_b128x64_w4_qrksvs_mask_nbias_nalibi_ncap_rtne": 512,
    "f16_of16_d256x256_b64x64_w4_qrksvs_mask_nbias_nalibi_ncap_rtz": 512,
}


@pytest.mark.parametrize("name", REGISTERS)
def test_instances_keep_their_registers(device, name):
    """No spills, no scratch; LDS for the waves that the registers allow."""
    if device.type != "cpu":
        pytest.skip("static: the code for gfx942 is the same wherever the tests run")
    spec = _flash_attn_fwd_ck.instance_spec(TileInstance.parse(name).instance(), "hip", "gfx942")
    library = build.ensure(spec).path.read_bytes()
    (kernel,) = sim.inspect(library[library.index(b"__CLANG_OFFLOAD_BUNDLE__"):]).values()
    used = kernel["vgprs"] + kernel["agprs"]
    assert used <= REGISTERS[name], (used, kernel)
    assert not any(kernel[nothing] for nothing in ("vgpr_spills", "sgpr_spills", "private_bytes")), kernel
    assert kernel["lds_bytes"] * (512 // REGISTERS[name] if REGISTERS[name] > 168 else 2) <= 65536

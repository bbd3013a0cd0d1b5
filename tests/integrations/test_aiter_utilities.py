# SPDX-License-Identifier: MIT
"""What every AITER program uses beside operators: options, logger, enums, test helpers, and references of attention."""

import argparse
import logging
import os
import sys

import pytest
import torch

import aiter_like as aiter
from aiter_like import device, dtypes
from aiter_like.enums import ActivationType, QuantType
from aiter_like.integrations.aiter import checks, objects
from aiter_like.integrations.aiter import uses as aiter_uses
from aiter_like.integrations.aiter.attention import mha_common
from aiter_like.integrations.aiter.checks import Arch

# ---- options of programs


@pytest.mark.parametrize(("read", "text", "value"), [
    (dtypes.str2bool, "Yes", True), (dtypes.str2bool, "0", False), (dtypes.str2bool, True, True),
    (dtypes.str2tuple, "512", 512), (dtypes.str2tuple, "512,", (512,)), (dtypes.str2tuple, "(512, 1024)", (512, 1024)),
    (dtypes.str2Dtype, "bf16", torch.bfloat16), (dtypes.str2Dtype, "none", None),
    (dtypes.str2Dtype, "fp16, bf16", (torch.float16, torch.bfloat16)),
    (dtypes.str2Dtype, "PER_token", QuantType.per_Token), (dtypes.str2Dtype, "i8,", (torch.int8,)),
    (dtypes.str2ActivationType, "silu", ActivationType.Silu), (dtypes.str2ActivationType, "GELU", ActivationType.Gelu),
])
def test_options_are_read(read, text, value):
    parser = argparse.ArgumentParser()
    parser.add_argument("--option", type=read)
    assert read(text) == value
    if isinstance(text, str):
        assert parser.parse_args(["--option", text]).option == value


@pytest.mark.parametrize(("read", "text", "message"), [
    (dtypes.str2bool, "maybe", "a boolean must be yes or no, got 'maybe'"), (dtypes.str2tuple, "1,x", "'1,x'"),
    (dtypes.str2Dtype, "bf17", "expected none, one of fp8"), (dtypes.str2ActivationType, "relu", "one of No, Silu"),
])
def test_options_are_refused(capsys, read, text, message):
    parser = argparse.ArgumentParser()
    parser.add_argument("--option", type=read)
    with pytest.raises(SystemExit):
        parser.parse_args(["--option", text])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("arch", "fp8"), [("gfx942", torch.float8_e4m3fnuz), ("sm_90", torch.float8_e4m3fn)])
def test_architecture_and_its_fp8(monkeypatch, arch, fp8):
    monkeypatch.setattr(device, "default_target", lambda: device.Target("hip", arch, 7, 64))
    assert (aiter.get_gfx(), aiter.get_gfx_runtime(), aiter.get_arch()) == (arch,) * 3 and aiter.get_cu_num() == 7
    assert dtypes.get_dtype_fp8() == aiter.get_fp8_e4m3_dtype() == fp8 and type(aiter.get_gfx()) is str
    assert aiter.get_fp8_dtypes() == (torch.float8_e5m2fnuz if arch == "gfx942" else torch.float8_e5m2, fp8)
    assert not aiter.is_flydsl_available() and not aiter.is_experimental_enabled()


def test_comparisons_in_vain_are_noted_only_while_checks_are_counted(tmp_path, monkeypatch):
    arch = Arch("sm_90")
    assert arch != "gfx942" and checks.journal is None
    journal = checks.Journal(tmp_path / "journal", tmp_path, by_call=True)
    monkeypatch.setattr(checks, "journal", journal)
    assert arch == "sm_90" and arch != "sm_80" and arch != 3 and not journal.asked_in_vain
    assert isinstance(aiter.get_gfx(), Arch) and {arch: 1}["sm_90"] == 1 and f"{arch}" == "sm_90"
    assert arch not in ["gfx942", "gfx950"] and journal.asked_in_vain == "sm_90"


def test_logger_prints_results_as_aiters(monkeypatch, capsys):
    logger = logging.getLogger("aiter")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    monkeypatch.setattr(logger, "propagate", True)
    logger.manager._clear_cache()
    objects._logger.cache_clear()
    objects.logger.info("summary: %d", 3)
    assert capsys.readouterr().err == "[aiter] summary: 3\n"
    objects._logger.cache_clear()
    assert objects.logger is aiter.logger is logger
    assert len(logger.handlers) == 1  # one that is set up stays as it is
    objects._logger.cache_clear()


def test_rope_takes_its_rotate_style():
    device.use_simulator(False)
    try:
        x, freqs = torch.randn(4, 1, 2, 32), torch.randn(4, 1, 1, 32)
        for style in aiter.RotateStyle:
            assert torch.equal(aiter.rope_fwd(x, freqs, style, False, False, False),
                               aiter.rope_fwd(x, freqs, int(style), False, False, False))
    finally:
        device.reset()
    assert [int(mode) for mode in aiter.MxScaleRoundModeInt] == [0, 1, 2, 3] and aiter.MX_DEFAULT_ROUND_MODE == 1
    assert [int(form) for form in aiter.MxDtypeInt] == [0, 1, 2]


# ---- test_common


@pytest.mark.parametrize("tensor", [torch.randn(3, 5), torch.randn(2, 2).to(torch.bfloat16), torch.arange(6).view(3, 2),
                                    torch.randn(4, 4).to(torch.float8_e4m3fn), torch.zeros(0, 3), torch.tensor(2.5),
                                    torch.randn(6, 4).t()])
def test_tensors_are_written_and_read(tmp_path, tensor):
    aiter.tensor_dump(tensor, "Q", str(tmp_path))
    found = aiter.tensor_load(str(tmp_path / "Q.bin"))
    assert (found.shape, found.dtype) == (tensor.shape, tensor.dtype)
    assert torch.equal(found.double(), tensor.double())


def test_a_tensor_of_no_dtype_is_refused(tmp_path):
    (tmp_path / "Q.bin").write_bytes(b"")
    (tmp_path / "Q.meta").write_text("load 3")
    with pytest.raises(ValueError, match="must begin with a dtype, got 'load'"):
        aiter.tensor_load(str(tmp_path / "Q.bin"))


def test_a_single_element_far_off_is_a_catastrophe():
    a, b = torch.full((100,), 4.0), torch.full((100,), 4.0)
    a[0] = 6.5
    assert aiter.checkAllclose(a, b) == pytest.approx(0.01)
    with pytest.raises(AssertionError, match="1.00% of 100"):
        aiter.checkAllclose(a, b, catastrophic_check=True)
    a[0] = 5.5  # less than half of the peak
    assert aiter.checkAllclose(a, b, catastrophic_check=True) == pytest.approx(0.01)


# ---- test_mha_common


@pytest.mark.parametrize("reorder_ops", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_reference_of_attention_is_torchs(causal, reorder_ops):
    q, k, v = torch.randn(2, 5, 4, 8), torch.randn(2, 5, 2, 8), torch.randn(2, 5, 2, 6)
    bias = torch.randn(2, 4, 5, 5)
    mask = bias + torch.full((5, 5), -torch.inf).triu(1) if causal else bias
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(tensor.transpose(1, 2) for tensor in (q, k, v)), attn_mask=mask, enable_gqa=True).transpose(1, 2)
    out, attention, lse = mha_common.attention_ref(q, k, v, attn_bias=bias, causal=causal,
                                                         reorder_ops=reorder_ops)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(attention.sum(-1), torch.ones(2, 4, 5))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(2, 2)) * 8**-0.5 + mask
    torch.testing.assert_close(lse, scores.logsumexp(-1))


def test_reference_leaves_out_what_is_no_token():
    """Sequences of a batch alone, each of its own length, give what the batch gives."""
    q, k, v = torch.randn(2, 6, 2, 8), torch.randn(2, 7, 2, 8), torch.randn(2, 7, 2, 8)
    masks = [torch.arange(size)[None] < torch.tensor(lengths)[:, None]
             for size, lengths in ((6, [4, 6]), (7, [7, 5]))]
    options = {"window_size": (2, 1), "softcap": 3.0, "sink": torch.randn(2)}
    out, _, _ = mha_common.attention_ref(q, k, v, *masks, **options)
    for row, (size_q, size_k) in enumerate(((4, 7), (6, 5))):
        alone, _, _ = mha_common.attention_ref(q[row:row + 1, :size_q], k[row:row + 1, :size_k],
                                                     v[row:row + 1, :size_k], **options)
        torch.testing.assert_close(out[row, :size_q], alone[0])
        assert not out[row, size_q:].any()


def test_reference_counts_a_left_pad_out():
    q, k, v = torch.randn(1, 3, 1, 8), torch.randn(1, 5, 1, 8), torch.randn(1, 5, 1, 8)
    out, attention, _ = mha_common.attention_ref(q, k, v, window_size=(-1, 10), key_leftpad=torch.tensor([2]))
    assert not attention[..., :2].any() and attention[..., 2:].all()
    torch.testing.assert_close(out, mha_common.attention_ref(q, k[:, 2:], v[:, 2:])[0])


def test_dropout_scales_what_it_keeps():
    q = torch.randn(1, 2, 1, 4)
    keep = torch.tensor([[[[True, False], [True, True]]]])
    out, attention, _ = mha_common.attention_ref(q, q, q, dropout_p=0.5, dropout_mask=keep)
    torch.testing.assert_close(out[0, :, 0], 2 * (attention * keep)[0, 0] @ q[0, :, 0])


def test_bias_of_slopes():
    slopes = torch.tensor([[0.5, 1.0]])
    assert aiter.attn_bias_from_alibi_slopes(slopes, 2, 3)[0, 1].tolist() == [[-1, 0, -1], [-2, -1, 0]]
    assert aiter.attn_bias_from_alibi_slopes(slopes, 2, 3, causal=True)[0, 0, 0].tolist() == [-1, -0.5, 0]
    masks = torch.tensor([[True, False]]), torch.tensor([[True, True, False]])
    assert aiter.attn_bias_from_alibi_slopes(slopes, 2, 3, *masks)[0, 1].tolist() == [[-1, 0, -1], [-2, -1, 0]]


@pytest.mark.parametrize("mode", ["full", "random", "third"])
def test_masks_of_padding(mode):
    mask = aiter.generate_random_padding_mask(30, 50, "cpu", mode)
    lengths = mask.sum(1)
    assert mask.shape == (50, 30) and bool((mask[:, 1:] <= mask[:, :-1]).all())
    assert lengths.min() >= {"full": 30, "random": 10, "third": 10}[mode]
    with pytest.raises(ValueError, match="one of full, random, third, got 'half'"):
        aiter.generate_random_padding_mask(30, 2, "cpu", "half")


@pytest.mark.parametrize("packing", [{}, {"kvpacked": True, "input_layout": "KVPACKED"}, {"qkvpacked": True},
                                     {"input_layout": "BHSD"},
                                     {"input_layout": "SBHD"}])
@pytest.mark.parametrize("is_padded", [False, True])
def test_tokens_of_a_batch(packing, is_padded):
    q, k, v = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 3, 8), torch.randn(2, 4, 3, 8)
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]]) if is_padded else None
    found = aiter.generate_qkv(q, k, v, mask, mask, **packing)
    lengths = [3, 2] if is_padded else [4, 4]
    assert found[3].tolist() == found[4].tolist() == [0, lengths[0], sum(lengths)] and found[3].dtype == torch.int32
    assert found[5:7] == (max(lengths),) * 2
    for tokens, batch, original, put in zip(found[:3], found[7:10], (q, k, v), (*found[10:12], found[12])):
        assert tokens.requires_grad and batch.requires_grad and torch.equal(batch, original)
        whole = put(tokens)
        assert torch.equal(tokens, torch.cat([original[row, :length] for row, length in enumerate(lengths)]))
        assert torch.equal(whole, original if mask is None else original * mask[:, :, None, None])
    if packing.get("input_layout") == "SBHD":
        assert found[7].transpose(0, 1).is_contiguous()


def test_forms_of_a_batch_that_are_none():
    q = torch.randn(1, 2, 1, 4)
    for options in ({"input_layout": "HSBD"}, {"kvpacked": True, "qkvpacked": True}):
        with pytest.raises(ValueError, match="generate_qkv: input_layout must be one of BSHD, BHSD, SBHD, KVPACKED"):
            aiter.generate_qkv(q, q, q, **options)


def test_what_dropout_drew_as_a_mask():
    """Up to floor(255 · 0.83) = 211 is kept."""
    found = aiter.ck_randval_to_dropout_mask(torch.tensor([0, 211, 212, 255], dtype=torch.uint8), 0.17)
    assert found.tolist() == [211, 0, -1, -44] and found.dtype == torch.float32


def test_scores_of_packed_sequences_as_a_batch():
    scores = torch.arange(1, 13).view(1, 4, 3)
    found = aiter.pad_rearrange_dropout_mask_hts_to_bhss(scores, torch.tensor([0, 1, 4], dtype=torch.int32), 3, 4)
    assert found.shape == (2, 1, 3, 4)
    assert found[0, 0].tolist() == [[1, 2, 3, 0], [0] * 4, [0] * 4]
    assert found[1, 0].tolist() == [[4, 5, 6, 0], [7, 8, 9, 0], [10, 11, 12, 0]]


@pytest.mark.parametrize(("options", "expected"), [
    ({}, [[-1, -1, -1], [-1, -1, -1]]), ({"causal": True}, [[-1, -1, 0], [-1, -1, -1]]),
    ({"window_size": (0, 0)}, [[0, -1, 0], [0, 0, -1]]),
    ({"window_size": torch.tensor([1, -1])}, [[-1, -1, -1], [0, -1, -1]]),
    ({"key_padding_mask": torch.tensor([[True, True, False]])}, [[-1, -1, 0], [-1, -1, 0]]),
    ({"query_padding_mask": torch.tensor([[True, False]])}, [[-1, -1, -1], [0, 0, 0]]),
    ({"query_padding_mask": torch.tensor([[True, False]]), "causal": True}, [[-1, -1, -1], [0, 0, 0]])], ids=str)
def test_scores_that_are_none(options, expected):
    """0 stands where a query does not see a key, and for padding; what a kernel stored beyond the scores is cut."""
    options = {"query_padding_mask": None, "key_padding_mask": None, **options}
    found = aiter.convert_flash_attn_S_to_softmax(torch.full((1, 2, 4, 5), -1.0), 2, 3, head_dim=8, is_dropout=True,
                                                  **options)
    assert found[0, 0].tolist() == found[0, 1].tolist() == expected
    small = aiter.convert_flash_attn_S_to_softmax(torch.full((1, 2, 1, 2), -1.0), 2, 3, None, None, 8, True)
    assert small[0, 0].tolist() == [[-1, -1, 0], [0, 0, 0]]


# ---- names that a program uses


def test_names_of_a_program_by_what_they_are(tmp_path):
    file = tmp_path / "test_a.py"
    file.write_text("""
import aiter, aiter.ops.shuffle as shuffling
import aiter.no_such_module
from aiter import dtypes, mla, no_such_name
from aiter.ops.enum import QuantType
from aiter.int4_utils import *
from aiter.tuned_gemm import tgemm

def run(x):
    aiter.logger.info(aiter.rms_norm(x), dtypes.bf16, dtypes.bf17, QuantType.No, QuantType.Other)
    shuffling.shuffle_weight(x), shuffling.nothing, mla.mla_decode_fwd, tgemm.mm, aiter.tgemm.other
    aiter.gemm_a8w8_mxfp8
    aiter.fused_moe.get_2stage_cfgs.cache_clear(), aiter.gemm_mxfp4_asm, x.aiter.other, aiter.__file__
""")
    uses = aiter_uses.Uses.of(file)
    assert uses.served == ["aiter.__file__", "aiter.dtypes", "aiter.fused_moe.get_2stage_cfgs", "aiter.logger",
                           "aiter.mla.mla_decode_fwd", "aiter.ops.enum.QuantType", "aiter.ops.shuffle.shuffle_weight",
                           "aiter.rms_norm", "aiter.tuned_gemm.tgemm.mm"]
    assert uses.raising == ["aiter.gemm_a8w8_mxfp8", "aiter.gemm_mxfp4_asm"]
    assert uses.absent == ["aiter.dtypes.bf17", "aiter.no_such_module", "aiter.no_such_name",
                           "aiter.ops.enum.QuantType.Other", "aiter.ops.shuffle.nothing", "aiter.tgemm"]
    assert uses.counts == {"served": 9, "raising": 2, "absent": 6} and "aiter" not in sys.modules
    file.write_text("not python (")
    assert aiter_uses.Uses.of(file).counts == {"served": 0, "raising": 0, "absent": 0}


def test_a_variable_of_the_environment_for_a_while(monkeypatch):
    monkeypatch.setenv("A_TEST_ONE", "before")
    monkeypatch.delenv("A_TEST_TWO", raising=False)
    with aiter.override_env("A_TEST_ONE", None), aiter.override_env("AITER_LIKE_TEST_TWO", "now"), \
            aiter.run_only_env():
        assert "A_TEST_ONE" not in os.environ and os.environ["AITER_LIKE_TEST_TWO"] == "now"
    assert os.environ["A_TEST_ONE"] == "before" and "AITER_LIKE_TEST_TWO" not in os.environ

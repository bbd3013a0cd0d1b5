# SPDX-License-Identifier: MIT
"""RMSNorm quantised, beside that of a second matrix: every backend against float64; bad input."""

import functools
import math

import benching
import pytest
import torch
from covering import covering
from norm_cases import BACKENDS, EPSILON, check_quantised, double, quantised_dtypes, rms_norm64, rows_like, vector_like
from torch import Tensor

import aiter_like
from aiter_like import QuantType
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common import quant_rule
from aiter_like.testing import TOLERANCES, assert_within, check_rms_norm, strided_like

BF16 = torch.bfloat16
GROUP, STATIC = aiter_like.fused_rms_fp8_group_quant, aiter_like.fused_rms_fp8_per_tensor_static_quant
QK = aiter_like.fused_qk_rmsnorm_quant


def make(device: torch.device, rows: int, hidden: int, second: int, dtype: torch.dtype = BF16,
         weight_dtype: torch.dtype | None = None, second_rows: int | None = None) -> dict[str, Tensor]:
    """Arguments of the fused functions by AITER's names."""
    x, residual = rows_like(device, rows, hidden, dtype, count=2, seed=hidden)
    weight = vector_like(device, hidden, weight_dtype or dtype)
    found = {"inp1": x, "inp1_weight": weight, "inp1_epsilon": EPSILON, "res1": residual}
    if second:
        (other,) = rows_like(device, second_rows or rows, second, dtype, seed=7)
        found |= {"inp2": other, "inp2_weight": vector_like(device, second, weight_dtype or dtype, seed=5),
                  "inp2_epsilon": 1e-2}
    return found


def check_result(result: tuple, args: dict[str, Tensor], group_size: int = 0) -> None:
    """((q, scale), out1, out2, res_out) against float64."""
    (q, scale), out1, out2, res_out = result
    total = double(args["inp1"]) + (double(args["res1"]) if args.get("res1") is not None else 0)
    y = rms_norm64(total, args["inp1_weight"])
    check_quantised(q, scale, y, group_size)
    if out1 is not None:
        tolerance = TOLERANCES[out1.dtype, "rtne"]
        assert_within("out1", out1, y, tolerance.unit * 1.01 * y.abs() + 1e-5 * y.abs() + 1e-7)
    if res_out is not None:
        assert torch.equal(res_out.cpu(), total.to(res_out.dtype))
    if out2 is not None:
        check_rms_norm(out2, args["inp2"], args["inp2_weight"], args["inp2_epsilon"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_beside_a_second_matrix(device, run, backend):
    """With everything there is; whatever is left out: test_everything."""
    args = make(device, 7, 1536, 512) | {"output_unquantized_inp1": True}
    result = run(backend, GROUP, **args)
    assert result[0][0].dtype == quantised_dtypes(device)[0] and result[0][1].shape == (7, 12)
    check_result(result, args, 128)
    honest = run(backend, GROUP, **args, transpose_scale=True, is_x_scale_strided=True)[0][1]
    assert honest.stride() == (1, 7) and torch.equal(honest, result[0][1])
    dense = run(backend, GROUP, **args, transpose_scale=True)[0][1]
    assert dense.is_contiguous() and torch.equal(dense.view(-1, 7).t(), honest)


@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_alone_are_rms_norm_quant(device, run, backend):
    args = make(device, 4, 256, 0)
    explanation = aiter_like.explain(GROUP, **args, group_size=64, dtype_quant=torch.int8, backend=backend)
    assert (explanation.op, explanation.backend) == ("rms_norm_quant", backend)
    if backend != "hip":  # test_rms_norm_quant.py has its kernel
        result = run(backend, GROUP, **args, group_size=64, dtype_quant=torch.int8)
        assert result[1] is result[2] is None
        check_result(result, args, 64)


@pytest.mark.parametrize("backend", (pytest.param("hip", marks=pytest.mark.exhaustive), "triton", "torch"))
def test_a_scale_per_row_and_odd_sizes(device, run, backend):
    args = make(device, 5, 100, 1000, weight_dtype=torch.float32, second_rows=9)
    args.pop("res1")
    result = run(backend, GROUP, **args, group_size=0)
    assert result[0][1].shape == (5, 1) and result[3] is None
    check_result(result, args)


@pytest.mark.parametrize("backend", BACKENDS)
def test_static_scale(device, run, backend):
    """Of the rounded y, which is returned too: exactly."""
    args, dtype = make(device, 6, 520, 72), quantised_dtypes(device)[0]
    scale = torch.tensor([4.8 / quant_rule.largest(dtype)], device=device)  # some of y are beyond it
    q, out1, out2, res_out = run(backend, STATIC, **args, inp1_scale=scale, output_unquantized_inp1=True,
                                 rmsnorm_convert_to_inp1_type=True)
    total, top = double(args["inp1"]) + double(args["res1"]), quant_rule.largest(dtype)
    y = rms_norm64(total, args["inp1_weight"])
    assert_within("out1", out1, y, 2**-8 * 1.01 * y.abs() + 1e-7)
    assert q.dtype == dtype and torch.equal(q.view(torch.int8), quant_rule.rounded(
        out1.float() * (1 / scale), dtype).view(torch.int8))
    assert (q.float().abs() == top).any() and (q.float().abs() < top).any()
    assert torch.equal(res_out.cpu(), total.to(BF16))
    check_rms_norm(out2, args["inp2"], args["inp2_weight"], 1e-2)


@pytest.mark.parametrize("backend", ("triton", "torch"))
def test_static_scale_alone(device, run, backend):
    """Of y as it is in fp32."""
    args, scale = make(device, 6, 520, 0), torch.tensor([0.02], device=device)
    args.pop("res1")
    q, *others = run(backend, STATIC, **args, inp1_scale=scale, dtype_quant=torch.int8)
    wanted = (rms_norm64(args["inp1"], args["inp1_weight"]) / scale.item()).clamp(-127, 127)
    assert others == [None] * 3
    assert_within("q", q.double(), wanted, 0.5 + 1e-5 * wanted.abs())


@pytest.mark.parametrize("backend", BACKENDS)
def test_q_and_k(device, run, backend):
    """SGLang's form: no quantisation, into either place; per group, the same kernel as above."""
    args = make(device, 7, 1536, 512)
    q, q_weight, residual = args["inp1"], args["inp1_weight"], args["res1"]
    named = {"q": q, "q_weight": q_weight, "q_epsilon": EPSILON, "k": args["inp2"], "k_weight": args["inp2_weight"],
             "k_epsilon": 1e-2}
    plain, k_out, total = torch.empty_like(q), torch.empty_like(args["inp2"]), torch.empty_like(q)
    for where in ("q_out_quantized", "q_out_unquantized"):
        run(backend, QK, **{where: plain.zero_()}, k_out=k_out.zero_(), **named)
        check_rms_norm(plain, q, q_weight, EPSILON)
        check_rms_norm(k_out, args["inp2"], args["inp2_weight"], 1e-2)
    quantised, scale = torch.empty_like(q, dtype=quantised_dtypes(device)[0]), torch.empty(7, 12, device=device)
    run(backend, QK, quantised, scale, q_out_unquantized=plain, k_out=k_out.zero_(), q_res_out=total,
        q_residual=residual, **named, quant_type=QuantType.per_1x128)
    check_result(((quantised, scale), plain, k_out, total), args, 128)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gemma_per_token_and_in_place(device, run, backend):
    x, residual = rows_like(device, 5, 100, BF16, count=2)
    weight, total = vector_like(device, 100, torch.float32), double(x) + double(residual)
    out, scale = torch.empty_like(x, dtype=torch.int8), torch.empty(5, 1, device=device)
    run(backend, QK, out, scale, x, weight, EPSILON, q_res_out=residual, q_residual=residual, gemma_norm=True,
        quant_type=QuantType.per_Token)
    check_quantised(out, scale, rms_norm64(total, double(weight) + 1))
    assert torch.equal(residual.cpu(), total.to(BF16))


@pytest.mark.parametrize("backend", BACKENDS)
def test_strided_views(device, run, backend):
    """q and k are slices of one projection, of which the last columns are neither; aligned and not."""
    (x,) = rows_like(device, 6, 1536 + 512 + 64, BF16)
    args = make(device, 6, 1536, 512) | {"output_unquantized_inp1": True}
    for offset in (0, 1):
        rows = strided_like(x, (0, 8 * offset), offset=offset)
        args |= {"inp1": rows[:, :1536], "inp2": rows[:, 1536:2048]}
        check_result(run(backend, GROUP, **args), args, 128)


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_rows(device, run, backend):
    args = make(device, 4, 1536, 512) | {"output_unquantized_inp1": True}
    x = args["inp1"]
    args["res1"][:3] = 0.0
    x[0], x[1, 7], x[2, 1535] = 0.0, math.nan, math.inf
    args["inp2"][3, 0] = math.nan
    (q, scale), out1, out2, _ = run(backend, GROUP, **args)
    assert (q[0].float() == 0).all() and (scale[0] > 0).all() and scale[1].isnan().all() and q[1].float().isnan().all()
    assert scale[2, -1].isnan() and (q[2, :1408].float() == 0).all()  # inf / inf beside x / inf
    assert out1[2, 1535].isnan() and out2[3].isnan().all() and out2[:3].isfinite().all()
    y = rms_norm64(double(x[3:]) + double(args["res1"][3:]), args["inp1_weight"])
    check_quantised(q[3:], scale[3:], y, 128)


def test_empty(device):
    args = make(device, 3, 256, 128)
    args = {name: value[:0] if name in ("inp1", "inp2", "res1") else value for name, value in args.items()}
    (q, scale), out1, out2, res_out = GROUP(**args)
    assert (q.shape, scale.shape, out1, out2.shape, res_out.shape) == ((0, 256), (0, 2), None, (0, 128), (0, 256))


def bad_calls(device: torch.device):
    args = make(device, 3, 256, 128)
    one = torch.ones(1, device=device)
    q, weight = args["inp1"], args["inp1_weight"]
    out, scale = torch.empty_like(q, dtype=torch.int8), torch.empty(3, 1, device=device)
    yield "inp1 must have at least 1 dimension", ValueError, GROUP, {**args, "inp1": one[0]}
    yield "inp2, second_out and inp2_weight must come together", ValueError, GROUP, {**args, "inp2_weight": None}
    yield "inp2_epsilon must be at least", ValueError, GROUP, {**args, "inp2_epsilon": -1.0}
    yield "group_size must be 0, 32, 64 or 128", ValueError, GROUP, {**args, "group_size": 100}
    yield "group_size must divide the row", ValueError, GROUP, {**args, "inp1": q[:, :200]}
    yield "dtype_quant must be", ValueError, GROUP, {**args, "dtype_quant": torch.uint8}
    yield "is_x_scale_strided must be True or False", TypeError, GROUP, {**args, "is_x_scale_strided": 1}
    yield "scale must have one element", ValueError, STATIC, {**args, "inp1_scale": scale}
    yield "rmsnorm_convert_to_inp1_type must be True or False", TypeError, STATIC, {
        **args, "inp1_scale": one, "rmsnorm_convert_to_inp1_type": 1}
    given = {"q": q, "q_weight": weight}
    yield "quant_type must be", ValueError, QK, {**given, "quant_type": QuantType.per_128x128}
    yield "q_out_quantized and q_out_scale must be given", ValueError, QK, {**given, "quant_type": QuantType.per_Token}
    yield "q_out_unquantized or q_out_quantized must be given", ValueError, QK, given
    per_token = {**given, "q_out_quantized": out, "q_out_scale": scale, "quant_type": QuantType.per_Token}
    yield "q_residual and q_res_out must come together", ValueError, QK, {**per_token, "q_residual": q}
    long = torch.ones(1, 40000, dtype=BF16, device=device)
    yield "rows of at most 32768 elements, input has 40000", UnsupportedError, functools.partial(QK, backend="hip"), {
        "q": long, "q_weight": long[0], "q_out_unquantized": long}
    other = next(dtype for dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz) if dtype not in
                 quantised_dtypes(device))
    yield "fp8 on .* is", UnsupportedError, functools.partial(GROUP, backend="triton"), {**args, "dtype_quant": other}


def test_bad_input_is_named(device):
    for message, kind, function, named in bad_calls(device):
        with pytest.raises(kind, match=message):
            function(**named)


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_everything(device, run, backend, seed):
    """A covering design: each pair of both sizes, dtypes and group."""
    sizes = (1, 64, 129, 1536, 8192, 32768)
    factors = {"hidden": sizes, "second": (0, *sizes), "dtype": (BF16, torch.float16, torch.float32), "index": (0, 1),
               "group_size": (0, *quant_rule.GROUPS)}
    for hidden, second, dtype, index, group_size in map(dict.values, covering(
            factors, seed, lambda hidden, group_size, **_: hidden % (group_size or 1) == 0)):
        args = make(device, 3, hidden, second, dtype, second_rows=5)
        if not index:
            args.pop("res1")
        result = GROUP(**args, group_size=group_size, dtype_quant=quantised_dtypes(device)[index], backend=backend,
                       output_unquantized_inp1=bool(index))
        check_result(result, args, group_size)


def bench() -> None:
    """The two norms of latent attention, q quantised by group; and a static scale with a residual."""
    benching.of("fused_rms_quant", "rows hidden second_hidden group_size is_static has_residual", (
        (1, 1536, 512, 128, 0, 0), (64, 1536, 512, 128, 0, 0), (8192, 1536, 512, 128, 0, 0), (64, 8192, 0, 0, 1, 1),
        (8192, 8192, 0, 0, 1, 1)), dtype="bf16", out_dtype="fp8")

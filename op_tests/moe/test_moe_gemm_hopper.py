# SPDX-License-Identifier: MIT
"""moe_gemm_hopper.py, a kernel of backend "triton" for sm_90, against float64; what its code is like; which calls it
takes."""

import dataclasses
import functools

import pytest
import torch
from experts import UNTOUCHED, check, random_call, sorted_order

from aiter_like.device import Target, target_of
from aiter_like.dispatch import OPS
from aiter_like.jit.triton_launch import Launcher
from aiter_like.ops.moe.moe_gemm_blocks import FEW, HOPPER, kernels, space
from aiter_like.ops.moe.moe_gemm_call import MoeGemmCall
from aiter_like.ops.moe.triton import moe_gemm
from aiter_like.testing import strided_like

pytestmark = pytest.mark.usefixtures("only_on_hopper")
SM_90 = Target("cuda", "sm_90", 132, 32, False, 0)
FORMS = ("bf16", "fp16", "fp8", "int8", "blocks")


def multiply(call: MoeGemmCall, **params: int) -> None:
    """By the kernel for Hopper, twice: compared with float64, and with itself."""
    assert HOPPER in kernels(target_of(call.a.device), call, **params)
    launcher = Launcher(functools.partial(moe_gemm.moe_gemm, kernel=HOPPER, **params))
    launcher(call)
    check(call)
    first = call.out.clone()
    call.out.fill_(UNTOUCHED)
    launcher(call)
    assert torch.equal(first, call.out)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("block", (64, 128, 192, 256))
@pytest.mark.parametrize("activation", ("none", "silu", "silu_and_mul", "swiglu_and_mul"))
def test_formats(device, form, block, activation):
    """Blocks of one tile, of several and of a part; experts that are not here; a depth that fills no step."""
    order, weights = sorted_order(device, 230, 2, 3, block)
    order["experts"][1] = -1
    order["experts"][-1] = 3
    gated = activation.endswith("_and_mul")
    call = random_call(device, form, order, 230, 3, 512 if gated else 208, 400, activation, weights=weights,
                       limit=0.75 if gated else 0.0)
    multiply(call._replace(bias=torch.randn(call.b.shape[:2], device=device)))


@pytest.mark.parametrize("form", FORMS[:-1])
def test_interleaved_gates(device, form):
    order, _ = sorted_order(device, 150, 2, 3, 128)
    multiply(random_call(device, form, order, 150, 3, 352, 272, "swiglu_and_mul", is_interleaved=True, limit=7.0))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("out_dtype", (torch.bfloat16, torch.float32))
def test_rows_of_pairs(device, form, out_dtype):
    """The second product of a layer, with the weights of the pairs."""
    for block in (64, 128):
        order, weights = sorted_order(device, 100, 4, 5, block)
        multiply(random_call(device, form, order, 100, 5, 336, 768, is_of_pairs=True, out_dtype=out_dtype,
                             weights=weights))


@pytest.mark.parametrize("form", ("bf16", "blocks"))
@pytest.mark.parametrize("activation", ("none", "silu_and_mul"))
@pytest.mark.parametrize("part", range(4))
def test_parameters(device, form, activation, part):
    """All that the tuner tries, on more tiles than there are programs."""
    order, weights = sorted_order(device, 700, 2, 3, 128)
    call = random_call(device, form, order, 700, 3, 2048 if activation == "none" else 4096, 256, activation)
    tried = [params for params in space(target_of(device), call) if "programs" in params]
    for params in tried[part::4]:
        multiply(call._replace(out=torch.full_like(call.out, UNTOUCHED)), **params)


@pytest.mark.parametrize("form", ("bf16", "fp8", "blocks"))
def test_strides(device, form):
    """Rows, matrices and scales apart; between the rows of `out` nothing is written."""
    order, _ = sorted_order(device, 150, 2, 3, 64)
    call = random_call(device, form, order, 150, 3, 256, 160, "silu_and_mul")
    base = torch.full((len(call.out), 160), UNTOUCHED, dtype=torch.bfloat16, device=device)
    scales = {name: strided_like(scale, (3,) * (scale.ndim - 1) + (5,))
              for name in ("a_scale", "b_scale") if (scale := getattr(call, name)) is not None}
    multiply(call._replace(out=base[:, 16:144], a=strided_like(call.a, (16, 0)), b=strided_like(call.b, (16, 32, 0)),
                           **scales))
    assert (base[:, :16] == UNTOUCHED).all() and (base[:, 144:] == UNTOUCHED).all()


def test_orders_that_lie(device):
    """Numbers of pairs, experts and counts that leave the tensors: no access outside, and an end."""
    order, _ = sorted_order(device, 150, 2, 3, 64)
    call = random_call(device, "bf16", order, 150, 3, 256, 160)
    generator = torch.Generator().manual_seed(2)
    wild = torch.randint(-2**31, 2**31 - 1, (2, 4096), generator=generator).int().to(device)
    for valid in (0, -5, 64, 2**31 - 1):
        Launcher(functools.partial(moe_gemm.moe_gemm, kernel=HOPPER))(call._replace(
            sorted_ids=wild[0][:len(call.sorted_ids)], experts=wild[1][:len(call.experts)],
            valid=torch.tensor([valid], dtype=torch.int32, device=device)))
    torch.cuda.synchronize()


def test_addresses(device):
    """What TMA cannot read from goes to the other kernel."""
    order, _ = sorted_order(device, 150, 2, 3, 64)
    call = random_call(device, "bf16", order, 150, 3, 256, 160)
    for count in range(4):
        memory = torch.empty(call.b.numel() + count, dtype=torch.bfloat16, device=device)
        call = call._replace(b=memory[count:].view_as(call.b).copy_(call.b),
                             out=torch.full_like(call.out, UNTOUCHED))
        OPS["moe_gemm"].run(*call, backend="triton")
        check(call)


def call_of(form: str = "bf16", activation: str = "none", columns: int = 1024, k: int = 512, block: int = 128,
            out_dtype: torch.dtype = torch.bfloat16, **fields: object) -> MoeGemmCall:
    """A call of 600 tokens for 4 experts, two each."""
    order = {"experts": torch.zeros(13, dtype=torch.int32), "slots": 2, "block": block,
             "sorted_ids": torch.zeros(13 * block, dtype=torch.int32), "valid": torch.zeros(2, dtype=torch.int32)}
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8}.get(form, torch.float8_e4m3fn)
    rows = columns * 2 if activation.endswith("_and_mul") else columns
    scales = {}
    if dtype.itemsize == 1:
        shapes = ((600, -(-k // 128)), (4, -(-rows // 128), -(-k // 128))) if form == "blocks" else ((600,), (4, rows))
        scales = {name: torch.empty(shape) for name, shape in zip(("a_scale", "b_scale"), shapes)}
        scales["group_size"] = 128 if form == "blocks" else 0
    call = MoeGemmCall(torch.empty(1200, columns, dtype=out_dtype), torch.empty(600, k, dtype=dtype),
                       torch.empty(4, rows, k, dtype=dtype), **order, **scales, activation=activation)
    return call._replace(**fields)


@pytest.mark.parametrize("form, activation, instruction", (
    ("bf16", "silu_and_mul", "HGMMA.64x256x16.F32.BF16"), ("bf16", "none", "HGMMA.64x256x16.F32.BF16"),
    ("fp16", "none", "HGMMA.64x256x16.F32"), ("fp8", "silu_and_mul", "QGMMA.64x128x32.F32"),
    ("blocks", "silu_and_mul", "QGMMA.64x128x32.F32"), ("blocks", "none", "QGMMA.64x128x32.F32"),
    ("int8", "silu_and_mul", "IGMMA.64x128x32.S8.S8")))
def test_code_for_hopper(monkeypatch, tmp_path, form, activation, instruction):
    """Weights by TMA straight to the matrix unit, rows by cp.async, hardly anything in local memory."""
    from hopper_code import compiled_for_hopper, disassembled

    with compiled_for_hopper(monkeypatch, moe_gemm) as built:
        moe_gemm.moe_gemm(call_of(form, activation), HOPPER)
    code = disassembled(built[-1], tmp_path)
    assert instruction in code and "UTMALDG" in code and "LDGSTS.E.BYPASS.128" in code
    assert code.count("LDL") + code.count("STL") <= 16


@pytest.mark.parametrize("change, names", (
    ({}, [HOPPER, "moe_gemm"]), ({"block": 64}, [HOPPER, "moe_gemm"]), ({"block": 48}, ["moe_gemm"]),
    ({"k": 520}, ["moe_gemm"]), ({"columns": 1000}, ["moe_gemm"]), ({"is_shuffled": True}, ["moe_gemm"]),
    ({"b_format": "int8"}, ["moe_gemm"]), ({"sorted_ids": None}, [FEW]),
    ({"form": "blocks", "activation": "silu_and_mul"}, [HOPPER, "moe_gemm"]),
    ({"form": "blocks", "activation": "silu_and_mul", "columns": 1040}, ["moe_gemm"]),
    ({"form": "blocks", "columns": 1040}, [HOPPER, "moe_gemm"]),
    ({"activation": "silu_and_mul", "is_interleaved": True}, [HOPPER, "moe_gemm"]),
    ({"form": "fp8"}, ["moe_gemm", HOPPER]), ({"form": "int8"}, ["moe_gemm", HOPPER]),
    ({"out": (60, 1024)}, ["moe_gemm", HOPPER])), ids=str)
def test_which_kernel(change, names):
    if "out" in change:
        change = {"out": torch.empty(change["out"], dtype=torch.bfloat16)}
    call = call_of(**change)
    assert kernels(SM_90, call) == names
    assert kernels(dataclasses.replace(SM_90, arch="sm_80"), call) == [name for name in names if name != HOPPER]
    assert (kernels(SM_90, call, programs=1) == [HOPPER]) == (HOPPER in names)
    assert HOPPER not in kernels(SM_90, call, block_m=64) + kernels(SM_90, call, moved=1)
    assert any("programs" in params for params in space(SM_90, call)) == (HOPPER in names)

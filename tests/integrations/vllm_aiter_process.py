# SPDX-License-Identifier: MIT
"""vLLM's own calls of AITER on the shim, run by test_vllm_aiter.py in vLLM's environment: `python … REQUEST`.

REQUEST is JSON, and empty. Each of vLLM's wrappers (`…_impl`) runs on CPU tensors, so on the simulated MI300X, beside
its own fake, which says what vLLM's compiled graphs expect, and once more with torch behind our operators. Prints JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

ROWS, HIDDEN, HEADS, HEAD_DIM = 3, 256, 4, 64
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fnuz


def main(request: dict[str, Any]) -> dict[str, Any]:
    from vllm import _aiter_ops
    from vllm.kernels import aiter_ops

    from aiter_like import integrations, use_backend

    _aiter_ops.FP8_DTYPE = FP8  # what vLLM finds on a gfx942
    results = {}
    for name, impl, fake, make in cases(_aiter_ops, aiter_ops):
        args = make()
        ours = outputs(impl, args, fake is None)
        with use_backend("torch"):
            reference = outputs(impl, make(), fake is None)
        expected = outputs(fake, make(), False) if fake is not None else ours
        results[name] = {"as_faked": [facts(x) for x in ours] == [facts(x) for x in expected],
                         "error": max(map(difference, ours, reference)),
                         "scale": max(float(x.float().abs().max()) for x in reference)}
    taken = {name: counts.served for name, counts in integrations.status().taken.items() if counts.served}
    return {"cases": results, "served": taken}


def cases(ops: Any, norms: Any) -> Iterator[tuple[str, Callable, Callable | None, Callable[[], tuple]]]:
    """Name, vLLM's wrapper, its fake (None: it writes its arguments), and arguments, the same at each call."""
    def rows(columns: int = HIDDEN, shape: tuple[int, ...] = (ROWS,), seed: int = 0) -> Tensor:
        return torch.randn(*shape, columns, generator=torch.Generator().manual_seed(seed)).to(BF16)

    weight = 1 + 0.1 * rows(shape=())
    yield "rms_norm", norms._rms_norm_impl, norms._rms_norm_fake, lambda: (rows(shape=(2, ROWS)), weight, 1e-6)
    yield ("rms_norm with residual", norms._rocm_aiter_rmsnorm2d_fwd_with_add_impl,
           norms._rocm_aiter_rmsnorm2d_fwd_with_add_fake, lambda: (rows(), rows(seed=1), weight, 1e-6))
    for quantised in (FP8, torch.int8):
        for name, args in (("dynamic", lambda: (rows(), weight, 1e-6)),
                           ("add_dynamic", lambda: (rows(), rows(seed=1), weight, 1e-6))):
            stem = f"_rocm_aiter_rmsnorm_fused_{name}_quant"
            yield (f"{stem} {quantised}", getattr(ops, f"{stem}_impl"), getattr(ops, f"{stem}_fake"),
                   lambda args=args, quantised=quantised: (*args(), quantised))
        yield (f"per_token_quant {quantised}", ops._rocm_aiter_per_token_quant_impl,
               ops._rocm_aiter_per_token_quant_fake, lambda quantised=quantised: (rows(), quantised))
    for stem, args in (("_rocm_aiter_rmsnorm_with_add_fp8_group_quant",
                        lambda: (rows(), rows(seed=1), weight, 1e-6, 128)),
                       ("_rocm_aiter_rmsnorm_fp8_group_quant", lambda: (rows(), weight, 1e-6, 128)),
                       ("_rocm_aiter_group_fp8_quant", lambda: (rows(), 128)),
                       ("_rocm_aiter_act_mul_and_fp8_group_quant", lambda: (rows(), 128)),
                       ("_rocm_aiter_triton_add_rmsnorm_pad", lambda: (rows(), weight, 1e-6, rows(seed=1), 192)),
                       ("_fused_mla_dual_rms_norm", lambda: (rows(), weight, rows(128), weight[:128], 1e-6, 1e-5))):
        yield stem, getattr(ops, f"{stem}_impl"), getattr(ops, f"{stem}_fake"), args
    for is_dynamic in (True, False):
        yield (f"per_tensor_quant {is_dynamic}", ops._rocm_aiter_per_tensor_quant_impl, None,
               lambda is_dynamic=is_dynamic: (torch.zeros(ROWS, HIDDEN, dtype=FP8), rows(), torch.full((1,), 0.02),
                                              is_dynamic))
    for is_neox in (True, False):
        yield (f"rotary_embedding {is_neox}", ops._triton_rotary_embedding_impl, None,
               lambda is_neox=is_neox: (torch.tensor([0, 5, 9]), rows(HEADS * HEAD_DIM), rows(HEAD_DIM, seed=1),
                                        HEAD_DIM, rows(HEAD_DIM, (16,), seed=2), is_neox))
    yield ("fp8 attention", ops._rocm_aiter_fp8_attn_impl, ops._rocm_aiter_fp8_attn_fake,
           lambda: (*(rows(HEAD_DIM, (1, 33, HEADS), seed).to(FP8) for seed in range(3)),
                    *[torch.ones(1)] * 3, 1, BF16))


def outputs(function: Callable, args: tuple, writes: bool) -> list[Tensor]:
    """Its results, or, of a function that writes its arguments, these."""
    result = function(*args)
    if writes:
        return [arg for arg in args if isinstance(arg, Tensor)]
    return [result] if isinstance(result, Tensor) else list(result)


def facts(x: Tensor) -> tuple:
    return tuple(x.shape), x.dtype, x.stride()


def difference(ours: Tensor, reference: Tensor) -> float:
    return float((ours.float() - reference.float()).abs().max())


if __name__ == "__main__":
    with torch.no_grad():
        print(json.dumps(main(json.loads(sys.argv[1]))))

# SPDX-License-Identifier: MIT
"""Linear layers of engines: gemm_a16w16 where its dispatcher puts a kernel of ours first, else the engine's product.

vllm/linear.py, sglang/hooks.py and transformers/layers.py call `product`. Each number of rows is decided once, by
metadata; later calls look the answer up. In a graph of torch.compile, whose rows may be any number, the operator
`torch.ops.aiter_like.linear` does the same when it runs.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import linear as _torch_linear

from aiter_like import device, env
from aiter_like.device import Target
from aiter_like.dispatch import torch_ops
from aiter_like.dispatch.backend import OWN_KINDS
from aiter_like.dispatch.selection import Request, select
from aiter_like.integrations import takeover
from aiter_like.integrations.takeover import LEFT
from aiter_like.ops.common.marks import layout_of
from aiter_like.ops.gemm.gemm_a16w16 import DTYPES, GemmA16w16Call, _gemm_a16w16, gemm_a16w16

OP = _gemm_a16w16.name
_ARCHS = frozenset({"gfx942", "sm_90"})  # our kernels were made for these; elsewhere only a row says that they win
_MOST_ANSWERS = 1 << 16  # a server meets thousands of prompt lengths for each of its weights
_PLAIN = (Tensor, Parameter)

_is_tracing = torch.compiler.is_dynamo_compiling
_is_grad_enabled = torch.is_grad_enabled
_answers = _gemm_a16w16.answers
_products: dict[str, Callable] = {}  # engine → its product within graphs, with ours before its own


def is_asked_for() -> bool:
    """Whether AITER_LIKE_BACKENDS names a kernel of ours: then it decides, on the simulated MI300X too."""
    return not set(OWN_KINDS).isdisjoint(env.get("AITER_LIKE_BACKENDS"))


def is_for(where: torch.device) -> bool:
    """Whether a kernel of ours can come first on a device; on the CPU a model may be waiting for its GPU."""
    if where.type == "cpu" and not is_asked_for():
        return torch.cuda.is_available()
    target = device.target_of(where)
    has_rows = any(row.key[0] == target.arch for row in _gemm_a16w16.table.rows())
    return target.platform != "cpu" and (is_asked_for() or target.arch in _ARCHS or has_rows)


def announce(engine: str, own: Callable[[Tensor, Tensor, Tensor | None], Tensor] = _torch_linear) -> None:
    """Enters an engine, whose `product` may then be in graphs; `own` is what serves there what ours leaves."""
    _products[engine] = takeover.take(f"{engine}.linear", _product, own, OP, announce=False)


def product(x: Tensor, weight: Tensor, bias: Tensor | None, engine: str) -> Tensor | object:
    """x · weightᵀ + bias, or LEFT where the engine's own product is to serve.

    Args:
        x: [..., k].
        weight: [n, k], not shuffled.
        bias: [n].
        engine: one that was announced.

    Raises:
        UnsupportedError, TypeError, ValueError: no backend takes the call.
    """
    if _is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return LEFT
    if _is_tracing():
        return _linear(x, weight, bias, engine) if _is_for_graph(x.dtype, weight.dtype, x.device) else LEFT
    return _product(x, weight, bias)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | object:
    if type(weight) not in _PLAIN:  # an engine's kind of parameter
        weight = weight.data
    if not _is_ours(x, weight, bias, None):
        return LEFT
    if layout_of(weight):
        return gemm_a16w16(x, weight, bias)
    n, k = weight.shape  # from here on as gemm_a16w16, without asking again what has been asked
    out = x.new_empty((*x.shape[:-1], n))
    if x.ndim == 2:
        _gemm_a16w16.run(out, x, weight, bias)
    else:
        _gemm_a16w16.run(out.view(-1, n), x.reshape(-1, k), weight, bias)
    return out


def write(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """x [m, k] · weightᵀ + bias into `out` [m, n], of any strides: by a kernel of ours, or by torch; no derivative."""
    if _is_ours(x, weight, bias, out.stride()):
        _gemm_a16w16.run(out, x, weight, bias)
    elif bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


def _is_ours(x: Tensor, weight: Tensor, bias: Tensor | None, out_strides: tuple[int, ...] | None) -> bool:
    key = (x.shape, x.stride(), weight.shape, x.dtype, weight.dtype, x.device, type(x), type(weight), bias is None,
           out_strides)
    answer = _answers.get(key)
    if answer is None:
        if len(_answers) >= _MOST_ANSWERS:
            _answers.clear()
        answer = _answers[key] = _decide(x, weight, bias, out_strides)
    return answer


def _decide(x: Tensor, weight: Tensor, bias: Tensor | None, out_strides: tuple[int, ...] | None) -> bool:
    if type(x) is not Tensor or type(weight) not in _PLAIN or weight.ndim != 2:
        return False  # a quantised weight, or one that the engine has packed
    if x.ndim == 0 or x.numel() == 0 or x.shape[-1] != weight.shape[1]:
        return False
    if x.device != weight.device or not _has_kernels(x.dtype, weight.dtype, x.device):
        return False
    k, n = x.shape[-1], weight.shape[0]
    rows = x if x.ndim == 2 else torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta").reshape(-1, k)
    out = torch.empty_strided((rows.shape[0], n), out_strides or (n, 1), dtype=x.dtype, device="meta")
    return _is_first(device.target_of(x.device), GemmA16w16Call(out, rows, weight, bias))


def _is_for_graph(dtype: torch.dtype, weight_dtype: torch.dtype, where: torch.device) -> bool:
    """Whether our operator goes into a graph, to decide when it runs: else the engine's own product stays in it."""
    return _has_kernels(dtype, weight_dtype, where) and is_for(where)


_is_for_graph._dynamo_marked_constant = True  # torch.compiler.assume_constant_result, which would import the compiler

def _has_kernels(dtype: torch.dtype, weight_dtype: torch.dtype, where: torch.device) -> bool:
    if dtype != weight_dtype or dtype not in DTYPES:
        return False
    target = device.target_of(where)
    return target.platform != "cpu" and (not target.simulated or is_asked_for())


def _is_first(target: Target, call: GemmA16w16Call) -> bool:
    """Whether the dispatcher's first choice, by metadata, is a kernel of ours that is known to win there."""
    candidates = select(_gemm_a16w16, Request(target, tuple(call))).candidates
    if not candidates or candidates[0].backend.name not in OWN_KINDS:  # the others are what an engine has itself
        return False
    return target.arch in _ARCHS or candidates[0].row is not None or is_asked_for()


def _schema(x: Tensor, weight: Tensor, bias: Tensor | None, engine: str, *, backend: str | None = None) -> Tensor:
    """The schema of `torch.ops.aiter_like.linear`; a backend that is named serves in any case."""


def _run(x: Tensor, weight: Tensor, bias: Tensor | None, engine: str, *, backend: str | None = None) -> Tensor:
    if backend is not None:
        return gemm_a16w16(x, weight, bias, backend=backend)
    return _products[engine](x, weight, bias)


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None, engine: str, *, backend: str | None = None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


_linear = torch_ops.define("linear", _schema, kernel=_run, fake=_fake, returns="Tensor")

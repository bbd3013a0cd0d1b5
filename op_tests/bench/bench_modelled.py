# SPDX-License-Identifier: MIT
"""Memory-bound kernels on the cycle model of the simulated MI300X: modelled time, share of the published bandwidth,
load of the vector units, instructions.

`python op_tests/bench/bench_modelled.py [NAME …] [--rows 8192,64] [--json FILE]`. Every time is modelled, none is
measured: an earlier --json FILE, given as --before, is set beside it. The published rates are those of gpu-stream on an
MI300X (hibagus/SC25_AMD_CDNA3_Artifact), for the nearest mix of reads and writes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import aiter_like
from aiter_like import device, dtypes, sim
from aiter_like.sim import modelling, profiling

_TBPS = {1.0: 4.14, 2 / 3: 3.88, 0.5: 3.97, 0.0: 4.59}  # share of reads → read, triad, scale, init
_FP8 = dtypes.fp8_of("gfx942")
_PAGE = 16  # tokens of a page
_HEADS, _HEAD_DIM = 8, 128


class Case(NamedTuple):
    """One call, and the bytes that it must read and write, those that all rows share left out.

    Attributes:
        is_mixed: workgroups of several kinds: all of one XCD are replayed, since parts of the grid stand for no others.
    """

    call: Callable[[], Any]
    read: int
    written: int
    is_mixed: bool = False


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, dtype=torch.float32).to(dtype)


def _norms(rows: int) -> Iterator[tuple[str, Case]]:
    for hidden in (4096, 5120, 4100):  # 4100: rows that 16 bytes do not divide
        x, weight = _normal(rows, hidden), _normal(hidden)
        out, residual, summed = torch.empty_like(x), _normal(rows, hidden), torch.empty_like(x)
        quantised, scale = torch.empty(rows, hidden, dtype=_FP8), torch.empty(rows, 1)
        yield f"rms_norm {hidden}", Case(
            lambda x=x, weight=weight, out=out: aiter_like.rms_norm_cu(out, x, weight, 1e-6), _bytes(x), _bytes(out))
        if hidden == 4100:
            continue
        yield f"rms_norm add {hidden}", Case(
            lambda x=x, weight=weight, out=out, residual=residual, summed=summed: aiter_like.rmsnorm2d_fwd_with_add(
                out, x, residual, summed, weight, 1e-6), _bytes(x, residual), _bytes(out, summed))
        yield f"layer_norm {hidden}", Case(
            lambda x=x, weight=weight, out=out: aiter_like.layernorm2d_fwd(x, weight, weight, out=out),
            _bytes(x), _bytes(out))
        yield f"rms_norm_quant fp8 {hidden}", Case(
            lambda x=x, weight=weight, quantised=quantised, scale=scale: aiter_like.rmsnorm_quant(
                quantised, x, scale, weight, 1e-6), _bytes(x), _bytes(quantised))
    x, weight, residual = _normal(rows, 4096), _normal(4096), _normal(rows, 4096)
    quantised, scale, summed = torch.empty(rows, 4096, dtype=_FP8), torch.empty(rows, 32), torch.empty_like(x)
    yield "rms_norm_quant fp8 by 128", Case(
        lambda: aiter_like.rmsnorm_quant(quantised, x, scale, weight, 1e-6, 128), _bytes(x), _bytes(quantised, scale))
    yield "rms_norm_quant add fp8", Case(
        lambda: aiter_like.add_rmsnorm_quant(quantised, x, residual, summed, scale[:, :1].contiguous(), weight, 1e-6),
        _bytes(x, residual), _bytes(summed, quantised))


def _activations(rows: int) -> Iterator[tuple[str, Case]]:
    x = _normal(rows, 2 * 4096)
    out, quantised = torch.empty(rows, 4096, dtype=x.dtype), torch.empty(rows, 4096, dtype=_FP8)
    scale = torch.empty(rows, 32)
    yield "silu_and_mul", Case(lambda: aiter_like.silu_and_mul(out, x), _bytes(x), _bytes(out))
    yield "silu_and_mul_quant fp8 by 128", Case(lambda: aiter_like.silu_and_mul_quant(quantised, x, scale, 128),
                                                _bytes(x), _bytes(quantised, scale))


def _quantisers(rows: int) -> Iterator[tuple[str, Case]]:
    x = _normal(rows, 4096)
    for name, dtype in (("int8", torch.int8), ("fp8", _FP8)):
        out = torch.empty(rows, 4096, dtype=dtype)
        yield f"per_token_quant {name}", Case(
            lambda dtype=dtype: aiter_like.per_token_quant_hip(x, quant_dtype=dtype), _bytes(x), _bytes(out))
        yield f"per_group_quant {name} by 128", Case(
            lambda dtype=dtype: aiter_like.per_group_quant_hip(x, quant_dtype=dtype), _bytes(x),
            _bytes(out) + 4 * rows * 32)
        scale = torch.full((1,), 0.05)
        yield f"static_per_tensor_quant {name}", Case(
            lambda out=out, scale=scale: aiter_like.static_per_tensor_quant(out, x, scale), _bytes(x), _bytes(out))


def _caches(rows: int) -> Iterator[tuple[str, Case]]:
    key, value = _normal(rows, _HEADS, _HEAD_DIM), _normal(rows, _HEADS, _HEAD_DIM)
    blocks, slots = -(-rows // _PAGE) + 1, torch.arange(rows)
    shape = (blocks, _PAGE, _HEADS, _HEAD_DIM)
    for name, dtype, kind in (("bf16", torch.bfloat16, "auto"), ("fp8", _FP8, "fp8")):
        caches = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)
        scale = torch.ones(1) if kind == "fp8" else None
        written = _bytes(key, value) * caches[0].element_size() // 2
        yield f"reshape_and_cache_flash {name}", Case(
            lambda caches=caches, kind=kind, scale=scale: aiter_like.reshape_and_cache_flash(
                key, value, *caches, slots, kind, scale, scale), _bytes(key, value), written)
        each = 16 // caches[0].element_size()
        packed = (caches[0].view(blocks, _HEADS, _HEAD_DIM // each, _PAGE, each),
                  caches[1].view(blocks, _HEADS, _PAGE // each, _HEAD_DIM, each))
        for start in (0, 3):  # 3: the first token lies within a pack of tokens
            yield f"reshape_and_cache shuffled {name} +{start}", Case(
                lambda packed=packed, kind=kind, scale=scale, start=start: aiter_like.reshape_and_cache(
                    key, value, *packed, slots + start, kind, scale, scale, True), _bytes(key, value), written, True)


def _ropes(rows: int) -> Iterator[tuple[str, Case]]:
    q, k = _normal(rows, 1, 32, _HEAD_DIM), _normal(rows, 1, _HEADS, _HEAD_DIM)
    cos, sin = _normal(rows, 1, 1, _HEAD_DIM // 2), _normal(rows, 1, 1, _HEAD_DIM // 2)
    positions = torch.arange(rows).view(rows, 1)
    yield "rope 2c cached", Case(lambda: aiter_like.rope_cached_positions_2c_fwd_inplace(
        q, k, cos, sin, positions, 0, True, False), _bytes(q, k), _bytes(q, k))


_FAMILIES = (_norms, _activations, _quantisers, _caches, _ropes)


def cases(rows: int) -> Iterator[tuple[str, Case]]:
    """The calls of the table, by name."""
    for family in _FAMILIES:
        torch.manual_seed(rows)
        yield from family(rows)


_COLUMNS = (("us", "modelled us", "8.2f"), ("rate", "of published", "8.0%"), ("vector", "VALU busy", "6.0%"),
            ("waves", "waves", "7d"), ("valu", "VALU/wave", "7.1f"), ("all", "all/wave", "7.1f"),
            ("ds", "LDS/wave", "6.1f"))


def measured(case: Case, clock_mhz: float) -> dict[str, Any]:
    """The figures of one call's launches, times added; counts are per wave of the launch that takes longest."""
    cycles: list[dict] = []
    with torch.no_grad(), sim.enabled(checks=False, on_report="collect", counters=True) as session, modelling.modelled(
            cycles, True, clock_mhz, profiling.TIMELINE, 0 if case.is_mixed else modelling.BUDGET):
        case.call()
    found = list(profiling.profiles(session.launches, cycles))
    longest = max(found, key=lambda one: one["modelled_us"])
    us, total = sum(one["modelled_us"] for one in found), case.read + case.written
    share = case.read / total
    published = _TBPS[min(_TBPS, key=lambda mix: abs(mix - share))]
    counts = longest["counts"]
    waves = max(counts["by_class"].get("end", 0), 1)
    kinds = counts["by_class"]
    return {"us": us, "rate": total / us / 1e6 / published, "vector": longest["busy"]["vector"],
            "waves": waves, "valu": (kinds.get("valu", 0) + kinds.get("trans", 0)) / waves,
            "all": counts["executed"] / waves, "ds": kinds.get("ds", 0) / waves, "bound": longest["bound"],
            "launches": len(found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only cases whose names contain one of these")
    parser.add_argument("--rows", default="8192,64", help="tokens of a call, separated by commas")
    parser.add_argument("--clock", type=float, default=modelling.PEAK_MHZ, help="MHz of the shader engines")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--before", type=Path, help="figures that --json wrote, to set beside these")
    args = parser.parse_args()
    device.use_simulator(True)
    before = json.loads(args.before.read_text()) if args.before else {}
    found = dict(before) if args.json and args.json == args.before else {}
    print(f"version {modelling.version()} of the cycle model at {args.clock:g} MHz: modelled, not measured")
    print(f"{'':44}" + " ".join(f"{title:>12}" for _, title, _ in _COLUMNS))
    for rows in map(int, args.rows.split(",")):
        for name, case in cases(rows):
            if args.names and not any(part in name for part in args.names):
                continue
            key = f"{name} × {rows}"
            found[key] = one = measured(case, args.clock)
            figures = " ".join(f"{format(one[column], form):>12}" for column, _, form in _COLUMNS)
            old = f"  before {before[key]['us']:.2f} us" if key in before else ""
            print(f"{key:44}{figures}  {one['bound']}{old}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: MIT
"""Shapes that nobody tuned for, drawn by a seed: our automatic choice beside the best that others have, by family.

`python op_tests/bench/held_out.py FAMILY --seed 7 --rows FILE` runs one family in this process; bench_all.py
`--held-out SEED` runs them all. A family names an operator, draws tune keys of it (none that a row of tuned_csv/ has)
and says what the public function and its peers are given. Results of ours are judged against the reference in float64
where it takes that; those of peers grossly, so that a wrong set-up is not timed. Both are timed twice over: as graphs,
with caches full of something else, and eagerly, one call after the other, as an engine without graphs makes them.
"""

import argparse
import csv
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench_peers
import held_out_calls
import torch
from held_out_calls import Calls, Compiler
from measured import READY

import aiter_like
from aiter_like import paths
from aiter_like.device import target_of
from aiter_like.dispatch import OPS
from aiter_like.dispatch.selection import Request, select
from aiter_like.dispatch.tuning import Tuning
from aiter_like.errors import AiterLikeError
from aiter_like.ops.common import tune_shapes
from aiter_like.tuning import judge
from aiter_like.tuning.clock import Contender, GpuClock, interleaved

_ROUNDS, _EAGER_ROUNDS = 9, 7
_BURST_SECONDS, _MOST_CALLS = 0.01, 200  # of an eager round: long against the clock's own cost
_MOST_SETS = 16
_GROSS = 0.1  # relative error from which on a peer computes something else
_DRAWS = 1000  # of which one is not tuned


Draw = Callable[[random.Random], dict[str, Any]]


@dataclass(frozen=True)
class Family:
    """What is drawn and timed together.

    Attributes:
        title: as the tables name it.
        draws: operator → what draws one of its tune keys.
        is_eager: no graph can hold the peers' calls.
    """

    title: str
    draws: Mapping[str, Draw]
    is_eager: bool = False


def drawn(**fields: Any) -> Draw:
    """A key whose fields are values, or functions of (numbers) that draw one."""
    return lambda numbers: {name: pick(numbers) if callable(pick) else pick for name, pick in fields.items()}


def size(low: int, high: int, step: int = 1) -> Callable[[random.Random], int]:
    """Multiples of `step` between the two, as many in each octave."""
    return lambda numbers: max(round(low * (high / low)**numbers.random() / step), 1) * step


def one_of(*values: Any) -> Callable[[random.Random], Any]:
    return lambda numbers: numbers.choice(values)


def fp8(_: object) -> str:
    return tune_shapes.fp8_name()


def _attention(most_pairs: float) -> Draw:
    """Self-attention whose batch · heads · length² is at most `most_pairs`, which bounds what the reference takes."""
    def draw(numbers: random.Random) -> dict[str, Any]:
        length, kv_heads = size(256, 8192, 8)(numbers), numbers.choice((2, 4, 8))
        heads, dim = kv_heads * numbers.choice((1, 3, 4, 6)), numbers.choice((64, 96, 128))
        batch = max(min(int(most_pairs / heads / length**2), size(1, 16)(numbers)), 1)
        return {"mask": numbers.choice(("none", "causal")), "packing": "dense", "batch": batch, "seqlen_q": length,
                "seqlen_k": length, "num_heads": heads, "num_kv_heads": kv_heads, "head_dim": dim, "head_dim_v": dim,
                "features": "none", "dtype": "bf16"}

    return draw


def _pages(numbers: random.Random) -> dict[str, Any]:
    """One query of each sequence; keys and values of at most 4 GB."""
    kv_heads, batch = numbers.choice((1, 2, 4, 8)), size(1, 256)(numbers)
    return {"batch": batch, "seqlen_q": 1, "seqlen_k": min(size(256, 65536)(numbers), 2**23 // batch // kv_heads),
            "num_heads": kv_heads * numbers.choice((4, 6, 8)), "num_kv_heads": kv_heads, "head_dim": 128,
            "page_size": 16, "layout": "rows", "features": "none", "scale_layout": "none", "dtype": "bf16",
            "kv_dtype": "bf16"}


def _latents(numbers: random.Random) -> dict[str, Any]:
    """One query of each sequence; whole pages, of at most 2.4 GB."""
    batch = size(1, 256)(numbers)
    return {"batch": batch, "seqlen_q": 1, "num_heads": numbers.choice((16, 32, 64, 128)), "head_dim": 576,
            "seqlen_k": min(size(256, 32768, 64)(numbers), 2**21 // batch // 64 * 64), "head_dim_v": 512,
            "page_size": 64, "features": "none", "dtype": "bf16", "kv_dtype": "bf16"}


ROWS, WIDTH = size(1, 16384), size(1024, 16384, 128)
PRODUCT = {"m": size(1, 8192), "n": WIDTH, "k": WIDTH}
LOGITS = {"rows": size(1, 512), "columns": size(32000, 262144, 8)}
FAMILIES: dict[str, Family] = {
    "norm": Family("norms", {
        "rms_norm": drawn(rows=ROWS, hidden=WIDTH, dtype="bf16", has_residual=one_of(0, 1)),
        "layer_norm": drawn(rows=ROWS, hidden=WIDTH, dtype="bf16", out_dtype="bf16", has_residual=0)}),
    "activation": Family("gated activations", {
        "act_and_mul": drawn(rows=ROWS, columns=WIDTH, dtype="bf16", out_dtype="bf16")}),
    "quant": Family("quantisers", {
        "row_quant": drawn(rows=ROWS, columns=WIDTH, group_size=one_of(0, 128), dtype="bf16", out_dtype=fp8),
        "act_and_mul_quant": drawn(rows=ROWS, columns=WIDTH, group_size=one_of(0, 128), dtype="bf16", out_dtype=fp8)}),
    "rope": Family("rotary embedding", {
        "rope": drawn(tokens=ROWS, heads=one_of(8, 16, 24, 40, 64), kv_heads=one_of(1, 2, 4, 8), head_dim=128,
                      rotary_dim=128, dtype="bf16", table_dtype="bf16", rotate_style=0)}),
    "bf16": Family("bf16 products", {
        "gemm_a16w16": drawn(**PRODUCT, dtype="bf16", out_dtype="bf16", is_shuffled=0, is_gated=0)}),
    "fp8": Family("fp8 products, scales by rows", {
        "gemm_a8w8": drawn(**PRODUCT, weight_dtype=fp8, band=0, use_fast_accum=one_of(0, 1))}),
    "int8": Family("int8 products", {
        "gemm_a8w8": drawn(**PRODUCT | {"m": size(17, 8192)}, weight_dtype="i8", band=0, use_fast_accum=0)}),
    "blockscale": Family("fp8 products, scales by blocks", {  # sizes that cuBLAS takes: it reads scales in fours
        "gemm_a8w8_blockscale": drawn(m=size(4, 8192, 4), n=WIDTH, k=size(1024, 16384, 512), bpreshuffle=0)}),
    "attention": Family("attention forward", {"flash_attn_fwd": _attention(2.0**30)}),
    "backward": Family("attention backward", {"flash_attn_bwd": _attention(2.0**29)}, is_eager=True),
    "paged": Family("paged decode", {"paged_attention": _pages}),
    "mla": Family("MLA decode", {"mla_decode": _latents}),
    "moe": Family("fused MoE", {
        "fused_moe": drawn(tokens=size(1, 8192), experts=one_of(8, 16, 48, 96), slots=one_of(1, 2, 4, 6),
                           k=size(1024, 6144, 128), inner=size(512, 4096, 128))}),
    "sampling": Family("sampling", {
        "softmax": drawn(**LOGITS, dtype="fp32", out_dtype="fp32"),
        "topk": drawn(**LOGITS, k=one_of(1, 20, 64, 300), dtype="fp32"),
        "sample": drawn(**LOGITS, dtype="bf16", features="none")}),
    "conv": Family("causal convolution", {
        "causal_conv1d": drawn(tokens=size(16, 16384), sequences=1, channels=size(1024, 12288, 128), width=4,
                               is_channel_last=0, dtype="bf16")}),
}


def _tuned(op: str, fields: Sequence[str]) -> set[tuple[str, ...]]:
    """The keys that have a row of any device, measured or modelled."""
    found: set[tuple[str, ...]] = set()
    for path in (paths.tuned_csv() / f"{op}.csv", paths.tuned_csv() / "modelled" / f"{op}.csv"):
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                found |= {tuple(row[name] for name in fields) for row in csv.DictReader(file)}
    return found


def keys(family: Family, seed: int, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """(operator, key), `count` of each operator, none of them twice; the same ones for the same seed."""
    for op, draw in family.draws.items():
        numbers = random.Random(f"{seed} {op}")
        taken = _tuned(op, tuple(draw(random.Random(0))))
        for _ in range(count):
            key = next(key for key in (draw(numbers) for _ in range(_DRAWS))
                       if tuple(map(str, key.values())) not in taken)
            taken.add(tuple(map(str, key.values())))
            yield op, key


def _judged(op: str, key: Mapping[str, Any], device: torch.device) -> judge.Case:
    """A call and what it must write; of a layer of experts, whose operators are several, by the formula here."""
    if op in OPS:
        return judge.case(OPS[op], key, device)
    call = _tuning(op).case(key, device, 0)
    expected, native = (held_out_calls.experts_reference(call, wide) for wide in (torch.float64, torch.bfloat16))
    own = judge.difference(native, expected, 0.0)[0]
    return judge.Case(call, (judge.Output(0, expected, False, own),), True)


def _tuning(op: str) -> Tuning:
    return OPS[op].tuning if op in OPS else held_out_calls.EXPERTS


def _served(op: str, ours: Callable[[], Any], args: tuple, device: torch.device) -> str:
    """Backend and kernel that serve a call without `backend=`; autograd's threads are asked by the operator."""
    try:
        found = aiter_like.explain(ours)
    except ValueError:
        chosen = next(iter(select(OPS[op], Request(target_of(device), args)).candidates))
        return " ".join(filter(None, (chosen.backend.name, chosen.kernel)))
    found = found if isinstance(found, tuple) else (found,)
    own = [one for one in found if one.op == op] or [one for one in found if one.op.endswith("gemm")]
    return ", ".join(dict.fromkeys(f"{one.backend} {one.kernel}".strip() for one in own))


def _right(made: judge.Case, calls: Calls) -> tuple[float, dict[str, Callable[[], Any]], dict[str, str]]:
    """(error of ours, the peers that are to be timed, why others are not).

    Raises:
        AssertionError: ours is wrong.
    """
    first = made.outputs[0]

    def error_of(got: torch.Tensor) -> tuple[float, str | None]:
        return judge.difference(got.reshape(first.expected.shape), first.expected, first.own)

    error, fault = error_of(calls.result(calls.ours()))
    assert fault is None, fault
    peers, reasons = {}, {}
    for name, call in calls.peers.items():
        try:
            result = call()
            other = 0.0 if calls.theirs is None else error_of(calls.theirs(result))[0]
        except Exception as refused:  # noqa: BLE001  a library fails in its own way where it does not take a shape
            reasons[name] = f"{type(refused).__name__}: {str(refused).strip().partition(chr(10))[0][:160]}"
            continue
        if other < _GROSS:
            peers[name] = call
        else:
            reasons[name] = f"its result differs by {other:.2g}"
    return error, peers, reasons


def _eager(calls: list[Callable[[], Any]]) -> Callable[[], float]:
    """What measures µs per call of a burst, from the host's first step to the device's last."""
    def burst(count: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for index in range(count):
            calls[index % len(calls)]()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    burst(2 * len(calls))
    count = max(min(int(_BURST_SECONDS / burst(4)), _MOST_CALLS), 4)
    return lambda: burst(count) * 1e6


@dataclass
class Shape:
    """One drawn shape: what is known of it before it is timed, and how to make its calls again."""

    op: str
    row: dict[str, Any]
    peers: tuple[str, ...] = ()


def warmed(family: Family, op: str, key: dict[str, Any], device: torch.device, compiled: Compiler) -> Shape:
    """Builds and checks a shape's calls; says who serves it and which peers are out."""
    row = {"family": family.title, "op": op, "key": key}
    try:
        made = _judged(op, key, device)
        calls = held_out_calls.CALLS[op](made.args, compiled)
        with torch.no_grad():
            row["error"], peers, row["left_out"] = _right(made, calls)
        row["served"] = _served(op, calls.ours, made.args, device)
        row["bytes"], row["flops"] = _tuning(op).needs(made.args)
        return Shape(op, row, tuple(peers))
    except (AiterLikeError, AssertionError, RuntimeError, ValueError, TypeError) as error:
        return Shape(op, row | {"failed": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"})


def time_shape(family: Family, shape: Shape, device: torch.device, compiled: Compiler) -> None:
    """Puts µs of ours and of each peer into the row, as graphs and eagerly."""
    clock, tuning = GpuClock(target_of(device)), _tuning(shape.op)
    sets = [held_out_calls.CALLS[shape.op](tuning.case(shape.row["key"], device, seed), compiled)
            for seed in range(min(clock.sets(shape.row["bytes"]), _MOST_SETS))]
    named = {"ours": [one.ours for one in sets], **{name: [one.peers[name] for one in sets] for name in shape.peers}}
    with torch.no_grad():
        for calls in named.values():
            for call in calls:  # a peer's first call of a set may plan or compile
                call()
        if not family.is_eager:
            rounds = clock.rounds([Contender(each) for each in named.values()], _ROUNDS)
            shape.row["graph"] = dict(zip(named, map(statistics.median, rounds)))
        rounds = interleaved([_eager(each) for each in named.values()], _EAGER_ROUNDS)
        shape.row["eager"] = dict(zip(named, map(statistics.median, rounds)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=sorted(FAMILIES))
    parser.add_argument("--seed", type=int, required=True, help="which shapes")
    parser.add_argument("--count", type=int, default=6, help="shapes of each operator (%(default)s)")
    parser.add_argument("--peers", action="store_true", help="also libraries that import, beside torch's own")
    parser.add_argument("--wait", action="store_true", help="time after a line of input, asked for by a line")
    parser.add_argument("--list", action="store_true", help="only name the shapes")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="append each shape as a line of JSON")
    args = parser.parse_args()
    bench_peers.is_asked_for = args.peers
    family, device, compiled = FAMILIES[args.family], torch.device("cuda"), held_out_calls.compiler()
    drawn_keys = list(keys(family, args.seed, args.count))
    if args.list:
        for op, key in drawn_keys:
            print(op, ",".join(f"{name}={value}" for name, value in key.items()))
        return
    shapes = []
    for op, key in drawn_keys:
        shapes.append(warmed(family, op, key, device, compiled))
        torch.cuda.empty_cache()
    if args.wait:
        print(READY, flush=True)
        sys.stdin.readline()
    for shape in shapes:
        if "failed" not in shape.row:
            try:
                time_shape(family, shape, device, compiled)
            except RuntimeError as error:  # memory, above all
                shape.row["failed"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        figures = shape.row.get("failed") or shape.row.get("graph") or shape.row["eager"]
        print(shape.op, shape.row["key"], figures, flush=True)
        if args.rows is not None:
            with args.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(shape.row, ensure_ascii=False) + "\n")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

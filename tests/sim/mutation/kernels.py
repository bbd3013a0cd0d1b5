# SPDX-License-Identifier: MIT
"""The kernels of the campaign: code objects as the package builds them, and small launches that take every path."""

import contextlib
import functools
import itertools
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import torch

from aiter_like import sim
from aiter_like.jit import Instance, JitFunction
from aiter_like.modules import build, code_object
from aiter_like.ops.attention import flash_attn_fwd_hip
from aiter_like.ops.attention.call import dense_call
from aiter_like.ops.norm import rms_norm
from aiter_like.traced import Untraceable

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
_NAMES = {BF16: "bf16", F16: "f16", F32: "f32"}
EPSILON = 1e-6
UNWRITTEN = -77.0
ATTENTION_ARGS = "Qqqq" * 4 + "QQQQQqqiiiiifiii" + "IIi" * 5 + "ii" + "IIi" * 3  # FlashAttnArgs, as formats of struct


@dataclass(frozen=True)
class Buffer:
    """Device memory of a launch: what is in it before, and whether the kernel may write it."""

    name: str
    data: bytes
    is_output: bool


@dataclass(frozen=True)
class Launch:
    """One launch; `pointers`: an offset in the argument segment, a buffer, and which of its bytes is pointed at."""

    name: str
    grid: tuple[int, int, int]
    block: int
    shared: int
    arguments: bytes
    buffers: tuple[Buffer, ...]
    pointers: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Kernel:
    """A kernel and its launches."""

    name: str
    elf: bytes = field(repr=False)
    symbol: str
    launches: tuple[Launch, ...] = field(repr=False)


def launch(name: str, grid: Sequence[int], block: int, kinds: str, values: Sequence[object], outputs: Sequence[int],
           shared: int = 0) -> Launch:
    """A launch with these arguments: `kinds` are struct formats, "Q" with a tensor for a pointer (None: null).

    The segment ends as a C structure does, at a multiple of its alignment. Views of one memory share a buffer.
    """
    buffers, starts, pointers, packed = [], {}, [], []
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            memory = value.untyped_storage()
            number = starts.setdefault(memory.data_ptr() or -index, len(buffers))
            if number == len(buffers):
                buffers.append(Buffer(f"argument {index}", contents(memory), False))
            buffers[number] = replace(buffers[number], is_output=buffers[number].is_output or index in outputs)
            pointers.append((struct.calcsize("@" + kinds[:index + 1]) - 8, number,
                             value.storage_offset() * value.element_size()))
        packed.append(0 if value is None or isinstance(value, torch.Tensor) else value)
    grid = (*grid, 1, 1)[:3]
    return Launch(name, grid, block, shared, struct.pack("@" + kinds + "0Q", *packed), tuple(buffers), tuple(pointers))


def contents(memory: torch.UntypedStorage) -> bytes:
    """What is in a tensor's memory."""
    return torch.empty(0, dtype=torch.uint8).set_(memory).numpy().tobytes()


def random(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """The same numbers every time."""
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed + math.prod(shape))).to(dtype)


def unwritten(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Output before the launch: values that no kernel computes."""
    return torch.full(tuple(shape), UNWRITTEN, dtype=dtype)


@dataclass(frozen=True)
class NormBuild:
    """Macros of csrc/norm/rms_norm.hip, and the launches' row lengths in vectors."""

    dtype: torch.dtype
    weight: torch.dtype
    lanes: int
    vectors: int
    vec: int
    lengths: tuple[int, ...]
    is_whole: bool = True
    has_residual: bool = False
    is_gemma: bool = False
    is_model_sensitive: bool = False

    @property
    def name(self) -> str:
        """Short, for tables."""
        flags = {"pieces": not self.is_whole, "add": self.has_residual, "gemma": self.is_gemma,
                 "t5": self.is_model_sensitive}
        return "_".join([_NAMES[self.dtype], _NAMES[self.weight], f"l{self.lanes}_v{self.vectors}x{self.vec}",
                         *(name for name, is_on in flags.items() if is_on)])


# A wave per row, a workgroup per row, 16 lanes per row, pieces of a row; lengths that end within each of the accesses.
_NORM_BUILDS = (
    NormBuild(BF16, BF16, 64, 2, 8, tuple(range(4, 128, 8)), has_residual=True),
    NormBuild(F16, F32, 256, 2, 8, (1150, 700, 5), is_whole=False, is_model_sensitive=True),
    NormBuild(F32, F32, 256, 2, 4, (400, 200, 1), is_gemma=True),
    NormBuild(BF16, F32, 16, 1, 4, (13, 1)),
)


def _norm_hip(how: NormBuild, access: int) -> list[Kernel]:
    """csrc/norm/rms_norm.hip, one build; `access`: elements per access, 1 for rows that are not aligned."""
    elements = {BF16: "bf16", F16: "f16", F32: "float"}
    elf = _hip_code(rms_norm._rms_norm_hip, Instance(f"mutation_{how.name}", {
        "ELEMENT": elements[how.dtype], "WEIGHT": elements[how.weight], "LANES": how.lanes, "VECTORS": how.vectors,
        "VEC": how.vec, "IS_WHOLE": int(how.is_whole), "HAS_RESIDUAL": int(how.has_residual),
        "IS_GEMMA": int(how.is_gemma), "IS_MODEL_SENSITIVE": int(how.is_model_sensitive)}))
    body = f"RmsNormBodyINS_6ConfigELb{int(access == how.vec)}E"
    symbol = next(symbol for symbol in sim.inspect(elf) if "rms_norm_kernel" in symbol and body in symbol)
    block, per_group = max(how.lanes, 256), max(256 // how.lanes, 1)
    launches = []
    sizes = [vectors * how.vec for vectors in how.lengths]
    if access == 1:  # rows that end anywhere in a vector; only vectors 0, 1 of lane 0 reach so far
        sizes = [size - index % how.vec for index, size in enumerate(sizes)]
        sizes += [vector * how.lanes * how.vec + columns for vector in range(how.vectors) for columns in (1, 3, 5)]
    for hidden, has_nan in [*((size, False) for size in sizes), (max(sizes), True)]:
        rows = per_group + 2 if per_group > 1 else 2
        stride = -(-hidden // 8) * 8
        x, residual = random((rows, stride), how.dtype), random((rows, stride), how.dtype, 1)
        if has_nan:  # vectors with one are rounded by other instructions: the first and the last
            x[0, 0] = x[0, hidden - 1] = math.nan
        out, residual_out = unwritten((rows, stride), how.dtype), unwritten((rows, stride), how.dtype)
        between = (residual_out, x, residual) if how.has_residual else (None, x, None)
        matrices = [word for tensor in (out, *between) for word in (tensor, stride)]
        weight = random((hidden,), how.weight)
        hot = (residual, stride, weight) if how.has_residual else (weight, out, stride)
        words = "qifQqQqQ" if how.has_residual else "qifQqQQq"  # those that are preloaded, before the struct
        values = (rows, hidden, EPSILON, x, stride, *hot, *matrices, weight, rows, hidden, EPSILON)
        launches.append(launch(f"{rows}x{hidden}{' NaN' * has_nan}", (-(-rows // per_group),), block,
                               words + "Qq" * 4 + "Qqif", values, (len(words), len(words) + 2)))
    return [Kernel("", elf, symbol, tuple(launches))]


# batch, q rows, k rows, query heads, KV heads, causal, lse
_ATTENTION_SHAPES = (
    (1, 70, 180, 1, 1, False, True), (1, 133, 70, 2, 1, True, True), (1, 100, 200, 1, 1, True, False),
    (1, 128, 128, 1, 1, False, False), (2, 5, 1, 1, 1, False, True), (1, 3, 0, 1, 1, False, True),
    (1, 400, 200, 1, 1, True, True),  # a wave's further row tiles at the diagonal
)


# cu_seqlens of q and k: a sequence without rows, one without keys; rows for two query blocks of a workgroup's 384 or
# 512; more sequences than a wave has lanes; wrong ones, which
# the kernel limits to the tensors: beyond their ends, and not monotone.
_PACKED = {
    "packed": ((0, 70, 70, 75, 100), (0, 100, 130, 130, 180)),
    "long": ((0, 10, 690), (0, 30, 60)),
    "many": (tuple(range(0, 71)), tuple(range(0, 141, 2))),
    "wrong": ((-70, 30, 60, 300, 100), (-70, 300, 100, 500, 180)),
}


def _attention_hip(dtype: torch.dtype, head_dim: int) -> list[Kernel]:
    """csrc/attention/flash_attn_fwd.hip, the causal build; bf16 with the rounding that is the default."""
    instance = flash_attn_fwd_hip.variant(dtype, head_dim, 1 if dtype == BF16 else 0, "right")
    elf = _hip_code(flash_attn_fwd_hip.flash_attn_fwd_hip, instance)
    symbol = next(symbol for symbol in sim.inspect(elf) if "flash_attn_fwd_kernel" in symbol)
    launches = []
    for batch, rows, keys, heads, kv_heads, is_causal, has_lse in _ATTENTION_SHAPES:
        tensors = _attention_tensors(batch, rows, keys, heads, kv_heads, head_dim, dtype)
        launches.append(_attention_launch(f"q{rows} k{keys}{' causal' * is_causal}{' lse' * has_lse}", tensors, has_lse,
                                          batch, (None,) * 3, is_causal))
    tensors = _attention_tensors(2, 20, 90, 1, 1, head_dim, dtype)
    lengths = torch.tensor([70, 900], dtype=torch.int32)  # the second: more than there are
    launches.append(_attention_launch("lengths", tensors, True, 2, (None, None, lengths), True))
    tensors = _attention_tensors(1, 70, 330, 2, 2, head_dim, dtype)
    launches.append(_attention_launch("split", tensors, False, 1, (None,) * 3, True, parts=3))
    for name, cu_seqlens in _PACKED.items():
        q, k = (torch.tensor(ends, dtype=torch.int32) for ends in cu_seqlens)
        tensors = _attention_tensors(1, cu_seqlens[0][-1], cu_seqlens[1][-1], 2, 1, head_dim, dtype)
        launches.append(_attention_launch(name, tensors, True, len(q) - 1, (q, k, None), True))
    return [Kernel("", elf, symbol, tuple(launches))]


def _attention_launch(name: str, tensors: Sequence[torch.Tensor], has_lse: bool, batch: int,
                      lengths: tuple[torch.Tensor | None, ...], is_causal: bool, parts: int = 1) -> Launch:
    """lengths: cu_seqlens of q and of k, which pack `batch` sequences into tensors of one; lengths of k. parts: of the
    keys of each query block, whose partial results are what is written.
    """
    q, k, v, out, lse = tensors
    _, rows, heads, head_dim = q.shape
    keys, kv_heads = k.shape[1:3]
    is_packed = lengths[0] is not None
    strides = [word for t in (q, k, v, out)
               for word in (t, 0 if is_packed else 2 * t.stride(0), 2 * t.stride(1), 2 * t.stride(2))]
    block_rows, starts = {64: 512, 128: 384}[head_dim], lengths[0].tolist() if is_packed else [0, rows]
    longest = min(max(end - start for start, end in itertools.pairwise(starts)), rows)
    group = heads // kv_heads
    pack = group if longest * group <= block_rows else 1
    group //= pack
    slots = rows * pack // block_rows + batch if is_packed else -(-rows * pack // block_rows)
    columns = heads // pack * q.shape[0]
    is_split, workgroups = parts > 1, slots * columns * parts
    partials = unwritten((workgroups, block_rows * (head_dim + 2)), F32) if is_split else None
    whole = 0 if is_split else slots
    dividers = [word for number in (pack, group, kv_heads, parts, slots * group) for word in divider(number)]
    order = [word for number in (columns, slots * columns * parts, parts) for word in divider(number)]
    values = (*strides, lse if has_lse else None, partials, *lengths, heads * rows, rows, batch, rows, keys, keys,
              0 if is_causal else rows, math.log2(math.e) / math.sqrt(head_dim), slots, whole * columns, parts,
              *dividers, slots, whole, *order)
    return launch(name, (workgroups,), 512, ATTENTION_ARGS, values, (17,) if is_split else (12, 16))


def divider(number: int) -> tuple[int, int, int]:
    """Divider of math.h."""
    shift = 31 + (number - 1).bit_length()
    return number, -(-2**shift // number), shift


def _norm_asm(hidden: int) -> list[Kernel]:
    """hsa/gfx942/norm/rms_norm.s, with and without residual."""
    elf = build.ensure(rms_norm._rms_norm_asm.instance_spec(None, "hip", "gfx942")).path.read_bytes()
    launches = []
    for has_residual in (True, False):
        x, weight = random((2, hidden), BF16), random((hidden,), BF16)
        residual, residual_out = random((2, hidden), BF16, 1), unwritten((2, hidden), BF16)
        values = (unwritten((2, hidden), BF16), x, weight, residual if has_residual else None,
                  residual_out if has_residual else None, 2 * hidden, 2 * hidden, EPSILON)
        launches.append(launch(f"2x{hidden}{' residual' * has_residual}", (2,), 256, "QQQQQiif", values, (0, 4)))
    return [Kernel("", elf, f"rms_norm_bf16_h{hidden}", tuple(launches))]


def _norm_triton(dtype: torch.dtype, sizes: Sequence[int], has_residual: bool) -> list[Kernel]:
    """ops/norm/triton/rms_norm.py, as its launcher compiles it for rows of these sizes."""
    from aiter_like.jit.triton_launch import Launcher
    from aiter_like.ops.norm.triton import rms_norm as kernels

    with captured() as calls:
        for hidden in sizes:
            out, x = unwritten((3, hidden), dtype), random((3, hidden), dtype)
            residuals = (random((3, hidden), dtype, 1), unwritten((3, hidden), dtype)) if has_residual else (None, None)
            Launcher(kernels.rms_norm)(rms_norm.RmsNormCall(
                out, x, random((hidden,), dtype), EPSILON, use_model_sensitive_rmsnorm=int(not has_residual),
                residual_in=residuals[0], residual_out=residuals[1]))
    return triton_kernels(calls, _is_unwritten)


def _attention_triton(dtype: torch.dtype, head_dim: int, is_causal: bool, has_lse: bool) -> list[Kernel]:
    """ops/attention/triton/flash_attn_fwd.py, as its launcher compiles it."""
    from aiter_like.jit.triton_launch import Launcher
    from aiter_like.ops.attention.triton import flash_attn_fwd as kernels

    with captured() as calls:
        for rows, keys in ((70, 180), (133, 70), (128, 128), (129, 192), (70, 40)):
            q, k, v, out, lse = _attention_tensors(1, rows, keys, 2, 1, head_dim, dtype)
            Launcher(kernels.flash_attn_fwd)(dense_call(
                out, lse if has_lse else None, q, k, v, window_right=0 if is_causal else -1,
                how_v3_bf16_cvt=1 if dtype == BF16 else 0))
    return triton_kernels(calls, _is_unwritten)


def _attention_tensors(batch: int, rows: int, keys: int, heads: int, kv_heads: int, head_dim: int,
                       dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """q, k, v, out, lse."""
    q = random((batch, rows, heads, head_dim), dtype)
    k, v = (random((batch, keys, kv_heads, head_dim), dtype, seed) for seed in (1, 2))
    return q, k, v, unwritten(q.shape, dtype), unwritten((batch, heads, rows), F32)


@contextlib.contextmanager
def captured() -> Iterator[list[tuple]]:
    """The launches that a Triton launcher returns, instead of running them."""
    from aiter_like.jit.triton_launch import Launch

    calls = []

    def keep(one):
        early = {"OVERLAPS": False} if "OVERLAPS" in one.kernel.arg_names else {}  # as on gfx942
        calls.append((one.kernel, one.grid, one.arguments, one.options, {**one.constants, **early}))

    with mock.patch.object(Launch, "start", keep), \
            mock.patch.object(Launch, "planned", side_effect=Untraceable("each is started")):
        yield calls


def triton_kernels(calls: list[tuple], is_output: Callable[[torch.Tensor], bool]) -> list[Kernel]:
    """A kernel per code object: sizes may change what Triton compiles."""
    from aiter_like.sim import triton as simulated

    formats = {"i1": "i", "i32": "i", "i64": "q", "fp32": "f"}
    found: dict[bytes, Kernel] = {}
    for kernel, grid, args, options, constants in calls:
        with simulated.active():
            compiled = kernel.warmup(*args, grid=grid, **constants, **{"enable_fp_fusion": True, **options})
        kinds = list(compiled.src.signature.values())
        live = list(_live(args, kinds))
        where = [index for index, (arg, _) in enumerate(live) if isinstance(arg, torch.Tensor) and is_output(arg)]
        form = "".join("Q" if kind.startswith("*") else formats[kind] for _, kind in live) + "QQ"  # two scratch buffers
        first = next(arg for arg in args if isinstance(arg, torch.Tensor))
        elf, shape = compiled.asm["hsaco"], "x".join(map(str, first.shape))
        shot = launch(shape, grid, compiled.metadata.num_warps * 64, form, [*[arg for arg, _ in live], None, None],
                      where, compiled.metadata.shared)
        before = found.get(elf)
        found[elf] = Kernel("", elf, compiled.metadata.name, (*(before.launches if before else ()), shot))
    return list(found.values())


def _is_unwritten(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 0 and bool((tensor == UNWRITTEN).all())


def _live(args: Sequence[object], kinds: Sequence[str | tuple]) -> Iterator[tuple[object, str]]:
    """What a launch passes, with its type: members of tuples one by one, constants left out."""
    for arg, kind in zip(args, kinds):
        if isinstance(kind, tuple):
            yield from _live(arg, kind)
        elif kind != "constexpr":
            yield arg, kind


def _hip_code(function: JitFunction, instance: Instance) -> bytes:
    """The code object in the module that the JIT builds."""
    return device_code(build.load_or_build(function.instance_spec(instance, "hip", "gfx942")))


def device_code(built: Path) -> bytes:
    """The code object in what a build made."""
    image = built.read_bytes()
    bundle = image.find(b"__CLANG_OFFLOAD_BUNDLE__")
    return image if bundle < 0 else code_object.unbundled(image[bundle:], "gfx942")


def _factories() -> dict[str, Callable[[], list[Kernel]]]:
    """Name → kernels, not made yet: Triton may compile several for one."""
    made: dict[str, Callable[[], list[Kernel]]] = {}
    for how, access in [(how, how.vec) for how in _NORM_BUILDS] + [(_NORM_BUILDS[0], 1)]:
        made[f"rms_norm.hip {how.name} vec{access}"] = functools.partial(_norm_hip, how, access)
    for dtype, head_dim in itertools.product((BF16, F16), (64, 128)):
        made[f"flash_attn_fwd.hip {_NAMES[dtype]} d{head_dim}"] = functools.partial(_attention_hip, dtype, head_dim)
    for hidden in (4096, 8192):
        made[f"rms_norm.s {hidden}"] = functools.partial(_norm_asm, hidden)
    # 513 and 1023: the smallest and the largest odd rows that one block of 1024 takes.
    for dtype, sizes, has_residual in ((BF16, (1023, 513), False), (F32, (1023, 513), True), (F16, (8203,), False)):
        name = f"triton rms_norm {_NAMES[dtype]} {sizes[0]}{' residual' if has_residual else ' t5'}"
        made[name] = functools.partial(_norm_triton, dtype, sizes, has_residual)
    for dtype, head_dim, is_causal, has_lse in ((BF16, 64, True, True), (F16, 32, False, False),
                                                (F16, 128, True, False), (BF16, 128, False, True)):
        name = f"triton flash_attn {_NAMES[dtype]} d{head_dim}{' causal' * is_causal}{' lse' * has_lse}"
        made[name] = functools.partial(_attention_triton, dtype, head_dim, is_causal, has_lse)
    return made


def kernels(*texts: str) -> list[Kernel]:
    """The kernels whose name contains one of the texts; without texts all of the campaign."""
    found = []
    for name, make in _factories().items():
        if not texts or any(text in name for text in texts):
            made = make()
            found += [replace(kernel, name=f"{name} #{index}" if len(made) > 1 else name)
                      for index, kernel in enumerate(made)]
    return found

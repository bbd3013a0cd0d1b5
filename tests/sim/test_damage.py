# SPDX-License-Identifier: MIT
"""Damaged code objects of several compilers: each is refused, fails with a clear error, or runs within its limits."""

import pickle
import shutil
from pathlib import Path

import pytest
from damage import Sample, outcomes, places
from hip_program import code_object
from mutation.kernels import ATTENTION_ARGS, divider

from aiter_like import device, paths, sim
from aiter_like.modules.build import load_or_build
from aiter_like.ops.norm.rms_norm import _rms_norm_asm

_ROWS, _HIDDEN = 2, 256
_NORM = ("<qifQqQQq" "QqQqQqQqQqif", _ROWS, _HIDDEN, 1e-6, "1", _HIDDEN, "2", "0", _HIDDEN,  # preload.h's words
         "0", _HIDDEN, 0, _HIDDEN, "1", _HIDDEN, 0, _HIDDEN, "2", _ROWS, _HIDDEN, 1e-6)
_NORM_INSTANCE = ("-DELEMENT=float", "-DWEIGHT=float", "-DLANES=256", "-DVECTORS=1", "-DVEC=4", "-DIS_WHOLE=1",
                  "-DHAS_RESIDUAL=0", "-DIS_GEMMA=0", "-DIS_MODEL_SENSITIVE=0", f"-I{paths.csrc() / 'norm'}")
_HEADS = (2 * 32 * 64, 2 * 64, 2 * 64)  # strides in bytes
_ONE = divider(1)
_ATTENTION = ("@" + ATTENTION_ARGS + "0Q",
              "1", *_HEADS, "2", *_HEADS, "1", *_HEADS, "0", *_HEADS,
              0, "3", *[0] * 3, 32, 32, 1, 32, 32, 32, 0, 0.125, 1, 0, 1, *5 * _ONE, 1, 0, *3 * _ONE)
_ATTENTION_SIZES = (4096, 4096, 4096, 512 * (64 + 2) * 4)  # the last: a partial result, for the kernel that merges
_BARE, _BUNDLE = ("--no-gpu-bundle-output",), ("--gpu-bundle-output",)

GATHER = """
__device__ int table[4] = {1, 2, 3, 4};
__device__ int* pointer_to_table = table + 1;      // a relocation
extern "C" __global__ __launch_bounds__(64) void gather(int* out, const int* index, int n) {
  __shared__ int part[64];
  part[thread_index()] = index[thread_index()] & 3;
  workgroup_barrier();
  int sum = 0;
  for (int i = 0; i < n; ++i) sum += table[(part[63 - thread_index()] + i) & 3] + pointer_to_table[0];
  out[thread_index()] = sum;
}
"""


def _triton_kernel() -> Sample:
    triton = pytest.importorskip("triton")
    from test_triton import softmax_kernel
    from triton.backends.compiler import GPUTarget

    source = triton.compiler.ASTSource(softmax_kernel, {"x": "*fp32", "out": "*fp32", "columns": "i32",
                                                        "BLOCK": "constexpr"}, {"BLOCK": 256})
    built = triton.compile(source, target=GPUTarget("hip", "gfx942", 64))
    return Sample("Triton softmax", built.asm["hsaco"], 64 * built.metadata.num_warps, (1024, 1024),
                  ("<QQi4xQQ", "1", "0", 256, 0, 0), built.metadata.shared)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """The samples, in a file for the children."""
    folder = tmp_path_factory.mktemp("damage")
    norm_source = (paths.csrc() / "norm/rms_norm.hip").read_text()
    attention = (paths.csrc() / "attention/flash_attn_fwd.hip").read_text()
    instance = ("-DHEAD_DIM=64", "-DELEMENT=bf16", "-DROUNDING=0", "-DMASK=1", f"-I{paths.csrc() / 'attention'}")
    sizes, gather = (2048, 2048, 2048), ("<QQi4x", "0", "1", 3)
    assembly = load_or_build(_rms_norm_asm.spec(device.simulated_target()))
    samples = [Sample("HIP rms_norm", code_object(norm_source, *_BARE, *_NORM_INSTANCE), 256, sizes, _NORM),
               Sample("HIP flash_attn", code_object(attention, *_BARE, *instance), 512, _ATTENTION_SIZES, _ATTENTION),
               Sample("HIP gather", code_object(GATHER, *_BARE), 64, (256, 256), gather),
               Sample("bundle", code_object(GATHER, *_BUNDLE), 64, (256, 256), gather),
               Sample("compressed", code_object(GATHER, *_BUNDLE, "--offload-compress"), 64, (256, 256), gather),
               _triton_kernel(),
               Sample("assembly", assembly.read_bytes(), 256, (16384,) * 3,
                      ("<QQQQQIIf", "0", "1", "2", 0, 0, 8192, 8192, 1e-6))]
    if old := shutil.which("clang++-19"):
        samples.append(Sample("clang 19", code_object(GATHER, compiler=old), 64, (256, 256), gather))
    path = folder / "corpus"
    path.write_bytes(pickle.dumps(samples))
    return path


def test_undamaged_they_run(corpus):
    count = len(pickle.loads(corpus.read_bytes()))
    assert count >= 7
    counts, deaths = outcomes(sim.load()._name, corpus, range(count), is_damaged=False)
    assert not deaths and counts == {"ran": count}


def test_every_structure_is_found(corpus):
    """Else nothing would be damaged in it."""
    samples = {sample.name: sample.image for sample in pickle.loads(corpus.read_bytes())}
    gather = places(samples["HIP gather"])
    assert {"header", "segments", "sections", "symbols", "relocations", "descriptors", "notes", "code"} <= set(gather)
    assert "container" in places(samples["bundle"]) and "container" in places(samples["compressed"])


def _check(corpus: Path, seeds: range) -> None:
    counts, deaths = outcomes(sim.load()._name, corpus, seeds)
    assert not deaths, "\n".join(deaths)
    assert sum(counts.values()) == len(seeds)
    assert set(counts) == {"refused", "failed", "reported", "ran"}, counts


def test_damaged_code_objects(corpus):
    _check(corpus, range(200))


@pytest.mark.exhaustive
def test_ten_thousand_damaged_code_objects(corpus):
    _check(corpus, range(10_000))

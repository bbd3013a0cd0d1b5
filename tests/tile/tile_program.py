# SPDX-License-Identifier: MIT
"""Small kernels over the tile library: built by the JIT, run on the simulator under its checkers. Read by test_*.py."""

import functools
import hashlib
import struct
import tempfile
from pathlib import Path

import torch

from aiter_like import paths, sim
from aiter_like.modules import build
from aiter_like.modules.recipe import ModuleSpec
from aiter_like.sim.library import disassemble

_PRELUDE = """// SPDX-License-Identifier: MIT
#include "{header}"
using namespace aiter_like;
namespace aiter_like::tile {{}}
using namespace aiter_like::tile;
{helpers}
"""

# How the tests see registers: element by element, through the layout's map and nothing else of the library.
_HELPERS = """
/// The tile whose element (r, c) is matrix[r][c], row-major.
template <class TILE, class T>
__device__ TILE from_memory(const T* matrix) {
  union { TILE tile; T elements[TILE::kStrips][TILE::kPerStrip]; };
  clear(tile);
  for (int s = 0; s < TILE::kStrips; ++s)
    for (int e = 0; e < TILE::kPerStrip; ++e)
      elements[s][e] = matrix[TILE::row(s, e) * TILE::kColumns + TILE::column(s, e)];
  return tile;
}
template <class TILE, class T>
__device__ void to_memory(T* matrix, TILE tile) {
  union { TILE copy; T elements[TILE::kStrips][TILE::kPerStrip]; };
  copy = tile;
  for (int s = 0; s < TILE::kStrips; ++s)
    for (int e = 0; e < TILE::kPerStrip; ++e)
      matrix[TILE::row(s, e) * TILE::kColumns + TILE::column(s, e)] = elements[s][e];
}
"""


@functools.cache
def _code(header: str, source: str) -> bytes:
    helpers = _HELPERS if "from_memory" in source or "to_memory" in source else ""
    text = _PRELUDE.format(header=header, helpers=helpers) + source
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "program.hip").write_text(text)
        name = f"tile_test-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        spec = ModuleSpec(name, ("program.hip",), arch="gfx942", root=Path(folder),
                          flags=(f"-I{paths.csrc() / 'include'}",))
        library = build.ensure(spec).path.read_bytes()
    return library[library.index(b"__CLANG_OFFLOAD_BUNDLE__"):]


class Program:
    """Kernels (`extern "C" __global__`) after the inclusion of one header of csrc/include/aiter_like."""

    def __init__(self, header: str, source: str):
        self.header, self.source = f"aiter_like/{header}", source

    def __call__(self, kernel: str, *args: torch.Tensor | int, waves: int = 1) -> None:
        """One workgroup of `waves`; a tensor is its address, an int an int64_t. A checker's report raises."""
        sim.load()
        words = [arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args]
        kernargs = struct.pack(f"<{len(words)}q", *words)
        code = _code(self.header, self.source)
        with sim.enabled():
            sim.checked_call(kernel, lambda *_: sim.launch(code, kernel, (1, 1, 1), (64 * waves, 1, 1), 0, kernargs),
                             args, None)

    def instructions(self) -> list[str]:
        """The code of all kernels."""
        return [text for _, text, _ in disassemble(_code(self.header, self.source))]

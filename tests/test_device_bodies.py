# SPDX-License-Identifier: MIT
"""Device bodies (csrc/<family>/<op>_body.h): two configurations of every operator share one translation unit."""

from __future__ import annotations

import subprocess

from aiter_like import paths, sim
from aiter_like.modules import toolchain

OPS = {"rms_norm": "RmsNorm", "layer_norm": "LayerNorm", "rms_norm_quant": "RmsNormQuant",
       "fused_rms_quant": "FusedRmsQuant", "fused_qk_rmsnorm": "QkRmsNorm", "gated_rms_norm": "GatedRmsNorm",
       "dropout_layer_norm": "DropoutLayerNorm", "group_norm": "GroupNorm", "group_norm_positions": "GroupNorm"}
BY_VALUE = ("fused_rms_quant", "fused_qk_rmsnorm")  # their launchers add to the arguments
# What all Configs of the family hold; IS_SET stands for each flag.
CONFIG = """
template <class ELEMENT, class OUT, int LANES, bool IS_SET>
struct Config {
  using Element = ELEMENT;
  using Weight = float;
  using Out = OUT;
  template <bool kIsAligned>
  using Layout = RowLayout<LANES, 1, 4, kIsAligned>;
  template <bool kIsAligned>
  using SecondLayout = RowLayout<LANES, 2, 4, kIsAligned>;
  static constexpr int kGroup = IS_SET ? 64 : 0;
  static constexpr Quant kQuant = IS_SET ? Quant::found : Quant::none;
  static constexpr bool kIsWhole = IS_SET, kIsGemma = IS_SET, kIsModelSensitive = IS_SET, kIsRounded = IS_SET,
                        kIsQuant = IS_SET, kIsChannelsLast = IS_SET, kIsSliced = true, kHasResidual = IS_SET,
                        kHasXBias = IS_SET, kHasWeight = IS_SET, kHasBias = IS_SET, kHasSmooth = IS_SET,
                        kHasPlain = IS_SET, kHasSecond = IS_SET;
};
using One = Config<bf16, fp8, 512, true>;
using Other = Config<float, float, 256, false>;
"""


def source():
    """Each launcher, for both configurations."""
    lines = []
    for op, name in OPS.items():
        for config in ("One", "Other"):
            if op.startswith("group_norm"):
                lines += [f"template void launch_{op}<{config}, {flag}>(const {name}Args<{config}>&, Stream);"
                          for flag in ("true", "false")]
            else:
                args = f"{name}Args<{config}>" if op in BY_VALUE else f"const {name}Args<{config}>&"
                lines.append(f"template void launch_{op}({args}, bool, Stream);")
    includes = [f'#include "{op}_body.h"' for op in OPS]
    return "\n".join([*includes, "namespace aiter_like {", CONFIG, *lines, "}"])


def test_two_configurations_in_one_translation_unit(tmp_path):
    (tmp_path / "both.hip").write_text(source())
    subprocess.run([toolchain.find("hip").host_compiler, "-x", "hip", "--offload-arch=gfx942", "-std=c++17", "-O1",
                    "-nogpuinc", "-nogpulib", "--offload-device-only", "--no-gpu-bundle-output", "-c", "-Wall",
                    "-Werror", f"-I{paths.csrc() / 'include'}", f"-I{paths.csrc() / 'norm'}", "both.hip", "-o",
                    "both.co"],
                   cwd=tmp_path, check=True)
    found = list(sim.inspect((tmp_path / "both.co").read_bytes()))
    kernels = [*(op for op in OPS if not op.startswith("group")),
               *(f"group_norm_{part}" for part in ("parts", "slices", "channels", "moments", "positions"))]
    assert {path.name for path in (paths.csrc() / "norm").glob("*_body.h")} == {f"{op}_body.h" for op in OPS}
    for kernel in kernels:
        count = sum(f"{len(kernel) + 7}{kernel}_kernel" in symbol for symbol in found)
        assert count == (2 if kernel == "group_norm_moments" else 4), (kernel, found)

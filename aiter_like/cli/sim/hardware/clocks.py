# SPDX-License-Identifier: MIT
"""The clock that the power of an MI300X leaves to each class of kernels, after a second of it. Used by costs.py."""

import statistics
import time
from typing import Any

from aiter_like.cli.sim.hardware.device import Device, clock_mhz, spans, summary
from aiter_like.sim.validation.cases import EXP, mfma
from aiter_like.sim.validation.kernels import Kernel

_SECONDS = 1.5
_GROUPS = 304

# Random operands cost more power than zeros: each lane gets a hash of its number, with the exponents of small numbers.
_RANDOM = "\n".join(f"s_mov_b32 s20, {factor}\nv_mul_lo_u32 v{r}, v1, s20\nv_and_b32 v{r}, 0x83ff83ff, v{r}\n"
                    f"v_or_b32 v{r}, 0x38003800, v{r}"
                    for r, factor in enumerate(("0x9e3779b1", "0x85ebca77", "0xc2b2ae3d", "0x27d4eb2f"), 2))
_ZEROS = "\n".join(f"v_mov_b32 v{register}, 0" for register in range(2, 6))


def _kernels() -> dict[str, tuple[Kernel, int]]:
    """Class → its kernel, and how many loops take some milliseconds."""
    found = {}
    for name, shape in (("bf16", "16x16x16_bf16"), ("fp16", "16x16x16_f16"), ("fp8", "16x16x32_fp8_fp8")):
        two = f"{mfma(shape)}\n{mfma(shape, first=4)}"
        found[f"matrix {name}"] = Kernel(two, _RANDOM, waves=4), 10_000
        found[f"matrix {name}, zeros"] = Kernel(two, _ZEROS, waves=4), 10_000
    found["matrix and exp"] = Kernel(f"{mfma()}\n{EXP}\n{mfma(first=4)}\n{EXP}", _RANDOM, waves=8), 5_000
    found["vector"] = Kernel("v_fma_f32 v20, v2, v3, v4", _RANDOM, waves=16), 40_000
    read = "global_load_dwordx4 v[{k}%8*4+12:{k}%8*4+15], v2, s[4:5]\nv_add_u32 v2, v2, s9"
    found["memory"] = Kernel(read, "s_lshl_b32 s11, s2, 12\nv_lshl_add_u32 v2, v1, 4, s11", waves=4), 800
    return found


def clocks(device: Device) -> dict[str, Any]:
    """MHz of each class: the median of the second half of its launches."""
    found: dict[str, Any] = {"raw": {}}
    for name, (kernel, loops) in _kernels().items():
        (function,) = device.load([(kernel, kernel.unroll)], timed=True)
        if device.target.simulated:
            device.launch(function, 1, kernel.waves, 1, device.memory(1 << 22), number=4096,
                          times=device.times(kernel.waves))
            continue
        memory = device.memory((4 << 30) + (1 << 24) if name == "memory" else 4096)
        times = device.times(_GROUPS * kernel.waves)
        start, samples = time.monotonic(), []
        while time.monotonic() < start + _SECONDS:
            device.launch(function, _GROUPS, kernel.waves, loops, memory, number=_GROUPS * 4096, times=times)
            device.wait()
            samples.append(clock_mhz(*spans(times)))
        found["raw"][name] = samples
        found[name] = summary(samples[len(samples) // 2:])
        found[name]["first"] = samples[0]
        found[name]["median_of_all"] = statistics.median(samples)
    return {} if device.target.simulated else found

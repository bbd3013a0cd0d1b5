# SPDX-License-Identifier: MIT
"""First calls in a process without a compiler, run by test_build_served.py: prints what was wrong, "ok" at the end."""

import logging
import sys

import pytest
import torch

import aiter_like
from aiter_like.errors import BuildError
from aiter_like.modules import build, toolchain


def calls() -> dict[str, tuple]:
    """Name → (function, arguments): three dtypes, a product, and decoding over pages."""
    torch.manual_seed(7)
    found = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        found[f"rms_norm {dtype}"] = (aiter_like.rms_norm, (torch.randn(3, 256).to(dtype), torch.randn(256).to(dtype),
                                                            1e-5))
    a, b, q, k, v = (torch.randn(*shape).bfloat16() for shape in (
        (5, 512), (256, 512), (2, 8, 64), (5, 16, 2, 64), (5, 16, 2, 64)))
    found["gemm_a16w16"] = (aiter_like.gemm_a16w16, (a, b))
    table, lens = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32), torch.tensor([20, 31], dtype=torch.int32)
    found["paged_attention"] = (aiter_like.paged_attention, (q, k, v, table, lens, 32))
    return found


def without_compilers() -> list[tuple]:
    """Closes the fixed places of compilers, which no variable closes; what it returns gets every start of a process."""
    started: list[tuple] = []
    starts = ("os.exec", "os.fork", "os.posix_spawn", "os.system", "subprocess.Popen")
    toolchain._executables = lambda *_: []
    sys.addaudithook(lambda event, args: started.append((event, args)) if event in starts else None)
    return started


def main() -> None:
    """Calls on the simulated device, and what is missing."""
    started = without_compilers()
    for name, (function, arguments) in calls().items():
        with aiter_like.use_backend("hip"):
            found = function(*arguments)
        with aiter_like.use_backend("torch"):
            torch.testing.assert_close(found, function(*arguments), rtol=2e-2, atol=2e-2, msg=name)
    assert len(build.built) == 6 and not any(one.compiled for one in build.built), build.built

    x = torch.randn(2, 512).bfloat16()
    with aiter_like.use_backend("hip"), pytest.raises(BuildError) as caught:
        aiter_like.silu_and_mul(torch.empty(2, 256).bfloat16(), x)
    print(caught.value)
    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("aiter_like").addHandler(handler)
    out = torch.empty(2, 256).bfloat16()
    aiter_like.silu_and_mul(out, x)
    torch.testing.assert_close(out, torch.nn.functional.silu(x[:, :256].float()).mul(x[:, 256:]).bfloat16(),
                               rtol=2e-2, atol=2e-2)
    print("\n".join(warnings))
    assert not started, started
    print("ok")


if __name__ == "__main__":
    main()

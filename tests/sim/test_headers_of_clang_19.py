# SPDX-License-Identifier: MIT
"""The oldest clang that is promised compiles HIP's headers, for the device and for the host."""

import shutil
import subprocess

import pytest

from aiter_like.sim import rocm

CLANG = shutil.which("clang++-19")


@pytest.mark.skipif(CLANG is None, reason="no clang++-19 here")
def test_all_headers(tmp_path):
    folder = rocm.include_folder()
    names = sorted(path.relative_to(folder) for path in (*folder.glob("hip/*.h"), *folder.glob("hip/amd_detail/*.h")))
    source = tmp_path / "all.hip"
    source.write_text("".join(f"#include <{name}>\n" for name in names) + """
__global__ void shifts(unsigned* x) {
  x[4] = __funnelshift_l(x[0], x[1], x[2]) + __funnelshift_r(x[0], x[1], x[2]) + __funnelshift_lc(x[0], x[1], x[2]);
}
""")
    assert len(names) > 30
    for half in ("--offload-device-only", "--offload-host-only"):
        command = [CLANG, "-x", "hip", "--offload-arch=gfx942", "-std=c++17", "-nogpuinc", "-nogpulib", half,
                   "-D__HIP_PLATFORM_AMD__", "-fsyntax-only", f"-I{folder}", source]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

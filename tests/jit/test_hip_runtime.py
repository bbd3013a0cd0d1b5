# SPDX-License-Identifier: MIT
"""Which HIP runtime a module gets. Each case has a process of its own, since what is loaded into one stays; all are
forked from one, since importing torch takes seconds."""

import json
import subprocess
import sys

import pytest
from jit_project import real_clang

# Case → what the process then resolves hipLaunchKernel to, or the error.
_CASES = {
    "load(simulated=True)": "simulated",
    "ctypes.CDLL(real); load(simulated=False)": "real",  # torch's is private to it, RTLD_LOCAL, until a module needs it
    "load(simulated=False)": "torch has loaded no HIP runtime",
    "load(simulated=True); load(simulated=False)": "torch has loaded no HIP runtime",
    "ctypes.CDLL(real); load(simulated=False); load(simulated=True)": "already has another HIP runtime",
    "load(simulated=True); ctypes.CDLL(real); load(simulated=False)": "already has another HIP runtime",
}

_PROGRAM = """
import ctypes, json, os, sys
from aiter_like.errors import BuildError
from aiter_like.jit import JitFunction
from aiter_like.sim import seam

real, simulated = sys.argv[1:3]
load = sys.modules[JitFunction.__module__].load_hip_runtime
seam.load = lambda: ctypes.CDLL(simulated, mode=ctypes.RTLD_GLOBAL)

def outcome(case):
    try:
        exec(case)
    except BuildError as error:
        return str(error)
    return {1: "real", 2: "simulated"}[ctypes.CDLL(None).hipLaunchKernel()]

outcomes = {}
for case in json.loads(sys.argv[3]):
    reader, writer = os.pipe()
    if not os.fork():
        os.write(writer, outcome(case).encode())
        os._exit(0)
    os.close(writer)
    outcomes[case] = os.fdopen(reader).read()
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, str]:
    libraries = []
    for number, name in ((1, "real"), (2, "a simulated one")):  # the second sorts before the first
        library = tmp_path_factory.mktemp(name) / "libamdhip64.so"
        source = library.with_suffix(".cpp")
        source.write_text(f'extern "C" int hipLaunchKernel() {{ return {number}; }}')
        subprocess.run([real_clang(), "-shared", "-fPIC", "-o", library, source], check=True)
        libraries.append(library)
    libraries[1].with_name("meta.json").write_text("{}")  # beside each library that the JIT built
    run = subprocess.run([sys.executable, "-c", _PROGRAM, *libraries, json.dumps(list(_CASES))], capture_output=True,
                         text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("case", _CASES)
def test_runtime(outcomes, case):
    assert _CASES[case] in outcomes[case]

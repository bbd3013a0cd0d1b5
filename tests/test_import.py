# SPDX-License-Identifier: MIT
"""Importing the package does nothing that can be observed, in a clean interpreter."""

import subprocess
import sys

SCRIPT = """
import logging, os, subprocess, sys, threading
import torch

events = []
watched = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.putenv", "os.unsetenv", "os.mkdir",
           "os.rename", "os.remove", "socket.connect", "ctypes.dlopen")

def audit(event, args):
    if event in watched:
        events.append((event, args))
    elif event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        if not str(args[0]).endswith((".pyc", "/dev/null")) and ".pyc." not in str(args[0]):
            events.append((event, args))

sys.addaudithook(audit)
before = dict(os.environ), sys.path[:], logging.root.handlers[:], logging.root.level, set(sys.modules)
threads = torch.get_num_threads(), threading.active_count()
import aiter_like

assert dict(os.environ) == before[0], "the environment was changed"
assert sys.path == before[1], "sys.path was changed"
assert (logging.root.handlers, logging.root.level) == before[2:4], "the root logger was changed"
logger = logging.getLogger("aiter_like")
assert not logger.handlers and logger.level == logging.NOTSET and logger.propagate, "our logger was configured"
assert not torch.cuda.is_initialized(), "a GPU was initialised"
assert (torch.get_num_threads(), threading.active_count()) == threads
heavy = {"triton", "pandas", "numpy.f2py", "transformers", "torch._dynamo", "torch._inductor", "aiter_like.sim",
         "aiter_like.cli", "aiter_like.cli.demo", "tvm_ffi", "ninja", "pytest", "hypothesis"}
heavy &= set(sys.modules) - before[4]
assert not heavy, f"imported: {sorted(heavy)}"
operators = [name for name in sys.modules if name.startswith("aiter_like.ops.") and name != "aiter_like.ops.index"]
assert not operators, f"operators that nobody asked for: {operators}"
assert not events, f"side effects: {events}"

from aiter_like import device
assert not device._targets, "a device was probed"
for name in ("rms_norm", "flash_attn_func", "explain", "is_tuned", "use_backend"):
    assert callable(getattr(aiter_like, name)), name
"""


def test_import_has_no_side_effects():
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert (run.stdout, run.stderr) == ("", "")


USE = """
import sys
import aiter_like

ours = sorted(name for name in sys.modules if name.startswith("aiter_like"))
assert ours == ["aiter_like", "aiter_like.dispatch", "aiter_like.dispatch.registry", "aiter_like.enums",
                "aiter_like.ops", "aiter_like.ops.index"], ours
assert "torch" not in sys.modules

aiter_like.rms_norm
families = {name.split(".")[2] for name in sys.modules if name.startswith("aiter_like.ops.")}
assert families == {"common", "index", "norm"}, families
operators = set(aiter_like.dispatch.OPS.declared)
assert operators == {"rms_norm", "norm_backward"}, operators  # and its gradient
unused = {"aiter_like.sim", "aiter_like.testing", "aiter_like.tuning", "aiter_like.integrations", "aiter_like.cli",
          "triton", "tvm_ffi", "transformers", "torch._inductor", "filelock", "ninja"} & set(sys.modules)
assert not unused, unused
"""


def test_only_what_is_used_is_imported():
    run = subprocess.run([sys.executable, "-c", USE], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr

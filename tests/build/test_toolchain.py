# SPDX-License-Identifier: MIT
"""Finding compilers: order, versions, what forces one, and what is said when there is none."""

import subprocess
import sys
from pathlib import Path

import pytest
from jit_project import Compiler, fake_compiler, forget, stand_in_hipcc

from aiter_like.build import toolchain
from aiter_like.errors import BuildError

_VERSION_ONLY = '#!/bin/sh\necho asked >> "{log}"\n{lines}\n'


def _tool(path: Path, *lines: str) -> Compiler:
    """An executable that answers --version."""
    return Compiler(path, _VERSION_ONLY, lines="\n".join(f"echo '{line}'" for line in lines))


def _hipcc(folder: Path, version: str = "6.2.41134") -> Compiler:
    return _tool(folder / "hipcc", f"HIP version: {version}-65d174c3e", "AMD clang version 18.0.0git (roc-6.2.1)",
                 "Target: x86_64-unknown-linux-gnu", "InstalledDir: /opt/rocm-6.2.1/lib/llvm/bin")


def _clang(folder: Path, version: str, name: str = "clang++") -> Compiler:
    return _tool(folder / name, f"Ubuntu clang version {version} (++2026)", f"InstalledDir: {folder}")


def _nvcc(folder: Path) -> Compiler:
    return _tool(folder / "nvcc", "nvcc: NVIDIA (R) Cuda compiler driver",
                 "Cuda compilation tools, release 12.8, V12.8.93")


@pytest.fixture
def bin_dir(tmp_path, monkeypatch) -> Path:
    """The only folder in PATH."""
    folder = tmp_path / "only"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "no rocm"))
    return folder


def test_hipcc_before_clang(bin_dir):
    _clang(bin_dir, "22.1.8")
    _hipcc(bin_dir)
    found = toolchain.find("hip")
    assert (found.name, found.version) == ("hipcc", (6, 2, 41134))
    assert found.host_compiler == "/opt/rocm-6.2.1/lib/llvm/bin/clang++"
    assert toolchain.find("host").name == "clang"


def test_hipcc_under_rocm_path(bin_dir, tmp_path, monkeypatch):
    _hipcc(tmp_path / "rocm" / "bin")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    assert toolchain.find("hip").path == str(tmp_path / "rocm" / "bin" / "hipcc")


def test_old_hipcc_gives_way_to_clang(bin_dir):
    _hipcc(bin_dir, "5.7.31921")
    _clang(bin_dir, "22.1.8")
    assert toolchain.find("hip").name == "clang"
    hipcc = toolchain.report()[0]
    assert hipcc.toolchain is None and hipcc.reason == f"{bin_dir}/hipcc is version 5.7.31921, needed is >= 6"


def test_hipcc_that_hides_its_clang(bin_dir):
    _tool(bin_dir / "hipcc", "HIP version: 6.2.0-1")
    with pytest.raises(BuildError, match="hipcc --version does not say where its clang is"):
        toolchain.find("hip")


def test_newest_clang_by_name(bin_dir):
    for name, version in (("clang++-19", "19.1.7"), ("clang++-22", "22.1.8"), ("clang++-14", "14.0.6"),
                          ("clang++", "14.0.6")):
        _clang(bin_dir, version, name)
    assert toolchain.find("hip").version == (22, 1, 8)


def test_cuda_takes_nvcc(bin_dir):
    _nvcc(bin_dir)
    found = toolchain.find("cuda")
    assert (found.name, found.version, found.host_compiler) == ("nvcc", (12, 8), "")


def test_none_says_what_was_tried_and_what_to_install(bin_dir):
    _clang(bin_dir, "14.0.6")
    with pytest.raises(BuildError) as caught:
        toolchain.find("hip")
    assert "hipcc: not found in PATH or /opt/rocm/bin" in str(caught.value)
    assert f"clang: {bin_dir}/clang++ is version 14.0.6, needed is >= 19" in str(caught.value)
    assert "install clang-22 lld-22" in str(caught.value)


@pytest.mark.parametrize("by", ["name", "path"])
def test_forced(bin_dir, tmp_path, monkeypatch, by):
    _hipcc(bin_dir)
    clang = _clang(bin_dir if by == "name" else tmp_path / "elsewhere", "19.1.7")
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", "clang" if by == "name" else str(clang.path))
    assert toolchain.find("hip").path == str(clang.path)


def test_forced_one_that_is_missing_or_wrong(bin_dir, monkeypatch):
    _hipcc(bin_dir)
    nvcc = _nvcc(bin_dir)
    for forced, platform, message in (
            ("clang", "hip", r"\(clang: not found in PATH\)"),
            (str(nvcc.path), "hip", "nvcc: forced by AITER_LIKE_TOOLCHAIN=.*nvcc, but it does not build for hip"),
            ("/no/such/clang++", "hip", "/no/such/clang.. --version does not look like a compiler: .*No such file")):
        forget()
        monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", forced)
        with pytest.raises(BuildError, match=message):
            toolchain.find(platform)
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", "gcc")
    with pytest.raises(ValueError, match="AITER_LIKE_TOOLCHAIN='gcc': expected one of hipcc, clang, nvcc, or a path"):
        toolchain.find("hip")


def test_forced_nvcc_leaves_the_simulator_its_compiler(bin_dir, monkeypatch):
    _nvcc(bin_dir)
    _clang(bin_dir, "22.1.8")
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", "nvcc")
    assert toolchain.find("host").name == "clang"


def test_one_that_does_not_end_is_not_usable(bin_dir, monkeypatch):
    """Nor does what it has started, which holds its output open."""
    Compiler(bin_dir / "clang++", "#!/bin/sh\n/bin/sleep 1000 &\n/bin/sleep 1000\n")
    monkeypatch.setattr(toolchain, "_VERSION_SECONDS", 0.2)
    with pytest.raises(BuildError, match=rf"clang: {bin_dir}/clang\+\+ --version has not ended after 0.2 s; hip"):
        toolchain.find("host")
    assert [found.reason for found in toolchain.report() if "not ended" in found.reason]


def test_version_in_any_bytes(bin_dir):
    Compiler(bin_dir / "clang++", "#!/bin/sh\nprintf 'clang version 22.1.0 \\377\\376\\000'\n")
    assert toolchain.find("host").version == (22, 1, 0)


def test_version_is_asked_once_until_the_file_changes(bin_dir):
    clang = _clang(bin_dir, "22.1.8")
    before = toolchain.find("hip")
    forget()
    assert toolchain.find("hip") == before and clang.runs() == 1
    clang.path.write_text(clang.path.read_text().replace("22.1.8", "22.1.9"))
    forget()
    after = toolchain.find("hip")
    assert after.version == (22, 1, 9) and after.identity != before.identity and clang.runs() == 2


def test_stand_in_for_hipcc_is_parsed(tmp_path, monkeypatch):
    """The script is a stand-in for ROCm's hipcc: clang under that name, with hipcc's version line first."""
    hipcc = stand_in_hipcc(tmp_path / "bin")
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", str(hipcc.path))
    found = toolchain.find("hip")
    assert (found.name, found.path, found.version) == ("hipcc", str(hipcc.path), (6, 4, 43482))
    assert Path(found.host_compiler).name == "clang++" and Path(found.host_compiler).is_file()
    assert fake_compiler(tmp_path / "bin").path != hipcc.path


def test_import_probes_nothing(tmp_path):
    """Importing the JIT starts no process, opens no compiler and writes no file."""
    code = ("import sys; ran = []; events = ('subprocess', 'os.posix_spawn', 'os.exec', 'os.mkdir')\n"
            "sys.addaudithook(lambda event, _: ran.append(event) if event.startswith(events) else None)\n"
            "import torch; before = len(ran)\n"
            "import aiter_like.cli.build; assert ran[before:] == [], ran[before:]\n"
            "assert not {'tvm_ffi', 'triton', 'filelock', 'aiter_like.sim'} & set(sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []

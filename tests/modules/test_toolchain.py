# SPDX-License-Identifier: MIT
"""Finding compilers: order, versions, what forces one, and what is said when there is none."""

import subprocess
import sys
from pathlib import Path

import pytest
from jit_project import Compiler, fake_compiler, forget, stand_in_hipcc

from aiter_like.errors import BuildError
from aiter_like.modules import toolchain

_VERSION_ONLY = '#!/bin/sh\necho asked >> "{log}"\n{lines}\n'


def _tool(path: Path, *lines: str) -> Compiler:
    """An executable that answers --version."""
    return Compiler(path, _VERSION_ONLY, lines="\n".join(f"echo '{line}'" for line in lines))


def _hipcc(folder: Path, version: str = "6.2.41134") -> Compiler:
    return _tool(folder / "hipcc", f"HIP version: {version}-65d174c3e", "AMD clang version 18.0.0git (roc-6.2.1)",
                 "Target: x86_64-unknown-linux-gnu", "InstalledDir: /opt/rocm-6.2.1/lib/llvm/bin")


# As the driver of Debian's 5.2: it looks for the clang of its own release, in HIP_CLANG_PATH unless there is a clang
# beside HIP_ROCCLR_HOME's other commands, and says its own version first.
_DRIVER = """#!/bin/sh
echo asked >> "{log}"
echo "HIP version: 5.2.21153-0"
clang=${{HIP_CLANG_PATH:-/nowhere}}
[ -e "$HIP_ROCCLR_HOME/bin/clang" ] && clang=$HIP_ROCCLR_HOME/bin
[ "$HIP_PLATFORM" = amd ] || echo "nvcc: release 12.8"
exec "$clang/clang++-15" "$@"
"""


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
    for name in ("HIP_CLANG_PATH", "HIP_PLATFORM", "HIP_ROCCLR_HOME"):
        monkeypatch.delenv(name, raising=False)
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


def test_hipcc_that_takes_no_other_clang_gives_way_to_it(bin_dir):
    _hipcc(bin_dir, "5.7.31921")
    _clang(bin_dir, "22.1.8")
    assert toolchain.find("hip").name == "clang"
    hipcc = toolchain.report()[0]
    assert hipcc.toolchain is None and hipcc.reason == (
        f"{bin_dir}/hipcc is version 5.7.31921 over clang 18.0.0, needed is hipcc >= 6 or any over clang >= 19; by "
        f"HIP_CLANG_PATH it does not take {bin_dir}/clang++")


def test_older_hipcc_over_a_new_clang_of_its_own(bin_dir):
    _tool(bin_dir / "hipcc", "HIP version: 5.7.1-0", "clang version 21.1.0", f"InstalledDir: {bin_dir}")
    found = toolchain.find("hip")
    assert (found.version, found.lent, found.command) == ((5, 7, 1), "", (f"{bin_dir}/hipcc",))


def test_older_hipcc_is_handed_the_clang_that_is_found(bin_dir, tmp_path, monkeypatch):
    driver = Compiler(bin_dir / "hipcc", _DRIVER)
    clang = _clang(bin_dir, "22.1.8", "clang++-22")
    monkeypatch.setenv("HIP_PLATFORM", "nvidia")
    found = toolchain.find("hip")
    assert (found.name, found.version, found.path) == ("hipcc", (5, 2, 21153), str(driver.path))
    assert found.host_compiler == str(clang.path) and "nvcc" not in found.identity
    assert str(found) == (f"hipcc 5.2.21153 ({driver.path}), by HIP_CLANG_PATH over clang 22.1.8 ({clang.path})")
    assert found in [candidate.toolchain for candidate in toolchain.report()], "doctor says the same"

    monkeypatch.setenv("PATH", f"{bin_dir}:/usr/bin:/bin")
    text = subprocess.run([*found.command, "--version"], capture_output=True, text=True, check=True).stdout
    assert "clang version 22.1.8" in text
    assert (driver.runs(), clang.runs()) == (3, 3), "once without and once with the clang, and now"
    forget()
    assert toolchain.find("hip") == found and (driver.runs(), clang.runs()) == (3, 3)


def test_another_clang_for_it_is_another_compiler(bin_dir):
    Compiler(bin_dir / "hipcc", _DRIVER)
    _clang(bin_dir, "21.1.0", "clang++-21")
    older = toolchain.find("hip")
    _clang(bin_dir, "22.1.8", "clang++-22")
    forget()
    newer = toolchain.find("hip")
    assert newer.identity != older.identity and newer.environment != older.environment
    assert "21.1.0" in older.lent and "22.1.8" in newer.lent


def test_older_hipcc_without_any_new_clang(bin_dir):
    driver = Compiler(bin_dir / "hipcc", _DRIVER)
    _clang(bin_dir, "14.0.6")
    with pytest.raises(BuildError, match=rf"hipcc: {driver.path} --version does not say where its clang is "
                                         r"\(InstalledDir\); there is no other clang to hand to it; clang: .*14.0.6"):
        toolchain.find("hip")


def test_rocm_before_a_hipcc_that_needs_another_clang(bin_dir, tmp_path, monkeypatch):
    Compiler(bin_dir / "hipcc", _DRIVER)
    _clang(bin_dir, "22.1.8")
    _hipcc(tmp_path / "rocm" / "bin")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    assert toolchain.find("hip").path == str(tmp_path / "rocm" / "bin" / "hipcc")


def test_users_own_choice_of_the_clang_behind_hipcc(bin_dir, tmp_path, monkeypatch):
    Compiler(bin_dir / "hipcc", _DRIVER)
    _clang(tmp_path / "mine", "20.1.0", "clang++-15")
    _clang(bin_dir, "22.1.8")
    assert "22.1.8" in toolchain.find("hip").lent
    monkeypatch.setenv("HIP_CLANG_PATH", str(tmp_path / "mine"))
    found = toolchain.find("hip")
    assert (found.lent, found.host_compiler) == ("", f"{tmp_path}/mine/clang++") and "20.1.0" in found.identity


def test_hipcc_that_speaks_on_stderr(bin_dir, tmp_path, monkeypatch):
    own = '"HIP version: 6.2.4" "clang version 20.1.0" "InstalledDir: /opt/rocm/llvm/bin"'
    folder = tmp_path / "with a space"
    Compiler(folder / "hipcc", f"#!/bin/sh\nprintf '%s\\n' 'some warning' >&2\nprintf '%s\\n' {own} >&2\n")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", f"{folder}:{bin_dir}")
    found = toolchain.find("hip")
    assert (found.version, found.path, found.clang_version) == ((6, 2, 4), f"{folder}/hipcc", (20, 1, 0))
    # A warning beside a version on stdout is not part of what the compiler is.
    Compiler(folder / "hipcc", f"#!/bin/sh\necho $$ >&2\nprintf '%s\\n' {own}\n")
    forget()
    first = toolchain.find("hip").identity
    forget()
    assert toolchain.find("hip").identity == first and first.endswith("/opt/rocm/llvm/bin\n")


def test_hipcc_that_fails_says_why(bin_dir):
    says = "echo Defaulting to AMD\necho 'sh: /opt/clang++: not found' >&2\nexit 3\n"
    Compiler(bin_dir / "hipcc", f"#!/bin/sh\n{says}")
    with pytest.raises(BuildError, match="a compiler: Defaulting to AMD; sh: /opt/clang.*: not found; exit status 3"):
        toolchain.find("hip")


def test_a_wrong_rocm_path_and_clang_path_are_named(bin_dir, tmp_path, monkeypatch):
    nowhere = tmp_path / "no rocm"
    with pytest.raises(BuildError, match=rf"hipcc: not found in PATH, /opt/rocm/bin or ROCM_PATH \({nowhere}, which is "
                                         r"no folder\)"):
        toolchain.find("hip")
    monkeypatch.setenv("HIP_CLANG_PATH", str(tmp_path))
    Compiler(bin_dir / "hipcc", _DRIVER)
    forget()
    with pytest.raises(BuildError, match=rf"InstalledDir\); HIP_CLANG_PATH={tmp_path} has no clang\+\+; there is no"):
        toolchain.find("hip")
    _clang(bin_dir, "22.1.8")
    forget()
    assert "22.1.8" in toolchain.find("hip").lent, "the one that is found is handed to it"


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
    assert "hipcc: not found in PATH, /opt/rocm/bin or ROCM_PATH" in str(caught.value)
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

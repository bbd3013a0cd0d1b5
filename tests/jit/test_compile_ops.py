# SPDX-License-Identifier: MIT
"""Typed stubs over really compiled modules: binding, signature check, typed errors, each toolchain's path."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from jit_project import counting_clang, forget, make_hip_project, stand_in_hipcc
from torch import Tensor

from aiter_like.device import Target, simulated_target
from aiter_like.errors import BuildError, UnsupportedError
from aiter_like.jit import Instance, compile_ops
from aiter_like.modules import cache
from aiter_like.modules.build import load_or_build
from aiter_like.modules.recipe import ModuleSpec, parse_depfile

SIM = simulated_target()


def _scale_hip(x: Tensor, weight: Tensor | None, factor: float, times: int, is_on: bool, name: str) -> None:
    """Multiplies."""


def _args(value=21.0, times=1):
    return torch.tensor([value]), None, 2.0, times, True, ""


def test_bind_returns_the_bare_function(hip_project):
    function = compile_ops("op/scale.hip")(_scale_hip)
    assert (function.function_name, function.__name__, function.__doc__) == ("scale", "_scale_hip", "Multiplies.")
    assert list(function.signature.parameters) == ["x", "weight", "factor", "times", "is_on", "name"]
    args = _args()
    bound = function.bind(SIM, args)
    assert type(bound).__module__.startswith("tvm_ffi")
    bound(*args)
    assert args[0].item() == 42
    bound(args[0], args[0], *args[2:])
    assert args[0].item() == 168
    assert function.bind(SIM, args) is bound


def test_typed_errors_cross_the_boundary(hip_project):
    bound = compile_ops("op/scale.hip")(_scale_hip).bind(SIM, _args())
    with pytest.raises(TypeError, match="scale: x must have dtype float32, got bfloat16"):
        bound(torch.zeros(1, dtype=torch.bfloat16), *_args()[1:])
    with pytest.raises(ValueError, match=r"scale: x must have shape \(at least 1\), got \(1, 1\)"):
        bound(torch.zeros(1, 1), *_args()[1:])
    with pytest.raises(TypeError, match="scale takes 6 arguments, got 5"):
        bound(*_args()[:5])
    with pytest.raises(TypeError, match="scale: argument 3 must be int, got ffi.SmallStr"):
        bound(*_args()[:3], "one", *_args()[4:])
    with pytest.raises(TypeError, match=r"scale: argument 1 must be Optional<DLTensor\*>, got float"):
        bound(_args()[0], 1.0, *_args()[2:])
    with pytest.raises(RuntimeError, match="scale_kernel: launch failed: tired"):
        bound(*_args(times=101))


def test_call_goes_to_the_first_tensors_device(hip_project, monkeypatch):
    monkeypatch.setattr("aiter_like.device._targets", {torch.device("cpu"): SIM})
    args = _args()
    compile_ops("op/scale.hip")(_scale_hip)(*args)
    assert args[0].item() == 42


def _wrong_type(x: Tensor, weight: Tensor | None, factor: int, times: int, is_on: bool, name: str) -> None: ...
def _wrong_optional(x: Tensor, weight: Tensor, factor: float, times: int, is_on: bool, name: str) -> None: ...
def _wrong_count(x: Tensor, weight: Tensor | None) -> None: ...
def _wrong_return(x: Tensor, weight: Tensor | None, factor: float, times: int, is_on: bool, name: str) -> int: ...


@pytest.mark.parametrize("stub", [_wrong_type, _wrong_optional, _wrong_count, _wrong_return])
def test_signature_mismatch(hip_project, monkeypatch, stub, prebuilt_scale):
    function = compile_ops("op/scale.hip", fc_name="scale")(stub)
    declared = re.escape(str(inspect.signature(stub, eval_str=True)).split(" ->")[-1].strip())
    with pytest.raises(BuildError, match=rf"op/scale.hip: {stub.__name__} is declared as \(.* -> {declared}\), but the "
                                         r"built scale is \(Tensor, Tensor \| None, float, int, bool, str -> None\)"):
        function.bind(SIM, _args())


@pytest.fixture(scope="module")
def scale_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("prebuilt")


@pytest.fixture
def prebuilt_scale(hip_project, scale_cache, monkeypatch):
    """op/scale.hip, compiled once for all tests that only load it."""
    if not any(scale_cache.iterdir()):
        load_or_build(ModuleSpec("op/scale", ("op/scale.hip",), arch="gfx942", root=hip_project), root=scale_cache)
    monkeypatch.setenv("AITER_LIKE_PREBUILT_DIR", str(scale_cache))


def test_missing_function(hip_project, prebuilt_scale):
    with pytest.raises(BuildError, match="op/scale: cannot load scales"):
        compile_ops("op/scale.hip", fc_name="scales")(_scale_hip).bind(SIM, _args())


def test_annotation_that_cannot_cross(hip_project, prebuilt_scale):
    def _scale_hip(x: list) -> None: ...

    with pytest.raises(TypeError, match="annotation <class 'list'> is none of Tensor, .*, int, float"):
        compile_ops("op/scale.hip")(_scale_hip).bind(SIM, _args())


def test_two_stubs_of_one_function(hip_project):
    compile_ops("op/scale.hip")(_scale_hip)
    compile_ops("op/scale.hip")(_scale_hip)  # a module that is reloaded
    with pytest.raises(ValueError, match="op/scale:scale is declared twice, as _scale_hip and _wrong_count"):
        compile_ops("op/scale.hip", fc_name="scale")(_wrong_count)


def test_target_without_kernels(hip_project):
    for options, platform, accepted in (({}, "cpu", "hip and cuda"), ({"platforms": ("hip",)}, "cuda", "hip")):
        function = compile_ops("op/scale.hip", **options)(_scale_hip)
        with pytest.raises(UnsupportedError, match=f"op/scale.hip is for {accepted} targets, not for {platform}"):
            function.bind(Target(platform, "sm_90", 132, 32), _args())


def test_instances(hip_project, monkeypatch, tmp_path):
    """gen_func chooses the macros; each instance is a module of its own, built when first asked for."""
    source = hip_project / "op" / "scale.hip"
    source.write_text(source.read_text().replace("data[0] *= factor", "data[0] *= BASE * factor"))
    compiler = counting_clang(tmp_path / "bin")
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", str(compiler.path))

    def instance(x, weight, factor, times, is_on, name, base=1):
        return Instance(f"base{base}", {"BASE": base})

    function = compile_ops("op/scale.hip", gen_func=instance, prebuild=[Instance("base1", {"BASE": 1})])(_scale_hip)
    assert function.kernel_name(_args(), base=3) == "scale[base3]"
    assert function.spec(SIM, _args(), base=3).name == "op/scale-base3"
    for base in (1, 3, 1):
        args = _args()
        function.bind(SIM, args, base=base)(*args)
        assert args[0].item() == 42 * base
    assert compiler.runs() == 2
    assert function.module_key(SIM, _args()) != function.module_key(SIM, _args(), base=3)
    assert function.instances() == (Instance("base1", {"BASE": 1}),)


def test_compile_failure_is_a_build_error_once(hip_project, tmp_path, monkeypatch):
    (hip_project / "op" / "scale.hip").write_text("int broken(\n")
    compiler = counting_clang(tmp_path / "bin")
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", str(compiler.path))
    function = compile_ops("op/scale.hip")(_scale_hip)
    for _ in range(3):
        with pytest.raises(BuildError) as caught:
            function.bind(SIM, _args())
    assert compiler.runs() == 1, "a failing compilation is not repeated for each new shape"
    error = caught.value
    assert "scale.hip:" in error.output and "error: expected" in error.output
    assert error.command.startswith(str(compiler.path)) and "--offload-arch=gfx942" in error.command
    assert "error: expected" in error.log_path.read_text()


def test_depfile_covers_the_device_pass(hip_project, tmp_path, monkeypatch):
    """A header that only the device pass includes builds again too (the depfile of clang's combined mode omits it)."""
    source, header = hip_project / "op" / "scale.hip", hip_project / "include" / "device_only.h"
    header.write_text("#define LANES 64\n")
    source.write_text("#ifdef __HIP_DEVICE_COMPILE__\n#include \"device_only.h\"\n#endif\n" + source.read_text())
    spec = ModuleSpec("op/scale", ("op/scale.hip",), arch="gfx942", root=hip_project)
    first = load_or_build(spec)
    meta = json.loads((first.parent / cache.META).read_text())
    assert {header[0] for header in meta["headers"] if header[0].startswith("include/")} == {
        "include/aiter_like/dtype.h", "include/aiter_like/export.h", "include/aiter_like/ffi.h",
        "include/aiter_like/gpu.h", "include/aiter_like/match.h", "include/aiter_like/shape.h",
        "include/device_only.h", "include/void_runtime.h"}
    header.write_text("#define LANES 32\n")
    assert load_or_build(spec) != first


def test_stand_in_for_hipcc_builds_the_same_module(hip_project, tmp_path, monkeypatch):
    """hipcc's path, with a stand-in for ROCm's hipcc: a script of that name around clang. ROCm itself is not tested."""
    elsewhere = make_hip_project(tmp_path / "elsewhere")
    clang_built = load_or_build(ModuleSpec("op/scale", ("op/scale.hip",), arch="gfx942", root=elsewhere)).read_bytes()
    spec = ModuleSpec("op/scale", ("op/scale.hip",), arch="gfx942", root=hip_project)
    hipcc = stand_in_hipcc(tmp_path / "bin")
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", str(hipcc.path))
    forget()
    path = load_or_build(spec)
    assert hipcc.runs() == 1
    assert path.read_bytes() == clang_built
    meta = json.loads((path.parent / cache.META).read_text())
    assert meta["toolchain"] == f"hipcc 6.4.43482 ({hipcc.path})" and "HIP version: 6.4" in meta["build"]["compiler"]


def test_host_names_the_kernels_that_the_device_code_has(hip_project, prebuilt_scale, scale_cache):
    bundle = next(scale_cache.glob("*/*/device.hipfb")).read_bytes()
    host_half = next(scale_cache.glob("*/*/module.so")).read_bytes().replace(bundle, b"")
    kernels = set(re.findall(rb"\0(_Z\w*scale_kernel\w*)\.kd\0", bundle))
    assert len(kernels) == 1 and kernels.pop() + b"\0" in host_half


def test_module_needs_no_hip_library(hip_project, prebuilt_scale, scale_cache):
    """It takes whichever HIP runtime the process has; only the C++ runtime is named."""
    needed = subprocess.run(["readelf", "-d", next(scale_cache.glob("*/*/module.so"))], capture_output=True, text=True,
                            check=True).stdout
    assert "hip" not in needed and "tvm" not in needed and "libstdc++" in needed


@pytest.mark.skipif(shutil.which("nvcc") is None and not os.path.exists("/usr/local/cuda/bin/nvcc"), reason="no nvcc")
def test_nvcc_compiles_the_portable_source(hip_project):
    """Compiled, not run: that needs an NVIDIA GPU. The device pass's headers are in the key here too."""
    source, header = hip_project / "op" / "scale.hip", hip_project / "include" / "device_only.h"
    text = re.sub(r'#include "void_runtime.h"\n', '#include "aiter_like/ffi.h"\n', source.read_text())
    source.write_text("#ifdef __CUDA_ARCH__\n#include \"device_only.h\"\n#endif\n" + text)
    header.write_text("#define LANES 32\n")
    spec = ModuleSpec("op/scale", ("op/scale.hip",), kind="cuda", arch="sm_90", root=hip_project)
    path = load_or_build(spec)
    assert b"sm_90" in path.read_bytes()
    meta = json.loads((path.parent / cache.META).read_text())
    assert "include/device_only.h" in {header[0] for header in meta["headers"]}


def test_host_module_of_many_sources(project):
    """The simulator's kind: plain C++, objects in parallel, one library of a given name."""
    (project.root / "op" / "other.cpp").write_text(
        'extern "C" int tiny(); extern "C" int other() { return 10 * tiny(); }\n')
    path = load_or_build(project.spec(sources=("op/tiny.cpp", "op/other.cpp"), output="libother.so"))
    assert path.name == "libother.so" and sorted(os.listdir(path.parent)) == [
        "build.log", "build.ninja", "libother.so", "meta.json"]
    code = f"import ctypes; print(ctypes.CDLL({str(path)!r}).other())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "10\n"


def test_device_module_has_one_source(project):
    with pytest.raises(ValueError, match="op/tiny: a device module has one source, got 2"):
        project.spec(kind="hip", sources=("op/tiny.cpp", "op/other.cpp"))


def test_parse_depfile():
    assert parse_depfile("a.o : a.cpp \\\n  /x/with\\ space.h \\\n b$$.h\n") == ["a.cpp", "/x/with space.h", "b$.h"]

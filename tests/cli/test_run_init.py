# SPDX-License-Identifier: MIT
"""`aiter-like sim run --init`, descriptions by name and with several launches, and `aiter-like sim compare`."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from asm import assemble
from jit_project import real_clang
from negate import NEGATE

from aiter_like import cli
from aiter_like.cli.sim import init as sim_init
from aiter_like.cli.sim import spec as sim_spec
from aiter_like.sim.names import demangled

SOURCE = """#include <hip/hip_runtime.h>
#ifndef FACTOR
#define FACTOR 2
#endif
__global__ void scale(const float* x, float* y, float by, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = FACTOR * x[i] * by;
}
template <int kOne> __global__ void widen(const float* __restrict__ y, float2* z, unsigned short n) {
  __shared__ float tile[256];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[threadIdx.x] = y[i];
  __syncthreads();
  if (i < n) z[i] = make_float2(tile[255 - threadIdx.x], kOne);
}
template __global__ void widen<1>(const float*, float2*, unsigned short);
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """kernels.co, and other.co of another version."""
    real_clang()
    pytest.importorskip("triton")
    place = tmp_path_factory.mktemp("kernels")
    other = SOURCE.replace("= FACTOR * x[i] * by", "= x[i] + by").replace("__syncthreads", "\n  __syncthreads")
    for name, text in (("other", other), ("kernels", SOURCE)):
        source = place / f"{name}.hip"
        source.write_text(text)
        assert cli.main(["sim", "compile", str(source), "-o", str(place / f"{name}.co")]) == 0
    return place


@pytest.fixture
def command(folder, tmp_path, monkeypatch, capsys):
    """Runs `aiter-like sim` in a folder of its own; (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    for name in ("kernels.co", "other.co"):
        (tmp_path / name).symlink_to(folder / name)

    def call(*words):
        capsys.readouterr()
        return cli.main(["sim", *words]), *capsys.readouterr()

    return call


def test_a_description_of_what_the_code_object_has(command):
    status, out, err = command("run", "--init", "kernels.co")
    assert status == 0 and out.startswith("kernels.json: 3 buffers, 2 launches. Guessed"), err
    spec = json.loads(Path("kernels.json").read_text())
    assert spec == {
        "buffers": {"x": {"dtype": "fp32", "shape": [1024], "fill": "random", "seed": 0},
                    "y": {"dtype": "fp32", "shape": [1024], "fill": "zeros", "output": True},
                    "z": {"dtype": "fp32", "shape": [1024, 2], "fill": "zeros", "output": True}},
        "launches": [
            {"kernel": "scale", "grid": [4, 1, 1], "block": [256, 1, 1], "shared": 0,
             "arguments": {"x": {"buffer": "x"}, "y": {"buffer": "y"}, "by": {"type": "fp32", "value": 1.0},
                           "n": {"type": "i32", "value": 1024}}},
            {"kernel": "widen", "grid": [4, 1, 1], "block": [256, 1, 1], "shared": 0,
             "arguments": {"y": {"buffer": "y"}, "z": {"buffer": "z"}, "n": {"type": "u16", "value": 1024}}}]}
    status, out, err = command("run", "kernels.co", "--args", "kernels.json", "--check", "--output", "out")
    assert status == 0, out + err
    y, z = np.load("out/y.npy"), np.load("out/z.npy")
    assert len(set(y)) > 1000, "random"
    np.testing.assert_array_equal(z[:, 0], y.reshape(4, 256)[:, ::-1].reshape(-1), "the second reads the first's")
    np.testing.assert_array_equal(z[:, 1], np.ones(1024, np.float32))
    assert out.count(": 4 workgroups, 16 waves") == 2
    status, _, err = command("run", "--init", "kernels.co")
    assert status == 1 and "--init: kernels.json is there already" in err


def test_one_kernel_and_options_that_win(command):
    status, _, err = command("run", "--init", "kernels.co", "--kernel", "widen<1>(float const*, HIP_vector_type<float, "
                             "2u>*, unsigned short)", "--block", "64", "--args", "one.json")
    assert status == 0, err
    (launch,) = json.loads(Path("one.json").read_text())["launches"]
    assert (launch["kernel"], launch["grid"], launch["block"]) == ("widen", [16, 1, 1], [64, 1, 1])


def test_a_kernel_without_names(command):
    Path("negate.co").write_bytes(assemble(NEGATE))
    assert command("run", "--init", "negate.co")[0] == 0
    spec = json.loads(Path("negate.json").read_text())
    assert spec["launches"][0]["arguments"] == [{"buffer": "argument0"}, {"buffer": "argument1"},
                                                {"type": "i64", "value": 1024}]
    assert command("run", "negate.co", "--args", "negate.json")[0] == 0
    spec["launches"][0]["arguments"] = {"x": {"buffer": "argument0"}}
    Path("negate.json").write_text(json.dumps(spec))
    status, _, err = command("run", "negate.co", "--args", "negate.json")
    assert status == 1 and "does not name the arguments of negate, so that they must be a list" in err


@pytest.mark.parametrize(("change", "message"), [
    (lambda spec: spec["launches"][0]["arguments"].pop("by"), "launches[0]: arguments.by is missing; "),
    (lambda spec: spec["launches"][1]["arguments"].update(m={"type": "u16", "value": 1}),
     "launches[1]: _Z5widenILi1EEvPKfP15HIP_vector_typeIfLj2EEt has no argument m; it takes: y (8 bytes, global_"),
    (lambda spec: spec["launches"][0].update(kernel="scales"), "has no kernel scales; it has: _Z5scalePKfPffi, _Z5w"),
    (lambda spec: spec["launches"][0].pop("kernel"), "launches[0]: --kernel must be given, or kernel in the descript"),
    (lambda spec: spec["launches"][0].pop("grid"), "launches[0]: --grid must be given, or grid in launches"),
    (lambda spec: spec["launches"][0].update(block=[0]), "launches[0].block must be an integer from 1 to"),
    (lambda spec: spec["launches"][0].update(shared=-1), "launches[0].shared must be an integer from 0 to"),
    (lambda spec: spec["launches"][0].update(kernel=3), "launches[0].kernel must be a name, got 3"),
    (lambda spec: spec["launches"][0].update(blocks=[1]), "launches[0] has no key blocks; there are: arguments, block"),
    (lambda spec: spec["launches"][0]["arguments"].update(n={"type": "u64", "value": 1}),
     "arguments.n: _Z5scalePKfPffi takes n of 4 bytes (by_value) here, got 8 bytes"),
    (lambda spec: spec.update(launches=[]), "launches must be a list of at least one, got []"),
    (lambda spec: spec.update(arguments=[]), "must have arguments, for one launch, or launches, not both"),
])
def test_mistakes_in_launches_are_named(command, change, message):
    assert command("run", "--init", "kernels.co")[0] == 0
    spec = json.loads(Path("kernels.json").read_text())
    change(spec)
    Path("kernels.json").write_text(json.dumps(spec))
    status, out, err = command("run", "kernels.co", "--args", "kernels.json")
    assert status == 1 and out == "" and message in err and err.count("\n") == 1, err


def test_mistakes_of_init(command):
    Path("text.co").write_text("no code object")
    image = bytearray(assemble(NEGATE))
    image[0x30] = 0x3f  # the architecture among the ELF header's flags
    Path("other_arch.co").write_bytes(image)
    for words, message in ((("text.co",), "text.co: not an AMD code object"), (("none.co",), "none.co: No such file"),
                           (("other_arch.co",), "other_arch.co: the code object is for gfx90a, not for gfx942"),
                           (("kernels.co", "--kernel", "scole"), "has no kernel scole; it has: ")):
        status, _, err = command("run", "--init", *words)
        assert status == 1 and message in err and not list(Path().glob("*.json"))
    status, _, err = command("run", "kernels.co")
    assert status == 1 and "aiter-like sim run --init kernels.co writes one" in err


@pytest.mark.parametrize(("name", "function", "types"), [
    ("_Z5scalePKfPffi", "scale", ["float const*", "float*", "float", "int"]),
    ("_ZN2ns1fIiXadL_Z3onevEEEEvPT_", "ns::f", ["int*"]), ("_Z1gPFvvEi", "g", ["void (*)()", "int"]),
    ("plain", "plain", []), ("_Z4nonev", "none", []),
])
def test_names_of_functions_and_their_types(name, function, types):
    readable = demangled(name)
    assert sim_spec.function_name(readable) == function and sim_init.parameter_types(readable) == types


class TestCompare:
    """Two versions of kernels.hip."""

    def test_the_code(self, command):
        status, out, err = command("compare", "kernels.co", "other.co")
        assert status == 0, err
        first, second = out.split("widen<1>(")
        assert re.search(r"^  instructions +(\d+) +(\d+)", first, re.M)[1] != "0"
        assert re.search(r"LDS of a workgroup, bytes +1024 +1024 *$", second, re.M)
        assert re.search(r"instructions by line: \d+ lines have as many in both, 0 differ", second), second

    def test_counts_and_modelled_cycles_by_line(self, command):
        command("run", "--init", "kernels.co", "--kernel", "scale")
        status, out, err = command("compare", "kernels.co", "other.co", "--kernel", "scale", "--args", "kernels.json")
        assert status == 0, err
        assert "counted, kernels.co and other.co" in out and "modelled, not measured" in out
        assert re.search(r"^  bytes that lanes ask for +(\d+) +\1 *$", out, re.M)
        assert re.search(r"^modelled time, clk +\d", out, re.M)
        assert "other.hip:7" in out.split("clk of waves by line")[1]

    def test_commits_of_a_source(self, command):
        def git(*words):
            options = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
            subprocess.run(["git", *options, *words], check=True, capture_output=True)

        git("init", "-q")
        Path("inner").mkdir()
        Path("inner/kernels.hip").write_text(SOURCE.replace("#ifndef FACTOR", '#include "factor.h"\n#ifndef FACTOR'))
        Path("inner/factor.h").write_text("#define FACTOR x[i] * x[i] * x[i]\n")
        git("add", "inner")
        git("commit", "-qm", "one")
        Path("inner/factor.h").write_text("#error what is there now is not what was committed")
        status, out, err = command("compare", "kernels.co", "HEAD:inner/kernels.hip", "--kernel", "scale")
        assert status == 0, err
        assert re.search(r"^    vector +(\d+) +(\d+) ", out, re.M) and "0 lines have as many" not in out
        assert "inner/kernels.hip:8 " in out, "a line further down than in kernels.co, with another factor"
        for name, message in (("HEAD:none.hip", "HEAD:none.hip: the commit has no such file"),
                              ("nothing:inner/kernels.hip", "git knows no commit nothing here")):
            status, _, err = command("compare", name, "kernels.co")
            assert status == 1 and message in err

    def test_mistakes(self, command):
        Path("negate.co").write_bytes(assemble(NEGATE))
        for words, message in ((("kernels.co", "none.co"), "none.co: No such file"),
                               (("kernels.co", "negate.co"), "no kernel is in both: kernels.co has _Z5scale"),
                               (("negate.co", "negate.co", "--kernel", "scale"), "negate.co has no kernel scale")):
            status, _, err = command("compare", *words)
            assert status == 1 and message in err and err.count("\n") == 1
        status, out, _ = command("compare", "negate.co", "negate.co")
        assert status == 0 and "no lines: negate.co has no debug information (compile with -gline-tables-only)" in out

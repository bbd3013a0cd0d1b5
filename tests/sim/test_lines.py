# SPDX-License-Identifier: MIT
"""Source lines: the reader of line tables against LLVM's, reports that name file and line, damaged tables."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from asm import tool
from checking import only
from damaged_lines import sections
from hip_program import PRELUDE, code_object

from aiter_like import sim
from aiter_like.errors import SimulatorError
from aiter_like.modules import recipe, toolchain
from aiter_like.ops.attention import flash_attn_fwd_hip
from aiter_like.ops.norm import rms_norm
from aiter_like.sim import reports
from aiter_like.sim.library import json_of

SOURCE = """
__device__ float half_of(float x) {
  return x * 0.5f;
}
extern "C" __global__ void store(const float* x, float* out, int n) {
  const int i = workgroup_index().x * 64 + thread_index();
  float y = 0;
  for (int k = 0; k < n; ++k) y += half_of(x[k]);
  out[i] = y;                                                  // planted: no `i < n`
}
extern "C" __global__ void early(const float* x, float* out, int n) {
  float y;
  asm volatile("global_load_dword %0, %1, off" : "=&v"(y) : "v"(x + thread_index()));
  out[thread_index()] = half_of(y);                            // planted: no wait
}
"""
INLINED = """
#line 1 "/kernels/load.h"
__device__ inline float element(const float* x, int i) { return x[i]; }
__device__ inline float sum_of_two(const float* x, int i) {
  return element(x, i) +
         element(x, i + 64);
}
#line 60 "/kernels/attention.hip"
extern "C" __global__ void add(const float* x, float* out) {
  float y = sum_of_two(x, __builtin_amdgcn_workitem_id_x());           // 61: past the end of x
  y += sum_of_two(x, __builtin_amdgcn_workitem_id_x() + 128);    // 62: likewise
  out[__builtin_amdgcn_workitem_id_x()] = y;
}
"""
ASSEMBLY = """\
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
.globl early
.p2align 8
.type early,@function
early:
  s_load_dwordx2 s[2:3], s[0:1], 0
  v_lshlrev_b32 v1, 2, v0
  s_waitcnt lgkmcnt(0)
  global_load_dword v2, v1, s[2:3]
  v_add_u32 v2, v2, v2                                         // planted: no wait
  s_endpgm
.rodata
.amdhsa_kernel early
  .amdhsa_next_free_vgpr 3
  .amdhsa_next_free_sgpr 4
  .amdhsa_accum_offset 4
  .amdhsa_kernarg_size 24
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
.end_amdhsa_kernel
"""


def compiled(*flags: str, compiler: str = "") -> bytes:
    return code_object(SOURCE + INLINED, "--no-gpu-bundle-output", *flags, compiler=compiler)


def assembled(folder: Path) -> tuple[bytes, Path]:
    source, output = folder / "early.s", folder / "early.co"
    source.write_text(ASSEMBLY)
    subprocess.run([toolchain.find("host").host_compiler, "-x", "assembler",
                    "--target=amdgcn-amd-amdhsa", "-mcpu=gfx942", "-g", "-nogpulib", str(source), "-o",
                    str(output)], check=True)
    return output.read_bytes(), source


def line_of(text: str, phrase: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if phrase in line)


def lines(elf: bytes) -> dict[int, tuple[str, str]]:
    """Offset in the code → file:line and that of the call of the inlined function, or "", by the simulator."""
    library = sim.load()
    address = library.aiter_like_sim_lines(elf, len(elf))
    assert address, library.hipGetErrorString(200)
    return {pc: (source, caller) for pc, source, caller in json_of(address)}


def llvm_lines(elf: bytes, folder: Path) -> dict[int, tuple[str, str]]:
    """The same by llvm-symbolizer, for each dword of the code: the first and, if it is another, the last frame."""
    _, base, _, size = sections(elf)[".text"]
    file = folder / "code.co"
    file.write_bytes(elf)
    asked = "\n".join(hex(base + offset) for offset in range(0, size, 4))
    done = subprocess.run([tool("llvm-symbolizer"), f"--obj={file}", "--output-style=JSON"], input=asked,
                          capture_output=True, text=True, check=True)
    chains = [[f"{frame['FileName']}:{frame['Line']}" if frame["Line"] else "" for frame in json.loads(line)["Symbol"]]
              for line in done.stdout.splitlines()]
    return {4 * k: (chain[0], chain[-1] if chain[1:] else "") for k, chain in enumerate(chains) if chain[0]}


def launch(elf: bytes, kernel: str, arguments: bytes) -> None:
    sim.launch(elf, kernel, (1, 1, 1), (64, 1, 1), 0, arguments)


def run(elf: bytes, kernel: str, n: int = 64) -> list[dict]:
    x, out = torch.ones(64), torch.zeros(n)
    arguments = struct.pack("<QQi", x.data_ptr(), out.data_ptr(), n)
    with sim.enabled(on_report="collect") as session:
        sim.checked_call(kernel, lambda *_: launch(elf, kernel, arguments), (x, out), writes=(1,))
    return session.reports


@pytest.mark.parametrize("flags", [("-gline-tables-only",), ("-g",), ("-gline-tables-only", "-gdwarf-4"),
                                   ("-g", "-gdwarf-3"), ("-g", "-gdwarf64"), ("-gline-tables-only", "-O0")],
                         ids="".join)
def test_the_reader_agrees_with_llvm(flags, tmp_path):
    elf = compiled(*flags)
    ours, theirs = lines(elf), llvm_lines(elf, tmp_path)
    assert len(ours) > 20 and ("-O0" not in flags or any("/gpu.h:" in source for source, _ in ours.values()))
    assert "-O0" in flags or any("/program.hip:" in caller for _, caller in ours.values())
    assert ours == {pc: theirs.get(pc) for pc in ours}
    assert set(theirs) & set(every_pc(elf)) == set(ours)


def every_pc(elf: bytes) -> list[int]:
    from mutants import instructions

    return [pc for pc, text in instructions(elf) if not text.startswith("<")]


def test_the_reader_agrees_with_llvm_on_assembly(tmp_path):
    elf, source = assembled(tmp_path)
    ours = lines(elf)
    assert ours == {4 * k: (f"{source}:{line}", "") for k, line in zip((0, 2, 3, 4, 6, 7), range(6, 12), strict=True)}
    theirs = llvm_lines(elf, tmp_path)
    assert ours == {pc: theirs[pc] for pc in ours}


def test_the_reader_agrees_with_llvm_on_triton(simulated_triton, tmp_path):
    from line_kernels import double

    elf = double[(1,)](torch.ones(128), torch.zeros(128), BLOCK=128).asm["hsaco"]
    ours, theirs = lines(elf), llvm_lines(elf, tmp_path)
    assert len({source.rpartition(":")[2] for source, _ in ours.values()}) > 2
    assert ours == {pc: theirs.get(pc) for pc in ours} and set(theirs) & set(every_pc(elf)) == set(ours)


def test_code_without_lines():
    assert lines(compiled()) == {}
    report, = run(compiled(), "store", 40)
    assert report["source"] == "" and "()" not in report["summary"]


def test_a_store_out_of_bounds_in_hip():
    found = run(compiled("-gline-tables-only"), "store", 40)
    report = only(found, "bounds", "global_store.*", "past the end")
    assert report["source"].endswith(f"program.hip:{line_of(PRELUDE + SOURCE, 'out[i] = y')}")
    first, second = report["summary"].split("\n")
    assert first == (f"[sim:bounds] store wg(0,0,0) wave 0 lanes {report['lanes']:#x} pc {report['pc']:#x} "
                     f"({report['source']}): {report['text']}")
    assert second == "    " + report["message"]


def test_a_missing_wait_in_hip():
    report, = [report for report in run(compiled("-gline-tables-only"), "early") if report["check"] == "wait"]
    load, use = (line_of(PRELUDE + SOURCE, phrase) for phrase in ("global_load_dword", "return x * 0.5f"))
    assert report["source"].endswith(f"program.hip:{use}") and report["other"]["caller"] == ""
    assert report["caller"].endswith(f"program.hip:{line_of(PRELUDE + SOURCE, 'half_of(y)')}")
    other = report["other"]
    assert other["text"].startswith("global_load_dword") and other["source"].endswith(f"program.hip:{load}")
    assert f"pc {other['pc']:#x} ({other['source']}): {other['text']}" in report["message"]


def test_a_missing_wait_in_assembly(tmp_path):
    elf, source = assembled(tmp_path)
    report = only(run(elf, "early"), "wait", "v_add_u32.*")
    assert report["source"] == f"{source}:{line_of(ASSEMBLY, 'v_add_u32')}"
    assert report["other"]["source"] == f"{source}:{line_of(ASSEMBLY, 'global_load')}"


@pytest.mark.parametrize("compiler", ["", pytest.param("clang++-19", marks=pytest.mark.skipif(
    not shutil.which("clang++-19"), reason="no clang++-19 here"))])
def test_code_of_a_header_names_the_line_that_calls_it(compiler, tmp_path):
    """Whatever functions are between the instruction and the kernel: its own line is the author's."""
    elf = compiled("-gline-tables-only", compiler=compiler)
    x, out = torch.ones(32), torch.zeros(64)
    arguments = struct.pack("<QQ", x.data_ptr(), out.data_ptr())
    with sim.enabled(on_report="collect") as session:
        sim.checked_call("add", lambda *_: launch(elf, "add", arguments), (x, out), writes=(1,))
    found = [report for report in session.reports if report["check"] == "bounds"]
    places = {(Path(report["source"]).name, Path(report["caller"]).name) for report in found}
    assert places == {("load.h:1", "attention.hip:61"), ("load.h:1", "attention.hip:62")}
    assert all(f"({report['source']} in {report['caller']}): global_load" in report["summary"] for report in found)
    theirs = llvm_lines(elf, tmp_path)
    assert all(theirs.get(pc) == frames for pc, frames in lines(elf).items())


def test_a_failed_launch_names_its_line():
    place = rf"pc 0x\w+ \(.*program.hip:{line_of(PRELUDE + SOURCE, 'half_of(x[k])')}\): \w+_load_\w+ "
    with pytest.raises(SimulatorError, match=place + ".*: wild memory access") as raised:
        launch(compiled("-gline-tables-only"), "store", struct.pack("<QQi", 4096, 4096, 4))
    assert "program.hip:" in raised.value.reports[0]["source"]


def test_a_store_out_of_bounds_in_triton(simulated_triton):
    from line_kernels import double

    x, out = torch.ones(128), torch.zeros(100)
    with sim.enabled(on_report="collect") as session:
        double[(1,)](x, out, BLOCK=128)
    file = Path(__file__).with_name("line_kernels.py")
    assert {report["source"] for report in session.reports} == {f"{file}:{line_of(file.read_text(), 'tl.store')}"}


COPIED = """
import triton
import triton.language as tl

{helper}

@triton.jit
def copied(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    put(out + at, tl.load(x + at))
"""
HELPER = """
@triton.jit
def put(to, value):
    tl.store(to, value + value)
"""


def reported(file: Path, helpers: Path, monkeypatch) -> list[dict]:
    """The reports of `copied` of a file, which writes past the end of its output."""
    from importlib import util

    monkeypatch.syspath_prepend(helpers)
    sys.modules.pop("helper", None)
    spec = util.spec_from_file_location("kernels", file)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with sim.enabled(on_report="collect") as session:
        for _ in range(2):
            module.copied[(1,)](torch.ones(128), torch.zeros(100), BLOCK=128)
    return session.reports


@pytest.mark.parametrize("is_apart", [False, True], ids=["", "helper"])
def test_copies_of_a_triton_kernel_name_their_own_file(simulated_triton, tmp_path, monkeypatch, is_apart):
    """Of two files with the same text, each is named for its own launches; so is a function's in a third file."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        (folder / "helper.py").write_text(f"import triton\nimport triton.language as tl\n{HELPER}")
        (folder / "kernels.py").write_text(COPIED.format(helper="from helper import put" if is_apart else HELPER))
    files = [folder / "kernels.py" for folder in (folders[:1] * 2 if is_apart else folders)]
    with sim.enabled(on_report="collect") as session:
        found = [reported(file, folder, monkeypatch) for file, folder in zip(files, folders, strict=True)]
    expected = [{str(folder / ("helper.py" if is_apart else "kernels.py"))} for folder in folders]
    assert [{report["source"].rpartition(":")[0] for report in one} for one in found] == expected
    for file, one in zip(files, found, strict=True):
        assert {report["caller"] for report in one} == {f"{file}:{line_of(file.read_text(), '  put(out')}"}
    assert {report["source"].rpartition(":")[0] for report in session.reports} == set.union(*expected)


def test_copies_of_a_kernel_in_one_process_keep_their_files():
    """Of the same name, check and pc: one after the other before anybody takes the reports."""
    elf = compiled("-gline-tables-only")
    copy = elf.replace(b"program.hip", b"another.hip")
    assert copy != elf
    x, out = torch.ones(64), torch.zeros(40)
    arguments = struct.pack("<QQi", x.data_ptr(), out.data_ptr(), 64)

    def launches(*_) -> None:
        for image in (elf, copy, copy):
            launch(image, "store", arguments)

    with sim.enabled(on_report="collect") as session:
        sim.checked_call("store", launches, (x, out), writes=(1,))
    counts = {Path(report["source"]).name.partition(":")[0]: report["count"] for report in session.reports}
    assert set(counts) == {"program.hip", "another.hip"} and counts["another.hip"] == 2 * counts["program.hip"]
    assert len(reports.merged(session.reports * 2)) == 2


def test_damaged_tables_give_no_lines_and_no_crash(tmp_path):
    """In a child, without the package, whose imports take longer: what this must not do is crash."""
    (tmp_path / "code.co").write_bytes(compiled("-g"))
    command = [sys.executable, str(Path(__file__).with_name("damaged_lines.py")), sim.load()._name,
               str(tmp_path / "code.co")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    whole, fewer, total = map(int, done.stdout.split())
    assert total >= 400 and whole > 0 and fewer > total // 4        # the damage is seen, and often harmless


def text_section(bundle: bytes) -> bytes:
    elf = bundle[bundle.index(b"\x7fELF"):]
    _, _, offset, size = sections(elf)[".text"]
    return elf[offset:offset + size]


@pytest.mark.parametrize("function", [rms_norm._rms_norm_hip, flash_attn_fwd_hip.flash_attn_fwd_hip],
                         ids=lambda f: f.function_name)
def test_lines_do_not_change_the_machine_code(function, tmp_path):
    """What lets the JIT always compile with -gline-tables-only."""
    spec = function.instance_spec(function.instances()[0], "hip", "gfx942")
    command = recipe.steps(spec, toolchain.find("hip"))[0].command
    assert "-gline-tables-only" in command
    found = []
    for name, words in (("with", command), ("without", [word for word in command if word != "-gline-tables-only"])):
        (tmp_path / name).mkdir()
        subprocess.run(words, cwd=tmp_path / name, check=True)
        found.append((tmp_path / name / "device.hipfb").read_bytes())
    assert text_section(found[0]) == text_section(found[1])
    assert b".debug_line" in found[0] and b".debug_line" not in found[1]
    assert str(spec.root).encode() not in found[0] and str(tmp_path).encode() not in found[0]

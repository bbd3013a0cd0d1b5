# SPDX-License-Identifier: MIT
"""The headers declare what the library exports, with the types of HIP's public headers. The C compiler lists both
headers' declarations."""

import re
import subprocess
from pathlib import Path

import hip_table
import pytest

from aiter_like.sim import rocm

# Two names of one type, of which either header has one.
_SAME = {"uint64_t": "size_t", "long unsigned int": "size_t", "uint32_t": "unsigned int"}


def declared(folder: Path, tmp_path: Path) -> dict[str, str]:
    """Function of HIP → its type, as C's compiler writes it."""
    (tmp_path / "all.c").write_text("#include <hip/hip_runtime_api.h>\n")
    command = ["cc", "-w", "-D__HIP_PLATFORM_AMD__", f"-I{folder}", "-fsyntax-only", "-aux-info", tmp_path / "listed",
               tmp_path / "all.c"]
    subprocess.run(command, check=True)
    found = {}
    for line in (tmp_path / "listed").read_text().splitlines():
        told = re.match(r"/\* .*? \*/ extern (.*?)\b(hip[A-Z]\w+) \((.*)\);", line)
        if told:
            text = re.sub(r"\b(?:enum|struct|union) ", "", f"{told[1]}({told[3]})").replace("/* ??? */", "void")
            for name, other in _SAME.items():
                text = re.sub(rf"\b{name}\b", other, text)
            found[told[2].replace("R0600", "")] = re.sub(r"\s+", "", text).replace("R0600", "")
    return found


def test_what_the_library_does_is_declared_and_what_it_refuses_is_not(tmp_path):
    there = declared(rocm.include_folder(), tmp_path).keys()
    assert {name.replace("R0600", "") for name in hip_table.exported()} - there == set()
    by_a_macro, of_rocprim = {"hipGetDeviceProperties"}, {"hipCreateTextureObject", "hipDestroyTextureObject"}
    assert there & hip_table.refused().keys() == by_a_macro | of_rocprim


def test_types_are_those_of_the_public_headers(tmp_path):
    public = Path(pytest.importorskip("triton").__file__).parent / "backends/amd/include"
    own, theirs = declared(rocm.include_folder(), tmp_path), declared(public, tmp_path)
    assert {name: (text, theirs[name]) for name, text in own.items() if theirs.get(name, text) != text} == {}
    assert len(own.keys() & theirs.keys()) > 160


def test_hiprtc_has_what_its_headers_include():
    """The runtime's functions are for the host, which such a program does not have."""
    folder = rocm.include_folder()
    text = (folder.parent / "rtc/headers.h").read_text()
    names = re.findall(r'"(hip/[\w./]+)",', text)
    assert names == re.findall(r'#embed "../include/(hip/[\w./]+)"', text), "a name for each text"
    names = set(names)
    texts = [(folder / name).read_text() for name in names]
    included = {name for text in texts for name in re.findall(r'#include "(hip/[^"]+)"', text)}
    assert included - names == {"hip/hip_runtime_api.h"} and {"hip/hip_fp8.h", "hip/detail/wave.h"} <= names

# SPDX-License-Identifier: MIT
"""Compares the gfx942 code objects of modules between a revision of csrc/ and the working tree:

    python tests/code_objects.py d6eb4a6c moe/moe_gemm_skinny 'gemm/gemm_a8w8_blockscale-t128*'

A name stands for all instances of the module: those of the operators' cases, and those that the compile cache has,
which tests have reached. A pattern chooses among them. Where a kernel was renamed, its code object has other bytes
around the same code; then the assembly is compared, with a number for each mangled name. Exits 1 if code differs.
"""

import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from aiter_like import paths
from aiter_like.cli.build import selected
from aiter_like.modules import build, cache, recipe, toolchain
from aiter_like.modules.recipe import ModuleSpec

_COMMENT = re.compile(r"\s*(?:\.ident|\.file|;).*|\s*;.*$", re.MULTILINE)
# A template has a section and linkage of its own.
_PLACE = re.compile(r"\s*(?:\.text|\.section|\.protected|\.globl|\.weak|\.p2alignl|\.fill)\b.*")
_MANGLED = re.compile(r"_Z\w+")


def instances(patterns: list[str]) -> dict[str, ModuleSpec]:
    """The instances that match, by name. Cases come last: the cache may have an older form of one."""
    found = {}
    for entry in cache.entries(cache.cache_root()):
        if isinstance(entry, cache.Entry) and entry.meta["inputs"]["arch"] == "gfx942":
            inputs = entry.meta["inputs"]
            found[inputs["name"]] = ModuleSpec(inputs["name"], tuple(inputs["sources"]), inputs["kind"], "gfx942",
                                               inputs["defines"], inputs["output"], tuple(inputs["flags"]))
    found.update((spec.name, spec) for spec in selected([], "gfx942"))
    return {name: spec for name, spec in sorted(found.items()) if spec.kind == "hip" and any(
        fnmatchcase(name, pattern) or name.partition("-")[0] == pattern for pattern in patterns)}


def compiled(spec: ModuleSpec, root: Path, form: str = "-c") -> bytes:
    """The code object ("-c") or the assembly ("-S") of an instance from the sources below `root`, or b"" if they do not
    compile. Without the table of line numbers, which is no code.
    """
    command = recipe.steps(replace(spec, root=root), toolchain.find("hip"))[0].command
    words = [form if word == "-c" else word for word in command if word != "-gline-tables-only"]
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([*words, "--no-gpu-bundle-output", "-w"], cwd=folder, capture_output=True, check=False)
        return Path(folder, "device.hipfb").read_bytes() if run.returncode == 0 else b""


def numbered(assembly: bytes) -> str:
    """Assembly without comments and sections, with a number for each mangled name in the order of their appearance."""
    names: dict[str, str] = {}
    text = _PLACE.sub("", _COMMENT.sub("", assembly.decode()))
    return _MANGLED.sub(lambda name: names.setdefault(name[0], f"_{len(names)}"), text)


def verdict(spec: ModuleSpec, before: Path, after: Path) -> str:
    old = compiled(spec, before)
    if not old:
        return "not of that revision"
    if old == compiled(spec, after):
        return "equal"
    texts = [numbered(compiled(spec, root, "-S")) for root in (before, after)]
    return "equal but for names" if texts[0] == texts[1] else "DIFFERENT"


def main(revision: str, *patterns: str) -> int:
    specs = instances([*patterns])
    if not specs:
        sys.exit(f"no instance matches {' '.join(patterns)}")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(build.default_jobs()) as pool:
        archive = subprocess.run(["git", "archive", revision, "csrc"], cwd=paths.csrc().parent, check=True,
                                 capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        found = []
        for name, said in zip(specs, pool.map(lambda spec: verdict(spec, Path(folder, "csrc"), paths.csrc()),
                                              specs.values()), strict=True):
            found.append(said)
            if said != "equal":
                print(said, name, flush=True)
    print(", ".join(f"{found.count(said)} {said}" for said in dict.fromkeys(found)))
    return int("DIFFERENT" in found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

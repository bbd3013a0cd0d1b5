# SPDX-License-Identifier: MIT
"""The revision of a kernel's text: what is written otherwise keeps it, what is computed otherwise ends it, and a change
of what several kernels share ends those that use it. On copies of three families.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from aiter_like import paths
from aiter_like.modules import revision_cpp, revision_python

PACKAGE = Path(revision_cpp.__file__).parents[1]
FAMILIES = ("activation", "gemm", "norm")
HOST_HALF = "#if AITER_LIKE_HOST_PASS\n"


class Tree:
    """A copy of the three families, and the revisions of all their kernels."""

    def __init__(self, root: Path):
        self.root = root
        for family in FAMILIES:
            shutil.copytree(paths.csrc() / family, root / "csrc" / family)
            shutil.copytree(PACKAGE / "ops" / family, root / "aiter_like/ops" / family)
        shutil.copytree(paths.csrc() / "include", root / "csrc/include")
        shutil.copytree(PACKAGE / "ops/common", root / "aiter_like/ops/common")

    def revisions(self) -> dict[str, str]:
        """Of each source on either platform, and of each launcher of a module's name."""
        found = {f"{source.stem} {platform}": revision_cpp.text_revision(source, platform)
                 for source in self.root.glob("csrc/*/*.hip") for platform in ("hip", "cuda")}
        for module in self.root.glob("aiter_like/ops/*/triton/*.py"):
            if re.search(rf"^def {module.stem}\(", module.read_text(), re.MULTILINE):
                found[f"{module.stem} triton"] = revision_python.text_revision(module, module.stem)
        return found

    def ended(self, *edits: tuple[str, str | re.Pattern, str]) -> set[str]:
        """The kernels whose revision (file, text, replacement) change. Nothing is left of them.

        A file that does not exist is made.
        """
        before, files = self.revisions(), {}
        for name, old, new in edits:
            path = self.root / name
            files.setdefault(path, path.read_text() if path.exists() else None)
            text = path.read_text() if path.exists() else old
            changed = re.sub(old, new, text) if isinstance(old, re.Pattern) else text.replace(old, new)
            assert changed != text, f"{name} has no {old}"
            path.write_text(changed)
        after = self.revisions()
        for path, text in files.items():
            path.unlink() if text is None else path.write_text(text)
        assert before.keys() == after.keys()
        return {name for name in before if before[name] != after[name]}

    def everywhere(self, name: str, new: str) -> list[tuple[str, re.Pattern, str]]:
        """The edits that rename `name` in all files."""
        word = re.compile(rf"\b{name}\b")
        return [(str(path.relative_to(self.root)), word, new) for path in sorted(self.root.rglob("*.*"))
                if path.suffix in (".hip", ".h", ".py") and word.search(path.read_text())]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        made = Tree(tmp_path_factory.mktemp("project"))
        patch.setattr(paths, "csrc", lambda: made.root / "csrc")
        yield made


def definition(tree: Tree, file: str, first: str) -> str:
    """The text of a file from the line that begins with `first` to the next empty one."""
    text = (tree.root / file).read_text()
    start = text.index(f"\n{first}") + 1
    return text[start:text.index("\n\n", start) + 2]


GPU_H = "csrc/include/aiter_like/gpu.h"
PARTS_PY = "aiter_like/ops/norm/triton/parts.py"
RMS_PY = "aiter_like/ops/norm/triton/rms_norm.py"


def test_sources_are_told_apart(tree):
    found = tree.revisions()
    assert len(found) > 50 and len(set(found.values())) > 0.9 * len(found)
    assert all(re.fullmatch("[0-9a-f]{8}", revision) for revision in found.values())


REFACTORINGS: dict[str, Callable[[Tree], list[tuple]]] = {
    "a function moves to another header": lambda tree: [
        (GPU_H, moved := definition(tree, GPU_H, "__device__ inline float square_root"), ""),
        ("csrc/include/aiter_like/math.h", "namespace aiter_like {\n", f"namespace aiter_like {{\n{moved}"),
        (GPU_H, "#pragma once\n", '#pragma once\n#include "aiter_like/math.h"\n')],
    "a helper of kernels gets another name": lambda tree: [
        *tree.everywhere("reciprocal_square_root", "one_over_root"), *tree.everywhere("load_vec", "vec_at")],
    "a helper of a Triton kernel gets another name": lambda tree: tree.everywhere("load_sum", "sum_at"),
    "checks of operators": lambda tree: [
        (str(path.relative_to(tree.root)), re.compile("must "), "has to ")
        for path in tree.root.glob("aiter_like/ops/*/*.py") if "must " in path.read_text()],
    "a launcher in Triton": lambda tree: [
        (RMS_PY, "\ndef rms_norm(", "\n_UNUSED = 3\n\n\ndef rms_norm(")],
    "the host half": lambda tree: [
        ("csrc/norm/rms_norm.hip", HOST_HALF, f"{HOST_HALF}int on_the_host;\n"),
        ("csrc/activation/act_and_mul.hip", HOST_HALF, f"{HOST_HALF}int on_the_host;\n")],
    "lines and comments": lambda tree: [
        (GPU_H, "  return __builtin_sqrtf(x);", "  // The root.\n  return\n      __builtin_sqrtf( x ) ;"),
        (RMS_PY, "    await_stream(OVERLAPS)", '    """The kernel."""\n'
         "    await_stream(\n        OVERLAPS)  # first")],
    "what nothing uses": lambda tree: [
        (GPU_H, "namespace aiter_like {\n", "namespace aiter_like {\n__device__ inline int unused() { return 1; }\n")]}


@pytest.mark.parametrize("what", REFACTORINGS)
def test_what_is_written_otherwise_keeps_every_revision(tree, what):
    assert tree.ended(*REFACTORINGS[what](tree)) == set()


CHANGES: dict[str, tuple[list[tuple], set[str]]] = {
    "an instruction of one kernel": (
        [("csrc/norm/layer_norm_body.h", "await_stream();", "await_stream(); workgroup_barrier();")],
        {"layer_norm hip", "layer_norm cuda"}),
    "an instruction on one platform": (
        [(GPU_H, "return __builtin_sqrtf(x)", "return __builtin_sqrtf(x) + 0.f")],
        {"dropout_layer_norm hip", "fused_qk_rmsnorm hip", "gated_rms_norm hip"}),
    "a constant": ([("csrc/activation/relu_squared.hip", "kThreads = 256", "kThreads = 512")],
                   {"relu_squared hip", "relu_squared cuda"}),
    "a grid": ([("csrc/norm/rms_norm_body.h", "Layout::workgroups(args.rows)", "Layout::workgroups(args.rows + 1)")],
               {"rms_norm hip", "rms_norm cuda"}),
    "an instruction in Triton": ([(RMS_PY, "sum(squares, 0) / hidden", "sum(squares, 0) * (1 / hidden)")],
                                 {"rms_norm triton"}),
    "a helper of Triton kernels": ([(PARTS_PY, "def moments(total, squares, count):",
                                     "def moments(total, squares, count):\n    total = total + 0.0")],
                                   {"group_norm triton", "layer_norm triton"})}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_computed_otherwise_ends_those_that_do_so(tree, what):
    edits, ended = CHANGES[what]
    assert tree.ended(*edits) == ended


PORTABLE = """#if defined(__HIP__)
int hip_1;
#include "beside.h"
#if defined(ELSE)
int hip_2;
#else
int hip_3;
#endif
#elif defined(__CUDACC__) && FAST
int cuda_1;
#else
int cuda_2;
#endif
#if !defined(__HIP__) && ARCH >= 900
int cuda_3;
#elif !defined(__HIP__)
int cuda_4;
#else
int hip_4;
#endif
#ifdef __HIP__
int both_1;
#endif
#if defined(__HIP__) && FAST || SLOW
int both_2;
#endif
#if AITER_LIKE_HOST_PASS
int host;
#else
int both_3;
#endif
"""


@pytest.fixture
def written(tmp_path):
    """The revisions on both platforms of a source with such a content, which may include beside.h."""

    def revisions(text: str, beside: str = "", end: str = "") -> dict[str, str]:
        (tmp_path / "beside.h").write_text(beside)
        (tmp_path / "some.hip").write_text(f"{text}{end}")
        return {platform: revision_cpp.text_revision(tmp_path / "some.hip", platform) for platform in ("hip", "cuda")}

    return revisions


@pytest.mark.parametrize("end", ["", "{ no end"], ids=["in declarations", "as a whole"])
def test_what_the_other_platform_compiles_does_not_count(written, end):
    before = written(PORTABLE, end=end)
    for line in (line for line in PORTABLE.splitlines() if not line.startswith("#")):
        now = written(PORTABLE.replace(line, f"changed {line}"), end=end)
        kind = line.split()[1].partition("_")[0]
        changed = {"both": {"hip", "cuda"}, "host;": set()}.get(kind, {kind})
        assert {platform for platform, was in before.items() if now[platform] != was} == changed, line
    for condition in ("ELSE", "FAST", "ARCH >= 900"):
        assert written(PORTABLE.replace(condition, "OTHER"), end=end) != before, condition
    beside = written(PORTABLE, "void launch_some() {}", end)
    assert beside["hip"] != before["hip"] and beside["cuda"] == before["cuda"], "a header that one platform includes"


@pytest.mark.parametrize("source, header, other", [
    ("int x = f(1);", "inline int f(int i) { return i; }", "inline int f(int i) { return -i; }"),
    ("int x = f<2>;", "template <int I> constexpr int f = I;", "template <int I> constexpr int f = -I;"),
    ("int x = f(1);", "template <class T> int f(T t) { return t; } template <> int f(int t) { return 1; }",
     "template <class T> int f(T t) { return t; } template <> int f(int t) { return 2; }"),
    ("S s; int x = s.f();", "struct S { int f(); }; inline int S::f() { return 1; }",
     "struct S { int f(); }; inline int S::f() { return 2; }"),
    ("int x = kB;", "constexpr int kA = 1, kB = 2;", "constexpr int kA = 1, kB = 3;"),
    ("int x = kB;", "enum E { kA, kB };", "enum E { kB, kA };"),
    ("int x = F;", "#define F 1", "#define F 2"),
    ("int x = a * b;", "inline A operator*(A a, A b) { return a; }", "inline A operator*(A a, A b) { return b; }"),
    ("", "void launch_some() { f(1); }", "void launch_some() { f(2); }"),
    ("", "inline void launch_some() { f(1); }", "inline void launch_some() { f(2); }"),
    ("", "__global__ void kernel() { f(1); }", "__global__ void kernel() { f(2); }"),
    ("int x = f();", "#if A\ninline int f() { return 1; }\n#endif", "#if B\ninline int f() { return 1; }\n#endif"),
    ("int x = f();", "inline int f() {\n#if A\nreturn 1;\n#endif\n}", "inline int f() {\n#if B\nreturn 1;\n#endif\n}"),
    ("int x = f();", "inline int f() { return g(); } inline int g() { return f() ? h() : 1; } int h() { return 1; }",
     "inline int f() { return g(); } inline int g() { return f() ? g() : 1; } int h() { return 1; }")])
def test_what_a_source_names(written, source, header, other):
    include = '#include "beside.h"\n'
    before = written(include + source, header)
    assert written(include + source, header + "\ninline int unused() { return 1; } struct Unused;") == before
    changed = written(include + source, other)
    assert changed["hip"] != before["hip"] and changed["cuda"] != before["cuda"]


def test_a_macro_of_the_command_line_may_name_anything_in_a_namespace(written):
    source = '#include "beside.h"\nn::KIND x;'
    before = written(source, "namespace n { struct A { int x; }; }")["hip"]
    assert written(source, "namespace n { struct A { long x; }; }")["hip"] != before


def test_assembly_counts_with_what_it_includes(tmp_path):
    source, beside = tmp_path / "some.s", tmp_path / "beside.h"
    source.write_text('#include "beside.h"\ns_endpgm  // the end\n')
    beside.write_text("s_nop 0\n")
    before = revision_cpp.assembly_revision(source, "facts")
    source.write_text('#include "beside.h"\n\n  s_endpgm\n')
    assert revision_cpp.assembly_revision(source, "facts") == before != revision_cpp.assembly_revision(source, "other")
    beside.write_text("s_nop 1\n")
    assert revision_cpp.assembly_revision(source, "facts") != before

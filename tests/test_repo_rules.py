# SPDX-License-Identifier: MIT
"""The project's own rules: layout, sizes, names, docstrings, imports. A rule that fails names file and line."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

TOP_LEVEL = {"pyproject.toml", "hatch_build.py", "constraints.txt", "Makefile", "LICENSE", "README.md",
             "CHANGELOG.md", "CITATION.cff", "aiter_like",
             "aiter_like_startup.py", "pytest_aiter_like.py", "csrc", "hsa", "configs", "tuned_csv", "tests",
             "op_tests"}
PYTHON_FILE_LINES, FUNCTION_LINES, CPP_FILE_LINES, LINE_COLUMNS = 400, 60, 600, 120
PARAMETERS = 12
# Callers outside fix these beside AITER's names, and have more than PARAMETERS.
ENGINE_SIGNATURES = {"layer_of", "tree_speculative_sampling_target_only"}
CPP = {".cpp", ".h", ".hip", ".cu", ".s"}

ENGINES = {"transformers", "vllm", "sglang"}


@functools.cache
def tracked() -> tuple[str, ...]:
    """Every file that git has or would add."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        pytest.skip("not a git checkout")
    return tuple(name for name in run.stdout.splitlines() if (ROOT / name).is_file())


def files(*suffixes: str, under: str = "") -> list[str]:
    return [name for name in tracked() if Path(name).suffix in suffixes and name.startswith(under)]


@functools.cache
def text(name: str) -> str:
    return (ROOT / name).read_text()


@functools.cache
def tree(name: str) -> ast.Module:
    return ast.parse(text(name), name)


def functions(name: str) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree(name)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def lines_matching(pattern: str, names: list[str]) -> list[str]:
    """`file:line: text` of each line in which the pattern occurs; this file states the patterns, so it is left out."""
    return [f"{name}:{number}: {line.strip()}" for name in names if name != "tests/test_repo_rules.py"
            for number, line in enumerate(text(name).splitlines(), 1) if re.search(pattern, line)]


def families() -> list[str]:
    return [name for name in files(".py", under="aiter_like/ops/")
            if not name.endswith("__init__.py") and "/common/" not in name and "/triton/" not in name]


def public_names(name: str) -> list[str]:
    """`__all__` of a module."""
    for node in tree(name).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []


def test_top_level_is_as_listed():
    seen = {name.split("/")[0] for name in tracked()}
    assert {name for name in seen if not name.startswith(".")} == TOP_LEVEL


def test_files_keep_their_budgets():
    over = []
    for name in files(".py", *CPP):
        budget, lines = PYTHON_FILE_LINES if name.endswith(".py") else CPP_FILE_LINES, text(name).splitlines()
        if len(lines) > budget:
            over.append(f"{name}: {len(lines)} lines, budget {budget}")
        over += [f"{name}:{number}: {len(line)} columns" for number, line in enumerate(lines, 1)
                 if len(line) > LINE_COLUMNS]
    assert not over, "\n".join(over)


def test_functions_keep_their_budgets():
    over = []
    for name in files(".py"):
        for node in functions(name):
            start = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            lines = node.end_lineno - start.lineno + 1  # the docstring has its own rules
            if lines > FUNCTION_LINES:
                over.append(f"{name}:{node.lineno}: {node.name} has {lines} lines, budget {FUNCTION_LINES}")
    assert not over, "\n".join(over)


def blocks(code: str) -> Iterator[tuple[int, str, int]]:
    """First line, its text and the lines inside of each block in braces of C++, whose ends are indented alike."""
    heads: list[tuple[int, int, str]] = []  # of what is open: indentation, number, text
    for number, line in enumerate(code.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        indentation = len(line) - len(line.lstrip())
        while heads and heads[-1][0] > indentation:
            heads.pop()
        if heads and heads[-1][0] == indentation:
            _, start, head = heads.pop()
            if line.lstrip().startswith("}"):
                yield start, head, number - start - 1
        heads.append((indentation, number, line))


def test_functions_of_cpp_keep_their_budgets():
    """The longest block of a function is the function."""
    no_function = re.compile(r" *(template *<.*> )?(struct|class|enum|union|namespace|typedef|extern)\b|.*= *\{$")
    over = [f"{name}:{start}: {lines} lines, budget {FUNCTION_LINES}: {head.strip()}"
            for name in files(*CPP) for start, head, lines in blocks(text(name))
            if lines > FUNCTION_LINES and not no_function.match(head)]
    assert not over, "\n".join(over)


def test_public_functions_have_few_parameters():
    """A part of a Triton kernel takes every stride by itself; AITER's functions have AITER's."""
    over, named = [], set(re.findall(r"\w+", text("aiter_like/integrations/aiter/names.toml")))
    for name in files(".py", under="aiter_like/"):
        for node in functions(name):
            count = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
            is_fixed = any(re.match(r"(triton|gluon)\.jit|aiter\(", ast.unparse(one)) for one in node.decorator_list)
            is_ours = not node.name.startswith("_") and node.name not in ENGINE_SIGNATURES | named and not is_fixed
            if count > PARAMETERS and is_ours:
                over.append(f"{name}:{node.lineno}: {node.name} has {count} parameters, budget {PARAMETERS}")
    assert not over, "\n".join(over)


def test_names_of_tests_are_unique():
    """pytest imports test files by their bare name: of two with one name it collects neither."""
    names = [Path(name).name for name in files(".py") if Path(name).name.startswith("test_")]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})


def test_every_source_starts_with_its_licence():
    missing = [name for name in [*files(".py", ".sh", *CPP), "Makefile", "pyproject.toml"]
               if "SPDX-License-Identifier: MIT" not in "".join(text(name).splitlines()[:2])]
    assert not missing


def test_every_module_says_what_it_is_for():
    missing = [name for name in files(".py") if text(name).count("\n") > 1 and not ast.get_docstring(tree(name))]
    assert not missing


def test_public_names_are_unique_and_no_module_names():
    import aiter_like

    modules = {Path(name).stem for name in files(".py", under="aiter_like/") if name.count("/") == 1}
    modules |= {name.split("/")[1] for name in files(".py", under="aiter_like/") if name.count("/") > 1}
    seen: dict[str, str] = {}
    for name in families():
        for public in public_names(name):
            assert public not in seen, f"{public} is in {name} and {seen[public]}"
            assert public not in modules, f"{name}: {public} is also a module"
            assert callable(getattr(aiter_like, public)), f"aiter_like.{public}"
            seen[public] = name


def test_each_kernel_file_belongs_to_one_family():
    users: dict[str, set[str]] = {name.removeprefix("csrc/"): set() for name in files(".hip", under="csrc/")}
    for name in files(".py", under="aiter_like/ops/"):
        for module in re.findall(r"@compile_ops\(\s*\"([^\"]+)\"", text(name)):
            assert module in users, f"{name}: csrc/{module} does not exist"
            users[module].add(name)
    assert users and all(len(names) == 1 for names in users.values()), users


def test_each_operator_has_a_test_and_each_table_an_operator():
    import aiter_like  # noqa: F401  (declares the operators)
    from aiter_like.dispatch import OPS
    from aiter_like.dispatch.table import columns

    assert OPS
    tests = {Path(name).name for name in files(".py", under="op_tests/")}
    for name, op in OPS.items():
        assert f"test_{name}.py" in tests
        if f"tuned_csv/{name}.csv" in tracked():  # without one the operator has no rows
            assert text(f"tuned_csv/{name}.csv").splitlines()[0] == ",".join(columns(op.tune_fields))
            assert not op.table.problems
    tables = {Path(name).stem for name in files(".csv", under="tuned_csv/")}
    assert tables <= set(OPS), "tables of no operator"


def test_each_operator_has_cases():
    """What runs over all operators (self-check, alignment, `aiter-like build`) sees only those."""
    from aiter_like.dispatch import OPS

    without = [name for name, op in OPS.items() if op.cases is None]
    assert len(OPS) and not without, without


def test_ruff_is_clean():
    run = subprocess.run([sys.executable, "-m", "ruff", "check", "--output-format=concise", "."], cwd=ROOT,
                         capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_linter_is_not_silenced_on_prints_and_blanket_excepts():
    silenced = lines_matching(r"#\s*noqa(?!:)|#\s*noqa:.*\b(BLE|T20|E722)", files(".py", under="aiter_like/"))
    assert not silenced, "\n".join(silenced)


# As collections.namedtuple makes its constructor: the text has the names of a call object's fields and nothing else.
RUNS_TEXT = "aiter_like/call.py: exec"


def test_nothing_runs_text_as_code_or_a_shell():
    faults, known = [], [RUNS_TEXT]
    for name in files(".py", under="aiter_like/"):
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("eval", "exec", "os.system", "os.popen"):
                where = f"{name}: {ast.unparse(node.func)}"
                known.remove(where) if where in known else faults.append(f"{where} in line {node.lineno}")
            if isinstance(node, ast.keyword) and node.arg == "shell" and ast.unparse(node.value) == "True":
                faults.append(f"{name}:{node.lineno}: shell=True")
    assert not faults and not known, "\n".join([*faults, *known])


def test_open_work_names_an_issue():
    loose = lines_matching(r"\b(TODO|FIXME|XXX|HACK)\b(?! ?\(?#\d+)", files(".py", ".sh", ".toml", *CPP))
    assert not loose, "\n".join(loose)


def test_no_path_of_a_particular_machine():
    found = lines_matching(r"(?<![\w.~}])/(home|root|Users|work|mnt)/\w", [name for name in tracked() if "." in name])
    assert not found, "\n".join(found)


def test_kernels_use_the_words_of_the_hardware():
    found = lines_matching(r"\b[wW]arps?\b", files(*CPP, under="csrc/"))
    assert not found, "\n".join(found)


def with_headers(name: str) -> set[str]:
    """A source of kernels and the headers of csrc's families that it includes, directly or not."""
    found, open_ones = set(), {name}
    while open_ones:
        one = open_ones.pop()
        found.add(one)
        included = [Path(one).parent / header for header in re.findall(r'#include "([^"]+)"', text(one))]
        inside = {os.path.normpath(path) for path in included if (ROOT / path).is_file()}
        open_ones |= inside - found
    return found


def of_cuda(code: str) -> str:
    """The text without what HIP has instead: only CUDA starts kernels early."""
    return re.sub(r"#if defined\(__HIP__\)\n(?:(?!#[ie]).*\n)*#else\n((?:(?!#[ie]).*\n)*)#endif\n", r"\1", code)


def test_kernels_that_start_early_wait_first():
    """What launch_overlapped starts while the stream's previous kernel runs: it reads what that one writes."""
    sources = [with_headers(name) for name in files(".hip", under="csrc/")]
    early = {name for parts in sources if any("launch_overlapped(" in text(one) for one in parts) for name in parts}
    assert early
    for name in early:
        assert "<<<" not in text(name), name
        code = of_cuda(text(name))
        first = re.findall(r"__global__[^{]*\{\n *(.*)", code)
        assert set(first) <= {"await_stream();"} and len(first) == code.count("__global__"), f"{name}: {first}"
    for name in [name for name in files(".py", under="aiter_like/ops/") if "/triton/" in name]:
        for function in [node for node in ast.walk(ast.parse(text(name))) if isinstance(node, ast.FunctionDef)]:
            statements = list(map(ast.unparse, function.body))
            if "OVERLAPS" not in [arg.arg for arg in function.args.args] or statements[1].startswith("if OVERLAPS:"):
                continue  # the latter are those that wait
            if statements[1] == "begin_before_parts(OVERLAPS)":  # and waits whatever happens
                before = function.body[:statements.index("await_parts(OVERLAPS)")]
                assert not any(isinstance(node, ast.Return) for one in before for node in ast.walk(one)), function.name
            else:
                waits = ("await_stream(OVERLAPS)", "await_lengths(OVERLAPS)")
                assert statements[1] in waits, f"{name}: {function.name}"


def test_environment_variables_are_few_and_declared():
    from aiter_like import env

    assert len(env.VARIABLES) <= 12
    macros = {match for name in files(*CPP) for match in re.findall(r"#define (AITER_LIKE_\w+)", text(name))}
    used = {(name, match) for name in files(".py", ".sh", under="aiter_like/")
            for match in re.findall(r"\bAITER_LIKE_[A-Z][A-Z_]*[A-Z]\b", text(name))}
    unknown = {(name, match) for name, match in used if match not in env.VARIABLES and match not in macros}
    assert not unknown


def test_only_integrations_import_an_engine():
    faults = []
    for name in files(".py", under="aiter_like/"):
        if name.startswith("aiter_like/integrations/") or name == "aiter_like/cli/demo.py":  # it runs an engine's model
            continue
        for node in ast.walk(tree(name)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            faults += [f"{name}:{node.lineno}" for module in modules if module.split(".")[0] in ENGINES]
    assert not faults, "\n".join(faults)

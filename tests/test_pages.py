# SPDX-License-Identifier: MIT
"""Every page is in README's index, and what pages show is true: Python, commands, options, variables, links, files."""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.util
import os
import pkgutil
import re
import shlex
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import torch

from aiter_like import cli, env
from aiter_like.cli.parser import Parser

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "aiter_like/integrations"
LANGUAGES = {"python", "sh", "text"}
MOST_LINES = 200
HERE = "tests/test_pages.py"
TYPED = {HERE, "tests/sim/test_tutorials.py"}  # they run what ```sh blocks have, line after line
RUN_BY = {  # the tests that run a page's Python, block after block; those of vLLM and SGLang need the engine
    "README.md": "tests/test_readme.py", "aiter_like/sim/README.md": "tests/test_readme.py",
    "aiter_like/README.md": "tests/cli/test_authors.py", "aiter_like/ops/README.md": "tests/cli/test_authors.py",
    "aiter_like/ENVIRONMENT.md": "tests/cli/test_explain.py", "aiter_like/HARDWARE.md": "tests/cli/test_hardware.py",
    "aiter_like/modules/README.md": "tests/cli/test_build_served.py", "aiter_like/dispatch/README.md": HERE,
    "aiter_like/tuning/README.md": "tests/tuning/test_bench.py", "CHANGELOG.md": HERE,
    "op_tests/bench/MEASURED.md": "tests/ops/test_measured_page.py",
    "hsa/README.md": HERE, "configs/race/README.md": HERE,
    "csrc/include/aiter_like/tile/README.md": "tests/sim/test_tutorials.py",
    **{f"op_tests/bench/{page}.md": HERE for page in ("HOT_LIST", "MODELLED", "MODELLED_CASES")},
    **{f"csrc/sim/{page}.md": HERE
       for page in ("CHECKERS", "COMPILING", "DEBUGGER", "GPU", "INSIDE", "LIMITS", "MODEL", "README")},
    **{f"csrc/sim/timing/{page}.md": HERE for page in ("KERNELS", "MICROBENCHMARKS", "ONE_SIDE", "VALIDATION")},
    **{f"csrc/sim/hip/{page}.md": HERE for page in ("DEVICES", "MEMORY", "README", "STREAMS")},
    **{f"csrc/sim/tutorials/{page}.md": "tests/sim/test_tutorials.py"
       for page in ("ASSEMBLY", "ATTENTION", "HIP", "TRITON")},
    **{f"{FOLDER}/aiter/{page}.md": HERE for page in (
        "AITER", "pages/ATTENTION", "pages/EXPERTS", "pages/MX_FORMATS", "pages/NORMS", "pages/OTHERS",
        "pages/PRODUCTS", "pages/ROPE")},
    **{f"op_tests/aiter_runs/{page}.md": HERE for page in ("H100", "README", "SIM", "SIM_TRITON")},
    f"{FOLDER}/README.md": "tests/test_readme.py",
    f"{FOLDER}/TRANSFORMERS.md": "tests/integrations/test_transformers_page.py",
    f"{FOLDER}/vllm/README.md": "tests/integrations/test_vllm.py",
    f"{FOLDER}/sglang/README.md": "tests/integrations/test_sglang.py"}


@functools.cache
def tracked(*patterns: str) -> list[str]:
    """Paths of tracked files."""
    listed = ["git", "-C", ROOT, "ls-files", *patterns]
    return subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()


@functools.cache
def pages() -> dict[str, str]:
    """Path → text of every tracked page."""
    return {name: (ROOT / name).read_text() for name in tracked("*.md")}


@functools.cache
def called() -> str:
    """The text of every test, and the commands of pages that are typed in."""
    typed = [line for page in RUN_BY if RUN_BY[page] in TYPED for line in blocks(page, "sh")]
    return "\n".join([*typed, *(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))])


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", pages()[page], re.DOTALL | re.MULTILINE)


def prose(page: str) -> str:
    return re.sub(r"^```.*?^```", "", pages()[page], flags=re.DOTALL | re.MULTILINE)


def prose_code(page: str) -> list[str]:
    """Code within sentences."""
    return re.findall(r"`([^`]+)`", prose(page))


def code(page: str) -> list[str]:
    """Lines of shell blocks, and code within sentences."""
    return [*"\n".join(blocks(page, "sh")).splitlines(), *prose_code(page)]


@functools.cache
def commands() -> dict[str, argparse.ArgumentParser]:
    """Command → its parser, also of subcommands: `sim check`."""
    parser = Parser(prog="aiter-like")
    subparsers = parser.add_subparsers()
    for module in dict.fromkeys(module for module, _ in cli._COMMANDS.values()):
        importlib.import_module(module).add_commands(subparsers)
    found = dict(subparsers.choices)
    for name, command in subparsers.choices.items():
        for action in command._actions:
            if isinstance(action, argparse._SubParsersAction):
                found |= {f"{name} {sub}": parser for sub, parser in action.choices.items()}
    return found


def faults_of(line: str) -> list[str]:
    """What is wrong with the `aiter-like …` calls in a line."""
    faults = []
    for call in re.findall(r"aiter-like((?: [^\s#|&;)]+)+)", line):
        words = call.split()
        name = " ".join(words[:2]) if " ".join(words[:2]) in commands() else words[0]
        if name.startswith("-"):
            continue
        if name not in commands():
            faults.append(f"no command {name}")
            continue
        known = {option for action in commands()[name]._actions for option in action.option_strings}
        given = words[:next((place for place, word in enumerate(words) if word.endswith(".py")), len(words))]
        faults += [f"{name} has no option {word}" for word in given
                   if word.startswith("--") and word.partition("=")[0] not in known]
    return faults


def script_faults(line: str) -> list[str]:
    """What is wrong with the options that a line gives to pytest, or to a script of this project: none of the folder's
    files has them.
    """
    faults = []
    for script, rest in re.findall(r"\b(pytest|python [\w/.]+\.py)\b((?: [^\s#|&;)]+)*)", line):
        file = script.removeprefix("python ")
        if script != "pytest" and "/" not in file:
            continue  # the reader's own
        named = [f"{Path(file).parent}/*.py"] if file != script else ["pytest_aiter_like.py", "*conftest.py"]
        texts = "".join((ROOT / path).read_text() for path in tracked(*named))
        faults += [f"{script} has no option {option}" for option in re.findall(r" (--[a-z][a-z-]*)", rest)
                   if f'"{option}"' not in texts]
    return faults


def order_faults(text: str) -> list[str]:
    """What is wrong with a page's order: what it is in one or two sentences, an example, then reference."""
    what = re.match(r"# .+\n\n((?:.+\n)+)", text)
    if not what:
        return ["no paragraph below the title"]
    faults, sentences = [], re.split(r"[.?!](?=\s)", re.sub(r"`[^`]*`", "", what.group(1)).strip() + "\n")
    if len(sentences) > 3:  # what is behind the last full stop is the third
        faults.append(f"{len(sentences) - 1} sentences say what it is, not one or two")
    example, reference = text.find("\n```"), re.search(r"^(\||- )", text, re.MULTILINE)
    if example < 0 or (reference and reference.start() < example):
        faults.append("no example before the first table or list")
    return faults


def headings(page: str) -> set[str]:
    """The headings of a page as links name them."""
    found = re.findall(r"^#+ (.*)", pages()[page], re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in found}


def linked(page: str) -> set[str]:
    """The pages that a page links to."""
    targets = re.findall(r"\]\(([^)#:]+\.md)", pages()[page])
    return {os.path.normpath(Path(page).parent / target) for target in targets}


def test_every_page_is_found_from_the_readme_and_has_a_heading():
    """The README's index leads to it, directly or from a page that it names."""
    found, new = set(), {"README.md"}
    while new:
        found |= new
        new = set().union(*map(linked, new)) - found
    assert sorted(set(pages()) - found) == []
    assert all(text.startswith("# ") for text in pages().values())
    assert not (ROOT / "docs").exists()


def has(module: ModuleType, name: str) -> bool:
    """Whether `from module import name` works: also of a module that nobody has imported yet."""
    is_package = hasattr(module, "__path__")
    return hasattr(module, name) or (is_package and importlib.util.find_spec(f"{module.__name__}.{name}") is not None)


def is_there(place: str) -> bool:
    """Whether a dotted name leads to a module or to what one has."""
    owner, _, name = place.rpartition(".")
    return not owner or is_there(owner) and has(pkgutil.resolve_name(owner), name)


@pytest.mark.parametrize("page", pages())
def test_pages_are_short(page):
    assert pages()[page].count("\n") <= MOST_LINES


@pytest.mark.parametrize("page", [page for page in pages() if page != "README.md"])
def test_pages_have_one_order(page):
    assert order_faults(pages()[page]) == []


@pytest.mark.parametrize("page", [page for page, test in RUN_BY.items() if test == HERE and blocks(page, "python")])
def test_python_of_pages_runs(page, monkeypatch, tmp_path):
    """Block after block, as somebody types them into one program: ```python of pages without a test of their own."""
    if "as_gpu" in "".join(blocks(page, "python")) and torch.cuda.is_available():
        pytest.skip("torch has a GPU here")
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks(page, "python")), page, "exec"), {})


@pytest.mark.parametrize("page", [page for page, test in RUN_BY.items() if test == HERE and blocks(page, "sh")])
def test_commands_of_pages_run(page, monkeypatch, tmp_path):
    """Line after line, in an empty folder: ```sh of pages without a test of their own."""
    monkeypatch.chdir(tmp_path)
    for line in "".join(blocks(page, "sh")).splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "aiter-like" and (words[1:] == ["--version"] or cli.main(words[1:]) == 0), line


@pytest.mark.parametrize("page", [page for page in pages() if blocks(page, "sh") and RUN_BY.get(page) not in TYPED])
def test_commands_are_called_by_a_test(page):
    """Of blocks that are not typed in: they need an engine, a GPU, the network, or hours."""
    assert page in RUN_BY, "RUN_BY must name the test that runs what this page shows, or HERE: then it is typed in"
    missing = []
    for line in (line.partition(" #")[0] for line in "".join(blocks(page, "sh")).splitlines()):
        for words in (call.split() for call in re.findall(r"aiter-like((?: [a-z][a-z-]*)+)", line)):
            name = words[:2 if " ".join(words[:2]) in commands() else 1]
            text, apart = " ".join(name), ", ".join(f'"{word}"' for word in name)
            forms = rf"aiter-like {text}\b", apart, rf'"{text}["\s]'
            missing += [] if re.search("|".join(forms), called()) else [text]
        missing += [file for file in re.findall(r"\b(\w+)\.py\b", line) if (ROOT / f"op_tests/bench/{file}.py").exists()
                    and not re.search(rf"\b(import|from) {file}\b|\b{file}\.py", called())]
    assert not missing


@pytest.mark.parametrize("page", pages())
def test_links_and_files_exist(page):
    text, folder = pages()[page], (ROOT / page).parent  # of blocks no links: Triton's launches look like them
    links = [link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", prose(page)) if "://" not in link]
    assert not [link for link, _, _ in links if not (folder / link).exists()]
    assert not [(link, place) for link, _, place in links
                if place and place not in headings(os.path.normpath(Path(page).parent / link))]
    named = set(re.findall(r"`((?:aiter_like|csrc|hsa|configs|tests|op_tests|tuned_csv)/[\w./]+)`", text))
    assert not [name for name in named if not (ROOT / name).exists() and not (ROOT / "csrc/include" / name).exists()]


@pytest.mark.parametrize("page", [page for page in pages() if "aiter_runs" not in page])  # those name AITER's files
def test_sentences_name_files_and_names_that_are_there(page):
    """Files by the ends of their paths, functions and modules by where they are imported from."""
    named = [re.sub(r"\s+", " ", text) for text in prose_code(page)]
    files = {name for name in named if re.fullmatch(r"[\w/-]+\.(py|cpp|h|hip|s|md|csv|toml)", name)}
    files -= set(re.findall(r"Save as `([^`]+)`", pages()[page]))
    assert not [name for name in files if not any(f"/{path}".endswith(f"/{name}") for path in tracked())]
    places = {place for text in named for place in re.findall(r"(?<![\w.])aiter_like(?:\.\w+)+", text)}
    places |= {f"aiter_like.{place}" for text in named for place in re.findall(r"(?<![\w.])sim\.\w+", text)}
    assert not [place for place in places if not is_there(place)]


def test_headings_that_sources_name_exist():
    """Where a line ends within a heading, what it has of it is the heading's beginning."""
    listed = ["git", "-C", ROOT, "grep", "-hF", '.md, "', "--", "aiter_like", "csrc", "op_tests"]
    lines = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
    named = [found.groups() for line in lines if (found := re.search(r'(csrc/[\w/]+\.md), "([A-Z][\w ]+)', line))]
    assert len(named) > 6
    assert not [(page, heading) for page, heading in named if f"\n## {heading}" not in pages().get(page, "")]


@pytest.mark.parametrize("page", pages())
def test_every_block_says_what_it_is_and_is_held_to_it(page):
    fences = re.findall(r"^```(.*)$", pages()[page], re.MULTILINE)
    assert set(fences[::2]) <= LANGUAGES and set(fences[1::2]) <= {""}
    if not blocks(page, "python"):
        return
    tests = (ROOT / RUN_BY[page]).read_text()
    assert RUN_BY[page] == HERE or Path(page).name in tests and re.search(r'```python|blocks\("python"\)', tests)
    for node in ast.walk(ast.parse("\n".join(blocks(page, "python")))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "aiter_like" \
                and "vllm" not in node.module and "sglang" not in node.module:
            module = importlib.import_module(node.module)
            assert not [name.name for name in node.names if not has(module, name.name)], node.module


@pytest.mark.parametrize("page", pages())
def test_commands_options_and_variables_exist(page):
    faults = [fault for line in code(page) for fault in (*faults_of(line), *script_faults(line))]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    faults += [f"no target {target}" for line in code(page) for target in re.findall(r"^make ([a-z-]+)", line)
               if target not in targets]
    variables = set(re.findall(r"\bAITER_LIKE(?:_[A-Z]+)*\b", "\n".join(code(page)))) - set(env.VARIABLES)
    headers = "".join(path.read_text() for path in (ROOT / "csrc/include").rglob("*.h")) if variables else ""
    faults += [f"neither a variable nor a macro: {name}" for name in variables if f"{name}\n" not in headers]
    assert not faults


def test_faults_are_found():
    """The readers of pages themselves: each kind of mistake."""
    assert order_faults("# A\n\nOne. Two, as `x. y. z. w.` says.\n\n```sh\nls\n```\n\n| a |\n") == []
    assert order_faults("# A\n## B\n") == ["no paragraph below the title"]
    assert order_faults("# A\n\nOne. Two. Three.\n\n| a |\n\n```sh\nls\n```\n") == [
        "3 sentences say what it is, not one or two", "no example before the first table or list"]
    assert faults_of("AITER_LIKE=1 aiter-like docter --engine vllm # x") == ["no command docter"]
    assert faults_of("x && aiter-like tune rms_norm --shpae rows=1") == ["tune has no option --shpae"]
    assert faults_of("aiter-like sim check --sedes 4 x.py --its-own") == ["sim check has no option --sedes"]
    assert script_faults("pytest --sim-chekc && python mine.py --own; python op_tests/bench/run.py rms_norm --pears") \
        == ["pytest has no option --sim-chekc", "python op_tests/bench/run.py has no option --pears"]
    assert script_faults("pytest --sim-check=bounds --sim-fuzz 1") == []
    assert faults_of("aiter-like sim run FILE.co --kernel NAME --grid 4 --block 256 --args SPEC.json --check") == []

# SPDX-License-Identifier: MIT
"""Many processes, one module: a cold call in eight at once, and builders killed at random points.

The work is done by children that are forked from one fresh process (cold_processes.py): importing torch eight times
would cost more than all the builds.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jit_project import counting_clang, fake_compiler, forget

from aiter_like.modules.build import load_or_build

HERE = Path(__file__).resolve().parent


def _run(mode: str, folder: Path, **environment: str) -> dict:
    """Output of cold_processes.py, a JSON object."""
    path = os.pathsep.join([str(HERE.parent), str(HERE.parent.parent)])
    run = subprocess.run([sys.executable, HERE / "cold_processes.py", mode, folder], capture_output=True, text=True,
                         env=os.environ | {"PYTHONPATH": path} | environment, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_eight_processes_one_compiler_run(tmp_path):
    compiler = counting_clang(tmp_path / "bin")
    result = _run("race", tmp_path, AITER_LIKE_TOOLCHAIN=str(compiler.path))
    assert result["answers"] == [42.0] * 8
    assert compiler.runs() == 1


def test_killed_builders_do_no_harm(tmp_path):
    """SIGKILL at 20 points spread over a build; each time the next call gets a right answer."""
    compiler = counting_clang(tmp_path / "bin")
    result = _run("kill", tmp_path, AITER_LIKE_TOOLCHAIN=str(compiler.path))
    assert result["answers"] == [42] * 20
    assert result["killed"] >= 10, "the build must have been killed under way, mostly"
    assert result["left"] == [], "scratch directories of killed builders"


def test_threads_of_one_process(fake, project, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(load_or_build, [project.spec()] * 4))
    assert len(set(paths)) == 1 and len(paths) == 4 and fake.runs() == 2


def test_independent_modules_build_in_parallel(project, tmp_path, monkeypatch):
    """Two modules whose compilers wait for one another: built one after the other, neither would end."""
    compiler = fake_compiler(tmp_path / "bin")
    text = compiler.path.read_text()
    rendezvous = f'touch "{tmp_path}/$$"; until [ $(ls {tmp_path}/[0-9]* | wc -l) -ge 2 ]; do sleep 0.01; done\n'
    compiler.path.write_text(text.replace("echo run >>", rendezvous + "echo run >>"))
    monkeypatch.setenv("AITER_LIKE_TOOLCHAIN", str(compiler.path))
    forget()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(load_or_build, [project.spec(name=name) for name in ("a", "b")]))
    assert compiler.runs() == 4

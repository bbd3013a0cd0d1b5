# SPDX-License-Identifier: MIT
"""pytest plugin: `--sim-check` runs tests under the checkers of the simulated MI300X; a report fails its test.
`--sim-gpu` runs tests that were written for a GPU: torch's device "cuda" is the simulated MI300X.

It lies beside the package because pytest imports its plugins in every run, and importing the package imports torch.
Without the options and the mark `sim_check` it does nothing.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import pytest

_GPU: pytest.StashKey[ExitStack] = pytest.StashKey()  # holds sim.as_gpu() from before the first conftest to the end
_TRITON: pytest.StashKey[ExitStack] = pytest.StashKey()  # holds Triton's driver while a test is set up, runs and ends


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--sim-check[=CHECKS]`, `--sim-fuzz SEED` and `--sim-gpu`."""
    group = parser.getgroup("aiter_like", "the simulated MI300X")
    group.addoption("--sim-check", nargs="?", const="", metavar="CHECKS",
                    help="run tests with the simulator's checkers on, all but global_race; a report fails its test. "
                         "Kernels of Triton, too, run on it, on CPU tensors. CHECKS: a comma list, or all, after an "
                         "equals sign")
    group.addoption("--sim-fuzz", type=int, metavar="SEED",
                    help="draw the simulator's schedules, late loads and undefined values by this seed")
    group.addoption("--sim-gpu", action="store_true",
                    help="torch's device \"cuda\" is the simulated MI300X: aiter_like.sim.as_gpu() from before the "
                         "first conftest to the end")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """A bare `--sim-check` takes no value: not the path that follows it. Modules of tests ask for a GPU when they are
    imported.
    """
    if "--sim-check" in args:
        args[:] = ["--sim-check=" if word == "--sim-check" else word for word in args]
        early_config.known_args_namespace = parser.parse_known_args(args, namespace=copy.copy(early_config.option))
    if early_config.known_args_namespace.sim_gpu:
        from aiter_like import sim

        early_config.stash[_GPU] = ExitStack()
        early_config.stash[_GPU].enter_context(sim.as_gpu())


def pytest_unconfigure(config: pytest.Config) -> None:
    """torch's names are its own again."""
    if _GPU in config.stash:
        config.stash[_GPU].close()


def pytest_configure(config: pytest.Config) -> None:
    """Declares the mark; a mistake in the options is one before any test runs."""
    config.addinivalue_line("markers", "sim_check: run with the checkers of the simulated MI300X, as --sim-check does; "
                            "sim_check('NAME,…'): with these")
    config.addinivalue_line("markers", "sim_cycles(max): fail where the test's launches on the simulated MI300X take "
                            "more modelled cycles")
    text = config.getoption("--sim-check")
    if text:
        from aiter_like.sim import parse_checks

        try:
            parse_checks(text)
        except ValueError as error:
            raise pytest.UsageError(f"--sim-check: {error}") from None


@pytest.fixture
def sim_counts() -> Generator[Callable[[], list[dict]], None, None]:
    """A function that gives the launches of the test so far on the simulated MI300X, with exact counts per instruction
    and source line: aiter_like.sim.Session.launches.
    """
    _simulator()
    from aiter_like.sim import counting

    launches: list[dict] = []
    with counting.counted(launches):
        def so_far() -> list[dict]:
            counting.take()
            return launches

        yield so_far


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fixtures launch kernels too."""
    return (yield from _checked(item, "setup"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """The test itself."""
    return (yield from _checked(item, "call"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """… and so does what tidies up."""
    return (yield from _checked(item, "teardown"))


def _checked(item: pytest.Item, phase: str) -> Generator[None, Any, Any]:
    text, seed = item.config.getoption("--sim-check"), item.config.getoption("--sim-fuzz")
    mark = item.get_closest_marker("sim_check")
    if text is None and mark:
        text = mark.args[0] if mark.args else ""
    cycles = item.get_closest_marker("sim_cycles") if phase == "call" else None
    if text is None and seed is None and cycles is None:
        return (yield)
    sim, triton, shown = _simulator()
    checks = text or text is not None  # an empty text: those on by default
    if phase == "setup":  # once for all phases: a fixture may choose another driver for its test
        item.stash[_TRITON] = ExitStack()
        item.stash[_TRITON].enter_context(triton())
    try:
        with sim.enabled(checks=checks, fuzz=seed, on_report="collect", model="whole" if cycles else None) as session:
            try:
                result = yield
            except BaseException:
                item.add_report_section(phase, "simulator", shown(session.reports + sim.take_reports()))
                raise
    finally:
        if phase == "teardown" and _TRITON in item.stash:
            item.stash[_TRITON].close()
    if cycles:
        _hold_budget(session.modelled, cycles)
    if sim.reports.errors(session.reports):
        pytest.fail(shown(session.reports), pytrace=False)
    if session.reports:
        item.add_report_section(phase, "simulator", shown(session.reports))
    return result


def _hold_budget(launches: list[dict], mark: pytest.Mark) -> None:
    """Fails where the test's launches take more modelled cycles than its mark `sim_cycles(max=…)` allows."""
    total, most = sum(launch["modelled_clk"] for launch in launches), mark.kwargs.get("max", *mark.args[:1])
    if not launches:
        pytest.fail("sim_cycles: the test launched nothing on the simulated MI300X", pytrace=False)
    if total > most:
        from aiter_like.sim import names

        each = "\n".join(f"  {names.short(launch['kernel'])}: {launch['modelled_clk']:.0f} clk" for launch in launches)
        pytest.fail(f"sim_cycles: {total:.0f} modelled clk, {most} allowed:\n{each}", pytrace=False)


@functools.cache
def _simulator() -> tuple[Any, Callable[[], AbstractContextManager], Callable[[list[dict]], str]]:
    """aiter_like.sim, a block in which Triton runs on it, and what gives the text of reports.

    CPU tensors run on the simulator from now on.
    """
    from aiter_like import device, sim
    from aiter_like.sim import reports

    device.use_simulator(True)
    triton: Callable[[], AbstractContextManager] = nullcontext
    if importlib.util.find_spec("triton"):
        from aiter_like.sim.triton import enabled as triton
    return sim, triton, lambda found: "\n".join(reports.listing(found))

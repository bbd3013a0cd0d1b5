# SPDX-License-Identifier: MIT
"""`--device sim|gpu`: where the operators' tests run, and what they share."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from aiter_like import device as devices
from aiter_like.dispatch import explain


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=("sim", "gpu"), default="sim",
                     help="sim: the simulated MI300X with its checkers on; gpu: the GPU of this machine (default: sim)")
    parser.addoption("--seed", type=int, help="of the covering designs of exhaustive tests (default: a new one)")


def pytest_configure(config: pytest.Config) -> None:
    """Draws the seed before processes of pytest-xdist get the options: all work on the same designs."""
    if config.option.seed is None:
        config.option.seed = secrets.randbelow(2**32)


def pytest_report_header(config: pytest.Config) -> str:
    """How to repeat the designs of this run."""
    return f"covering designs: --seed {config.option.seed}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every launch on the simulated device runs under all checkers; a report fails the test."""
    for item in items:
        if config.getoption("--device") == "sim" and item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("sim_check")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Where the tensors of the tests live."""
    if request.config.getoption("--device") == "gpu":
        assert torch.cuda.is_available(), "--device gpu: torch sees no GPU"
        yield torch.device("cuda", torch.cuda.current_device())
        return
    devices.use_simulator(True)
    yield torch.device("cpu")
    devices.reset()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """For covering.py; a test that fails shows it among its arguments."""
    return request.config.option.seed


@pytest.fixture
def run() -> Callable[..., Any]:
    """run(backend, function, *args, **kwargs): calls with that backend forced, and only after explain() says it serves.

    Skips, with the reason, where this device has no such backend (an MFMA kernel on an NVIDIA GPU).
    """

    def call(backend: str, function: Callable, *args: Any, **kwargs: Any) -> Any:
        kwargs["backend"] = backend
        explanation = explain(function, *args, **kwargs)
        if explanation.target.platform == "cuda" and "MFMA" in explanation.rejected.get(backend, ""):
            pytest.skip(f"{backend}: {explanation.rejected[backend]}")
        assert explanation.backend == backend, str(explanation)
        return function(*args, **kwargs)

    return call

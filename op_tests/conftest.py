# SPDX-License-Identifier: MIT
"""`--device sim|gpu`: where the operators' tests run, and what they share."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rotation
import torch

from aiter_like import check
from aiter_like import device as devices
from aiter_like.device import target_of
from aiter_like.dispatch import Op, explain

_FOLDER = Path(__file__).resolve().parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=("sim", "gpu"), default="sim",
                     help="sim: the simulated MI300X with its checkers on; gpu: the GPU of this machine (default: sim)")
    parser.addoption("--seed", type=int, help="of the covering designs of exhaustive tests (default: a new one)")
    parser.addoption("--turn", type=int, default=0,
                     help="which eighth of their cases large tests run (default: 0; operators order the cases)")
    parser.addoption("--all-cases", action="store_true", help="large tests run all their cases, as on a GPU")
    parser.addoption("--repeated", action="store_true",
                     help="each call is served by its class too, which is judged (dispatch/classes.py); no checkers")


def pytest_configure(config: pytest.Config) -> None:
    """Draws the seed before processes of pytest-xdist get the options: all work on the same cases."""
    if config.option.device == "gpu" and not torch.cuda.is_available():
        raise pytest.UsageError("--device gpu: torch sees no GPU; `aiter-like doctor` says what is found")
    if config.option.seed is None:
        config.option.seed = secrets.randbelow(2**32)


def pytest_report_header(config: pytest.Config) -> str:
    """How to repeat the cases of this run."""
    return f"covering designs: --seed {config.option.seed}; large tests: --turn {config.option.turn}, or --all-cases"


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every launch on the simulated device runs under all checkers, of which any report fails the test; large tests,
    and all tests of files marked `rotating`, run this turn's part of their cases there. A file that the command line
    names runs all of them: whoever names it has written it.
    """
    if config.getoption("--device") != "sim":
        return
    own = [item for item in items if item.path.is_relative_to(_FOLDER)]
    named = {(config.invocation_params.dir / word.partition("::")[0]).resolve() for word in config.args}
    for item in () if config.getoption("--repeated") else own:
        item.add_marker(pytest.mark.sim_check("strict"))
    if config.getoption("--all-cases"):
        return
    own = [item for item in own if item.path.resolve() not in named]
    rotating = [item for item in own if item.get_closest_marker("rotating")]
    for item in [*rotation.items_left_out(rotating, config.option.turn, large=1),
                 *rotation.items_left_out(set(own).difference(rotating), config.option.turn)]:
        item.add_marker("exhaustive")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Where the tensors of the tests live."""
    if request.config.getoption("--device") == "gpu":
        yield torch.device("cuda", torch.cuda.current_device())
        return
    devices.use_simulator(True)
    yield torch.device("cpu")
    devices.reset()


@pytest.fixture(autouse=True)
def repeated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --repeated, a call that was decided is undone and served again by its class: tests then judge the class."""
    if not request.config.getoption("--repeated"):
        return
    decide = Op._decide

    def again(self: Op, chosen: Any, args: tuple, runs: bool = True) -> None:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        before = [tensor.clone() for tensor in tensors]
        decide(self, chosen, args, runs)
        if not runs or self._classes.find(chosen, args, runs=False) is None:
            return
        with torch.autograd._unsafe_preserve_version_counter(tuple(tensors)):  # autograd has seen one call
            for tensor, content in zip(tensors, before):
                if not any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape)):
                    tensor.copy_(content)
            assert self._classes.find(chosen, args) is not None

    monkeypatch.setattr(Op, "_decide", again)


@pytest.fixture
def only_on_hopper(request: pytest.FixtureRequest) -> None:
    """Skips a test that takes a device where that is none of sm_90."""
    if "device" in request.fixturenames and target_of(request.getfixturevalue("device")).arch != "sm_90":
        pytest.skip("for sm_90")


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


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at what index tensors hold, as with those on a GPU."""
    monkeypatch.setattr(check, "is_on_host", lambda _: False)

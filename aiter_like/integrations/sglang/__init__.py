# SPDX-License-Identifier: MIT
"""Serves SGLang's language models: their layers through its plugin hooks, and the attention backend `aiter_like`.

Video and image models have a plugin group of their own: diffusion.py.
"""

from aiter_like.integrations.sglang import attention, hooks


def install() -> None:
    """Registers everything; nothing is replaced before SGLang applies its plugins' hooks."""
    hooks.install()
    attention.install()


def uninstall() -> None:
    """Undoes `install` for layers and backends that are made afterwards."""
    hooks.uninstall()
    attention.uninstall()

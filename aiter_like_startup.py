# SPDX-License-Identifier: MIT
"""Lets AITER_LIKE=1 serve transformers, which has no plugins: installs the adapter once its models can be made. Lets
`gpu` in AITER_LIKE_SIM make torch's "cuda" the simulated MI300X once torch is imported.

Imported by aiter_like_startup.pth when an interpreter starts with one of them, and never else. It lies beside the
package, because importing the package imports torch: until such a module is used, this costs a name in sys.meta_path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

MODULE = "transformers.modeling_utils"  # has the class of all models; `import transformers` alone does not load it


class Finder:
    """Finds a module as the others do, and calls `then()` after it has run."""

    def __init__(self, module: str, then: Callable[[], None]):
        self._module, self._then = module, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As sys.meta_path asks; None for all other modules."""
        if name != self._module:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                if module.__name__ == self._module:  # the loader of a zip file has other modules too
                    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
                    self._then()

            spec.loader.exec_module = exec_module
        return spec


def install() -> None:
    """Installs the adapter of transformers; what prevents that is one warning, and transformers goes on.

    Others have plugins: vLLM may be in the midst of its own imports, of which this is one.
    """
    try:
        from aiter_like import integrations

        integrations.install("transformers")
    except Exception as error:
        import logging

        logger = logging.getLogger("aiter_like")
        logger.debug("the package cannot be imported", exc_info=True)
        logger.warning("transformers keeps its own operators: %s: %s", type(error).__name__, error)


_entered: list[Any] = []


def enter() -> None:
    """This process is within aiter_like.sim.as_gpu() to its end; what prevents that ends the import of torch."""
    import atexit

    if _entered:
        return
    _entered.append(None)  # the import below comes here again
    from aiter_like import sim

    block = sim.as_gpu()
    block.__enter__()
    atexit.register(block.__exit__, None, None, None)


def enter_unless_imported() -> None:
    """Enters, unless it is the package that imports torch, which has to be whole first: it enters then."""
    if "aiter_like" not in sys.modules:
        enter()


if os.environ.get("AITER_LIKE") == "1":
    sys.meta_path.insert(0, Finder(MODULE, install))
if "gpu" in [part.strip() for part in os.environ.get("AITER_LIKE_SIM", "").split(",")]:
    sys.meta_path[:0] = [Finder("aiter_like", enter), Finder("torch", enter_unless_imported)]

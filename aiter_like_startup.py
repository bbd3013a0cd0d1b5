# SPDX-License-Identifier: MIT
"""Lets AITER_LIKE=1 serve transformers, which has no plugins: installs the adapter once its models can be made.

Imported by aiter_like_startup.pth when an interpreter starts with AITER_LIKE=1, and never else. It lies beside the
package, because importing the package imports torch: until transformers is used, this costs a name in sys.meta_path.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

MODULE = "transformers.modeling_utils"  # has the class of all models; `import transformers` alone does not load it


class Finder:
    """Finds MODULE as the others do, and lets the package's adapters be installed after it has run."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As sys.meta_path asks; None for all other modules."""
        if name != MODULE:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                if module.__name__ == MODULE:  # the loader of a zip file has other modules too
                    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
                    install()

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


sys.meta_path.insert(0, Finder())

# SPDX-License-Identifier: MIT
"""GPU operators for AMD MI300X. Importing this compiles, probes and configures nothing; it loads no operator, no torch.

A public function is imported with its module when it is first asked for (ops/index.py). AITER's other names, as
attributes of `import aiter_like as aiter`, come from integrations/aiter/names.py.
"""

import importlib as _importlib
from types import FunctionType as _FunctionType
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from aiter_like.dispatch.registry import OPS as _OPS
from aiter_like.enums import ActivationType as ActivationType
from aiter_like.enums import QuantType as QuantType
from aiter_like.ops import index as _index

if _TYPE_CHECKING:
    from aiter_like.dispatch import explain as explain
    from aiter_like.dispatch import is_tuned as is_tuned
    from aiter_like.dispatch import use_backend as use_backend

__version__ = "0.2.0"
__all__ = ["ActivationType", "QuantType", "explain", "is_tuned", "use_backend", *_index.PUBLIC]

_OPS.index = {name: f"aiter_like.ops.{module}" for name, module in _index.OPERATORS.items()}


def __getattr__(name: str) -> _Any:
    """A public function, from its operator's module; a name of AITER's that no family here defines: served by another,
    or a function that says what to use instead."""
    if name in _index.PUBLIC:
        value = getattr(_importlib.import_module(f"aiter_like.ops.{_index.PUBLIC[name]}"), name)
        if isinstance(value, _FunctionType):
            from aiter_like.dispatch.public import public

            value = public(name, value)
    elif name in __all__:
        value = getattr(_importlib.import_module("aiter_like.dispatch"), name)
    elif name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        value = _module(name)
        if value is None:
            from aiter_like.integrations.aiter import names as aiter_names

            value = aiter_names.attribute(name)
    globals()[name] = value
    return value


def _module(name: str) -> _Any:
    """A module of this package that nothing has imported yet; it goes before a name of AITER's."""
    try:
        return _importlib.import_module(f"aiter_like.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"aiter_like.{name}":
            raise
        return None


def __dir__() -> list[str]:
    from aiter_like.integrations.aiter import names as aiter_names

    return sorted({*globals(), *__all__, *(name.partition(".")[0] for name in aiter_names.top_level())})

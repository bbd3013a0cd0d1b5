# SPDX-License-Identifier: MIT
"""Reads the tuned tables of an operator and finds the row of a call. Used by select.py; doctor lists problems.

One schema: arch, cu_num, the op's key fields, then backend, kernel, params, us, err, toolchain, kernel_rev, origin.
A row is measured on a device, or modelled by the simulator's cycle model: every measured row goes before every modelled
one, whichever file each is in.
"""

from __future__ import annotations

import csv
import functools
import itertools
import logging
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiter_like import env, paths
from aiter_like.dispatch.rounding import rounded
from aiter_like.errors import TuningError
from aiter_like.traced import Number, known, text_in

_log = logging.getLogger("aiter_like")

DEVICE_COLUMNS = ("arch", "cu_num")
MEASURED, MODELLED = "measured:", "modelled:"
"""How the `origin` of a row begins: the device's name follows, or the cycle model's version and clock."""

VALUE_COLUMNS = ("backend", "kernel", "params", "us", "err", "toolchain", "kernel_rev", "origin")
_AMOUNTS = frozenset((
    "batch", "channels", "columns", "elements", "experts", "groups", "heads", "hidden", "k", "k_hidden", "k_rows",
    "kv_heads", "m", "matrices", "n", "pairs", "parts", "patches", "positions", "q_hidden", "q_rows", "rows", "samples",
    "second_hidden", "seqlen_k", "seqlen_q", "sequences", "slots", "tiles", "tokens", "topk"))
_told: set[str] = set()
_PARAM = re.compile(r"[A-Za-z_]\w*")
_INTEGER = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_MAX_DIGITS = 18  # an integer of more may not fit 64 bits
_AT = " at "  # between the model's version and its clock


def columns(fields: Sequence[str]) -> tuple[str, ...]:
    """The header of a table with these key fields."""
    return (*DEVICE_COLUMNS, *fields, *VALUE_COLUMNS)


def is_text(name: str) -> bool:
    """Whether a key field holds text (dtypes, layouts, masks …); any other is an integer, a flag 0 or 1."""
    return name in ("features", "packing") or name.endswith(("dtype", "layout", "mask"))


def is_amount(name: str) -> bool:
    """Whether a key field says how much there is to do: a row of another amount may tell of the same kernel. Any other
    field, such as a flag, a dtype, a number of bits or a head dimension, says of what kind it is."""
    return name.startswith("num_") or name in _AMOUNTS


@dataclass(frozen=True)
class Row:
    """One tuned choice.

    Attributes:
        key: (arch, cu_num, *key fields).
        params: values for the kernel, by name.
        us: measured or modelled time.
        kernel_rev: what was timed, as `Declaration.revision` gives it; "" = any.
        origin: "measured:DEVICE", or `modelled_origin`.
        source: "file:line".
    """

    key: tuple
    backend: str
    kernel: str
    params: Mapping[str, Any]
    us: float
    err: float
    toolchain: str
    kernel_rev: str
    origin: str
    source: str

    @property
    def is_modelled(self) -> bool:
        """Whether the time comes from the cycle model and not from a device."""
        return self.origin.startswith(MODELLED)

    @property
    def model_version(self) -> str:
        """The version of the cycle model that gave the time; "" of a measured row."""
        return self.origin.removeprefix(MODELLED).partition(_AT)[0] if self.is_modelled else ""

    @property
    def figure(self) -> str:
        """The time and where it comes from, for people."""
        if not self.is_modelled:
            return f"{self.us:g} us, measured on {self.origin.removeprefix(MEASURED)}"
        clock = self.origin.partition(_AT)[2] or "a clock that the row does not name"
        return f"{self.us:g} us, modelled, not measured (version {self.model_version} of the cycle model, at {clock})"


def modelled_origin(version: str, clock_mhz: float) -> str:
    """The `origin` of rows that a version of the cycle model times at a clock."""
    return f"{MODELLED}{version}{_AT}{clock_mhz:g} MHz"


@dataclass
class Layer:
    """The rows of one priority: candidates per key, fastest first."""

    title: str
    rows: dict[tuple, list[Row]] = field(default_factory=dict)


@dataclass
class Table:
    """The tuned rows of one operator.

    Attributes:
        layers: highest priority first.
        problems: one TuningError per bad file or row; such rows are left out.
    """

    op: str
    fields: tuple[str, ...]
    round_field: str | None
    layers: list[Layer] = field(default_factory=list)
    problems: list[TuningError] = field(default_factory=list)
    _groups: dict[tuple, list] = field(default_factory=dict)

    def find(self, arch: str, cu_num: int, key: Mapping[str, Any], usable: Callable[[Row], bool]) -> Row | None:
        """The row for a call, or None: the highest layer that answers wins; within a layer the exact key comes first,
        then the rounded ones (see `rounded`); among the rows of one key the fastest that is `usable`.
        """
        return next((row for row in self.matching(arch, cu_num, key) if usable(row)), None)

    def matching(self, arch: str, cu_num: int, key: Mapping[str, Any]) -> Iterator[Row]:
        """The rows that speak of a call, in the order of `find`; stand-ins in the key are asked which these are."""
        values = normalised(self.op, self.fields, key)
        open_ones = tuple(index for index, (name, value) in enumerate(zip(self.fields, values))
                          if name == self.round_field or type(value) is Number and value.leaves)
        place = next((place for place, index in enumerate(open_ones) if self.fields[index] == self.round_field), None)
        shut = (arch, cu_num, *(known(value) for index, value in enumerate(values) if index not in open_ones))
        layers = [layer[shut] for layer in self._grouped(open_ones) if shut in layer]
        if not layers:
            return
        found = rows_of(layers, place, *(known(values[index]) for index in open_ones))
        numbers = [values[index] for index in open_ones if type(values[index]) is Number]
        if numbers:
            trace = numbers[0].trace
            answer = trace.object(functools.partial(rows_of, layers, place))
            texts = ", ".join(text_in(trace, values[index]) for index in open_ones)
            trace.ask(f"{answer}({texts}) == {trace.object(found)}", True,
                      frozenset().union(*(number.leaves for number in numbers)))
        yield from itertools.chain(*found)

    def _grouped(self, open_ones: tuple[int, ...]) -> list[dict[tuple, dict[tuple, tuple[Row, ...]]]]:
        """For each layer: device and values of the other fields → values of the open ones → rows."""
        if open_ones not in self._groups:
            groups: list[dict] = []
            for layer in self.layers:
                groups.append({})
                for key, rows in layer.rows.items():
                    shut = tuple(value for index, value in enumerate(key, -2) if index not in open_ones)
                    groups[-1].setdefault(shut, {})[tuple(key[index + 2] for index in open_ones)] = tuple(rows)
            self._groups[open_ones] = groups
        return self._groups[open_ones]

    def rows(self) -> Iterator[Row]:
        """Every valid row."""
        for layer in self.layers:
            for rows in layer.rows.values():
                yield from rows


def rows_of(layers: Sequence[Mapping[tuple, tuple[Row, ...]]], place: int | None, *values: Any
             ) -> tuple[tuple[Row, ...], ...]:
    """The rows of these values, and of those with the one at `place` rounded, layer by layer."""
    keys = [values]
    if place is not None:
        keys += [(*values[:place], size, *values[place + 1:]) for size in rounded(values[place])]
    return tuple(rows for layer in layers for key in keys if (rows := layer.get(key)))


def normalised(op: str, fields: Sequence[str], key: Mapping[str, Any]) -> tuple:
    """The values of a tune key in the order of `fields`, flags as 0 or 1.

    Raises:
        ValueError: the key has other fields.
        TypeError: a value has the wrong type.
    """
    if set(key) != set(fields):
        raise ValueError(f"{op}: tune key must have the fields {', '.join(fields)}, got {', '.join(key)}")
    values = tuple(int(key[name]) if isinstance(key[name], bool) else key[name] for name in fields)
    for name, value in zip(fields, values):
        kind = str if is_text(name) else int
        if not isinstance(value, kind):
            raise TypeError(f"{op}: tune key field {name} must be {kind.__name__}, got {value!r}")
    return values


def load(op: str, fields: Sequence[str], kernels: Mapping[str, frozenset[str] | None],
         round_field: str | None = None) -> Table:
    """Reads all layers of an operator. Measured rows: those of AITER_LIKE_TUNED, of the user's directory, packaged
    ones; then modelled rows in the same order.

    Bad rows go to `problems` and to the log, once; nothing is raised for them.

    Args:
        kernels: backend → the kernel names a row may give; None where they depend on the call.
    """
    table = Table(op, tuple(fields), round_field)
    files = [(path, f"AITER_LIKE_TUNED {path}", (MEASURED, MODELLED)) for path in _user_files(op, table.problems)]
    for folder in (paths.user_tuned(), paths.tuned_csv()):
        for path, origin in ((folder / f"{op}.csv", MEASURED), (modelled_file(folder, op), MODELLED)):
            title = "packaged" if folder == paths.tuned_csv() else f"user's {path}"
            files += [(path, title, (origin,))] if path.is_file() else []
    modelled = []
    for path, title, origins in files:
        found = _read(path, table, kernels, origins)
        for origin, layers in ((MEASURED, table.layers), (MODELLED, modelled)):
            rows = {key: own for key, rows in found.items()
                    if (own := [row for row in rows if row.origin.startswith(origin)])}
            if rows or origin == origins[0]:
                layers.append(Layer(f"{title}, {origin[:-1]}", rows))
    table.layers += modelled
    for problem in map(str, table.problems):
        if problem not in _told:  # a missing path is every operator's problem
            _told.add(problem)
            _log.warning("tuned table: %s", problem)
    return table


def modelled_file(folder: Path, op: str) -> Path:
    """The table of modelled rows of an operator in a folder of tuned tables."""
    return folder / "modelled" / f"{op}.csv"


def _user_files(op: str, problems: list[TuningError]) -> Iterator[Path]:
    """The files of an operator in AITER_LIKE_TUNED: `<op>.csv` and `<op>.<anything>.csv`, named or in a directory."""
    for entry in map(Path, env.get("AITER_LIKE_TUNED")):
        if entry.is_dir():
            yield from sorted(path for path in entry.glob("*.csv") if path.name.split(".")[0] == op)
        elif not entry.is_file():
            problems.append(TuningError(f"{entry}:0: no such file or directory (AITER_LIKE_TUNED)"))
        elif entry.name.split(".")[0] == op:
            yield entry


def strays(ops: Collection[str]) -> list[TuningError]:
    """Files of AITER_LIKE_TUNED that no operator reads, because their names are none of `ops`."""
    files = [file for entry in map(Path, env.get("AITER_LIKE_TUNED"))
             for file in (sorted(entry.glob("*.csv")) if entry.is_dir() else [entry])]
    return [TuningError(f"{file}:0: no operator is named {file.name.split('.')[0]}") for file in files
            if file.name.split(".")[0] not in ops]


def read_file(path: Path, op: str, fields: Sequence[str], kernels: Mapping[str, frozenset[str] | None]
              ) -> tuple[dict[tuple, list[Row]], list[TuningError]]:
    """Key → the rows of one file, fastest first, and what is wrong with it. For its writer: dispatch reads layers."""
    table = Table(op, tuple(fields), None)
    return _read(path, table, kernels, (MEASURED, MODELLED)), table.problems


def _read(path: Path, table: Table, kernels: Mapping[str, frozenset[str] | None], origins: tuple[str, ...]
          ) -> dict[tuple, list[Row]]:
    found: dict[tuple, list[Row]] = {}
    seen: dict[tuple, int] = {}
    try:
        lines = path.read_bytes().splitlines() or [b""]
    except OSError as error:
        table.problems.append(TuningError(f"{path}:0: cannot be read: {error}"))
        return found
    for line, text in enumerate(lines, 1):
        source = f"{path}:{line}"
        try:
            cells = _cells(text, source)
            if line == 1:
                _check_header(cells, source, table)
                continue
            row = _row(cells, source, table, kernels, origins)
            same = seen.setdefault((row.key, row.backend, row.kernel, tuple(row.params.items())), line)
            if same != line:
                raise TuningError(f"{source}: same key, backend, kernel and params as line {same}")
        except TuningError as problem:
            table.problems.append(problem)
            if line == 1:
                break
        else:
            found.setdefault(row.key, []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: row.us)
    return found


def _cells(text: bytes, source: str) -> list[str]:
    """The cells of one line. Each line is read by itself, so that a damaged one takes no other with it."""
    try:
        return next(csv.reader([text.decode()], strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise TuningError(f"{source}: must be cells in UTF-8, got what cannot be read: {error}") from error


def _check_header(cells: list[str], source: str, table: Table) -> None:
    if tuple(cells) != columns(table.fields):
        raise TuningError(f"{source}: columns must be {','.join(columns(table.fields))}, got {_short(','.join(cells))}")


def _row(cells: list[str], source: str, table: Table, kernels: Mapping[str, frozenset[str] | None],
         origins: tuple[str, ...]) -> Row:
    names = columns(table.fields)
    if len(cells) != len(names):
        raise TuningError(f"{source}: must have {len(names)} cells, got {len(cells)}")
    cell = dict(zip(names, cells))
    key = (_text(cell, "arch", source), _integer(cell, "cu_num", source),
           *(_text(cell, name, source) if is_text(name) else _integer(cell, name, source) for name in table.fields))
    backend, kernel = cell["backend"], _text(cell, "kernel", source)
    if backend not in kernels:
        accepted = ", ".join(kernels)
        raise TuningError(f"{source}: backend must be one of {accepted}, got {_short(backend)!r}")
    known = kernels[backend]
    if known is not None and kernel not in known:
        accepted = ", ".join(sorted(known))
        raise TuningError(f"{source}: kernel of {backend} must be one of {accepted}, got {_short(kernel)!r}")
    if not cell["origin"].startswith(origins) or cell["origin"] in origins:
        accepted = " or ".join(origins)
        raise TuningError(f"{source}: origin must start with {accepted} here, got {_short(cell['origin'])!r}")
    us, err = _number(cell, "us", source), _number(cell, "err", source)
    if us == 0:
        raise TuningError(f"{source}: us must be greater than 0, got {cell['us']!r}")
    return Row(key, backend, kernel, parse_params(cell["params"], source), us, err, cell["toolchain"],
               cell["kernel_rev"], cell["origin"], source)


def parse_params(text: str, source: str) -> dict[str, Any]:
    """`BLOCK_M=128;num_warps=4` as a dict: integers, floats, true and false, else text; sorted by name.

    Raises:
        TuningError: a part is no `name=value`, or a name comes twice.
    """
    params: dict[str, Any] = {}
    for part in filter(None, text.split(";")):
        name, equals, value = part.partition("=")
        if not equals or not _PARAM.fullmatch(name) or not value:
            raise TuningError(f"{source}: params must be name=value;…, got {_short(part)!r}")
        if name in params:
            raise TuningError(f"{source}: params must name {name} once, got {_short(text)!r}")
        params[name] = _value(name, value, source)
    return dict(sorted(params.items()))


def text_of(value: Any) -> str:
    """A parameter's value as `parse_params` reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(name: str, text: str, source: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text) and len(text.lstrip("-")) <= _MAX_DIGITS:
        return int(text)
    if not _NUMBER.fullmatch(text):
        return text
    if _INTEGER.fullmatch(text) or not math.isfinite(float(text)):
        raise TuningError(f"{source}: {name} in params must be a finite number, an integer of at most "
                          f"{_MAX_DIGITS} digits, got {_short(text)}")
    return float(text)


def _short(text: str) -> str:
    """A text as an error shows it: a damaged cell may have thousands of letters."""
    return text if len(text) <= 400 else f"{text[:60]}… ({len(text)} letters)"


def _text(cell: Mapping[str, str], name: str, source: str) -> str:
    if not cell[name] or cell[name] != cell[name].strip():
        raise TuningError(f"{source}: {name} must be a text without outer blanks, got {_short(cell[name])!r}")
    return cell[name]


def _integer(cell: Mapping[str, str], name: str, source: str) -> int:
    if not _INTEGER.fullmatch(cell[name]):
        raise TuningError(f"{source}: {name} must be an integer, got {_short(cell[name])!r}")
    if len(cell[name].lstrip("-")) > _MAX_DIGITS:
        raise TuningError(f"{source}: {name} must have at most {_MAX_DIGITS} digits, got {_short(cell[name])!r}")
    return int(cell[name])


def _number(cell: Mapping[str, str], name: str, source: str) -> float:
    try:
        value = float(cell[name])
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise TuningError(f"{source}: {name} must be a finite number, at least 0, got {_short(cell[name])!r}")
    return value

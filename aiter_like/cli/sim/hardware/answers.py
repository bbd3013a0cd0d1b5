# SPDX-License-Identifier: MIT
"""The file of answers: asked for, written, read. A JSON object, schema 1; gzip where the name ends with .gz.

    schema, label ("measured", or "simulated": a rehearsal without times), date (UTC)
    model: the version of the cycle model whose figures stand beside
    device, driver, clocks, software: facts.py
    records: a list; each has kind, name, status ("measured", "simulated", "failed", then error), seconds, and
      question: answer, in words; simulated: what the simulator answers; agrees; rows: the dwords that came back
      cost: figures with their units in their names, raw
      case: figure, unit, published, modelled, source, parameters, clock_mhz (by s_memtime and s_memrealtime);
            raw: each launch's loops, groups, waves, and samples of event_us, memtime_clk, realtime_ticks
      verify: results, as `aiter-like verify` has them

Times are samples after a warm-up; a figure is made of their medians. s_memrealtime is taken to count at 100 MHz.
"""

import datetime
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from aiter_like.cli.sim.hardware.items import CASE, FACTS, QUESTION, Item
from aiter_like.errors import TuningError
from aiter_like.sim.validation import page
from aiter_like.sim.validation.questions import questions
from aiter_like.sim.validation.unpublished import all_cases
from aiter_like.tuning.pool import Lost, Worker

SCHEMA = 1

_WORKER = "aiter_like.cli.sim.hardware.worker"
_GZIP = b"\x1f\x8b"


def records(harness: str, chosen: Sequence[Item], telling: Callable[[Item], None]) -> Iterator[dict[str, Any]]:
    """Asks for the facts and each item; one record each, whatever happens to it.

    Args:
        harness: "module:function" of the worker's device.
        telling: called with each item before it is asked for.
    """
    worker, has_answered = Worker(harness, 0, _WORKER), False
    try:
        for item in [Item(FACTS, "device"), *chosen]:
            telling(item)
            request = {"kind": item.kind, "name": item.name}
            try:
                record = worker.ask(request, item.seconds)
                has_answered = True
            except Lost as error:
                record = {**request, "status": "failed", "error": str(error)}
            except TuningError as error:
                if not has_answered:
                    raise
                record = {**request, "status": "failed", "error": str(error)}
            yield _beside(item, record)
    finally:
        worker.close()


def packed(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The whole file's object, of the records that there are."""
    facts = next((one for one in found if one["kind"] == FACTS), {})
    is_simulated = any(one["status"] == "simulated" for one in found)
    version, _ = page.figures(page.kept())
    return {"schema": SCHEMA, "label": "simulated" if is_simulated else "measured",
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "model": version,
            **{name: facts.get(name, {}) for name in ("device", "driver", "clocks", "software")},
            "records": [one for one in found if one["kind"] != FACTS or one["status"] == "failed"]}


def write(path: Path, answers: dict[str, Any]) -> None:
    """The file; gzip where its name says so."""
    data = (json.dumps(answers, indent=1 if path.suffix != ".gz" else None) + "\n").encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def read(path: Path) -> dict[str, Any]:
    """A file that somebody has sent."""
    try:
        data = path.read_bytes()
        found = json.loads(gzip.decompress(data) if data.startswith(_GZIP) else data)
    except OSError as error:
        raise ValueError(f"--answers: cannot read {path}: {error.strerror or error}") from error
    except (ValueError, EOFError, zlib.error) as error:
        raise ValueError(f"--answers: {path} is no JSON: {error}") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        schema = found.get("schema") if isinstance(found, dict) else None
        raise ValueError(f"--answers: {path} must have schema {SCHEMA}, got {schema!r}: another version of aiter_like "
                         "wrote it, or something else did")
    wanted = {"label": str, "date": str, "model": str, "device": dict, "driver": dict, "clocks": dict, "software": dict,
              "records": list}
    for name, kind in wanted.items():
        if not isinstance(found.get(name), kind):
            got = type(found.get(name)).__name__
            raise ValueError(f"--answers: {path}: {name} must be a {kind.__name__}, got {got}")
    for one in found["records"]:
        if not isinstance(one, dict) or not all(isinstance(one.get(key), str) for key in ("kind", "name", "status")):
            raise ValueError(f"--answers: {path}: every record must have kind, name and status as texts")
    return found


def _beside(item: Item, record: dict[str, Any]) -> dict[str, Any]:
    """The record with what the simulator and the model say, and what is published."""
    record.pop("is_broken", None)
    if item.kind == QUESTION:
        asked = next(one for one in questions() if one.name == item.name)
        return {**record, "asks": asked.asks, "simulated": asked.simulated}
    if item.kind == CASE:
        case = next(one for one in all_cases() if one.name == item.name)
        _, figures = page.figures(page.kept())
        return {**record, "unit": case.unit, "source": case.source, "published": case.published,
                "modelled": figures.get(case.name), "parameters": list(case.parameters)}
    return record

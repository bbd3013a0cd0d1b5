# SPDX-License-Identifier: MIT
"""A file of answers beside the simulator and the model of this checkout: which points are decided, what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aiter_like.cli.sim.hardware.items import CASE, COST, QUESTION, VERIFY
from aiter_like.cli.sim.hardware.lds_phases import SIMULATED as SIMULATED_PHASES
from aiter_like.sim import modelling
from aiter_like.sim.validation import page, parameters
from aiter_like.sim.validation.questions import questions

_AIM = page.AIM
_CUS = 304

# Cost → key of its median → what is published or assumed, and where from.
_EXPECTED: dict[str, dict[str, tuple[float, str]]] = {
    "s_memrealtime": {"MHz": (100, "assumed")},
    "flag, round trip to another XCD": {"us": (1.44, "fleet")},
    "flag, round trip in an XCD": {"us": (1.20, "fleet")},
    "flag, round trip to another XCD under load": {"us": (6.76, "fleet")},
    "clocks under load": {
        what: (modelling.sustained_mhz(operands, *busy), "sustained_mhz") for what, operands, *busy in (
        ("matrix bf16", "bf16", 1, 0), ("matrix fp16", "fp16", 1, 0), ("matrix fp8", "8-bit", 1, 0),
        ("matrix and exp", "bf16", 0.8, 0.8), ("vector", "", 0, 1), ("memory", "", 0, 0))}}


def lines(answers: Mapping[str, Any]) -> Iterator[str]:
    """The comparison, as text."""
    device, model = answers["device"], answers["model"]
    yield f"{answers['label']}: {device.get('name', 'unknown device')} ({device.get('gcnArchName', '')}), " \
          f"{answers['date']}, aiter_like {answers['software'].get('aiter_like', 'unknown')}, model version {model}"
    version, figures = page.figures(page.kept())
    if version != model:
        yield f"the model of this checkout has version {version}: its figures stand below"
    if device.get("cu_num") != _CUS:
        yield f"the device shows {device.get('cu_num')} CUs: rates of the chip below are of {_CUS}"
    if answers["label"] != "measured":
        yield "simulated: a rehearsal, with the simulator's own choices and no times; it decides nothing"
    records = answers["records"]
    yield from _questions([one for one in records if one["kind"] == QUESTION and "answer" in one])
    yield from _costs([one for one in records if one["kind"] == COST and one["status"] == "measured"])
    yield from _cases([one for one in records if one["kind"] == CASE and _is_number(one.get("figure"))], figures)
    yield from _verified([one for one in records if one["kind"] == VERIFY and isinstance(one.get("results"), list)])
    failed = [one for one in records if one["status"] == "failed" and "results" not in one]
    if failed:
        yield from ("", f"{len(failed)} without an answer:")
        yield from (f"  {one['kind']} {one['name']}: {one.get('error', 'no reason')}" for one in failed)


def _questions(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    known = {question.name: question for question in questions()}
    asked = [(known[one["name"]], str(one["answer"])) for one in records if one["name"] in known]
    if not asked:
        return
    differ = [(question, answer) for question, answer in asked if answer != question.simulated]
    yield from ("", f"open points: {len(asked)} answered, {len(differ)} otherwise than by the simulator")
    for question, answer in asked:
        verdict = "as the simulator" if answer == question.simulated else "DIFFERS"
        yield f"  {verdict:16} {question.name}: {answer}"
        if answer != question.simulated:
            yield f"  {'':16} {question.asks} The simulator: {question.simulated} (csrc/sim/{question.where})"


def _costs(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not records:
        return
    yield from ("", "costs")
    for one in records:
        for key, value in one.items():
            if isinstance(value, dict) and _is_number(value.get("median")):
                number = float(value["median"])
                expected, source = _EXPECTED.get(one["name"], {}).get(key, (None, ""))
                beside = f"   {source}: {expected:g} ({number / expected - 1:+.1%})" if expected else ""
                yield f"  {one['name']}: {key} {number:.4g}{beside}"
            elif one["name"] == "LDS phases" and key in SIMULATED_PHASES:
                same = value == SIMULATED_PHASES[key]
                yield f"  {key}: phases {value}, " + ("as the simulator" if same else
                                                      f"DIFFERS from {SIMULATED_PHASES[key]} (timing/access_shape.cpp)")
            elif _is_number(value) and key != "seconds":
                yield f"  {one['name']}: {key} {value:.4g}"


def _cases(records: Sequence[Mapping[str, Any]], figures: Mapping[str, float]) -> Iterator[str]:
    beside = [(one, figures[one["name"]]) for one in records if one["name"] in figures and one["figure"]]
    if not beside:
        return
    errors = [abs(modelled / one["figure"] - 1) for one, modelled in beside]
    within = sum(error <= _AIM for error in errors)
    width = max(len(one["name"]) for one, _ in beside)
    yield from ("", f"cases: the model is within {_AIM:.0%} of {within} of {len(beside)} measured figures")
    yield f"  {'case':{width}} {'measured':>10} {'modelled':>10} {'error':>8} {'published':>10}  unit, clock"
    for one, modelled in beside:
        clock = one["clock_mhz"] if _is_number(one.get("clock_mhz")) else 0
        published = f"{one['published']:10.2f}" if _is_number(one.get("published")) else f"{'-':>10}"
        yield f"  {one['name']:{width}} {one['figure']:10.2f} {modelled:10.2f} {modelled / one['figure'] - 1:+8.1%} " \
              f"{published}  {one.get('unit', '')}, {clock:.0f} MHz"
    yield from _parameters(beside)


def _parameters(beside: Sequence[tuple[Mapping[str, Any], float]]) -> Iterator[str]:
    """The model's numbers on which a figure depends that is off."""
    values = parameters.values()
    off: dict[str, list[str]] = {}
    for one, modelled in beside:
        if abs(modelled / one["figure"] - 1) <= _AIM:
            continue
        named = one.get("parameters")
        for name in named if isinstance(named, list) and named else ["no single one"]:
            off.setdefault(str(name), []).append(
                f"{one['name']}: measured {one['figure']:.2f}, modelled {modelled:.2f} {one.get('unit', '')}")
    if not off:
        return
    yield from ("", "parameters of csrc/sim/timing/parameters.h that these figures dispute")
    for name, reasons in off.items():
        yield f"  {name}{f' = {values[name]:g}' if name in values else ''}"
        yield from (f"    {reason}" for reason in reasons)


def _verified(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    results = [result for one in records for result in one["results"] if isinstance(result, dict)]
    if not results:
        return
    failed = [one for one in results if one.get("status") == "failed"]
    passed = sum(one.get("status") == "passed" for one in results)
    yield from ("", f"self-checks: {passed} passed, {len(failed)} failed")
    yield from (f"  FAILED {one.get('op')} {one.get('backend')} {one.get('kernel')}: {one.get('detail')}"
                for one in failed)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

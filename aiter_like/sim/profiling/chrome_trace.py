# SPDX-License-Identifier: MIT
"""A profile's timeline in the format of chrome://tracing and Perfetto: a microsecond there stands for a modelled
cycle.
"""


def of(profile: dict) -> dict:
    """The waves of each SIMD by their slots: what they issue, and what they wait for before it."""
    instructions, timeline = profile["instructions"], profile["timeline"]
    waves = {wave: (simd, slot) for wave, simd, slot, *_ in timeline["waves"]}
    events = []
    for wave, place, why, since, at, until, _, _, done in timeline["events"]:
        simd, slot = waves[wave]
        one = {"ph": "X", "pid": f"SIMD {simd}", "tid": f"slot {slot}"}
        line = instructions[place]
        if since < at:
            events.append({**one, "name": f"waits: {timeline['reasons'][why]}", "cat": "stall", "ts": since,
                           "dur": at - since})
        told = {"wave": wave, "pc": hex(line["pc"]), "source": line["source"]}
        if done is not None:
            told["answered_after_clk"] = done - at
        events.append({**one, "name": line["text"], "cat": "issue", "ts": at, "dur": max(until - at, 1), "args": told})
    return {"traceEvents": events, "otherData": {"modelled": profile["model"], "unit": "1 us = 1 modelled clk"}}

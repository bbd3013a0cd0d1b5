# SPDX-License-Identifier: MIT
"""A profile's timeline as the folder `ui_output_agent_…_dispatch_…` that rocprofv3 makes of a thread trace, for
rocprof-compute-viewer. The times in it are modelled.

Format: as rocprofiler-sdk's att-tool writes it (filenames.cpp, code.cpp, wave.cpp, occupancy.cpp; version 3.0.0) and
src/data/json_emitter.cpp of rocprof-compute-viewer 0.2 reads it. Categories, wave states and the meaning of times:
trace_decoder_types.h of rocprof-trace-decoder.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from aiter_like.sim.profiling import sources
from aiter_like.sim.profiling.summary import short_name

VERSION = "3.0.0"
"""The format's version."""

_SMEM, _SALU, _VMEM, _FLAT, _LDS, _VALU, _JUMP, _NEXT, _IMMED, _MESSAGE = 1, 2, 3, 4, 5, 6, 7, 8, 9, 11
_CATEGORIES = {"smem": _SMEM, "salu": _SALU, "global": _VMEM, "mubuf": _VMEM, "scratch": _VMEM, "flat": _FLAT,
               "ds": _LDS, "valu": _VALU, "trans": _VALU, "mfma": _VALU}
_IDLE, _EXEC, _WAIT, _STALL = 1, 2, 3, 4  # states of a wave
_WAITS = ("s_waitcnt", "s_barrier")
_HEADER = "ISA, _, LineNumber, Source, Codeobj, Vaddr, Hit, Latency, Stall, Idle, ServiceType, Issued, Stalled, " \
          "NotIssuedReasons"
_REASONS = 10  # columns of NotIssuedReasons, which only sampling fills
_CODE_OBJECT = 1  # its id; 0 stands for code that was not found
_KERNEL = 1  # id of the kernel in occupancy.json; 0 stands for an unknown one
_ENGINE, _CU = 0, 0  # the modelled CU


def write(profile: dict, folder: Path, dispatch: int) -> Path:
    """Writes the files of one launch; what an earlier run left in their folder goes.

    Args:
        profile: with a timeline.
        folder: where the folder goes; it is made when necessary.
        dispatch: the number in the folder's name.
    Returns:
        The folder that the viewer opens.
    """
    out = folder / f"ui_output_agent_0_dispatch_{dispatch}"
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    waves = _waves(profile)
    names: dict[str, Any] = {}
    per_slot: dict[tuple[int, int], int] = {}
    for wave in waves:
        number = per_slot[wave["simd"], wave["slot"]] = per_slot.get((wave["simd"], wave["slot"]), -1) + 1
        name = f"se{_ENGINE}_sm{wave['simd']}_sl{wave['slot']}_wv{number}.json"
        _dump(out / name, _wave_file(wave, number))
        slots = names.setdefault(str(_ENGINE), {}).setdefault(str(wave["simd"]), {})
        slots.setdefault(str(wave["slot"]), {})[str(number)] = [name, wave["begin"], wave["end"]]
    _dump(out / "filenames.json", {"global_begin_time": 0, "gfxv": "vega", "gfxip": 9, "version": VERSION,
                                   "counter_names": [], "thread_trace": True, "pc_sampling": False,
                                   "wave_filenames": names})
    _dump(out / "occupancy.json", _occupancy(profile, waves))
    _dump(out / "code.json", {"version": VERSION, "header": _HEADER, "code": _code(profile, waves)})
    _write_sources(profile, out)
    return out


def _waves(profile: dict) -> list[dict]:
    """The waves of the timeline, each with its events; a wave that the timeline cuts off begins or ends with it."""
    waves = {wave: {"simd": simd, "slot": slot, "workgroup": group, "begin": begin, "end": end, "instructions": [],
                    "waitcnt": []} for wave, simd, slot, group, begin, end in profile["timeline"]["waves"]}
    lines = profile["instructions"]
    for wave, place, _, since, at, until, *_ in profile["timeline"]["events"]:
        category = _category(lines[place], until - at)
        waves[wave]["instructions"].append((since, category, at - since, until - since, place))
    shown = [wave for wave in waves.values() if wave["instructions"]]
    for wave in shown:
        first, last = wave["instructions"][0], wave["instructions"][-1]
        is_whole = lines[last[4]]["text"].startswith("s_endpgm")
        wave["begin"] = max(wave["begin"], first[0])
        wave["end"] = wave["end"] if is_whole else last[0] + last[3]
        wave["waitcnt"] = _waitcnt(profile, wave["instructions"])
    # The viewer's clock begins at 0.
    start = min((wave["begin"] for wave in shown), default=0)
    for wave in shown:
        wave["begin"], wave["end"] = wave["begin"] - start, wave["end"] - start
        wave["instructions"] = [(since - start, *rest) for since, *rest in wave["instructions"]]
    return shown


def _category(line: dict, issue_clk: int) -> int:
    """Whether a branch was taken is told by how long it took: a taken one has to fill the instruction buffer anew."""
    if line["class"] == "branch":
        return _JUMP if issue_clk > line["busy_clk"] / line["issued"] or line["text"].startswith("s_branch") else _NEXT
    return _MESSAGE if line["text"].startswith("s_sendmsg") else _CATEGORIES.get(line["class"], _IMMED)


def _wave_file(wave: dict, number: int) -> dict:
    instructions = [[since, category, stall, duration, place + 1]  # line 0 of code.json is the kernel's name
                    for since, category, stall, duration, place in wave["instructions"]]
    entry = {"cu": _CU, "id": number, "simd": wave["simd"], "slot": wave["slot"], "begin": wave["begin"],
             "end": wave["end"], "workgroup_id": wave["workgroup"] % 128, "instructions": instructions,
             "timeline": _states(wave), "waitcnt": wave["waitcnt"]}
    return {"name": f"SE{_ENGINE}", "duration": wave["end"] - wave["begin"], "wave": entry,
            "num_stitched": len(instructions), "num_insts": len(instructions)}


def _states(wave: dict) -> list[list[int]]:
    """States of the wave and how long each lasts, one after the other, from its begin to its end."""
    states: list[list[int]] = []
    now = wave["begin"]

    def lasts(state: int, until: int) -> None:
        nonlocal now
        if until <= now:
            return
        if states and states[-1][0] == state:
            states[-1][1] += until - now
        else:
            states.append([state, until - now])
        now = until

    for since, category, stall, duration, _ in wave["instructions"]:
        lasts(_IDLE, since)
        lasts(_WAIT if category == _IMMED else _STALL, since + stall)
        lasts(_EXEC, since + duration)
    lasts(_IDLE, wave["end"])
    return states


def _waitcnt(profile: dict, instructions: Sequence[tuple]) -> list:
    """For each wait of the wave the memory operations that it retires: [line, [[line of an operation, 0], …]]."""
    found = []
    for place in dict.fromkeys(place for *_, place in instructions):
        if retired := profile["instructions"][place].get("retires"):
            found.append([place + 1, [[of + 1, 0] for of, *_ in retired]])
    return found


def _occupancy(profile: dict, waves: Iterable[dict]) -> dict:
    events = []
    for wave in waves:
        place = [_CU, wave["simd"], wave["slot"]]
        events += [[wave["begin"], *place, 1, _KERNEL], [wave["end"], *place, 0, _KERNEL]]
    events.sort(key=lambda event: (event[0], event[4]))  # a slot is free before it is taken again
    return {str(_ENGINE): events, "dispatches": {"0": "0 / 0x0", str(_KERNEL): short_name(profile)}, "version": VERSION}


def _code(profile: dict, waves: Sequence[dict]) -> list[list]:
    """The kernel's name, then a row for each instruction; sums are those of the timeline, as of the traced CU."""
    sums = [[0, 0, 0, 0] for _ in profile["instructions"]]  # hits, latency, stall, idle
    for wave in waves:
        now = wave["begin"]
        for since, _, stall, duration, place in wave["instructions"]:
            for column, value in enumerate((1, duration, stall, max(since - now, 0))):
                sums[place][column] += value
            now = since + duration
    empty = [0] * _REASONS
    rows = [[f"; {profile['kernel']}", 0, 0, profile["name"], _CODE_OBJECT, profile["instructions"][0]["pc"],
             0, 0, 0, 0, 0, 0, 0, empty]]
    for number, (line, values) in enumerate(zip(profile["instructions"], sums), 1):
        rows.append([line["text"], 0, number, _full(line["source"]), _CODE_OBJECT, line["pc"], *values, 0, 0, 0, empty])
    return rows


def _full(source: str) -> str:
    """ "file:line" with the file's own path: the viewer finds its copy by that."""
    name, line = sources.place(source)
    path = sources.file(name) if name else None
    return f"{path.resolve()}:{line}" if path else source


def _write_sources(profile: dict, out: Path) -> None:
    """Copies of the source files, and snapshots.json: a tree of folders whose leaves name the copies."""
    tree: dict[str, Any] = {}
    paths = {sources.file(sources.place(line["source"])[0]): None for line in profile["instructions"] if line["source"]}
    for number, path in enumerate(path.resolve() for path in paths if path):
        name = f"source_{number}_{path.name}"
        shutil.copyfile(path, out / name)
        here = tree
        for part in path.parts[:-1]:
            here = here.setdefault(part, {})
        here[path.name] = name
    if tree:
        _dump(out / "snapshots.json", tree)


def _dump(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, separators=(",", ":")))

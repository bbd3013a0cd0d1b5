# SPDX-License-Identifier: MIT
"""The `ui_output_…` folder for rocprof-compute-viewer: files, keys, types, and that every reference leads somewhere."""

import json
import re
from pathlib import Path

import pytest

from aiter_like import cli
from aiter_like.sim.profiling import thread_trace

_ROWS = "bf16[64,1024]"
_CALL = ["rmsnorm2d_fwd_with_add", f"out={_ROWS}", f"input={_ROWS}", f"residual_in={_ROWS}", f"residual_out={_ROWS}",
         "weight=bf16[1024]", "epsilon=1e-6"]  # some of its arguments are not preloaded, and so it has an s_load
_STATES = {1, 2, 3, 4}  # idle, exec, wait, stall


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What the command writes, and beside it the profile."""
    out = tmp_path_factory.mktemp("trace")
    assert cli.main(["sim", "profile", "--thread-trace", str(out), "--json", str(out / "profile.json"), *_CALL]) == 0
    (found,) = [path for path in out.iterdir() if path.is_dir()]
    assert found.name == "ui_output_agent_0_dispatch_1"
    return found


def _read(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text())


def _waves(folder: Path) -> dict[str, list]:
    """File → [engine, SIMD, slot, number, begin, end], as filenames.json says."""
    return {name: [*map(int, (engine, simd, slot, number)), begin, end]
            for engine, simds in _read(folder, "filenames.json")["wave_filenames"].items()
            for simd, slots in simds.items() for slot, waves in slots.items()
            for number, (name, begin, end) in waves.items()}


def test_every_file_is_named_and_every_name_is_a_file(folder):
    names = _read(folder, "filenames.json")
    assert {key: names[key] for key in ("version", "gfxv", "gfxip", "global_begin_time", "counter_names")} == {
        "version": "3.0.0", "gfxv": "vega", "gfxip": 9, "global_begin_time": 0, "counter_names": []}
    waves = _waves(folder)
    for name, (engine, simd, slot, number, *_) in waves.items():
        assert name == f"se{engine}_sm{simd}_sl{slot}_wv{number}.json"
    copies: list[str] = []

    def leaves(tree: dict, parts: tuple[str, ...]) -> None:
        for part, value in tree.items():
            if isinstance(value, dict):
                leaves(value, (*parts, part))
            else:
                assert (folder / value).read_bytes() == Path(*parts, part).read_bytes()  # the copy is that file's
                assert re.fullmatch(rf"source_\d+_{re.escape(part)}", value)
                copies.append(value)

    leaves(_read(folder, "snapshots.json"), ())
    expected = {"filenames.json", "code.json", "occupancy.json", "snapshots.json", *waves, *copies}
    assert {path.name for path in folder.iterdir()} == expected and copies and waves


def test_code(folder):
    code, (profile,) = _read(folder, "code.json"), json.loads((folder.parent / "profile.json").read_text())
    assert code["version"] == "3.0.0"
    columns = [name.strip() for name in code["header"].split(",")]
    assert columns == ["ISA", "_", "LineNumber", "Source", "Codeobj", "Vaddr", "Hit", "Latency", "Stall", "Idle",
                       "ServiceType", "Issued", "Stalled", "NotIssuedReasons"]
    kernel, *rows = code["code"]
    assert kernel[0] == f"; {profile['kernel']}" and kernel[6:10] == [0] * 4
    for number, row in enumerate(code["code"]):
        kinds = [type(value) for value in row]
        assert kinds == [str, int, int, str, *[int] * 9, list] and row[2] == number and len(row[13]) == 10
    assert [(row[0], row[5]) for row in rows] == [(one["text"], one["pc"]) for one in profile["instructions"]]
    places = {row[3].rpartition(":")[0] for row in rows if row[3]}
    assert places and all(Path(place).is_absolute() and Path(place).is_file() for place in places)
    assert sum(row[6] for row in rows) == len(profile["timeline"]["events"])


def test_waves(folder):
    code = _read(folder, "code.json")["code"]
    sums = [[0, 0, 0, 0] for _ in code]
    for name, (engine, simd, slot, number, begin, end) in _waves(folder).items():
        data = _read(folder, name)
        wave = data["wave"]
        assert data["name"] == f"SE{engine}" and data["duration"] == end - begin
        assert data["num_insts"] == data["num_stitched"] == len(wave["instructions"]) > 0
        assert [wave[key] for key in ("simd", "slot", "id", "begin", "end")] == [simd, slot, number, begin, end]
        assert 0 <= begin <= end and sum(duration for _, duration in wave["timeline"]) == end - begin
        assert {state for state, _ in wave["timeline"]} <= _STATES
        now = begin
        for time, category, stall, duration, line in wave["instructions"]:
            assert begin <= time and now <= time and 0 <= stall <= duration and 1 <= category <= 11
            assert 0 < line < len(code)
            for column, value in enumerate((1, duration, stall, time - now)):
                sums[line][column] += value
            now = time + duration
        assert now <= end
        for line, operations in wave["waitcnt"]:
            assert code[line][0].startswith("s_waitcnt") and operations
            for of, zero in operations:
                assert zero == 0 and re.match("global_|s_load|ds_|buffer_|flat_", code[of][0]), code[of]
    assert [row[6:10] for row in code] == sums


def test_categories(folder):
    """By the instruction's name, as rocprof-trace-decoder numbers them."""
    code, seen = _read(folder, "code.json")["code"], {}
    for name in _waves(folder):
        for _, category, *_, line in _read(folder, name)["wave"]["instructions"]:
            seen.setdefault(code[line][0].split(" ")[0], set()).add(category)
    for prefix, category in (("s_load", {1}), ("s_mov", {2}), ("s_add", {2}), ("global_load", {3}), ("ds_", {5}),
                             ("v_", {6}), ("s_waitcnt", {9}), ("s_barrier", {9})):
        found = [seen[name] for name in seen if name.startswith(prefix)]
        assert found and all(one == category for one in found), prefix
    assert all(categories <= {7, 8} for name, categories in seen.items() if "branch" in name)


def test_occupancy(folder):
    data, waves = _read(folder, "occupancy.json"), _waves(folder)
    assert data["version"] == "3.0.0" and data["dispatches"].keys() == {"0", "1"}
    assert "rms_norm_kernel" in data["dispatches"]["1"]
    events, resident = data["0"], set()
    assert len(events) == 2 * len(waves) and [event[0] for event in events] == sorted(event[0] for event in events)
    for time, cu, simd, slot, start, kernel in events:
        assert cu == 0 and str(kernel) in data["dispatches"] and time >= 0
        assert ((simd, slot) in resident) != bool(start)
        (resident.add if start else resident.remove)((simd, slot))
    assert not resident
    assert sorted((event[0], *event[2:4]) for event in events if event[4]) == sorted(
        (begin, simd, slot) for _, simd, slot, _, begin, _ in waves.values())


def test_an_earlier_runs_files_go(folder, tmp_path):
    (profile,) = json.loads((folder.parent / "profile.json").read_text())
    out = thread_trace.write(profile, tmp_path, 7)
    (out / "se0_sm9_sl9_wv9.json").write_text("{}")
    assert thread_trace.write(profile, tmp_path, 7) == out == tmp_path / "ui_output_agent_0_dispatch_7"
    assert {path.name for path in out.iterdir()} == {path.name for path in folder.iterdir()}

# SPDX-License-Identifier: MIT
"""The order of csrc/gemm/gemm_scaled_pipeline.h, place by place, as its builds have it (csrc/gemm/scaled_schedule.h):
what is multiplied, scaled or stored is there, and what is overwritten has been used, in every wave.

    python tests/ops/test_scaled_schedule.py

prints the table of each tile.
"""

import functools
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from aiter_like import paths
from aiter_like.modules import toolchain
from aiter_like.ops.gemm import tiles

PIPELINED = tuple((tile, is_shuffled) for is_shuffled, names in enumerate((tiles.SCALED, tiles.SCALED_SHUFFLED))
                  for tile in names if tiles.is_pipelined(tiles.parse(tile, names)))
STEPS = 3  # The first one has what the start of the loop leaves.
FIRST_SCALED = 2  # places from a strip's last product to the first use of its sums


class Place(NamedTuple):
    """The members of a ScaledPlace; -1 means nothing of that kind."""

    is_behind_barrier: int
    strip: int
    run: int
    product: int
    row: int
    scaled_strip: int
    first_scaled: int
    end_scaled: int
    read_row: int
    read_phase: int
    read_piece: int
    ends_strip: int
    ends_block: int
    loads_column_scales: int
    left_store: int
    left_load: int
    prefetch: int
    right_store: int
    right_load: int
    first_taken: int
    taken: int


class Sizes(NamedTuple):
    """The members of a ScaledSchedule."""

    strips: int
    right_strips: int
    runs: int
    left_share: int
    right_share: int
    elements: int
    is_right_in_lds: int


class Schedule(NamedTuple):
    """A build's order: its places by phase."""

    sizes: Sizes
    ahead: int
    phases: tuple[tuple[Place, ...], ...]


def printing(of: str, kind: type, more: str = "") -> str:
    """A statement that prints the members of a struct, and one more number."""
    members = [f"{of}.{name}" for name in kind._fields] + [more] * bool(more)
    return f"std::printf(\"{' '.join(['%d'] * len(members))}\\n\", {', '.join(members)});"


PROGRAM = """
#include <cstdio>
#include "gemm_a8w8_blockscale_body.h"
using namespace aiter_like;
template <int M, int N, int WAVES_M, int WAVES_N, int WAVES_K, bool IS_SHUFFLED>
struct Config {
  using Element = fp8;
  using Sum = float;
  using OutElement = bf16;
  static constexpr int kBlockM = M, kBlockN = N, kWavesM = WAVES_M, kWavesN = WAVES_N, kWavesK = WAVES_K, kSplits = 1;
  static constexpr bool kIsPreshuffled = IS_SHUFFLED;
};
template <class Config>
void show() {
  constexpr gemm::ScaledSchedule order = gemm_a8w8_blockscale::Body<Config>::Loop::Loop::kSchedule;
  %s
  for (int phase = 0; phase < order.kPhases; ++phase) {
    for (int place = 0; place < order.places(); ++place) {
      const gemm::ScaledPlace now = order.at(phase, place);
      %s
    }
  }
}
int main() {
  %s
}
"""


@functools.cache
def schedules() -> dict[tuple[str, int], Schedule]:
    """What a program of the host reads from the kernel's types."""
    calls = (f"show<Config<{', '.join(map(str, tiles.parse(tile, (tile,))))}, {is_shuffled}>>();"
             for tile, is_shuffled in PIPELINED)
    text = PROGRAM % (printing("order", Sizes, "order.ahead()"), printing("now", Place), "\n  ".join(calls))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "show.hip").write_text(text)
        subprocess.run([toolchain.find("hip").host_compiler, "-x", "hip", "-std=c++17", "-nogpuinc", "-nogpulib",
                        "--offload-host-only", "-no-hip-rt", f"-I{paths.csrc() / 'include'}",
                        f"-I{paths.csrc() / 'gemm'}", "show.hip", "-o", "show"], cwd=folder, check=True)
        lines = subprocess.run(["./show"], cwd=folder, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = iter([[*map(int, line.split())] for line in lines])
    found = {}
    for build in PIPELINED:
        *sizes, ahead = next(rows)
        one = Sizes(*sizes)
        places = one.strips * one.runs * 2 * one.right_strips
        found[build] = Schedule(one, ahead, tuple(tuple(Place(*next(rows)) for _ in range(places)) for _ in range(2)))
    assert next(rows, None) is None
    return found


def table(schedule: Schedule) -> str:
    """A line for each place, with what is issued there."""
    lines = []
    for phase, places in enumerate(schedule.phases):
        for number, now in enumerate(places):
            said = [f"{phase}.{number:<3}", "barrier" if now.is_behind_barrier else " " * 7,
                    f"multiply strip {now.strip} run {now.run} product {now.product} by row {now.row}"]
            if now.end_scaled > now.first_scaled:
                said.append(f"scale strip {now.scaled_strip} [{now.first_scaled}, {now.end_scaled})")
            if now.read_row >= 0:
                said.append(f"read row {now.read_row} = piece {now.read_phase}.{now.read_piece}")
            said += [text for text, is_so in (("next factors", now.ends_strip), ("next column scales", now.ends_block),
                                              ("load column scales", now.loads_column_scales)) if is_so]
            said += [f"{text} {chunk}" for text, chunk in (
                ("store left", now.left_store), ("load left", now.left_load), ("prefetch column", now.prefetch),
                ("store right", now.right_store), ("load right", now.right_load)) if chunk >= 0]
            if now.taken:
                said.append(f"take columns [{now.first_taken}, {now.first_taken + now.taken})")
            lines.append("  ".join(said))
    return "\n".join(lines)


class Replay:
    """A wave's steps, one place after the other. Contents are known by the step that they are of."""

    def __init__(self, schedule: Schedule):
        self.sizes, self.phases = schedule.sizes, schedule.phases
        sizes, columns = self.sizes, range(self.sizes.runs * self.sizes.right_strips)
        self.now = self.barriers = 0  # places and barriers so far
        self.slots = {"left 0": (0, -1), "left 1": (-1, -1), "right": (0, -1)}  # and the barriers when it was stored
        self.read_at = dict.fromkeys(self.slots, -1)  # the barriers when it was read
        start = -len(self.phases[0])  # Nothing hides the first loads.
        shares = (("left 0", 1, sizes.left_share), ("left 1", 0, sizes.left_share), ("right", 1, sizes.right_share))
        self.staged = {(slot, chunk): (step, start) for slot, step, share in shares for chunk in range(share)}
        self.rows = {row: (0, 0, row) for row in range(schedule.ahead)}
        self.columns, self.prefetched = dict.fromkeys(columns, 0), dict.fromkeys(columns, 0)
        self.products: dict[int, Counter] = {0: Counter(), 1: Counter()}  # of the strip that is multiplied, and scaled
        self.last_product, self.scaled = {0: -9, 1: -9}, {0: sizes.elements, 1: sizes.elements}

    def run(self) -> None:
        for step in range(STEPS):
            for phase, places in enumerate(self.phases):
                for place in places:
                    self.place(step, phase, place)
                    self.now += 1

    def place(self, step: int, phase: int, place: Place) -> None:
        self.barriers += place.is_behind_barrier
        self.multiply(step, phase, place)
        self.scale(step, place)
        if place.read_row >= 0:
            of = step + (place.read_phase < phase)
            self.read(f"left {place.read_phase}", of)
            self.rows[place.read_row] = (of, place.read_phase, place.read_piece)
        left, of = f"left {1 - phase}", step + phase
        self.move(left, place.left_store, place.left_load, of)
        self.move("right", place.right_store, place.right_load, step + 1)
        if place.prefetch >= 0:
            assert self.prefetched[place.prefetch] == step, "a column has been taken before the next one is loaded"
            self.prefetched[place.prefetch] = step + 1
        for column in range(place.first_taken, place.first_taken + place.taken):
            if self.sizes.is_right_in_lds:
                self.read("right", step + 1)
            else:
                assert self.prefetched[column] == step + 1, "a column that is taken has been loaded"
            self.columns[column] = step + 1

    def multiply(self, step: int, phase: int, place: Place) -> None:
        strip, column = place.strip - phase * self.sizes.strips, place.product % self.sizes.right_strips
        assert self.rows.get(place.row) == (step, phase, strip * self.sizes.runs + place.run), "rows are read before"
        assert self.columns[place.run * self.sizes.right_strips + column] == step, "columns are taken before"
        sums = place.strip % 2
        if (place.run, place.product) == (0, 0):
            assert self.scaled[sums] == self.sizes.elements, "sums are scaled before they are overwritten"
            self.products[sums], self.scaled[sums] = Counter(), 0
        self.products[sums][place.run, place.product] += 1
        self.last_product[sums] = self.now

    def scale(self, step: int, place: Place) -> None:
        if place.end_scaled > place.first_scaled and (step, place.strip) != (0, 0):
            sums = place.scaled_strip % 2
            count = 2 * self.sizes.runs * self.sizes.right_strips
            assert len(self.products[sums]) == self.products[sums].total() == count, "each product is there, once"
            assert self.now > self.last_product[sums] + FIRST_SCALED, "matrix instructions are done"
            assert self.scaled[sums] == place.first_scaled, "each element is scaled once"
            self.scaled[sums] = place.end_scaled
            assert place.scaled_strip == (place.strip - 1) % (2 * self.sizes.strips)
        if place.ends_strip:
            assert self.scaled[1 - place.strip % 2] == self.sizes.elements, "factors stay while they are used"

    def move(self, slot: str, store: int, load: int, of: int) -> None:
        if store >= 0:
            content, loaded = self.staged[slot, store]
            assert content == of, "what is stored has been loaded"
            assert self.now - loaded >= len(self.phases[0]), "a phase hides a load"
            assert self.barriers > self.read_at[slot], "no wave reads a slot that is stored to"
            self.slots[slot] = (of, self.barriers)
        if load >= 0:
            assert self.slots[slot][0] == of, "registers are stored before they are loaded"
            self.staged[slot, load] = (of + 1, self.now)

    def read(self, slot: str, of: int) -> None:
        content, stored = self.slots[slot]
        assert content == of and self.barriers > stored, "all waves have stored what is read"
        self.read_at[slot] = self.barriers


@pytest.mark.parametrize("build", PIPELINED, ids=str)
def test_everything_is_there_before_it_is_used(build):
    Replay(schedules()[build]).run()


@pytest.mark.parametrize("build", PIPELINED, ids=str)
def test_each_access_has_one_place(build):
    sizes, _, phases = schedules()[build]
    columns = [*range(sizes.runs * sizes.right_strips)]
    for phase, places in enumerate(phases):
        assert sum(place.is_behind_barrier for place in places) == 1
        assert [(place.strip, place.run, place.product) for place in places] == [
            (phase * sizes.strips + strip, run, product) for strip in range(sizes.strips) for run in range(sizes.runs)
            for product in range(2 * sizes.right_strips)]
        for name, count in (("left_store", sizes.left_share), ("left_load", sizes.left_share),
                            ("right_store", phase * sizes.right_share), ("right_load", phase * sizes.right_share)):
            assert [one for place in places if (one := getattr(place, name)) >= 0] == [*range(count)], name
        assert [place.prefetch for place in places if place.prefetch >= 0] == (
            [] if phase or sizes.is_right_in_lds else columns)
        assert [column for place in places for column in range(place.first_taken, place.first_taken + place.taken)] == (
            columns if phase else [])
        assert sum(place.ends_strip for place in places) == sizes.strips
        assert sum(place.ends_block for place in places) == phase == 1 - sum(
            place.loads_column_scales for place in places)


@pytest.mark.parametrize("field, value, message", [
    ("is_behind_barrier", 0, "all waves have stored"), ("left_store", -1, "stored before they are loaded"),
    ("read_row", -1, "rows are read before"), ("taken", 0, "columns are taken before"),
    ("end_scaled", 0, "scaled")])
def test_a_place_that_misses_something_is_found(field, value, message):
    schedule = schedules()[PIPELINED[0]]
    phases = tuple(tuple(place._replace(**{field: value}) for place in places) for places in schedule.phases)
    with pytest.raises(AssertionError, match=message):
        Replay(schedule._replace(phases=phases)).run()


if __name__ == "__main__":
    for build, schedule in schedules().items():
        print(*build, schedule.sizes, table(schedule), sep="\n")

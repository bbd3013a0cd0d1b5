# SPDX-License-Identifier: MIT
"""A profile as one screen of text."""

import textwrap
from collections import Counter
from collections.abc import Sequence

from aiter_like.sim import modelling, names
from aiter_like.sim.profiling import sources

_WIDTH, _COLUMNS = 11, 120
_PREFIXES = ("", "k", "M", "G", "T", "P")


def text(profile: dict, lines: int = 6) -> list[str]:
    """A profile as text: its bound, how busy the units are, what waves wait for, memory, and the lines that cost
    most."""
    occupancy, registers = profile["occupancy"], profile["registers"]
    spills = registers["vgpr_spills"] + registers["sgpr_spills"]
    facts = {
        "bound": " ".join([f"{profile['bound']}.", *profile.get("advice", {}).values()]),
        "units busy": _shares(profile["busy"], 1) or "none to speak of",
        "matrix": _matrix(profile),
        "waves wait": _waits(profile),
        "occupancy": f"{occupancy['waves_per_simd']} of 8 waves per SIMD, {_limits(occupancy)}; "
                     f"{registers['vgprs']} v + {registers['agprs']} a registers"
                     + (f", SPILLED: {spills}" if spills else ""),
        "LDS": _lds(profile),
        "coalescing": _coalescing(profile),
        "memory": _memory(profile)}
    return [f"{short_name(profile)}, grid {_sizes(profile['grid'])}, block {_sizes(profile['block'])}",
            f"  modelled, not measured (version {profile['model']}): {profile['modelled_clk']:.0f} clk, "
            f"{profile['modelled_us']:.1f} us at {profile['clock_mhz']:.0f} MHz; {profile['recorded']} of an XCD's "
            f"{profile['workgroups_of_xcd']} workgroups on {profile['cus_of_xcd']} CUs",
            *(row for name, fact in facts.items() if fact for row in _wrapped(name, fact)),
            *_top(profile, lines)]


def _limits(occupancy: dict) -> str:
    """Tells the limits that the kernel sets apart from those of any CU: only the former can be changed."""
    limits, unlimited = occupancy["limits"], 2**32 - 1
    own = ", ".join(f"{name} for {limits[name]}" for name in ("vector registers", "scalar registers", "LDS")
                    if limits[name] < unlimited)
    by = {"waves": "the CU's wave slots", "workgroups": "the CU's workgroup slots"}
    return (f"limited by {by.get(occupancy['limiter'], occupancy['limiter'])} (workgroups that fit a CU: {own}; "
            f"slots that any CU has: {limits['waves']} by waves, {limits['workgroups']} by workgroups)")


def _wrapped(name: str, fact: str) -> list[str]:
    return textwrap.wrap(fact, _COLUMNS, initial_indent=f"  {name:{_WIDTH}} ", subsequent_indent=" " * (_WIDTH + 3),
                         break_long_words=False, break_on_hyphens=False)


def texts(found: Sequence[dict], whole: int = 4) -> list[str]:
    """Several profiles, the longest first: each of the first ones, then a line for each kernel of the others."""
    rows = [row for one in found[:whole] for row in text(one)]
    kernels: dict[str, list[float]] = {}
    for one in found[whole:]:
        kernels.setdefault(short_name(one), []).append(one["modelled_clk"])
    if kernels:
        rows.append(f"{len(found) - whole} shorter launches, modelled:")
    for name, clk in sorted(kernels.items(), key=lambda item: -sum(item[1])):
        rows.append(f"  {sum(clk):12.0f} clk in {len(clk)}  {name}"[:_COLUMNS])
    return rows


def short_name(profile: dict) -> str:
    """The kernel's name without the types of its arguments and of its result."""
    return names.short(profile["kernel"])


def by_place(profile: dict) -> list[tuple[dict, float]]:
    """An instruction of each place, its own line with the call that it was inlined for, and the modelled cycles that
    waves spent in the place, issuing and waiting; the costliest first."""
    sums: dict[tuple[str, str], float] = {}
    first: dict[tuple[str, str], dict] = {}
    for one in profile["instructions"]:
        key = (one["source"], sources.author(one))
        sums[key] = sums.get(key, 0) + spent(one)
        first.setdefault(key, one)
    return sorted(((first[key], clk) for key, clk in sums.items() if clk), key=lambda item: -item[1])


def spent(instruction: dict) -> float:
    """Modelled cycles of waves, issuing an instruction and waiting to."""
    return instruction["busy_clk"] + sum(instruction["stall_clk"].values())


def amount(value: float, unit: str) -> str:
    """`12.5 MB`, `1.31 PFLOP/s`: three digits and a decimal prefix."""
    step = 0
    while abs(value) >= 999.5 and step < len(_PREFIXES) - 1:
        value, step = value / 1000, step + 1
    return f"{value:.3g} {_PREFIXES[step]}{unit}"


def _sizes(sizes: list[int]) -> str:
    return " x ".join(map(str, sizes[:max((index for index, size in enumerate(sizes) if size > 1), default=0) + 1]))


def _shares(shares: dict[str, float], least_percent: float) -> str:
    kept = sorted(((name, share) for name, share in shares.items() if 100 * share >= least_percent),
                  key=lambda item: -item[1])
    return ", ".join(f"{name} {share:.0%}" for name, share in kept)


def _matrix(profile: dict) -> str:
    kinds = [one for one in profile["figures"]["compute"] if one["name"] != "vector"]
    rates = ", ".join(f"{one['name']} {amount(one['flop_per_s'], 'FLOP/s')} ({one['share']:.0%} of what the chip can)"
                      for one in kinds)
    return rates and f"{profile['busy']['matrix']:.0%} of the matrix pipes' time; {rates}"


def _waits(profile: dict) -> str:
    instructions = profile["instructions"]
    total = sum(map(spent, instructions)) or 1
    waits = modelling.stalls(instructions)
    covered = sum(one["covered_clk"] for one in instructions)
    shares = _shares({reason: clk / total for reason, clk in waits.items()}, 1)
    return shares and f"{shares} of their time; {covered / sum(waits.values()):.0%} of the waiting while the SIMD's " \
                      "vector or matrix unit works"


def _lds(profile: dict) -> str:
    counts = profile["counts"]
    if not counts["lds_clk"]:
        return ""
    worst = max(profile["instructions"], key=lambda one: one.get("lds_conflict_clk", 0))
    at = f", most of them at {_place(worst)}" if counts["lds_conflict_clk"] else ""
    return f"{counts['lds_conflict_clk'] / counts['lds_clk']:.0%} of the banks' cycles lost in conflicts{at}"


def _place(instruction: dict) -> str:
    return f"{sources.where(instruction)}, pc {instruction['pc']:x}"


def _coalescing(profile: dict) -> str:
    figures, traffic = profile["figures"], profile["traffic"]
    if not figures["asked_bytes"]:
        return ""
    hits = [f"{name} hits {traffic[f'{key}_hits'] / traffic[f'{key}_lines']:.0%}"
            for name, key in (("L1", "l1"), ("L2", "l2")) if traffic[f"{key}_lines"]]
    return f"{figures['segment_bytes'] / figures['asked_bytes']:.2f} bytes of 64 B segments per byte asked for; " \
           f"modelled {', '.join(hits)}"


def _memory(profile: dict) -> str:
    moved, call = profile["figures"]["moved_bytes"], profile.get("call")
    text = f"{amount(moved, 'B')} modelled between L2 and memory"
    if not call or not call["bytes"]:
        return text
    if call["launches"] > 1:
        return f"{text}; {call['operator']} needs at least {amount(call['bytes'], 'B')}, in {call['launches']} launches"
    return f"{text}, {moved / call['bytes']:.2f} times the {amount(call['bytes'], 'B')} that {call['operator']} needs"


def _top(profile: dict, lines: int) -> list[str]:
    costs = by_place(profile)
    total = sum(clk for _, clk in costs) or 1
    rows = ["  share of the waves' time, modelled, by line:"]
    calls = Counter(sources.author(one) for one, _ in costs[:lines])
    for one, clk in costs[:lines]:
        told = sources.author(one) if calls[sources.author(one)] == 1 else one["source"]  # the text tells them apart
        text = profile["lines"].get(told, "").strip()
        row = f"  {clk / total:6.1%}  {_line(one):44} {text}".rstrip()
        rows += [row] if len(row) <= _COLUMNS else [f"  {clk / total:6.1%}  {_line(one)}", f"{'':10}{text}"]
    return rows


def _line(one: dict) -> str:
    """A place, with the folders of the kernel's own file."""
    own = sources.shown(sources.author(one))
    return f"{sources.tail(one['source'])} in {own}" if one.get("caller") else own

# SPDX-License-Identifier: MIT
"""MEASURED.md, the plot (measured.svg) and the README's table, of measured.json and modelled.json beside this file.

`python op_tests/bench/measured_page.py [--json FILE] [--modelled FILE]`: FILE is what `bench_all.py --held-out SEED`
and `bench_modelled.py --json FILE` wrote; it is kept beside the page. Nothing in it or in the plot is typed by hand.
"""

import argparse
import collections
import json
import re
import shutil
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measured_plot

FOLDER = Path(__file__).parent
MEASURED, MODELLED, PUBLISHED = (FOLDER / f"{name}.json" for name in ("measured", "modelled", "published"))
KERNELS, VALIDATION = (FOLDER.parents[1] / f"csrc/sim/timing/{name}.md" for name in ("KERNELS", "VALIDATION"))
PAGE, README = FOLDER / "MEASURED.md", FOLDER.parents[1] / "README.md"
PLOT, NARROW_PLOT = FOLDER / "measured.svg", FOLDER / "measured_phone.svg"
_MODES = ("graph", "eager")
_INTRODUCTION = """Figures are the best peer's time over ours: above 1 ours is faster. Ours is the public function
without `backend=`, checked against float64 before it is timed. "Graph": captured, cold caches, the device's time alone.
"Eager": call after call over several sets of tensors, the host's time with it. None of it says anything of an MI300X:
see [MODELLED.md](MODELLED.md). Written by `measured_page.py` from [measured.json](measured.json), which is what this
command wrote on the GPU:
"""


@dataclass(frozen=True)
class Family:
    """What a family's shapes say together: peer's best time / ours, above 1 where ours is faster."""

    title: str
    rows: Sequence[Mapping[str, Any]]

    def ratios(self, mode: str) -> list[float]:
        return [ratio(row, mode) for row in self.rows if ratio(row, mode)]

    @property
    def plotted(self) -> list[float]:
        """As graphs, where any of the peers can be one."""
        return self.ratios("graph") or self.ratios("eager")


def ratio(row: Mapping[str, Any], mode: str) -> float:
    """Time of the best peer over ours; 0 where the shape has no such figure."""
    times = row.get(mode, {})
    others = [us for name, us in times.items() if name != "ours"]
    return min(others) / times["ours"] if others else 0.0


def best(row: Mapping[str, Any], mode: str) -> str:
    others = {name: us for name, us in row.get(mode, {}).items() if name != "ours"}
    return min(others, key=others.get) if others else ""


def families(found: Mapping[str, Any]) -> list[Family]:
    """Those with rows, the ones that do best first."""
    all_of_them = [Family(one["rows"][0]["family"], one["rows"]) for one in found["families"].values() if one["rows"]]
    return sorted(all_of_them, key=lambda one: -statistics.geometric_mean(one.plotted or [0.01]))


def _mean_and_worst(ratios: Sequence[float]) -> str:
    return f"{statistics.geometric_mean(ratios):.2f} | {min(ratios):.2f}" if ratios else "– | –"


def _served(rows: Sequence[Mapping[str, Any]]) -> str:
    count = collections.Counter(row["served"].partition(" ")[0] for row in rows if "served" in row)
    return ", ".join(f"{name} {number}" for name, number in count.most_common())


def _shape(row: Mapping[str, Any]) -> str:
    """The fields of a key in which a family's shapes differ most, short."""
    key = {name: value for name, value in row["key"].items() if name not in (
        "dtype", "out_dtype", "table_dtype", "kv_dtype", "packing", "features", "head_dim_v", "scale_layout", "layout",
        "is_shuffled", "is_gated", "bpreshuffle", "band", "rotary_dim", "rotate_style", "weight_dtype", "width",
        "sequences", "is_channel_last", "seqlen_q" if row["key"].get("seqlen_q") == 1 else "seqlen_k")}
    return f"{row['op']} " + ", ".join(f"{name} {value}" for name, value in key.items())


def _about(found: Mapping[str, Any]) -> str:
    return (f"{found['device']}, {found['date']}, commit {found['commit']}, torch {found['torch']}, "
            f"triton {found['triton']}")


def libraries(found: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """(those that were timed, with versions; those that did not import)."""
    told = [line.partition(" ")[::2] for line in found["peers"]]
    return ([rest for word, rest in told if word == "beside"],
            [rest.partition(":")[0] for word, rest in told if word == "without"])


def page(found: Mapping[str, Any]) -> Iterator[str]:
    """MEASURED.md's lines."""
    yield "# Measured: shapes that nobody tuned for"
    yield ""
    yield f"{_about(found)}; seed {found['seed']}, {found['count']} shapes of each operator, none with a tuned row."
    beside, missing = libraries(found)
    yield f"Peers: torch's kernels, torch.compile (max-autotune, fixed shapes), {', '.join(beside) or 'no others'};"
    yield f"not there: {', '.join(missing) or 'none'}."
    yield ""
    yield _INTRODUCTION
    yield "```sh"
    yield (f"python op_tests/bench/bench_all.py --peers --held-out {found['seed']} --shapes {found['count']} "
           "--json measured.json")
    yield "```"
    yield ""
    yield from picture("the same as a plot", "")
    yield ""
    yield "| family | shapes | graph: geomean | worst | eager: geomean | worst | served by |"
    yield "|---|---|---|---|---|---|---|"
    for one in families(found):
        yield (f"| {one.title} | {len(one.rows)} | {_mean_and_worst(one.ratios('graph'))} | "
               f"{_mean_and_worst(one.ratios('eager'))} | {_served(one.rows)} |")
    yield ""
    yield "## Every shape"
    yield ""
    yield "| shape | served by | µs | best peer | its µs | graph | eager |"
    yield "|---|---|---|---|---|---|---|"
    for one in families(found):
        for row in one.rows:
            yield _line(row)


def picture(text: str, folder: str) -> Iterator[str]:
    """The plot within a page."""
    yield f'<picture><source media="(max-width: 600px)" srcset="{folder}{NARROW_PLOT.name}">'
    yield f'<img alt="{text}"'
    yield f'src="{folder}{PLOT.name}"></picture>'


def _line(row: Mapping[str, Any]) -> str:
    if "failed" in row:
        return f"| {_shape(row)} | failed: {row['failed'].replace('|', '/')} | | | | | |"
    mode = "graph" if "graph" in row else "eager"
    name = best(row, mode)
    ratios = " | ".join(f"{ratio(row, each):.2f}" if ratio(row, each) else "" for each in _MODES)
    theirs = f"{row[mode][name]:.1f}" if name else ""
    reasons = "; ".join(f"{peer}: {why}" for peer, why in row["left_out"].items()).replace("|", "/")
    served = row["served"].partition("[")[0]
    return f"| {_shape(row)} | {served} | {row[mode]['ours']:.1f} | {name or reasons[:120]} | {theirs} | {ratios} |"


def plots(found: Mapping[str, Any], modelled: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """The plot as files: for pages, and narrow for phones."""
    about = f"Speed beside peers, {_about(found)}; share of the bound on a modelled MI300X"
    rows = [measured_plot.Row(one.title, one.ratios("graph"), one.ratios("eager")) for one in families(found)
            if one.plotted]
    shares = {name: share_of_bound(one)[0] for name, one in modelled.items()}
    heads = f"Measured: {found['device']}, {found['date']}", "Modelled, not measured: MI300X, simulated"
    for path, is_narrow in ((PLOT, False), (NARROW_PLOT, True)):
        yield path, measured_plot.plot(about, heads, rows, shares, is_narrow) + "\n"


def share_of_bound(one: Mapping[str, Any]) -> tuple[float, str]:
    """The larger of the shares of memory's rate and of the matrix units' peak."""
    return max((one["rate"], "of gpu-stream's rate"), (one["matrix"], "of matrix peak"))


_SHOWN = {  # family → the case of modelled.json that stands beside it in the README
    "norms": "rms_norm add 4096 × 8192", "gated activations": "silu_and_mul × 8192",
    "quantisers": "per_token_quant fp8 × 8192", "bf16 products": "gemm_a16w16 4096x4096x4096",
    "fp8 products, scales by rows": "gemm_a8w8 4096x4096x4096",
    "fp8 products, scales by blocks": "gemm_a8w8_blockscale 4096x4608x7168",
    "attention forward": "flash_attn_fwd 2x24x16384x128", "paged decode": "paged_attention 64x4096",
    "MLA decode": "mla_decode 64x4096x16", "fused MoE": "moe_gemm gates × 4096"}


def silicon(names: Mapping[str, str]) -> str:
    """Of rows of KERNELS.md → who: what is published, and what the same model says of that kernel where it ran."""
    lines = [line for line in KERNELS.read_text(encoding="utf-8").splitlines() if line.startswith("| F")]
    rows = {cells[0]: cells for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)}
    found = []
    for name, who in names.items():
        published, modelled = rows[name][2:4]
        own = "" if modelled.startswith("not run") else f", modelled {float(modelled):,.0f}"
        found.append(f"{who} {float(published):,.0f} µs{own}")
    return "; ".join(found)


def readme_rows(found: Mapping[str, Any], modelled: Mapping[str, Any], published: Mapping[str, Any]) -> Iterator[str]:
    """The README's table, and what it is worth."""
    yield (f"| family | {found['device']}, CUDA graphs | eager, with the host's time | MI300X, modelled | "
           "others, same shape, on silicon |")
    yield "|---|---|---|---|---|"
    for one in families(found):
        cells = [f"{statistics.geometric_mean(ratios):.2f} ({min(ratios):.2f})" if ratios else "–"
                 for ratios in map(one.ratios, _MODES)]
        name = _SHOWN.get(one.title)
        model = ""
        if name is not None:
            share, of_what = share_of_bound(modelled[name])
            model = (f"{name}: {modelled[name]['us']:,.0f} µs at {modelled[name]['clock_mhz']:,.0f} MHz, {share:.0%} "
                     f"{of_what}")
        yield f"| {one.title} | {' | '.join(cells)} | {model} | {silicon(published.get(name, {}))} |"
    yield ""
    beside, missing = libraries(found)
    yield from textwrap.wrap(
        f"**Measured** {found['date']}: the time of the best peer (torch, torch.compile, {', '.join(beside)}) divided "
        f"by ours, so that above 1 ours is faster: geometric mean and (worst) of {found['count']} shapes per operator, "
        f"which a seed drew and nobody tuned; –: not timed. Not installed there: {', '.join(missing)}.", 118,
        break_on_hyphens=False)
    yield ""
    yield from textwrap.wrap(
        "**Modelled**, never measured: on the simulated MI300X, at the clock that such kernels sustain. gpu-stream is "
        "what others measured of an MI300X's memory, 3.9 to 4.6 TB/s by the mix of reads and writes; the model's is "
        f"up to a tenth faster. Modelled times of others' whole kernels were off by {_off_by()}: "
        "[what the model is worth](csrc/sim/timing/VALIDATION.md). Empty: no such case.", 118, break_on_hyphens=False)


def _off_by() -> str:
    """What VALIDATION.md says of modelled times and ratios of whole kernels."""
    text = VALIDATION.read_text(encoding="utf-8")
    times, ratios = re.search(r"over 5 groups: ([\d.]+)% at the clocks.*?without a clock ([\d.]+)%", text).groups()
    return f"{float(times):.0f} % in the mean, ratios of like ones by {float(ratios):.0f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="new figures of a GPU, kept as measured.json")
    parser.add_argument("--modelled", type=Path, help="new figures of the model, kept as modelled.json")
    args = parser.parse_args()
    for given, kept in ((args.json, MEASURED), (args.modelled, MODELLED)):
        if given is not None and given.resolve() != kept:
            shutil.copyfile(given, kept)
    found, modelled = (json.loads(path.read_text(encoding="utf-8")) for path in (MEASURED, MODELLED))
    PAGE.write_text("\n".join(page(found)) + "\n", encoding="utf-8")
    for path, text in plots(found, modelled):
        path.write_text(text, encoding="utf-8")
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    before, begin, rest = README.read_text(encoding="utf-8").partition("<!-- figures: ")
    mark, _, after = rest.partition(" -->\n")
    _, end, after = after.partition("<!-- end of figures -->")
    rows = readme_rows(found, modelled, published)
    README.write_text("\n".join([f"{before}{begin}{mark} -->", *rows, f"{end}{after}"]), encoding="utf-8")


if __name__ == "__main__":
    main()

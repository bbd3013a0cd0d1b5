# SPDX-License-Identifier: MIT
"""MODELLED_CASES.md: figures of bench_modelled.py, those from before the model was used beside them, and what
holds a kernel back that misses the aims. Written with --page.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

PAGES = {mark: Path(__file__).with_name(name)
         for mark, name in (("figures", "MODELLED_CASES.md"), ("hot list", "HOT_LIST.md"))}
LEAST_RATE, LEAST_MATRIX, MOST_VECTOR = 0.85, 0.8, 0.7

# The beginning of a case's name → why it misses an aim; the longest one holds.
REASONS = {
    "rms_norm_quant fp8 5120 × 8192": "640 vectors on 512 lanes of two each: lanes of a row are a power of two",
    "rms_norm 4100 × 8192": "1,025 accesses of four elements on 1,024 lanes of two each",
    "reshape_and_cache shuffled fp8 +3 × 8192": "first and last tokens that fill no pack are stored byte by byte",
    "reshape_and_cache shuffled bf16 +3 × 8192": "as fp8; channels turn between reads and writes",
    "gemm_a16w16 16x": "start and end of a launch of 34 us, in which memory is busy for 85 %",
    "gemm_a16w16 64x": "448 workgroups for 304 units",
    "gemm_a8w8 1": "start and end of a launch of 17 us: arguments, scales, first tiles",
    "gemm_a8w8_blockscale": "start and end of a launch of 11 us: arguments, scales, first tiles",
    "gemm_weight_only": "start and end of a launch of 11 us; weights are widened beside the products",
    "gemm_a16w16 1024x": "256 tiles, the depth in two parts, whose sums are a launch of 12 us",
    "gemm_a8w8 1024x": "1,024 tiles, of which the L2 is 82 % busy",
    "gemm_a8w8 4096x": "304 tiles, one for each unit: start and end of each are exposed",
    "gemm_a8w8_blockscale 1024x": "288 tiles, of which the L2 is 82 % busy",
    "gemm_a8w8_blockscale scales by rows 1024x": "288 tiles, of which the L2 is 78 % busy",
    "gemm_weight_only int4 1024x": "256 tiles, the depth in two parts, whose sums are a launch of 12 us",
    "paged_attention 1x": "the sum of parts is 3.6 us; the read has 82 % of what memory gives",
    "mla_decode 64x": "plan and sum of parts are 12 us; the read has 91 % of what memory gives",
    "mla_decode 16x": "plan and sum of parts are 20 us; the read of 75 MB waits for products with 128 heads",
    "unified_attention prefill": "query blocks do not fill the last round",
    "unified_attention extend": "keys shared by workgroups: each part begins and ends, and a launch merges them",
    "mqa_logits": "sums over heads by vector instructions, fp32 results for each key",
    "softmax × 64": "slices of rows in two launches, of which the second reads them again",
    "softmax × 512": "a row of 513 KB is read twice",
    "sample": "a number and a logarithm for each of the vocabulary",
    "topk": "rows in slices, each of which sorts for itself, then a launch that merges",
    "sampling_from_probs": "five launches search the cut, each with the rows or a histogram of them",
    "sampling_from_probs none × 64": "rows in slices, then a launch that draws",
    "renorm_probs": "five launches search the cut, each with the rows or a histogram of them",
    "topk_gating × 4096": "rounds of choosing, 8 for each token: 466 vector instructions a wave for 1 MB",
    "moe_sorting × 4096": "counts are a launch of their own; words are scattered",
    "moe_permute × 4096": "sorting is 12 us; the copy has 94 % of what memory gives",
    "moe_gemm gates × 1": "start and end of a launch of 13 us",
    "moe_gemm down × 1": "start and end of a launch of 8 us",
    "moe_gemm down × 64": "start and end of 752 workgroups of 768 in depth",
    "moe_gemm gates × 4096": "954 tiles for 304 units: 42 of them are a fourth round",
    "moe_gemm down × 4096": "1,272 tiles for 304 units, of 12 steps each: 56 of them are a fifth round",
    "flash_attn_fwd": "query blocks do not fill the last round",
    "flash_attn_fwd triton": "a wave's vector and matrix instructions take turns, and two waves hide half of the waits",
    "flash_attn_bwd": "as forward; dQ is a launch of its own, which computes S and dP again: seven products, not five",
    "flash_attn_fwd 2x24x4096x64": "the vector port, 595 slots beside 512 of MFMA; 384 query blocks for 304 units",
    "flash_attn_fwd causal 2x24x4096x64": "as without the mask",
    "flash_attn_fwd 1x32x8192x64": "the vector port, 595 slots beside 512 of MFMA",
    "flash_attn_fwd causal 1x32x8192x64": "as without the mask",
}
_FEW = "few rows: units are idle, and arguments, rows and stores are waited for one after another"


def missed(one: Mapping[str, Any]) -> bool:
    """Whether a case, in whole per cent, reaches neither of the rates, or keeps the vector units too busy."""
    rate, matrix, vector = (round(one[name], 2) for name in ("rate", "matrix", "vector"))
    return (rate < LEAST_RATE and matrix < LEAST_MATRIX) or vector > MOST_VECTOR


def reason(name: str, one: Mapping[str, Any]) -> str:
    """Why a case misses an aim; "" where it does not.

    Raises:
        KeyError: nobody has said why.
    """
    if not missed(one):
        return ""
    found = max((known for known in REASONS if name.startswith(known)), key=len, default=None)
    if found is not None:
        return REASONS[found]
    if name.endswith("× 64"):
        return _FEW
    raise KeyError(f"{name}: modelled_page.REASONS must say why it has {one['rate']:.0%} of the published rate, "
                   f"{one['matrix']:.0%} of the matrix peak and {one['vector']:.0%} vector busy")


def _row(name: str, one: Mapping[str, Any], before: Mapping[str, Any] | None) -> str:
    cells = [name]
    for column, form in (("us", ".2f"), ("valu", ".0f"), ("all", ".0f"), ("ds", ".0f")):
        cells.append(" → ".join(format(of[column], form) for of in (before, one) if of))
    cells += [f"{one['rate']:.0%}", f"{one['matrix']:.0%}" if one["matrix"] else "", f"{one['vector']:.0%}",
              reason(name, one)]
    return f"| {' | '.join(cells)} |"


def section(found: Mapping[str, Mapping[str, Any]], before: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The lines between the page's marks."""
    yield "| case | modelled us | VALU | all | LDS | of published | of MFMA peak | VALU busy | what holds it back |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, one in found.items():
        yield _row(name, one, before.get(name))
    held = sum(missed(one) for one in found.values())
    times = [before[name]["us"] / one["us"] for name, one in found.items() if name in before]
    yield ""
    yield f"{len(found) - held} of {len(found)} cases reach the aims."
    if times:
        yield f"Of {len(times)} with a time from before, {sum(ratio > 1.02 for ratio in times)} take at least 2 % less"
        yield (f"and {sum(ratio < 0.98 for ratio in times)} at least 2 % more; in the geometric mean they are "
               f"{statistics.geometric_mean(times):.2f} times as fast.")


def rows(mark: str = "figures") -> dict[str, list[str]]:
    """Case, or operator → the cells of its row between the marks of its page that begin with `mark`."""
    text = PAGES[mark].read_text(encoding="utf-8").partition(f"<!-- {mark}: ")[2]
    lines = [[cell.strip() for cell in line.strip("|").split("|")]
             for line in text.partition(f"<!-- end of {mark} -->")[0].splitlines() if line.startswith("| ")]
    return {cells[0]: cells for cells in lines[1:]}


def put(mark: str, lines: Iterable[str]) -> None:
    """Puts lines between the marks of their page that begin with `mark`."""
    head, begin, rest = PAGES[mark].read_text(encoding="utf-8").partition(f"<!-- {mark}: ")
    comment, _, rest = rest.partition("\n")
    end = f"<!-- end of {mark} -->"
    text = "\n".join((f"{head}{begin}{comment}", *lines, f"{end}{rest.split(end)[1]}"))
    PAGES[mark].write_text(text, encoding="utf-8")


def write(found: Mapping[str, Mapping[str, Any]], before: Mapping[str, Mapping[str, Any]]) -> None:
    """Puts the figures into MODELLED_CASES.md."""
    put("figures", section(found, before))

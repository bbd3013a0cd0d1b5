// SPDX-License-Identifier: MIT
// Tiles, how busy the units are, where the waves' time goes, the lines that cost most.
const BUSY = {
  "matrix": ["--matrix", "share of the SIMDs' time in which the matrix pipe works"],
  "vector": ["--vector", "share of the SIMDs' time in which vector arithmetic issues"],
  "LDS": ["--lds", "share of time in which the banks of a CU work"],
  "address": ["--memory", "share of time in which a CU's address unit works"],
  "L2": ["--memory", "share of time in which a channel of the L2 works"],
  "beyond L2": ["--memory", "share of time in which a path to MALL and memory works"]};
const BOUND_TIP = "the busiest unit where it is busy for 60 % of the time;\n" +
  "else a grid that leaves a quarter of the CUs or more without work;\nelse what waves wait for most";
const SEGMENT_TIP = "1 where each access uses all of the segments that it touches; less where lanes share bytes";

function overview(p) {
  const all = sum(p.instructions.map(spent)) || 1;
  const units = Object.entries(p.busy).map(([name, share]) =>
    barRow(name, [[share, BUSY[name][0]]], pct(share), BUSY[name][1]));
  const {meaning, remedy} = p.advice || {};          // a profile that was written earlier has none
  const told = meaning ? `${esc(meaning)} <span class="remedy">What helps: ${esc(remedy)}</span>` : "";
  $("overview").innerHTML = `<p class="bound">Bound by <b class="term"${tipped(BOUND_TIP)}>${esc(p.bound)}</b>. ${told}</p>
    <div class="tiles">${[...launchTiles(p), ...memoryTiles(p)].join("")}</div>
    <div class="columns"><div><h3>How busy the units are</h3><div class="bars">${units.join("")}</div></div>
    <div><h3>Where the waves' time goes</h3><div class="bars">${stalls(p, all)}</div>${covered(p)}</div></div>
    <h3>The lines that cost most</h3><div class="wide">${hottest(p, all)}</div>`;
  onRows($("overview"), "source", goToSource);
}

function launchTiles(p) {
  const o = p.occupancy, c = p.counts, r = p.registers, spills = r.vgpr_spills + r.sgpr_spills;
  const fits = names => Object.keys(names).filter(name => o.limits[name] < 2 ** 32 - 1)
    .map(name => `${SLOTS[name] || name}: ${plural(o.limits[name], "workgroup")}`).join("\n");
  const isSlot = o.limiter in SLOTS, limiter = isSlot ? `the CU's ${SLOTS[o.limiter]}` : `the kernel's ${o.limiter}`;
  const occupancy = `${WORDS.occupancy}.\n\nWhat the kernel takes lets fit on a CU\n${fits(LIMITS)}\n\n` +
    `Slots that any CU has, whatever the kernel\n${fits(SLOTS)}`;
  const matrix = p.figures.compute.filter(one => one.name !== "vector").sort((a, b) => b.flop - a.flop);
  const lanes = (c.active_lanes / Math.max(1, c.vector_instructions)).toFixed(1);
  return [
    tile(`${count(p.modelled_clk)} clk`, `${num(p.modelled_us * 1e-6, "s")} at ${p.clock_mhz} MHz, modelled`),
    tile(p.bound, "bound by, modelled", BOUND_TIP),
    tile(`${o.waves_per_simd} of 8 waves / SIMD`, `${isSlot ? "all" : "limited by"} ${limiter}`, occupancy),
    tile(`${r.vgprs} + ${r.agprs}`, `v and a registers${spills ? `, SPILLED ${spills}` : ""}`,
      `${r.sgprs} scalar registers. v: vector registers, a: accumulators of matrix operations, of each lane.` +
      (spills ? `\nSpills: ${WORDS.spills}` : ""), spills ? "bad" : ""),
    ...matrix.slice(0, 1).map(one => tile(`${pct(one.share)} of ${one.roof}`,
      `${num(one.flop_per_s, "FLOP/s")} of matrix operations, modelled`,
      matrix.map(other => `${other.name}: ${num(other.flop, "FLOP")}`).join("\n"))),
    tile(`${lanes} of 64`, "active lanes of vector instructions", WORDS.lanes)];
}

function memoryTiles(p) {
  const f = p.figures, c = p.counts, found = [], moved = num(f.moved_bytes, "B");
  if (f.asked_bytes) {
    const ratio = (f.segment_bytes / f.asked_bytes).toFixed(2);
    found.push(tile(ratio, "bytes of 64 B segments per byte asked for", SEGMENT_TIP));
  }
  if (c.lds_clk) {
    const lost = pct(c.lds_conflict_clk / c.lds_clk);
    found.push(tile(lost, "of the banks' cycles lost in conflicts", WORDS.conflicts));
  }
  const needs = p.call && p.call.bytes ? `${p.call.operator} needs at least ${num(p.call.bytes, "B")}` : "";
  if (needs && p.call.launches === 1) {
    const ratio = (f.moved_bytes / p.call.bytes).toFixed(2);
    found.push(tile(`${ratio} × minimum`, `${moved} to and from memory, modelled`, needs));
  } else {
    found.push(tile(moved, "to and from memory, modelled", needs && `${needs}, in ${p.call.launches} launches`));
  }
  return found;
}

function stalls(p, all) {
  const sums = {"issues": sum(p.instructions.map(i => i.busy_clk))};
  for (const i of p.instructions) {
    for (const [why, clk] of Object.entries(i.stall_clk)) sums[why] = (sums[why] || 0) + clk;
  }
  const shown = Object.entries(sums).sort((a, b) => b[1] - a[1]).filter(([, clk]) => clk / all >= 0.0005);
  return shown.map(([why, clk]) =>
    barRow(why, [[clk / all, REASONS[why] || "--accent"]], pct(clk / all), REASON_TEXT[why])).join("");
}

function covered(p) {
  const waits = sum(p.instructions.map(waited));
  if (!waits) return "";
  const share = pct(sum(p.instructions.map(i => i.covered_clk)) / waits);
  return `<p class="dim small">${share} of the waiting is covered: the SIMD's vector or matrix unit works
    meanwhile.</p>`;
}

function hottest(p, all) {
  const lines = new Map();
  for (const i of p.instructions) {
    const key = `${i.source}\n${i.caller}`, line = lines.get(key) || {i, clk: 0, issues: 0, stalls: {}};
    line.clk += spent(i);
    line.issues += i.busy_clk;
    for (const [why, clk] of Object.entries(i.stall_clk)) line.stalls[why] = (line.stalls[why] || 0) + clk;
    lines.set(key, line);
  }
  const shown = [...lines.values()].sort((a, b) => b.clk - a.clk).slice(0, 8), most = shown.length ? shown[0].clk : 1;
  const rows = shown.map(({i, clk, issues, stalls}) => {
    const why = Object.entries(stalls).sort((a, b) => b[1] - a[1])[0];
    const isOne = shown.filter(other => author(other.i) === author(i)).length === 1;  // else the text tells them apart
    const text = (p.lines[isOne ? author(i) : i.source] || "").trim();
    return tr([td(pct(clk / all)), td(bar(costParts(issues, stalls, most), "11rem"), "l"),
      td(why ? term(esc(why[0]), REASON_TEXT[why[0]]) : "", "l reason"), td(placeOf(i), "l", placeTip(i, p)),
      td(esc(text), "l code")], `class="click" data-source="${esc(author(i))}"`);
  });
  return table([["share"], ["issues, waits", "l"], ["waits most for", "l"], ["line", "l"], ["", "l"]], rows);
}

// Parts of a bar: issuing, then waiting by reason, of `whole` cycles.
function costParts(issues, stalls, whole) {
  const waits = Object.entries(stalls).sort((a, b) => b[1] - a[1]);
  return [[issues / whole, "--accent"], ...waits.map(([why, clk]) => [clk / whole, REASONS[why]])];
}

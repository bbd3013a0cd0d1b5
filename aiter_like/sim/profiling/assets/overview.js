// SPDX-License-Identifier: MIT
// Tiles, how busy the units are, where the waves' time goes, the lines that cost most.
const UNIT_TIPS = {
  "matrix": "share of the SIMDs' time in which the matrix pipe works", "vector": "share of the SIMDs' time in which vector arithmetic issues",
  "LDS": "share of time in which the banks of a CU work", "address": "share of time in which a CU's address unit works",
  "L2": "share of time in which a channel of the L2 works", "beyond L2": "share of time in which a path to MALL and memory works"};
const BUSY_COLOURS = {"matrix": "--matrix", "vector": "--vector", "LDS": "--lds", "address": "--memory", "L2": "--memory", "beyond L2": "--memory"};

function overview(p) {
  const all = sum(p.instructions.map(spent)) || 1;
  $("overview").innerHTML = `<div class="tiles">${tiles(p)}</div><div class="columns">
    <div><h3>How busy the units are</h3><div class="bars">${units(p)}</div></div>
    <div><h3>Where the waves' time goes</h3><div class="bars">${stalls(p, all)}</div>${covered(p)}</div></div>
    <h3>The lines that cost most</h3><div class="wide">${hottest(p, all)}</div>`;
  for (const row of $("overview").querySelectorAll("tr[data-source]")) row.onclick = () => goToSource(row.dataset.source);
}

function tiles(p) {
  const o = p.occupancy, c = p.counts, f = p.figures, matrix = f.compute.filter(one => one.name !== "vector");
  const spills = p.registers.vgpr_spills + p.registers.sgpr_spills;
  const limits = Object.entries(o.limits).filter(([, n]) => n < 2 ** 32 - 1).map(([name, n]) => `${name}: ${n} workgroups per CU`).join("\n");
  const best = matrix.reduce((a, b) => !a || b.flop > a.flop ? b : a, null);
  const least = p.call && p.call.bytes, alone = p.call && p.call.launches === 1;
  return tile(`${count(p.modelled_clk)} clk`, `${num(p.modelled_us * 1e-6, "s")} at ${p.clock_mhz} MHz, modelled`)
    + tile(p.bound, "bound by, modelled", "the busiest unit where it is busy for 60 % of the time;\nelse a grid that leaves a quarter of the CUs or more without work; else what waves wait for most")
    + tile(`${o.waves_per_simd} waves / SIMD`, `limited by ${o.limiter}`, limits)
    + tile(`${p.registers.vgprs} + ${p.registers.agprs}`, `v and a registers${spills ? `, SPILLED ${spills}` : ""}`,
      `${p.registers.sgprs} scalar registers`, spills ? "bad" : "")
    + (best ? tile(`${pct(best.share)} of ${best.roof}`, `${num(best.flop_per_s, "FLOP/s")} of matrix operations, modelled`,
      matrix.map(one => `${one.name}: ${num(one.flop, "FLOP")}`).join("\n")) : "")
    + tile(`${(c.active_lanes / Math.max(1, c.vector_instructions)).toFixed(1)} of 64`, "active lanes of vector instructions")
    + (f.asked_bytes ? tile((f.segment_bytes / f.asked_bytes).toFixed(2), "bytes of 64 B segments per byte asked for",
      "1 where each access uses all of the segments that it touches; less where lanes share bytes") : "")
    + (c.lds_clk ? tile(pct(c.lds_conflict_clk / c.lds_clk), "of the banks' cycles lost in conflicts") : "")
    + (least ? tile(alone ? `${(f.moved_bytes / least).toFixed(2)} × minimum` : num(f.moved_bytes, "B"),
      alone ? `${num(f.moved_bytes, "B")} to and from memory, modelled` : "to and from memory, modelled",
      `${p.call.operator} needs at least ${num(least, "B")}` + (alone ? "" : `, in ${p.call.launches} launches`)) :
      tile(num(f.moved_bytes, "B"), "to and from memory, modelled"));
}

function units(p) {
  return Object.entries(p.busy).map(([name, share]) => barRow(name, [[share, BUSY_COLOURS[name]]], pct(share), UNIT_TIPS[name])).join("");
}

function stalls(p, all) {
  const spentOn = {"issues": sum(p.instructions.map(i => i.busy_clk))};
  for (const i of p.instructions) for (const [why, clk] of Object.entries(i.stall_clk)) spentOn[why] = (spentOn[why] || 0) + clk;
  return Object.entries(spentOn).sort((a, b) => b[1] - a[1]).filter(([, clk]) => clk / all >= 0.0005).map(([why, clk]) =>
    barRow(why, [[clk / all, why === "issues" ? "--accent" : REASONS[why]]], pct(clk / all), REASON_TEXT[why])).join("");
}

function covered(p) {
  const waits = sum(p.instructions.map(waited));
  if (!waits) return "";
  const share = sum(p.instructions.map(i => i.covered_clk)) / waits;
  return `<p class="dim small">${pct(share)} of the waiting is covered: the SIMD's vector or matrix unit works meanwhile.</p>`;
}

function hottest(p, all) {
  const lines = new Map();
  for (const i of p.instructions) {
    const line = lines.get(i.source) || {clk: 0, issues: 0, stalls: {}};
    line.clk += spent(i); line.issues += i.busy_clk;
    for (const [why, clk] of Object.entries(i.stall_clk)) line.stalls[why] = (line.stalls[why] || 0) + clk;
    lines.set(i.source, line);
  }
  const rows = [...lines].sort((a, b) => b[1].clk - a[1].clk).slice(0, 8);
  const most = rows.length ? rows[0][1].clk : 1;
  return `<table class="full"><thead><tr><th>share</th><th class="l">issues, waits</th><th class="l">waits most for</th>
    <th class="l">line</th><th class="l"></th></tr></thead><tbody>` + rows.map(([source, line]) => {
    const why = Object.entries(line.stalls).sort((a, b) => b[1] - a[1])[0];
    return `<tr data-source="${esc(source)}" style="cursor:pointer"><td>${pct(line.clk / all)}</td><td class="l">${bar(costParts(line.issues, line.stalls, most), "11rem")}</td>
      <td class="l reason">${why ? esc(why[0]) : ""}</td><td class="l" data-tip="${esc(source)}">${esc(tail(source, 4) || "(no line)")}</td>
      <td class="l cut">${esc((p.lines[source] || "").trim())}</td></tr>`;
  }).join("") + "</tbody></table>";
}

// Parts of a bar: issuing, then waiting by reason, of `whole` cycles.
const costParts = (issues, stalls, whole) => [[issues / whole, "--accent"],
  ...Object.entries(stalls).sort((a, b) => b[1] - a[1]).map(([why, clk]) => [clk / whole, REASONS[why]])];

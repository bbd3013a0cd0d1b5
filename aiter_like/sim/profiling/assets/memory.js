// SPDX-License-Identifier: MIT
// What lanes ask for and where it comes from, per level and per instruction; and the banks of the LDS.
function memory(p) {
  const f = p.figures, t = p.traffic, level = name => f.levels.find(one => one.name === name), least = p.call && p.call.bytes;
  if (!f.asked_bytes) { $("memory").innerHTML = ""; return }
  const alone = least && p.call.launches === 1, times = bytes => alone ? `${(bytes / least).toFixed(2)} ×` : "";
  const rate = one => one.lines ? pct(one.hits / one.lines) : "";
  const row = (name, bytes, lines, hits, tip) => `<tr data-tip="${esc(tip)}"><td class="l">${name}</td><td>${bytes === null ? "" : num(bytes, "B")}</td><td>${bytes === null ? "" : times(bytes)}</td><td>${lines}</td>
    <td>${hits}</td><td class="l">${bytes === null ? "" : bar([[bytes / Math.max(f.segment_bytes, f.asked_bytes, f.lines_128), "--memory"]], "12rem")}</td></tr>`;
  const cache = (name, shown, tip) => { const one = level(name); return row(shown, one.bytes, one.lines !== undefined ? num(one.lines) : "", rate(one), tip) };
  $("memory").innerHTML = `<h2>Memory <span class="dim small">of the whole launch; caches and what lies behind them are modelled</span></h2>
    <table><thead><tr><th class="l">level</th><th>bytes</th><th>of the minimum</th><th>lines</th><th>hits</th><th class="l"></th></tr></thead><tbody>
    ${least ? row(`${esc(p.call.operator)} needs`, least, "", "", `what the operator declares that a call needs at least${alone ? "" : `; the call has ${p.call.launches} launches`}`) : ""}
    ${row("lanes ask for", f.asked_bytes, "", "", "counted: scalar memory included")}
    ${row("in segments of 64 B", f.segment_bytes, num(f.segment_bytes / 64), "", "counted: the distinct segments that each access touches")}
    ${row("in segments of 128 B", f.lines_128, num(f.lines_128 / 128), "", "counted: the distinct segments that each access touches")}
    ${cache("L1", "vector L1", "bytes that vector memory instructions ask for; lines that loads ask for")}
    ${t.scalar_lines ? row("scalar L1", null, num(t.scalar_lines * f.levels[1].lines / Math.max(t.l1_lines, 1)), pct(t.scalar_hits / t.scalar_lines), "reads of scalar memory") : ""}
    ${cache("L2", "L2", "reads that miss the L1s, and stores")}
    ${cache("MALL", "MALL", "what goes to and comes from beyond the L2s; hits: reads")}
    ${cache("HBM", "memory", "reads that miss the MALL, and lines that are written")}
    </tbody></table>${memoryRows(p)}`;
  for (const one of $("memory").querySelectorAll("tr[data-k]")) one.onclick = () => goToInstruction(+one.dataset.k);
}

function memoryRows(p) {
  const list = p.instructions.map((i, k) => [i, k]).filter(([i]) => i.global_bytes || i.traffic).sort((a, b) => (b[0].global_bytes || 0) - (a[0].global_bytes || 0));
  const share = (hits, lines) => lines ? pct((hits || 0) / lines) : "";
  const shown = list.slice(0, 40), each = i => i.executed;
  return `<h3>By instruction${list.length > shown.length ? `, the ${shown.length} of ${list.length} that ask for most` : ""}</h3>
    <div class="scroll"><table class="full"><thead><tr><th class="l">pc</th><th>bytes asked</th><th data-tip="bytes of segments of 64 B per byte asked for">64 B / asked</th>
    <th data-tip="bytes of segments of 128 B per byte asked for">128 B / asked</th><th data-tip="distinct lines of 128 B of each execution">lines each</th><th>L1 hits</th><th>L2 hits</th>
    <th data-tip="lines from the MALL">MALL</th><th data-tip="bytes read from or written to memory, replayed">memory</th><th>latency</th><th>hidden</th>
    <th class="l">instruction</th><th class="l">line</th></tr></thead><tbody>${shown.map(([i, k]) => {
      const t = i.traffic || {}, lines = t.l1_lines || 0, l2 = (t.l2_lines || 0) + (t.stored_lines || 0);
      return `<tr data-k="${k}" style="cursor:pointer"><td class="l">${hex(i.pc)}</td><td>${num(i.global_bytes || i.scratch_bytes || 0, "B")}</td>
        <td>${i.segments_64 ? (64 * i.segments_64 / i.global_bytes).toFixed(2) : ""}</td><td>${i.segments_128 ? (128 * i.segments_128 / i.global_bytes).toFixed(2) : ""}</td>
        <td>${i.segments_128 ? (i.segments_128 / each(i)).toFixed(1) : ""}</td><td>${i.class === "smem" ? share(t.scalar_hits, t.scalar_lines) : share(t.l1_hits, lines)}</td>
        <td>${share((t.l2_hits || 0) + (t.stored_hits || 0), l2)}</td><td>${t.mall_hits ? num(t.mall_hits) : ""}</td>
        <td>${t.hbm_lines || t.written_lines ? num(128 * ((t.hbm_lines || 0) + (t.written_lines || 0)), "B") : ""}</td>
        <td>${i.latency_clk ? num(Math.round(i.latency_clk / i.issued)) : ""}</td><td>${i.latency_clk ? pct(i.hidden_clk / i.latency_clk) : ""}</td>
        <td class="text">${esc(i.text)}</td><td class="l reason">${esc(shortPlace(i.source))}</td></tr>`;
    }).join("")}</tbody></table></div>`;
}

function banks(p) {
  const list = p.instructions.map((i, k) => [i, k]).filter(([i]) => i.lds_bank_clk);
  if (!list.length) { $("banks").innerHTML = ""; return }
  const totals = key => list.reduce((a, [i]) => a.map((x, b) => x + (i[key]?.[b] || 0)), Array(32).fill(0));
  const all = {text: "all", executed: 1, lds_bank_clk: totals("lds_bank_clk"), lds_bank_extra_clk: totals("lds_bank_extra_clk"),
    lds_clk: p.counts.lds_clk, lds_conflict_clk: p.counts.lds_conflict_clk};
  const costly = [...list].sort((a, b) => (b[0].lds_conflict_clk || 0) - (a[0].lds_conflict_clk || 0) || b[0].lds_clk - a[0].lds_clk).slice(0, 32);
  const shown = costly.sort((a, b) => a[1] - b[1]);
  $("banks").innerHTML = `<h2>LDS banks <span class="dim small">counted: cycles that each of the 32 banks is busy, and those that it is busy longer than one per phase</span></h2>
    ${list.length > shown.length ? `<p class="dim small">The ${shown.length} of ${list.length} instructions that lose, else that take most cycles.</p>` : ""}
    <div class="wide"><table><thead><tr><th class="l">pc</th><th data-tip="cycles of the banks, each time">clk</th><th data-tip="of them lost in conflicts">lost</th>
    <th class="l">busy, bank 0 … 31</th><th class="l">of it in conflicts</th><th class="l">instruction</th><th class="l">line</th></tr></thead><tbody>
    ${bankRow(all, null, all)}${shown.map(([i, k]) => bankRow(i, k, i)).join("")}</tbody></table></div>`;
  for (const one of $("banks").querySelectorAll("tr[data-k]")) one.onclick = () => goToInstruction(+one.dataset.k);
}

function bankRow(i, k) {
  const most = Math.max(...i.lds_bank_clk, 1), extra = i.lds_bank_extra_clk || Array(32).fill(0), times = i.executed;
  const cell = (value, name, b, what) => `<rect x="${b * 12}" width="11" height="14" rx="1.5" fill="${variable(value ? name : "--card")}"
    opacity="${value ? (.18 + .82 * value / most).toFixed(2) : 1}" data-tip="bank ${b}: ${num(value / times)} clk ${what}"/>`;
  const map = (values, name, what) => `<svg width="384" height="14" style="display:block">${values.map((v, b) => cell(v, name, b, what)).join("")}</svg>`;
  const unit = k === null ? "in all" : "each time";
  return `<tr${k === null ? ' style="font-weight:600"' : ` data-k="${k}" style="cursor:pointer"`}><td class="l">${k === null ? "all" : hex(i.pc)}</td><td>${num(i.lds_clk / times)}</td>
    <td class="${i.lds_conflict_clk ? "up" : ""}">${i.lds_conflict_clk ? num(i.lds_conflict_clk / times) : "0"}</td><td class="l">${map(i.lds_bank_clk, "--lds", `busy ${unit}`)}</td>
    <td class="l">${map(extra, "--bad", `lost ${unit}`)}</td><td class="text">${k === null ? "" : esc(i.text)}</td><td class="l reason">${k === null ? "" : esc(shortPlace(i.source))}</td></tr>`;
}

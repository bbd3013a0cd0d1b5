// SPDX-License-Identifier: MIT
// What lanes ask for and where it comes from, per level and per instruction.
function memory(p) {
  const f = p.figures;
  $("memory").innerHTML = f.asked_bytes ? `<h2>Memory <span class="dim small">of the whole launch; caches and what lies
    behind them are modelled</span></h2>${levelTable(p)}${memoryRows(p)}` : "";
  onRows($("memory"), "k", k => goToInstruction(+k));
}

function levelTable(p) {
  const f = p.figures, t = p.traffic, least = p.call && p.call.bytes, alone = least && p.call.launches === 1;
  const most = Math.max(f.segment_bytes, f.asked_bytes, f.lines_128);
  const row = (name, bytes, lines, hits, tip) => tr([td(term(name), "l"), td(num(bytes, "B")),
    td(alone ? `${(bytes / least).toFixed(2)} ×` : ""), td(lines), td(hits),
    td(bar([[bytes / most, "--memory"]], "12rem"), "l")], tipped(tip));
  const cache = (level, name, tip) => {
    const one = f.levels.find(other => other.name === level);
    const hits = one.lines ? pct(one.hits / one.lines) : "";
    return row(name, one.bytes, one.lines === undefined ? "" : num(one.lines), hits, tip);
  };
  const distinct = "counted: the distinct segments that each access touches";
  const rows = [
    row("lanes ask for", f.asked_bytes, "", "", "counted: scalar memory included"),
    row("in segments of 64 B", f.segment_bytes, num(f.segment_bytes / 64), "", distinct),
    row("in segments of 128 B", f.lines_128, num(f.lines_128 / 128), "", distinct),
    cache("L1", "vector L1", "bytes that vector memory instructions ask for; lines that loads ask for"),
    cache("scalar L1", "scalar L1", "reads of scalar memory"),
    cache("L2", "L2", "reads that miss the L1s, and stores"),
    cache("MALL", "MALL", "what goes to and comes from beyond the L2s; hits: reads"),
    cache("HBM", "memory", "reads that miss the MALL, and lines that are written")];
  if (least) {
    const launches = alone ? "" : `; the call has ${p.call.launches} launches`;
    rows.unshift(row(`${esc(p.call.operator)} needs`, least, "", "",
      `what the operator declares that a call needs at least${launches}`));
  }
  const heads = [["level", "l"], ["bytes"], ["of the minimum"], ["lines"], ["hits"], ["", "l"]];
  return `<div class="wide">${table(heads, rows, "")}</div>`;
}

function memoryRows(p) {
  const list = p.instructions.map((i, k) => [i, k]).filter(([i]) => i.global_bytes || i.traffic);
  const shown = list.sort((a, b) => (b[0].global_bytes || 0) - (a[0].global_bytes || 0)).slice(0, 40);
  const share = (hits, lines) => lines ? pct((hits || 0) / lines) : "";
  const rows = shown.map(([i, k]) => {
    const t = i.traffic || {}, asked = i.global_bytes, moved = 128 * ((t.hbm_lines || 0) + (t.written_lines || 0));
    const l1 = i.class === "smem" ? share(t.scalar_hits, t.scalar_lines) : share(t.l1_hits, t.l1_lines);
    const l2 = share((t.l2_hits || 0) + (t.stored_hits || 0), (t.l2_lines || 0) + (t.stored_lines || 0));
    return tr([td(hex(i.pc), "l"), td(num(asked || i.scratch_bytes || 0, "B")),
      td(asked ? (64 * i.segments_64 / asked).toFixed(2) : ""),
      td(asked ? (128 * i.segments_128 / asked).toFixed(2) : ""),
      td(asked ? (i.segments_128 / i.executed).toFixed(1) : ""), td(l1), td(l2),
      td(t.mall_hits ? num(t.mall_hits) : ""),
      td(moved ? num(moved, "B") : ""), td(i.latency_clk ? num(Math.round(i.latency_clk / i.issued)) : ""),
      td(i.latency_clk ? pct(i.hidden_clk / i.latency_clk) : ""), td(esc(i.text), "text"),
      td(placeOf(i), "l reason", placeTip(i, p))], `class="click" data-k="${k}"`);
  });
  const heads = [["pc", "l"], ["bytes asked"], ["64 B / asked", "", "bytes of segments of 64 B per byte asked for"],
    ["128 B / asked", "", "bytes of segments of 128 B per byte asked for"],
    ["lines each", "", "distinct lines of 128 B of each execution"], ["L1 hits"], ["L2 hits"],
    ["MALL", "", "lines from the MALL"], ["memory", "", "bytes read from or written to memory, replayed"],
    ["latency", "", "clk from issue to answer"], ["hidden", "", "of the latency"], ["instruction", "l"], ["line", "l"]];
  const cut = list.length > shown.length ? `, the ${shown.length} of ${list.length} that ask for most` : "";
  return `<h3>By instruction${cut}</h3><div class="scroll">${table(heads, rows)}</div>`;
}

// SPDX-License-Identifier: MIT
// Source beside instructions: what each costs, what it waits for, which wait retires a memory operation.
let C = null;      // the profile, its sums per line, the rows that are shown, what is pinned

function code(p) {
  const all = sum(p.instructions.map(spent)) || 1, lines = new Map(), files = new Map();
  const waitsOf = p.instructions.map(() => []);    // memory operation → [place of the wait, times, clk]
  p.instructions.forEach((i, k) => {
    for (const source of new Set([i.source, author(i)])) lines.set(source, (lines.get(source) || 0) + spent(i));
    for (const file of new Set([i.source, author(i)].map(source => place(source)[0]))) {
      files.set(file, (files.get(file) || 0) + spent(i));
    }
    for (const [from, times, clk] of i.retires || []) waitsOf[from].push([k, times, clk]);
  });
  const names = [...files].filter(([name]) => (sources[name] || []).length).sort((a, b) => b[1] - a[1]);
  C = {p, all, lines, waitsOf, rows: [], pinned: null, file: names.length ? names[0][0] : ""};
  const options = names.map(([name, clk]) =>
    `<option value="${esc(name)}">${esc(tail(name, 4))} – ${pct(clk / all)}</option>`).join("");
  $("code").innerHTML = `<h2>Source and instructions</h2><div class="tools">
    ${names.length ? `<select id="file" aria-label="file">${options}</select>` : ""}
    <label class="small"><input type="checkbox" id="hot" ${p.instructions.length > 60 ? "checked" : ""}>
      only from 0.1 % on, and memory</label>
    <label class="small"><input type="checkbox" id="byCost"> by cost</label>
    <input id="find" placeholder="find an instruction or a line" size="28">
    <span class="dim small">click a line or an instruction: the other one; arrows go from a memory operation to the wait
      that retires it; strong: that wait waits for it; dashed: in a later pass of a loop; a line's share has that of
      the functions that are inlined there</span></div>
    <div class="panes ${names.length ? "" : "single"}">${names.length ? '<div class="pane" id="source"></div>' : ""}
    <div class="pane" id="rows"></div></div>`;
  if (names.length) $("file").onchange = () => { C.file = $("file").value; sourcePane() };
  for (const id of ["hot", "byCost"]) $(id).onchange = rows;
  $("find").oninput = rows;
  sourcePane();
  rows();
}

function sourcePane() {
  if (!$("source")) return;
  const text = sources[C.file] || [], own = [...C.lines].filter(([s]) => place(s)[0] === C.file);
  const [hottest] = own.sort((a, b) => b[1] - a[1]), most = hottest ? hottest[1] : 1;
  const rows = text.map((line, n) => {
    const source = `${C.file}:${n + 1}`, clk = C.lines.get(source);
    return tr([td(n + 1, "n"), td(clk ? bar([[clk / most, "--accent"]], "2.4rem") : "", "heat"),
      td(clk ? pct(clk / C.all) : "", "n"), td(esc(line), "text")],
      `data-source="${clk === undefined ? "" : esc(source)}" class="${clk / C.all >= .02 ? "hot" : ""}"`);
  });
  $("source").innerHTML = `<table><tbody>${rows.join("")}</tbody></table>`;
  onRows($("source"), "source", source => source && pinSource(source, true));
  if (hottest) scrollToRow($("source"), $("source").querySelectorAll("tr")[place(hottest[0])[1] - 1]);
}

function isShown(i, k, words) {
  if (words) return `${hex(i.pc)} ${i.text} ${i.source} ${i.caller}`.toLowerCase().includes(words);
  return !$("hot").checked || spent(i) / C.all >= .001 || C.waitsOf[k].length || i.retires;
}

const CODE_HEADS = [["share", "", "of the waves' time, issuing and waiting"], ["issues, waits", "l"], ["pc"],
  ["", "gutter"], ["instruction", "l"], ["wait", "", "clk that a wave waited before it, each time"],
  ["reason", "l", "what it waits for most"],
  ["covered", "", "of the waiting, while the SIMD's vector or matrix unit worked"],
  ["latency", "", "clk from the issue of a memory operation to its answer"],
  ["hidden", "", "of this latency, what no wait of its wave waited for"],
  ["retired", "l", "→ the wait that retires it; ← what the wait retires"],
  ["hits", "", "how often waves have executed it, of those that ran"], ["lanes", "", "active ones"], ["line", "l"]];

function rows() {
  const {instructions} = C.p, words = $("find").value.toLowerCase(), most = Math.max(...instructions.map(spent), 1);
  C.rows = instructions.map((_, k) => k).filter(k => isShown(instructions[k], k, words));
  if ($("byCost").checked) C.rows.sort((a, b) => spent(instructions[b]) - spent(instructions[a]));
  const texts = C.rows.map((k, n) => instructionRow(k, most, n ? placeOf(instructions[C.rows[n - 1]]) : null));
  const box = $("rows");
  box.innerHTML = `<svg id="arrows"></svg>${table(CODE_HEADS, texts)}`;
  box.onclick = event => {
    const chip = event.target.closest(".chip"), row = event.target.closest("tr[data-k]");
    if (chip) goToInstruction(+chip.dataset.to);
    else if (row) pinInstruction(+row.dataset.k, true);
  };
  box.onmouseover = event => {
    const row = event.target.closest("tr[data-k]");
    lightArrows(row ? +row.dataset.k : C.pinned);
  };
  box.onmouseleave = () => lightArrows(C.pinned);
  drawArrows();
}

function instructionRow(k, most, last) {
  const i = C.p.instructions[k], clk = spent(i), waits = waited(i), each = waits / i.issued;
  const [why] = Object.entries(i.stall_clk).sort((a, b) => b[1] - a[1])[0] || [], shown = each >= .5;
  const reason = shown ? `<i class="swatch" style="background:${variable(REASONS[why])}"></i>${why}` : "";
  return tr([td(clk / C.all >= .0005 ? pct(clk / C.all) : ""),
    td(bar(costParts(i.busy_clk, i.stall_clk, most), "4.2rem"), "l"),
    td(hex(i.pc)), td("", "gutter"), td(esc(i.text), "text"),
    td(shown ? num(Math.round(each)) : ""),
    td(reason, "l reason"), td(shown ? pct(i.covered_clk / waits) : ""),
    td(i.latency_clk ? num(Math.round(i.latency_clk / i.issued)) : ""),
    td(i.latency_clk ? pct(i.hidden_clk / i.latency_clk) : ""), td(chips(k), "l"), td(num(i.executed)),
    td(i.active_lanes ? (i.active_lanes / i.executed).toFixed(0) : ""),
    td(placeOf(i) === last ? "" : placeOf(i), "l reason", placeTip(i, C.p))],
    `data-k="${k}"${tipped(instructionTip(i))}`);
}

function instructionTip(i) {
  const tip = [`${hex(i.pc)}  ${i.text}`, `issues ${num(i.busy_clk)} clk`], each = clk => (clk / i.executed).toFixed(1);
  for (const [why, clk] of Object.entries(i.stall_clk).sort((a, b) => b[1] - a[1])) {
    tip.push(`waits ${num(clk)} clk: ${why}, ${REASON_TEXT[why]}`);
  }
  if (i.lds_conflict_clk) tip.push(`bank conflicts: ${each(i.lds_conflict_clk)} of ${each(i.lds_clk)} clk each time`);
  if (i.segments_64) {
    tip.push(`${num(i.global_bytes, "B")} asked for in ${num(i.segments_64 * 64, "B")} of 64 B segments`);
  }
  if (i.straddles) tip.push("its 8 bytes lie across a multiple of 8: its fetch takes a cycle more");
  return tip.join("\n");
}

function chips(k) {
  const {instructions} = C.p, name = at => hex(instructions[at].pc);
  const chip = (at, arrow, what, times, clk) => {
    const tip = `${what} ${name(at)} ${instructions[at].text}, ${plural(times, "time")};\n` +
      `the wait waited ${num(clk / times)} clk each time while the operation was on its way`;
    return `<span class="chip" data-to="${at}"${tipped(tip)}>${arrow}${name(at)}</span>`;
  };
  const all = [...C.waitsOf[k].map(([wait, times, clk]) => chip(wait, "→", "retired by", times, clk)),
    ...(instructions[k].retires || []).map(([load, times, clk]) => chip(load, "←", "retires", times, clk))];
  const more = all.length - 3;
  return all.slice(0, 3).join(" ") + (more > 0 ? ` <span class="dim">+${more}</span>` : "");
}

function mark(box, selector, className) {
  for (const row of box.querySelectorAll(`tr.${className}`)) row.classList.remove(className);
  const found = [...box.querySelectorAll("tbody tr")].filter(selector);
  for (const row of found) row.classList.add(className);
  return found;
}
function scrollToRow(box, row) { if (row) box.scrollTop = row.offsetTop - box.clientHeight / 3 }

function pinSource(source, scroll) {
  if ($("source")) {
    const [file, line] = place(source);
    if (file !== C.file && sources[file]?.length) { C.file = file; $("file").value = file; sourcePane() }
    const found = mark($("source"), row => row.dataset.source === source, "pinned");
    if (!scroll) scrollToRow($("source"), found[0] || $("source").querySelectorAll("tr")[line - 1]);
  }
  if (!scroll) return;
  C.pinned = null;
  mark($("rows"), () => false, "pinned");
  const isOf = k => [C.p.instructions[k].source, author(C.p.instructions[k])].includes(source);
  if (!C.rows.some(isOf)) { $("hot").checked = false; rows() }
  scrollToRow($("rows"), mark($("rows"), row => isOf(+row.dataset.k), "lit")[0]);
  lightArrows(null);
}

function pinInstruction(k, follow) {
  C.pinned = k;
  mark($("rows"), () => false, "lit");
  const found = mark($("rows"), row => +row.dataset.k === k, "pinned");
  if (!follow) scrollToRow($("rows"), found[0]);
  if (C.p.instructions[k].source) pinSource(author(C.p.instructions[k]), false);
  lightArrows(k);
}

function goToInstruction(k) {
  if (!C.rows.includes(k)) { $("hot").checked = false; $("find").value = ""; rows() }
  pinInstruction(k, false);
  $("code").scrollIntoView({block: "nearest"});
}
function goToSource(source) {
  pinSource(source, true);
  if ($("source") && place(source)[0] === C.file) scrollToRow($("source"),
    $("source").querySelectorAll("tr")[place(source)[1] - 1]);
  $("code").scrollIntoView();
}

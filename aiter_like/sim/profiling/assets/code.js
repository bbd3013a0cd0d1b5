// SPDX-License-Identifier: MIT
// Source beside instructions: what each costs, what it waits for, which wait retires a memory operation.
let C = null;      // the profile, its sums per line, the rows that are shown, what is pinned

function code(p) {
  const all = sum(p.instructions.map(spent)) || 1, lines = new Map(), files = new Map();
  const waitsOf = p.instructions.map(() => []);    // memory operation → [place of the wait, times, clk]
  p.instructions.forEach((i, k) => {
    lines.set(i.source, (lines.get(i.source) || 0) + spent(i));
    const [file] = place(i.source);
    files.set(file, (files.get(file) || 0) + spent(i));
    for (const [from, times, clk] of i.retires || []) waitsOf[from].push([k, times, clk]);
  });
  const names = [...files].filter(([name]) => (sources[name] || []).length).sort((a, b) => b[1] - a[1]);
  C = {p, all, lines, waitsOf, rows: [], pinned: null, file: names.length ? names[0][0] : ""};
  const unshown = p.instructions.length > 60;
  $("code").innerHTML = `<h2>Source and instructions</h2><div class="tools">
    ${names.length ? `<select id="file" aria-label="file">${names.map(([name, clk]) => `<option value="${esc(name)}">${esc(tail(name, 4))} – ${pct(clk / all)}</option>`).join("")}</select>` : ""}
    <label class="small"><input type="checkbox" id="hot" ${unshown ? "checked" : ""}> only from 0.1 % on, and memory</label>
    <label class="small"><input type="checkbox" id="byCost"> by cost</label>
    <input id="find" placeholder="find an instruction or a line" size="28">
    <span class="dim small">click a line or an instruction: the other one; arrows go from a memory operation to the wait that retires it</span></div>
    <div class="panes" ${names.length ? "" : 'style="grid-template-columns:1fr"'}>${names.length ? '<div class="pane" id="source"></div>' : ""}<div class="pane" id="rows"></div></div>`;
  if (names.length) $("file").onchange = () => { C.file = $("file").value; sourcePane() };
  for (const id of ["hot", "byCost"]) $(id).onchange = rows;
  $("find").oninput = rows;
  sourcePane();
  rows();
}

function sourcePane() {
  if (!$("source")) return;
  const text = sources[C.file] || [], most = Math.max(...[...C.lines].filter(([s]) => place(s)[0] === C.file).map(([, clk]) => clk), 1);
  $("source").innerHTML = "<table><tbody>" + text.map((line, n) => {
    const source = `${C.file}:${n + 1}`, clk = C.lines.get(source);
    return `<tr data-source="${clk === undefined ? "" : esc(source)}" class="${clk / C.all >= .02 ? "hot" : ""}"><td class="n">${n + 1}</td>
      <td class="heat"${clk ? ` data-tip="${pct(clk / C.all)} of the waves' time"` : ""}>${clk ? bar([[clk / most, "--accent"]], "2.4rem") : ""}</td>
      <td class="n">${clk ? pct(clk / C.all) : ""}</td><td class="text">${esc(line)}</td></tr>`;
  }).join("") + "</tbody></table>";
  $("source").onclick = event => { const row = event.target.closest("tr"); if (row?.dataset.source) pinSource(row.dataset.source, true) };
  const hottest = [...C.lines].filter(([s]) => place(s)[0] === C.file).sort((a, b) => b[1] - a[1])[0];
  if (hottest) scrollToRow($("source"), $("source").querySelectorAll("tr")[place(hottest[0])[1] - 1]);
}

function rows() {
  const {p, all} = C, words = $("find").value.toLowerCase(), most = Math.max(...p.instructions.map(spent), 1);
  let shown = p.instructions.map((_, k) => k);
  if (words) shown = shown.filter(k => `${hex(p.instructions[k].pc)} ${p.instructions[k].text} ${p.instructions[k].source}`.toLowerCase().includes(words));
  else if ($("hot").checked) shown = shown.filter(k => spent(p.instructions[k]) / all >= .001 || C.waitsOf[k].length || p.instructions[k].retires);
  if ($("byCost").checked) shown.sort((a, b) => spent(p.instructions[b]) - spent(p.instructions[a]));
  C.rows = shown;
  let last = null;
  $("rows").innerHTML = `<svg id="arrows"></svg><table><thead><tr><th data-tip="of the waves' time, issuing and waiting">share</th>
    <th class="l">issues, waits</th><th>pc</th><th class="gutter"></th><th class="l">instruction</th>
    <th data-tip="clk that a wave waited before it, each time">wait</th><th class="l" data-tip="what it waits for most">reason</th>
    <th data-tip="of the waiting, while the SIMD's vector or matrix unit worked">covered</th>
    <th data-tip="clk from the issue of a memory operation to its answer">latency</th>
    <th data-tip="of this latency, what no wait of its wave waited for">hidden</th>
    <th class="l" data-tip="→ the wait that retires it; ← what the wait retires">retired</th>
    <th data-tip="how often waves have executed it, of those that ran">hits</th><th data-tip="active lanes">lanes</th>
    <th class="l">line</th></tr></thead><tbody>${shown.map(k => {
      const row = instructionRow(k, most, last);
      last = p.instructions[k].source;
      return row;
    }).join("")}</tbody></table>`;
  const box = $("rows");
  box.onclick = event => {
    const chip = event.target.closest(".chip"), row = event.target.closest("tr[data-k]");
    if (chip) goToInstruction(+chip.dataset.to);
    else if (row) pinInstruction(+row.dataset.k, true);
  };
  box.onmouseover = event => { const row = event.target.closest("tr[data-k]"); lightArrows(row ? +row.dataset.k : C.pinned) };
  box.onmouseleave = () => lightArrows(C.pinned);
  drawArrows();
}

function instructionRow(k, most, last) {
  const i = C.p.instructions[k], clk = spent(i), waits = waited(i), stall = Object.entries(i.stall_clk).sort((a, b) => b[1] - a[1]);
  const tip = [`${hex(i.pc)}  ${i.text}`, `issues ${num(i.busy_clk)} clk`, ...stall.map(([why, n]) => `waits ${num(n)} clk: ${why}, ${REASON_TEXT[why]}`)];
  if (i.lds_conflict_clk) tip.push(`bank conflicts: ${(i.lds_conflict_clk / i.executed).toFixed(1)} of ${(i.lds_clk / i.executed).toFixed(1)} clk each time`);
  if (i.segments_64) tip.push(`${num(i.global_bytes, "B")} asked for in ${num(i.segments_64 * 64, "B")} of 64 B segments`);
  if (i.straddles) tip.push("its 8 bytes lie across a multiple of 8: its fetch takes a cycle more");
  const main = stall.length && stall[0][1] / i.issued >= .5 ? stall[0][0] : "";
  return `<tr data-k="${k}" data-tip="${esc(tip.join("\n"))}"><td>${clk / C.all >= .0005 ? pct(clk / C.all) : ""}</td>
    <td class="l">${bar(costParts(i.busy_clk, i.stall_clk, most), "4.2rem")}</td><td>${hex(i.pc)}</td><td class="gutter"></td>
    <td class="text inst">${esc(i.text)}</td>
    <td>${waits / i.issued >= .5 ? num(Math.round(waits / i.issued)) : ""}</td>
    <td class="l reason">${main ? `<i class="swatch" style="background:${variable(REASONS[main])}"></i>${main}` : ""}</td>
    <td>${main ? pct(i.covered_clk / waits) : ""}</td><td>${i.latency_clk ? num(Math.round(i.latency_clk / i.issued)) : ""}</td>
    <td>${i.latency_clk ? pct(i.hidden_clk / i.latency_clk) : ""}</td><td class="l">${chips(k)}</td><td>${num(i.executed)}</td>
    <td>${i.active_lanes ? (i.active_lanes / i.executed).toFixed(0) : ""}</td><td class="l reason" data-tip="${esc(i.source + "\n" + (C.p.lines[i.source] || "").trim())}">${i.source === last ? "" : esc(shortPlace(i.source))}</td></tr>`;
}

function chips(k) {
  const {p} = C, name = at => hex(p.instructions[at].pc);
  const to = C.waitsOf[k].map(([wait, times, clk]) =>
    `<span class="chip" data-to="${wait}" data-tip="${esc(`retired by ${name(wait)} ${p.instructions[wait].text}, ${plural(times, "time")};\nit waited ${num(clk / times)} clk each time while this was on its way`)}">→${name(wait)}</span>`);
  const from = (p.instructions[k].retires || []).map(([load, times, clk]) =>
    `<span class="chip" data-to="${load}" data-tip="${esc(`retires ${name(load)} ${p.instructions[load].text}, ${plural(times, "time")};\nwaited ${num(clk / times)} clk each time while it was on its way`)}">←${name(load)}</span>`);
  const all = [...to, ...from], more = all.length - 3;
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
  if (!C.rows.some(k => C.p.instructions[k].source === source)) { $("hot").checked = false; rows() }
  scrollToRow($("rows"), mark($("rows"), row => C.p.instructions[+row.dataset.k].source === source, "lit")[0]);
  lightArrows(null);
}

function pinInstruction(k, follow) {
  C.pinned = k;
  mark($("rows"), () => false, "lit");
  const found = mark($("rows"), row => +row.dataset.k === k, "pinned");
  if (!follow) scrollToRow($("rows"), found[0]);
  if (C.p.instructions[k].source) pinSource(C.p.instructions[k].source, false);
  lightArrows(k);
}

function goToInstruction(k) {
  if (!C.rows.includes(k)) { $("hot").checked = false; $("find").value = ""; rows() }
  pinInstruction(k, false);
  $("code").scrollIntoView({block: "nearest"});
}
function goToSource(source) {
  pinSource(source, true);
  if ($("source") && place(source)[0] === C.file) scrollToRow($("source"), $("source").querySelectorAll("tr")[place(source)[1] - 1]);
  $("code").scrollIntoView();
}

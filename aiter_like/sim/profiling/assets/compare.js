// SPDX-License-Identifier: MIT
// Before and after: totals, units, waits, and the lines and instructions that changed most.
function compare() {
  if (!comparison) return;
  const c = comparison, clk = c.totals[0], faster = clk.before / clk.after;
  const same = c.names[0] === c.names[1];
  $("compare").hidden = false;
  $("compare").innerHTML = `<h2>Before and after</h2><p>${same ? "" : `<span class="dim">before:</span> <span class="mono">${esc(c.names[0])}</span><br>
    <span class="dim">after:</span> <span class="mono">${esc(c.names[1])}</span><br>`}Modelled time: ${count(clk.before)} → ${count(clk.after)} clk,
    <b class="${faster >= 1 ? "down" : "up"}">${faster >= 1 ? `${faster.toFixed(2)} times as fast` : `${(1 / faster).toFixed(2)} times as long`}</b>.
    <span class="dim">All figures are of whole launches. Bars: <i class="swatch" style="background:var(--other)"></i>before,
    <i class="swatch" style="background:var(--accent)"></i>after.</span></p>
    <div class="columns"><div><h3>Totals</h3>${rowsOf(c.totals, false)}</div>
    <div><h3>How busy the units are</h3>${rowsOf(c.units, true)}<h3>Where the waves' time goes</h3>${rowsOf(c.waits, true)}</div></div>
    <h3>By line: cycles of waves, modelled; those that changed most first</h3>${linesOf(c)}<h2>After</h2>`;
  for (const one of $("compare").querySelectorAll("tr[data-line]")) one.onclick = () => {
    for (const detail of $("compare").querySelectorAll(`tr[data-of="${one.dataset.line}"]`)) detail.hidden = !detail.hidden;
  };
}

const figure = (value, unit) => unit === "%" ? `${value.toFixed(value < 9.95 ? 1 : 0)} %` : unit === "clk" || unit === "B" ? num(value, unit === "B" ? "B" : "") : num(value);
// More time, traffic or waiting is worse; for the rest more is neither.
function change(before, after, judged = true) {
  if (!before && !after) return "<td></td>";
  if (!before) return '<td class="dim">new</td>';
  if (!after) return '<td class="dim">gone</td>';
  if (before === after) return '<td class="dim">=</td>';
  const by = after / before - 1, kind = !judged || Math.abs(by) < .005 ? "dim" : by > 0 ? "up" : "down";
  return `<td class="${kind}">${by >= 0 ? "+" : "−"}${Math.abs(100 * by).toFixed(Math.abs(by) < .0995 ? 1 : 0)} %</td>`;
}
const twoBars = (before, after, most) => `<td class="l" style="padding:2px .6rem">${bar([[before / most, "--other"]], "11rem")}${bar([[after / most, "--accent"]], "11rem")}</td>`;

function rowsOf(list, withBars) {
  const most = Math.max(...list.map(row => Math.max(row.before, row.after)), 1e-9), neutral = /workgroups|waves per|flop|registers|busy/;
  return `<table class="full"><thead><tr><th class="l"></th><th>before</th><th>after</th><th>change</th>${withBars ? '<th class="l"></th>' : ""}</tr></thead><tbody>` +
    list.filter(row => row.before || row.after).map(row => `<tr><td class="l">${esc(row.name)}</td><td>${figure(row.before, row.unit)}</td><td>${figure(row.after, row.unit)}</td>
      ${change(row.before, row.after, !neutral.test(row.name))}${withBars ? twoBars(row.before, row.after, most) : ""}</tr>`).join("") + "</tbody></table>";
}

function linesOf(c) {
  const shown = c.lines.slice(0, 60), most = Math.max(...shown.map(row => Math.max(row.before, row.after)), 1);
  return `<div class="scroll"><table class="full"><thead><tr><th class="l">line</th><th>before</th><th>after</th><th>change</th><th>difference</th><th class="l"></th>
    <th class="l">text; a click shows the instructions</th></tr></thead><tbody>${shown.map((row, n) => {
      const [old, now] = row.source, name = now === null ? old : now, moved = old !== null && now !== null && old !== now;
      return `<tr data-line="${n}" style="cursor:pointer"><td class="l" data-tip="${esc(moved ? `before: ${old}` : "")}">${esc(shortPlace(name) || "(no line)")}${moved ? " ↷" : ""}</td>
        <td>${num(row.before)}</td><td>${num(row.after)}</td>${change(row.before, row.after)}<td>${row.after >= row.before ? "+" : "−"}${num(Math.abs(row.after - row.before))}</td>
        ${twoBars(row.before, row.after, most)}<td class="l cut">${esc(row.text)}</td></tr>` + row.instructions.map(i =>
        `<tr data-of="${n}" hidden><td class="l reason" style="padding-left:1.6rem">${num(i.times[0])} → ${num(i.times[1])} times</td><td>${num(i.clk[0])}</td><td>${num(i.clk[1])}</td>
        ${change(i.clk[0], i.clk[1])}<td></td><td></td><td class="text reason">${esc(i.text)}</td></tr>`).join("");
    }).join("")}</tbody></table></div>`;
}

// SPDX-License-Identifier: MIT
// Before and after: totals, units, waits, and the lines and instructions that changed most.
const NEUTRAL = /workgroups|waves per|flop|registers|busy/;      // more of these is neither better nor worse

function compare() {
  if (!comparison) return;
  const c = comparison, clk = c.totals[0], faster = clk.before / clk.after, names = ["before", "after"];
  const kernels = c.names[0] === c.names[1] ? "" : names.map((when, n) =>
    `<span class="dim">${when}:</span> <span class="mono">${esc(c.names[n])}</span><br>`).join("");
  const verdict = faster >= 1 ? `${faster.toFixed(2)} times as fast` : `${(1 / faster).toFixed(2)} times as long`;
  $("compare").hidden = false;
  $("compare").innerHTML = `<h2>Before and after</h2><p>${kernels}Modelled time: ${count(clk.before)} →
    ${count(clk.after)} clk, <b class="${faster >= 1 ? "down" : "up"}">${verdict}</b>. <span class="dim">All
    figures are of whole launches. Bars: <i class="swatch" style="background:var(--other)"></i>before,
    <i class="swatch" style="background:var(--accent)"></i>after.</span></p>
    <div class="columns"><div><h3>Totals</h3>${figures(c.totals, false)}</div>
    <div><h3>How busy the units are</h3>${figures(c.units, true)}
    <h3>Where the waves' time goes</h3>${figures(c.waits, true)}</div></div>
    <h3>By line: cycles of waves, modelled; those that changed most first</h3>${changedLines(c)}<h2>After</h2>`;
  onRows($("compare"), "line", line => {
    for (const row of $("compare").querySelectorAll(`tr[data-of="${line}"]`)) row.hidden = !row.hidden;
  });
}

function figure(value, unit) {
  return unit === "%" ? `${value.toFixed(value < 9.95 ? 1 : 0)} %` : num(value, unit === "B" ? "B" : "");
}

function change(before, after, neutral = false) {
  if (!before && !after) return td("");
  if (!before || !after) return td(before ? "gone" : "new", "dim");
  const by = after / before - 1, size = Math.abs(by);
  if (size < .0005) return td("=", "dim");
  const text = `${by > 0 ? "+" : "−"}${(100 * size).toFixed(size < .0995 ? 1 : 0)} %`;
  return td(text, neutral || size < .005 ? "dim" : by > 0 ? "up" : "down");
}

const twoBars = (before, after, most) =>
  td(bar([[before / most, "--other"]], "11rem") + bar([[after / most, "--accent"]], "11rem"), "l pair");

function figures(list, withBars) {
  const most = Math.max(...list.map(row => Math.max(row.before, row.after)), 1e-9);
  const rows = list.filter(row => row.before || row.after).map(row => tr([td(esc(row.name), "l"),
    td(figure(row.before, row.unit)), td(figure(row.after, row.unit)),
    change(row.before, row.after, NEUTRAL.test(row.name)), withBars ? twoBars(row.before, row.after, most) : ""]));
  const heads = [["", "l"], ["before"], ["after"], ["change"], ...withBars ? [["", "l"]] : []];
  return `<div class="wide">${table(heads, rows)}</div>`;
}

function changedLines(c) {
  const shown = c.lines.slice(0, 60), most = Math.max(...shown.map(row => Math.max(row.before, row.after)), 1);
  const rows = shown.flatMap((row, n) => {
    const [old, now] = row.source, moved = old !== null && now !== null && old !== now, more = row.after - row.before;
    const name = esc(shortPlace(now === null ? old : now) || "(no line)") + (moved ? " ↷" : "");
    const line = tr([td(name, "l", moved ? `before: ${old}` : ""), td(num(row.before)), td(num(row.after)),
      change(row.before, row.after), td(`${more >= 0 ? "+" : "−"}${num(Math.abs(more))}`),
      twoBars(row.before, row.after, most), td(esc(row.text), "l code")], `class="click" data-line="${n}"`);
    const forms = row.instructions.map(({text, times, clk}) => tr([
      td(`${num(times[0])} → ${num(times[1])} times`, "l reason inner"), td(num(clk[0])), td(num(clk[1])),
      change(clk[0], clk[1]), td(""), td(""), td(esc(text), "text reason")], `data-of="${n}" hidden`));
    return [line, ...forms];
  });
  return `<div class="scroll">${table([["line", "l"], ["before"], ["after"], ["change"], ["difference"], ["", "l"],
    ["text; a click shows the instructions", "l"]], rows)}</div>`;
}

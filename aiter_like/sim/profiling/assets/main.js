// SPDX-License-Identifier: MIT
// Which launch is shown, and the parts of the page that show it.
const SECTIONS = [["compare", "before and after"], ["overview", "overview"], ["roofline", "roofline"],
  ["timeline", "waves"], ["code", "source and instructions"], ["memory", "memory"], ["banks", "LDS banks"]];

function show(number) {
  const p = profiles[number];
  document.title = `${p.title} – modelled`;
  $("name").textContent = p.title;
  $("facts").textContent = `grid ${p.grid.join(" × ")}, block ${p.block.join(" × ")}, ` +
    `${count(p.lds_bytes)} B of LDS; ${count(p.recorded)} of an XCD's ${plural(p.workgroups_of_xcd, "workgroup")} ` +
    `replayed on ${plural(p.cus_of_xcd, "CU")}`;
  $("model").textContent = `Model version ${p.model}, at ${p.clock_mhz} MHz.`;
  for (const row of $("launches").querySelectorAll("tr[data-n]")) {
    row.classList.toggle("pinned", +row.dataset.n === number);
  }
  for (const part of [overview, roofline, timeline, code, memory, banks]) part(p);
  const drawn = SECTIONS.filter(([id]) => $(id).innerHTML.trim());
  $("nav").innerHTML = drawn.map(([id, name]) => `<a href="#${id}">${name}</a>`).join("");
}

function launches() {
  if (profiles.length < 2) return;
  const all = sum(profiles.map(p => p.modelled_clk)) || 1;
  const rows = profiles.map((p, n) => tr([td(esc(p.title.slice(0, 90)), "l", p.name), td(count(p.modelled_clk)),
    td(pct(p.modelled_clk / all)), td(bar([[p.modelled_clk / all, "--accent"]], "6rem"), "l"),
    td(esc(p.bound), "l reason")], `class="click" data-n="${n}"`));
  const heads = [["launch", "l"], ["modelled clk"], ["share", "", "of the launches here"], ["", "l"],
    ["bound by", "l"]];
  const cut = leftOut ? `<p class="dim small">${count(leftOut)} more, shorter, are not on this page.</p>` : "";
  $("launches").innerHTML = `<div class="scroll low">${table(heads, rows)}</div>${cut}`;
  onRows($("launches"), "n", n => show(+n));
}

launches();
compare();
show(0);
addEventListener("resize", () => { drawRoofline(); drawTimeline() });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawTimeline);

// SPDX-License-Identifier: MIT
// Which launch is shown, and the parts of the page that show it.
const SECTIONS = [["compare", "before and after"], ["overview", "overview"], ["roofline", "roofline"], ["timeline", "waves"],
  ["code", "source and instructions"], ["memory", "memory"], ["banks", "LDS banks"]];

function show(number) {
  const p = profiles[number];
  document.title = `${p.title} – modelled`;
  $("name").textContent = p.title;
  $("facts").textContent = `grid ${p.grid.join(" × ")}, block ${p.block.join(" × ")}, ${count(p.lds_bytes)} B of LDS; ` +
    `${count(p.recorded)} of an XCD's ${plural(p.workgroups_of_xcd, "workgroup")} replayed on ${plural(p.cus_of_xcd, "CU")}`;
  $("model").textContent = `Model version ${p.model}, at ${p.clock_mhz} MHz.`;
  for (const row of $("launches").querySelectorAll("tr[data-n]")) row.classList.toggle("pinned", +row.dataset.n === number);
  for (const part of [overview, roofline, timeline, code, memory, banks]) part(p);
  $("nav").innerHTML = SECTIONS.filter(([id]) => $(id).innerHTML.trim()).map(([id, name]) => `<a href="#${id}">${name}</a>`).join("");
}

function launches() {
  if (profiles.length < 2) return;
  const all = sum(profiles.map(p => p.modelled_clk)) || 1;
  $("launches").innerHTML = `<div class="scroll" style="max-height:12rem"><table class="full"><thead><tr><th class="l">launch</th><th>modelled clk</th><th>share</th>
    <th class="l"></th><th class="l">bound by</th></tr></thead><tbody>${profiles.map((p, n) => `<tr data-n="${n}" style="cursor:pointer"><td class="l" data-tip="${esc(p.name)}">${esc(p.title.slice(0, 90))}</td>
    <td>${count(p.modelled_clk)}</td><td>${pct(p.modelled_clk / all)}</td><td class="l">${bar([[p.modelled_clk / all, "--accent"]], "9rem")}</td><td class="l reason">${esc(p.bound)}</td></tr>`).join("")}
    </tbody></table></div>`;
  for (const row of $("launches").querySelectorAll("tr[data-n]")) row.onclick = () => show(+row.dataset.n);
}

launches();
compare();
show(0);
addEventListener("resize", drawTimeline);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawTimeline);

// SPDX-License-Identifier: MIT
// The banks of the LDS: how long each is busy, and how much of it is lost in conflicts; of all and of each instruction.
const BANKS = 32, NO_BANKS = Array(BANKS).fill(0);

function banks(p) {
  const list = p.instructions.map((i, k) => [i, k]).filter(([i]) => i.lds_bank_clk);
  if (!list.length) { $("banks").innerHTML = ""; return }
  const sums = key => list.reduce((all, [i]) => all.map((clk, bank) => clk + (i[key] || NO_BANKS)[bank]), NO_BANKS);
  const all = {executed: 1, lds_bank_clk: sums("lds_bank_clk"), lds_bank_extra_clk: sums("lds_bank_extra_clk"),
    lds_clk: p.counts.lds_clk, lds_conflict_clk: p.counts.lds_conflict_clk};
  const lost = ([i]) => i.lds_conflict_clk || 0;
  const costly = list.sort((a, b) => lost(b) - lost(a) || b[0].lds_clk - a[0].lds_clk).slice(0, 32);
  const rows = [bankRow(all, null), ...costly.sort((a, b) => a[1] - b[1]).map(([i, k]) => bankRow(i, k))];
  const cut = list.length > costly.length ?
    `<p class="dim small">The ${costly.length} of ${list.length} instructions that lose, else that take most
    cycles.</p>` : "";
  $("banks").innerHTML = `<h2>LDS banks <span class="dim small">counted: cycles that each of the ${BANKS} banks is busy,
    and those that it is busy longer than one per phase</span></h2>${cut}<div class="wide">${table([["pc", "l"],
    ["clk", "", "cycles of the banks, each time"], ["lost", "", "of them lost in conflicts"],
    ["busy, bank 0 … 31", "l"], ["of it in conflicts", "l"], ["instruction", "l"], ["line", "l"]], rows, "")}</div>`;
  onRows($("banks"), "k", k => goToInstruction(+k));
}

// k: the place of the instruction, or null for all of them.
function bankRow(i, k) {
  const times = i.executed, when = k === null ? "in all" : "each time", lost = i.lds_conflict_clk || 0;
  return tr([td(k === null ? "all" : hex(i.pc), "l"), td(num(i.lds_clk / times)),
    td(num(lost / times), lost ? "up" : ""), td(heat(i.lds_bank_clk, i, "--lds", `busy ${when}`), "l"),
    td(heat(i.lds_bank_extra_clk || NO_BANKS, i, "--bad", `lost ${when}`), "l"),
    td(k === null ? "" : esc(i.text), "text"), td(k === null ? "" : placeOf(i), "l reason")],
    k === null ? 'class="total"' : `class="click" data-k="${k}"`);
}

// A cell for each bank, the stronger the longer it is busy.
function heat(values, i, color, what) {
  const most = Math.max(...i.lds_bank_clk, 1);
  const cells = values.map((clk, bank) => `<rect x="${bank * 12}" width="11" height="14" rx="1.5"
    fill="${variable(clk ? color : "--card")}" opacity="${clk ? (.18 + .82 * clk / most).toFixed(2) : 1}"
    ${tipped(`bank ${bank}: ${num(clk / i.executed)} clk ${what}`)}/>`);
  return `<svg class="banks" width="${BANKS * 12}" height="14">${cells.join("")}</svg>`;
}

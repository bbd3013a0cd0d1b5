// SPDX-License-Identifier: MIT
// Arrows beside the instructions, from a memory operation to the waits that retire it. Neighbours lie in different
// lanes.
const LANES = 7, LANE = 7;

function drawArrows() {
  const svg = $("arrows"), at = new Map(C.rows.map((k, n) => [k, n])), cell = $("rows").querySelector("tbody .gutter");
  if (!cell) return;
  for (const one of $("rows").querySelectorAll(".gutter")) one.style.minWidth = `${LANES * LANE + 14}px`;
  const head = $("rows").querySelector("thead").offsetHeight, row = cell.offsetHeight, right = LANES * LANE + 12;
  const edges = [];
  C.rows.forEach(k => {
    for (const [wait, , clk] of C.waitsOf[k]) {
      if (at.has(wait)) edges.push({from: k, to: wait, clk, a: at.get(k), b: at.get(wait)});
    }
  });
  const most = Math.max(...edges.map(edge => edge.clk), 1);
  svg.style.left = cell.offsetLeft + "px"; svg.style.top = "0";
  svg.setAttribute("width", right + 2); svg.setAttribute("height", head + C.rows.length * row);
  const path = edge => {
    const y1 = head + (edge.a + .5) * row, y2 = head + (edge.b + .5) * row + (edge.b > edge.a ? -3 : 3);
    const x = right - 8 - edge.lane * LANE, from = C.p.instructions[edge.from], to = C.p.instructions[edge.to];
    const kinds = [edge.clk / most >= .04 && "heavy", from.pc > to.pc && "earlier",
      (to.stall_clk.lgkmcnt || 0) > (to.stall_clk.vmcnt || 0) && "lgkm"];
    return `<path class="${kinds.filter(Boolean).join(" ")}" data-from="${edge.from}" data-to="${edge.to}"
      d="M${right},${y1}H${x}V${y2}H${right}" marker-end="url(#tipmark)"/>`;
  };
  svg.innerHTML = `<defs><marker id="tipmark" markerWidth="6" markerHeight="6" refX="5" refY="3" orient="auto"
    markerUnits="userSpaceOnUse"><path d="M0,0L6,3L0,6z" style="fill:context-stroke;stroke:none;opacity:1"/></marker>
    </defs>${laned(edges).map(path).join("")}`;
}

// Short arrows lie inside: each takes the first lane that is free between its rows.
function laned(edges) {
  const taken = Array.from({length: LANES}, () => []);
  for (const edge of edges.sort((x, y) => Math.abs(x.a - x.b) - Math.abs(y.a - y.b))) {
    const low = Math.min(edge.a, edge.b), high = Math.max(edge.a, edge.b);
    edge.lane = taken.findIndex(spans => spans.every(([from, until]) => until < low || from > high));
    if (edge.lane < 0) edge.lane = LANES - 1;
    taken[edge.lane].push([low, high]);
  }
  return edges;
}

function lightArrows(k) {
  const svg = $("arrows");
  if (!svg) return;
  let some = false;
  for (const path of svg.querySelectorAll("path[data-from]")) {
    const on = k !== null && (+path.dataset.from === k || +path.dataset.to === k);
    path.classList.toggle("on", on);
    some ||= on;
  }
  svg.classList.toggle("some", some);
}

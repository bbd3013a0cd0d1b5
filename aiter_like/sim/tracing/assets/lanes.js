// SPDX-License-Identifier: MIT
// The lane that the pointer is on stands out in every picture.
const cells = [...document.querySelectorAll(".c")];
const lanesOf = new Map(cells.map(cell => [cell, new Set(cell.dataset.lanes.split(" "))]));
function show(lane) {
  document.body.classList.toggle("lane", lane !== null);
  for (const cell of cells) cell.classList.toggle("on", lane !== null && lanesOf.get(cell).has(lane));
}
for (const cell of cells) {
  cell.addEventListener("pointerenter", () => show(cell.dataset.lanes.split(" ")[0]));
  cell.addEventListener("pointerleave", () => show(null));
}

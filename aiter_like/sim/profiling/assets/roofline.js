// SPDX-License-Identifier: MIT
// The roofline: a point for each level of memory that the kernel uses, below the lines of the model's parameters.
function roofline(p) {
  const f = p.figures, flop = sum(f.compute.map(one => one.flop)), levels = f.levels.filter(one => one.bytes > 0);
  const rows = levels.map(one => `<tr><td class="l">${one.name}</td><td>${num(one.bytes, "B")}</td><td>${num(one.bytes_per_s, "B/s")}</td>
    <td>${num(roofOf(p, one.name), "B/s")}</td><td>${pct(one.share)}</td><td>${flop ? num(flop / one.bytes) : ""}</td></tr>`).join("");
  const compute = f.compute.map(one => `<tr><td class="l">${esc(one.name)}</td><td>${num(one.flop, "FLOP")}</td><td>${num(one.flop_per_s, "FLOP/s")}</td>
    <td>${num(roofOf(p, one.roof), "FLOP/s")}</td><td>${pct(one.share)}</td><td></td></tr>`).join("");
  $("roofline").innerHTML = `<h2>Roofline <span class="dim small">modelled; the lines are what the model's parameters allow at ${p.clock_mhz} MHz</span></h2>
    <div class="columns" style="grid-template-columns:minmax(30rem,46rem) minmax(26rem,1fr)"><div>${flop && levels.length ? chart(p, flop, levels) :
      '<p class="dim">No floating-point arithmetic, or no memory: there is no point to draw.</p>'}</div>
    <div><table class="full"><thead><tr><th class="l">level</th><th>bytes</th><th>modelled</th><th>roof</th><th>of it</th>
      <th data-tip="floating-point operations per byte at this level">FLOP/B</th></tr></thead><tbody>${rows}</tbody>
      <thead><tr><th class="l">arithmetic</th><th></th><th></th><th></th><th></th><th></th></tr></thead><tbody>${compute}</tbody></table>
      <p class="dim small">Vector arithmetic counts additions, multiplications and transcendentals of active lanes; its roof is packed f32.
      The same point stands at each level where its bytes put it: the level whose line is nearest above it binds.</p></div></div>`;
}

const roofOf = (p, name) => p.roofs.find(roof => roof.name === name).per_second;

function chart(p, flop, levels) {
  const W = 720, H = 420, L = 74, R = 30, T = 16, B = 46, rate = flop / (p.modelled_us * 1e-6);
  const used = new Set(p.figures.compute.map(one => one.roof));
  const compute = p.roofs.filter(roof => roof.unit === "flop" && (used.has(roof.name) || ["bf16", "vector f32"].includes(roof.name)));
  const memory = p.roofs.filter(roof => roof.unit === "B"), top = Math.max(...compute.map(roof => roof.per_second));
  const at = levels.map(one => flop / one.bytes), slow = Math.min(...memory.map(roof => roof.per_second));
  const log = Math.log10, lo = Math.floor(log(Math.min(...at, 1) / 2)), hi = Math.ceil(log(Math.max(...at, top / slow) * 2));
  const ylo = Math.floor(log(rate / 2)), yhi = Math.ceil(log(top));
  const X = v => L + (log(v) - lo) / (hi - lo) * (W - L - R), Y = v => H - B - (log(v) - ylo) / (yhi - ylo) * (H - T - B);
  let out = "";
  for (let e = lo; e <= hi; ++e) out += `<line class="grid" x1="${X(10 ** e)}" x2="${X(10 ** e)}" y1="${T}" y2="${H - B}"/>
    <text class="dim" x="${X(10 ** e)}" y="${H - B + 16}" text-anchor="middle">${e < 0 ? (10 ** e).toFixed(-e) : count(10 ** e)}</text>`;
  for (let e = ylo; e <= yhi; ++e) out += `<line class="grid" x1="${L}" x2="${W - R}" y1="${Y(10 ** e)}" y2="${Y(10 ** e)}"/>
    <text class="dim" x="${L - 8}" y="${Y(10 ** e) + 4}" text-anchor="end">${tick(10 ** e)}</text>`;
  const low = 10 ** lo, high = 10 ** hi, floor = 10 ** ylo;
  memory.forEach((roof, k) => {
    const x1 = Math.max(low, floor / roof.per_second), x2 = Math.min(high, top / roof.per_second), y1 = x1 * roof.per_second;
    if (x2 <= x1) return;
    const angle = Math.atan2(Y(x2 * roof.per_second) - Y(y1), X(x2) - X(x1)) * 180 / Math.PI, near = 10 ** (log(x1) + (log(x2) - log(x1)) * (.05 + .09 * k));
    out += `<g data-tip="${roof.name}: ${num(roof.per_second, "B/s")}"><line x1="${X(x1)}" y1="${Y(y1)}" x2="${X(x2)}" y2="${Y(x2 * roof.per_second)}" stroke="${variable("--memory")}" stroke-width="1.4" opacity="${levels.some(l => l.name === roof.name) ? .95 : .35}"/>
      <text class="dim" transform="translate(${X(near)},${Y(near * roof.per_second) - 4}) rotate(${angle})" style="font-size:11px">${roof.name}</text></g>`;
  });
  // Roofs of one height share a line.
  const heights = new Map();
  compute.forEach(roof => heights.set(roof.per_second, [...heights.get(roof.per_second) || [], roof]));
  const fastest = Math.max(...memory.map(roof => roof.per_second));
  heights.forEach((roofs, height) => {
    const x1 = Math.max(low, height / fastest), names = roofs.map(roof => roof.name).join(", "), on = roofs.some(roof => used.has(roof.name));
    out += `<g data-tip="${names}: ${num(height, "FLOP/s")}"><line x1="${X(x1)}" x2="${X(high)}" y1="${Y(height)}" y2="${Y(height)}" stroke="${variable("--matrix")}" stroke-width="1.4" opacity="${on ? .95 : .4}"/>
      <text class="dim" x="${W - R - 4}" y="${Y(height) - 5}" text-anchor="end" style="font-size:11px">${names} ${num(height, "FLOP/s")}</text></g>`;
  });
  levels.forEach((one, k) => {
    out += `<g data-tip="${one.name}: ${num(at[k])} FLOP/B, ${num(rate, "FLOP/s")} modelled\n${pct(one.share)} of what ${one.name} can">
      <line x1="${X(at[k])}" x2="${X(at[k])}" y1="${Y(rate)}" y2="${H - B}" stroke="${variable("--accent")}" stroke-dasharray="2 3" opacity=".5"/>
      <circle cx="${X(at[k])}" cy="${Y(rate)}" r="5" fill="${variable("--accent")}"/>
      <text x="${X(at[k])}" y="${Y(rate) - 9 - 13 * crowding(at, k, X)}" text-anchor="middle" style="font-size:11px;font-weight:600">${one.name}</text></g>`;
  });
  return `<svg viewBox="0 0 ${W} ${H}" role="img" aria-label="roofline"><path class="axis" fill="none" d="M${L},${T}V${H - B}H${W - R}"/>${out}
    <text class="dim" x="${(L + W - R) / 2}" y="${H - 8}" text-anchor="middle">floating-point operations per byte</text>
    <text class="dim" transform="translate(14,${(T + H - B) / 2}) rotate(-90)" text-anchor="middle">FLOP/s, modelled</text></svg>`;
}

// How many labels already stand where this one would.
const crowding = (at, k, X) => at.slice(0, k).filter(other => Math.abs(X(other) - X(at[k])) < 30).length;

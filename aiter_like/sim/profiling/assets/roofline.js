// SPDX-License-Identifier: MIT
// The roofline: a point for each level of memory that the kernel uses, below the lines of the model's parameters.
const PLOT = {width: 560, height: 380, left: 62, right: 22, top: 16, bottom: 46};
let R = null;      // what is drawn: the profile, its operations, the levels

function roofline(p) {
  const f = p.figures, flop = sum(f.compute.map(one => one.flop));
  const levels = f.levels.filter(one => one.bytes > 0 && one.share !== null);
  const rows = levels.map(one => tr([td(one.name, "l"), td(num(one.bytes, "B")), td(num(one.bytes_per_s, "B/s")),
    td(num(roofOf(p, one.name), "B/s")), td(pct(one.share)), td(flop ? num(flop / one.bytes) : "")]));
  const compute = f.compute.map(one => tr([td(esc(one.name), "l"), td(num(one.flop, "FLOP")),
    td(num(one.flop_per_s, "FLOP/s")), td(num(roofOf(p, one.roof), "FLOP/s")), td(pct(one.share)), td("")]));
  const heads = [["level, arithmetic", "l"], ["in all"], ["modelled"], ["roof"], ["of it"],
    ["FLOP/B", "", "floating-point operations per byte at this level"]];
  R = flop && levels.length ? {p, flop, levels} : null;
  const drawn = R ? "" : '<p class="dim">No floating-point arithmetic, or no memory: there is no point to draw.</p>';
  $("roofline").innerHTML = `<h2>Roofline <span class="dim small">modelled; the lines are what the model's parameters
    allow at ${p.clock_mhz} MHz</span></h2><div class="columns plot"><div id="plot">${drawn}</div>
    <div><div class="wide">${table(heads, [...rows, ...compute])}</div><p class="dim small">Vector arithmetic counts
    additions, multiplications and transcendentals of active lanes; its roof is packed f32. The same point stands at
    each level where its bytes put it: the level whose line is nearest above it binds.</p></div></div>`;
  drawRoofline();
}

// As wide as its place, so that its letters have their size.
function drawRoofline() {
  if (!R) return;
  PLOT.width = Math.min(Math.max($("plot").clientWidth, 300), 720);
  $("plot").innerHTML = chart(R.p, R.flop, R.levels);
}

const roofOf = (p, name) => p.roofs.find(roof => roof.name === name).per_second;

function chart(p, flop, levels) {
  const {width, height, left, right, top, bottom} = PLOT, log = Math.log10, rate = flop / (p.modelled_us * 1e-6);
  const used = new Set(p.figures.compute.map(one => one.roof)), known = ["bf16", "vector f32"];
  const compute = p.roofs.filter(roof => roof.unit === "flop" && (used.has(roof.name) || known.includes(roof.name)));
  const memory = p.roofs.filter(roof => roof.unit === "B").sort((a, b) => b.per_second - a.per_second);
  const peak = Math.max(...compute.map(roof => roof.per_second)), lowest = memory.at(-1);
  const at = levels.map(one => flop / one.bytes), slowest = lowest.per_second;
  const x = [Math.floor(log(Math.min(...at, 1) / 4)), Math.ceil(log(Math.max(...at, peak / slowest) * 2))];
  const y = [Math.floor(log(rate / 2)), Math.ceil(log(peak))];
  const X = v => left + (log(v) - x[0]) / (x[1] - x[0]) * (width - left - right);
  const Y = v => height - bottom - (log(v) - y[0]) / (y[1] - y[0]) * (height - top - bottom);
  const axes = {X, Y, low: 10 ** x[0], high: 10 ** x[1], floor: 10 ** y[0], peak};
  const parts = [...grid(axes, x, y), ...memory.map((roof, k) => memoryLine(axes, roof, k, roof === lowest, levels)),
    ...computeLines(axes, compute, used, memory[0].per_second),
    ...levels.map((one, k) => point(axes, one, at[k], rate)), ...pointNames(axes, levels, at, rate)];
  return `<svg width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img" aria-label="roofline">
    <path class="axis" d="M${left},${top}V${height - bottom}H${width - right}"/>${parts.join("")}
    ${label((left + width - right) / 2, height - 8, "floating-point operations per byte", "dim", "middle")}
    <g transform="translate(14,${(top + height - bottom) / 2}) rotate(-90)">
    ${label(0, 0, "FLOP/s, modelled", "dim", "middle")}</g></svg>`;
}

const line = (x1, y1, x2, y2, attributes) => `<line x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}" ${attributes}/>`;
const label = (x, y, text, kind, anchor) =>
  `<text class="${kind}" x="${x}" y="${y}" text-anchor="${anchor}">${text}</text>`;
const stroke = (color, opacity) => `stroke="${variable(color)}" stroke-width="1.4" opacity="${opacity}"`;

function grid({X, Y}, x, y) {
  const {width, height, left, right, top, bottom} = PLOT, found = [];
  for (let e = x[0]; e <= x[1]; ++e) {
    const value = 10 ** e, text = e < 0 ? value.toFixed(-e) : count(value);
    found.push(line(X(value), top, X(value), height - bottom, 'class="grid"'));
    found.push(label(X(value), height - bottom + 16, text, "dim", "middle"));
  }
  for (let e = y[0]; e <= y[1]; ++e) {
    const value = 10 ** e;
    found.push(line(left, Y(value), width - right, Y(value), 'class="grid"'));
    found.push(label(left - 8, Y(value) + 4, tick(value), "dim", "end"));
  }
  return found;
}

// Each has its name above its left end, the lowest one below it.
function memoryLine({X, Y, low, high, floor, peak}, roof, k, isLowest, levels) {
  const slope = roof.per_second, x1 = Math.max(low, floor / slope), x2 = Math.min(high, peak / slope);
  if (x2 <= x1) return "";
  const [a, b, c, d] = [X(x1), Y(x1 * slope), X(x2), Y(x2 * slope)], angle = Math.atan2(d - b, c - a) * 180 / Math.PI;
  const share = .02, opacity = levels.some(one => one.name === roof.name) ? .95 : .35;
  return `<g ${tipped(`${roof.name}: ${num(slope, "B/s")}`)}>${line(a, b, c, d, stroke("--memory", opacity))}
    <g transform="translate(${a + (c - a) * share},${b + (d - b) * share}) rotate(${angle})">
    ${label(0, isLowest ? 13 : -4, roof.name, "dim fine", "start")}</g></g>`;
}

// Roofs of one height share a line.
function computeLines({X, Y, low, high}, compute, used, fastest) {
  const heights = new Map();
  for (const roof of compute) heights.set(roof.per_second, [...heights.get(roof.per_second) || [], roof.name]);
  return [...heights].map(([value, names]) => {
    const text = `${names.join(", ")} ${num(value, "FLOP/s")}`, opacity = names.some(name => used.has(name)) ? .95 : .4;
    const from = X(Math.max(low, value / fastest)), height = Y(value);
    return `<g ${tipped(text)}>${line(from, height, X(high), height, stroke("--matrix", opacity))}
      ${label(X(high) - 4, height - 5, text, "dim fine", "end")}</g>`;
  });
}

function point({X, Y}, level, intensity, rate) {
  const x = X(intensity), y = Y(rate);
  const tip = `${level.name}: ${num(intensity)} FLOP/B, ${num(rate, "FLOP/s")} modelled\n` +
    `${pct(level.share)} of its roof`;
  const dashes = `${stroke("--accent", .5)} stroke-dasharray="2 3"`;
  return `<g ${tipped(tip)}>${line(x, y, x, PLOT.height - PLOT.bottom, dashes)}
    <circle cx="${x}" cy="${y}" r="5" fill="${variable("--accent")}"/></g>`;
}

// Names above points: neighbours' in one text, and a text that would meet another one in a row above it.
function pointNames({X, Y}, levels, at, rate) {
  const groups = [], rows = [], order = levels.map((one, k) => [X(at[k]), one.name]).sort((a, b) => a[0] - b[0]);
  for (const [x, name] of order) {
    const last = groups.at(-1);
    if (last && x < last.until + 24) Object.assign(last, {until: x, text: `${last.text}, ${name}`});
    else groups.push({from: x, until: x, text: name});
  }
  return groups.map(({from, until, text}) => {
    const wide = 8 * text.length, left = from - 5 + wide < PLOT.width ? from - 5 : until + 5 - wide;
    const row = [...rows, 0].findIndex(right => right < left);
    rows[row] = left + wide;
    return label(left, Y(rate) - 10 - 14 * row, text, "fine strong", "start");
  });
}

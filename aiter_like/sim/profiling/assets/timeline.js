// SPDX-License-Identifier: MIT
// The waves of one CU over time: for each SIMD its units' work, then a row for each slot of a resident wave.
const STRIPS = ["matrix", "vector", "LDS", "memory", "scalar"], STRIP = 9, SLOT = 15, GAP = 8, LEFT = 62, TOP = 18, HEAD = 14;
let T = null;      // what is drawn: the profile, rows, the view [from, until] in clk

function timeline(p) {
  const events = p.timeline.events;
  if (!events.length) {
    $("timeline").innerHTML = `<h2>Waves of one CU</h2><p class="dim">Only the longest launches of a page have a timeline.</p>`;
    T = null;
    return;
  }
  const present = new Set(events.map(e => p.timeline.reasons[e[2]]));
  $("timeline").innerHTML = `<h2>Waves of one CU <span class="dim small">modelled, ${count(events.length)} instructions${windowOf(p)}</span></h2>
    <div class="tools"><button data-zoom="0.5">+</button><button data-zoom="2">−</button><button data-zoom="0">all</button>
      <span class="dim small">drag: move · Ctrl and wheel, or double click: zoom · click: the instruction</span></div>
    <div class="key">${Object.entries(UNITS).map(([name, c]) => `<span><i style="background:${variable(c)}"></i>${name === "other" ? "issues: other" : name}</span>`).join("")}</div>
    <div class="key" style="margin:.15rem 0 .5rem"><span>waits for:</span>${Object.entries(REASONS).filter(([name]) => present.has(name)).map(([name, c]) =>
      `<span data-tip="${REASON_TEXT[name]}"><i style="background:${variable(c)}"></i>${name}</span>`).join("")}</div><canvas id="waves"></canvas>`;
  T = layout(p, events);
  const canvas = $("waves");
  canvas.style.height = T.height + "px";
  for (const button of $("timeline").querySelectorAll("button")) button.onclick = () => zoomButton(+button.dataset.zoom);
  listen(canvas);
  drawTimeline();
}

const windowOf = p => p.timeline.events.length < p.replayed_instructions / p.cus_of_xcd * 0.98 ? ", from the middle of the launch" : "";

function layout(p, events) {
  const waves = new Map(p.timeline.waves.map(([wave, simd, slot, group, begin, end]) => [wave, {wave, simd, slot, group, begin, end}]));
  const seen = new Set(events.map(e => e[0]));
  const from = Math.min(...events.slice(0, 400).map(e => Math.max(e[3], -200)));
  let until = 0;
  for (const e of events) until = Math.max(until, e[5]);
  const simds = [...new Set([...seen].map(wave => waves.get(wave).simd))].sort((a, b) => a - b), strips = new Map(), slots = new Map();
  let y = TOP;
  for (const simd of simds) {
    y += HEAD;
    strips.set(simd, y); y += STRIPS.length * STRIP + 3;
    const used = Math.max(...[...seen].map(wave => waves.get(wave)).filter(w => w.simd === simd).map(w => w.slot)) + 1;
    slots.set(simd, y); y += used * SLOT + GAP;
  }
  const view = [from, Math.min(until, from + 6000)];
  return {p, events, waves, seen, from, until, view, strips, slots, height: y};
}

const rowOf = wave => { const w = T.waves.get(wave); return T.slots.get(w.simd) + w.slot * SLOT };
const scale = width => (width - LEFT - 8) / (T.view[1] - T.view[0]);

function drawTimeline() {
  if (!T) return;
  const canvas = $("waves"), w = canvas.clientWidth, h = T.height, d = devicePixelRatio || 1, c = canvas.getContext("2d");
  canvas.width = w * d; canvas.height = h * d; c.setTransform(d, 0, 0, d, 0, 0);
  c.fillStyle = colour("--bg"); c.fillRect(0, 0, w, h);
  const k = scale(w), X = t => LEFT + (t - T.view[0]) * k, {instructions} = T.p, reasons = T.p.timeline.reasons;
  const fills = Object.fromEntries([...Object.values(UNITS), ...Object.values(REASONS), "--card", "--line"].map(name => [name, colour(name)]));
  c.save(); c.beginPath(); c.rect(LEFT, 0, w - LEFT, h); c.clip();
  for (const wave of T.seen) {
    const {begin, end} = T.waves.get(wave);
    c.fillStyle = fills["--card"]; c.fillRect(X(begin), rowOf(wave) + 1, (end - begin) * k, SLOT - 2);
  }
  for (const y of T.strips.values()) { c.fillStyle = fills["--card"]; c.fillRect(LEFT, y, w, STRIPS.length * STRIP) }
  for (const e of T.events) {
    if (e[5] < T.view[0] || e[3] > T.view[1]) continue;
    const y = rowOf(e[0]);
    if (e[3] < e[4]) { c.fillStyle = fills[REASONS[reasons[e[2]]]] || fills["--other"]; c.fillRect(X(e[3]), y + 5, Math.max((e[4] - e[3]) * k, .4), SLOT - 10) }
  }
  for (const e of T.events) {
    if (Math.max(e[5], e[7]) < T.view[0] || e[4] > T.view[1]) continue;
    const unit = unitOf(instructions[e[1]]), wave = T.waves.get(e[0]);
    c.fillStyle = fills[UNITS[unit]];
    const wide = (e[5] - e[4]) * k;
    c.fillRect(X(e[4]), rowOf(e[0]) + 1, Math.max(wide - (wide > 3 ? .6 : 0), .6), SLOT - 2);
    const strip = STRIPS.indexOf(unit);
    if (strip >= 0 && e[7] > e[6]) c.fillRect(X(e[6]), T.strips.get(wave.simd) + strip * STRIP, Math.max((e[7] - e[6]) * k, .6), STRIP - 1);
  }
  if (T.mark) markEvent(c, X);
  c.restore();
  labels(c, w, X);
}

function markEvent(c, X) {
  const e = T.mark, y = rowOf(e[0]) + SLOT / 2;
  c.strokeStyle = colour("--fg"); c.lineWidth = 1.2;
  c.strokeRect(X(e[4]) - .5, rowOf(e[0]) + .5, Math.max((e[5] - e[4]) * scale($("waves").clientWidth), 2) + 1, SLOT - 1);
  if (e[8] === null) return;
  c.setLineDash([3, 2]); c.beginPath(); c.moveTo(X(e[5]), y); c.lineTo(X(e[8]), y); c.stroke(); c.setLineDash([]);
  c.beginPath(); c.moveTo(X(e[8]), y - 5); c.lineTo(X(e[8]), y + 5); c.stroke();
}

function labels(c, w, X) {
  c.font = "11px system-ui, 'DejaVu Sans', sans-serif"; c.fillStyle = colour("--dim"); c.textAlign = "left";
  const span = T.view[1] - T.view[0], raw = span / 8, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find(m => m * power >= raw);
  for (let t = Math.ceil(T.view[0] / step) * step; t <= T.view[1]; t += step) {
    if (X(t) < LEFT || X(t) > w - 50) continue;
    c.fillStyle = colour("--line"); c.fillRect(X(t), 4, 1, T.height - 4 - GAP);
    c.fillStyle = colour("--dim"); c.fillText(`${count(t)} clk`, X(t) + 3, 12);
  }
  c.fillStyle = colour("--bg"); c.fillRect(0, 0, LEFT - 2, T.height);
  for (const [simd, y] of T.strips) {
    c.fillStyle = colour("--fg"); c.font = "600 11px system-ui, 'DejaVu Sans', sans-serif"; c.textAlign = "left";
    c.fillText(`SIMD ${simd}`, 2, y - 4);
    c.fillStyle = colour("--dim"); c.font = "9.5px system-ui, 'DejaVu Sans', sans-serif"; c.textAlign = "right";
    STRIPS.forEach((name, n) => c.fillText(name, LEFT - 6, y + n * STRIP + 7.5));
    const first = T.slots.get(simd), used = Math.max(...[...T.seen].map(wave => T.waves.get(wave)).filter(one => one.simd === simd).map(one => one.slot)) + 1;
    for (let slot = 0; slot < used; ++slot) c.fillText(`slot ${slot}`, LEFT - 6, first + slot * SLOT + 11);
  }
}

function setView(from, until) {
  const least = 40, most = T.until - T.from;
  let wide = Math.min(Math.max(until - from, least), most);
  from = Math.min(Math.max(from, T.from), T.until - wide);
  T.view = [from, from + wide];
  drawTimeline();
}
const zoomAt = (t, factor) => setView(t - (t - T.view[0]) * factor, t + (T.view[1] - t) * factor);
const zoomButton = factor => factor ? zoomAt((T.view[0] + T.view[1]) / 2, factor) : setView(T.from, T.until);

function eventAt(x, y) {
  const t = T.view[0] + (x - LEFT) / scale($("waves").clientWidth);
  let best = null;
  for (const e of T.events) {
    const row = rowOf(e[0]);
    if (y >= row && y < row + SLOT && t >= e[3] && t < Math.max(e[5], e[4] + 1)) best = e;
  }
  if (best) return best;
  for (const e of T.events) {
    const strip = STRIPS.indexOf(unitOf(T.p.instructions[e[1]]));
    const row = T.strips.get(T.waves.get(e[0]).simd) + strip * STRIP;
    if (strip >= 0 && y >= row && y < row + STRIP && t >= e[6] && t < e[7]) return e;
  }
  return null;
}

function tipOf(e) {
  const i = T.p.instructions[e[1]], w = T.waves.get(e[0]);
  return `${hex(i.pc)}  ${i.text}\n${i.source || "no source line"}\nworkgroup ${w.group}, SIMD ${w.simd}, slot ${w.slot}; issued at ${count(e[4])} clk`
    + (e[3] < e[4] ? `\nwaited ${count(e[4] - e[3])} clk: ${T.p.timeline.reasons[e[2]]}, ${REASON_TEXT[T.p.timeline.reasons[e[2]]] || ""}` : "")
    + (e[8] !== null ? `\nanswered after ${count(e[8] - e[4])} clk` : "");
}

function listen(canvas) {
  const at = event => { const r = canvas.getBoundingClientRect(); return [event.clientX - r.left, event.clientY - r.top] };
  const timeAt = x => T.view[0] + (x - LEFT) / scale(canvas.clientWidth);
  let drag = null;
  canvas.onwheel = event => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoomAt(timeAt(at(event)[0]), Math.exp(event.deltaY * .002));
  };
  canvas.ondblclick = event => zoomAt(timeAt(at(event)[0]), .4);
  canvas.onmousedown = event => { drag = {x: event.clientX, view: T.view, moved: false} };
  canvas.onmousemove = event => {
    if (drag && event.buttons & 1) {
      const by = (drag.x - event.clientX) / scale(canvas.clientWidth);
      drag.moved ||= Math.abs(drag.x - event.clientX) > 3;
      setView(drag.view[0] + by, drag.view[1] + by);
      return;
    }
    const e = eventAt(...at(event));
    if (e !== T.mark) { T.mark = e; drawTimeline() }
    showTip(event, e ? tipOf(e) : "");
  };
  canvas.onclick = event => { const e = !drag?.moved && eventAt(...at(event)); drag = null; if (e) goToInstruction(e[1]) };
  canvas.onmouseleave = event => { drag = null; if (T?.mark) { T.mark = null; drawTimeline() } showTip(event, "") };
}

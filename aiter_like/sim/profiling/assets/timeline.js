// SPDX-License-Identifier: MIT
// The waves of one CU over time: for each SIMD its units' work, then a row for each slot of a resident wave.
const STRIPS = ["matrix", "vector", "LDS", "memory", "scalar"];
const STRIP = 9, SLOT = 15, GAP = 8, LEFT = 62, TOP = 18, HEAD = 14;      // pixels
const FONT = "system-ui, 'DejaVu Sans', sans-serif";
let T = null;      // what is drawn: the profile, rows, the view [from, until] in clk

function timeline(p) {
  const events = p.timeline.events;
  if (!events.length) {
    $("timeline").innerHTML = `<h2>Waves of one CU</h2>
      <p class="dim">Only the longest launches of a page have a timeline.</p>`;
    T = null;
    return;
  }
  const present = new Set(events.map(e => p.timeline.reasons[e[2]]));
  const key = (name, color, tip) => `<span${tipped(tip)}><i style="background:${variable(color)}"></i>${name}</span>`;
  const units = Object.entries(UNITS).map(([name, color]) => key(name === "other" ? "issues: other" : name, color, ""));
  const reasons = Object.entries(REASONS).filter(([name]) => present.has(name));
  const isPart = events.length < p.replayed_instructions / p.cus_of_xcd * 0.98;
  $("timeline").innerHTML = `<h2>Waves of one CU <span class="dim small">modelled, ${count(events.length)}
    instructions${isPart ? ", from the middle of the launch" : ""}</span></h2>
    <div class="tools"><button data-zoom="0.5">+</button><button data-zoom="2">−</button>
    <button data-zoom="0">all</button>
    <span class="dim small">drag: move · Ctrl and wheel, or double click: zoom · click: the instruction</span></div>
    <div class="key">${units.join("")}</div><div class="key"><span>waits for:</span>
    ${reasons.map(([name, color]) => key(name, color, REASON_TEXT[name])).join("")}</div><canvas id="waves"></canvas>`;
  T = layout(p, events);
  $("waves").style.height = `${T.height}px`;
  for (const button of $("timeline").querySelectorAll("button")) {
    button.onclick = () => zoomButton(+button.dataset.zoom);
  }
  listen($("waves"));
  drawTimeline();
}

function layout(p, events) {
  const seen = new Set(events.map(e => e[0]));
  const waves = new Map(), used = new Map(), strips = new Map(), slots = new Map();
  for (const [wave, simd, slot, group, begin, end] of p.timeline.waves) {
    if (!seen.has(wave)) continue;
    waves.set(wave, {simd, slot, group, begin, end});
    used.set(simd, Math.max(used.get(simd) || 0, slot + 1));
  }
  let y = TOP, until = 0;
  for (const simd of [...used.keys()].sort((a, b) => a - b)) {
    strips.set(simd, y + HEAD);
    slots.set(simd, y + HEAD + STRIPS.length * STRIP + 3);
    y = slots.get(simd) + used.get(simd) * SLOT + GAP;
  }
  for (const e of events) until = Math.max(until, e[5]);
  const from = Math.min(...events.slice(0, 400).map(e => Math.max(e[3], -200)));
  return {p, events, waves, used, strips, slots, from, until, view: [from, Math.min(until, from + 6000)], height: y};
}

function rowOf(wave) {
  const w = T.waves.get(wave);
  return T.slots.get(w.simd) + w.slot * SLOT;
}
const scale = width => (width - LEFT - 8) / (T.view[1] - T.view[0]);

function drawTimeline() {
  if (!T) return;
  const canvas = $("waves"), w = canvas.clientWidth, h = T.height, d = devicePixelRatio || 1;
  const c = canvas.getContext("2d"), k = scale(w), X = t => LEFT + (t - T.view[0]) * k;
  canvas.width = w * d;
  canvas.height = h * d;
  c.setTransform(d, 0, 0, d, 0, 0);
  c.fillStyle = colour("--bg");
  c.fillRect(0, 0, w, h);
  c.save();
  c.beginPath();
  c.rect(LEFT, 0, w - LEFT, h);
  c.clip();
  c.fillStyle = colour("--card");
  for (const [wave, {begin, end}] of T.waves) c.fillRect(X(begin), rowOf(wave) + 1, (end - begin) * k, SLOT - 2);
  for (const y of T.strips.values()) c.fillRect(LEFT, y, w, STRIPS.length * STRIP);
  drawEvents(c, X, k);
  if (T.mark) markEvent(c, X, k);
  c.restore();
  labels(c, w, X);
}

// First what waves wait for, thin, then what they issue, and beside that the work of the units.
function drawEvents(c, X, k) {
  const {instructions, timeline: {reasons}} = T.p, [from, until] = T.view;
  const names = [...Object.values(UNITS), ...Object.values(REASONS)];
  const fills = Object.fromEntries(names.map(name => [name, colour(name)]));
  for (const [wave, , why, since, at] of T.events) {
    if (at < from || since > until || since >= at) continue;
    c.fillStyle = fills[REASONS[reasons[why]]] || fills["--other"];
    c.fillRect(X(since), rowOf(wave) + 5, Math.max((at - since) * k, .4), SLOT - 10);
  }
  for (const [wave, place, , , at, next, unitFrom, unitUntil] of T.events) {
    if (Math.max(next, unitUntil) < from || at > until) continue;
    const unit = unitOf(instructions[place]), strip = STRIPS.indexOf(unit), wide = (next - at) * k;
    c.fillStyle = fills[UNITS[unit]];
    c.fillRect(X(at), rowOf(wave) + 1, Math.max(wide - (wide > 3 ? .6 : 0), .6), SLOT - 2);
    if (strip < 0 || unitUntil <= unitFrom) continue;
    const y = T.strips.get(T.waves.get(wave).simd) + strip * STRIP;
    c.fillRect(X(unitFrom), y, Math.max((unitUntil - unitFrom) * k, .6), STRIP - 1);
  }
}

// The instruction below the pointer, and until when its answer is on its way.
function markEvent(c, X, k) {
  const [wave, , , , at, next, , , done] = T.mark, top = rowOf(wave), middle = top + SLOT / 2;
  c.strokeStyle = colour("--fg");
  c.lineWidth = 1.2;
  c.strokeRect(X(at) - .5, top + .5, Math.max((next - at) * k, 2) + 1, SLOT - 1);
  if (done === null) return;
  c.setLineDash([3, 2]);
  c.beginPath();
  c.moveTo(X(next), middle);
  c.lineTo(X(done), middle);
  c.stroke();
  c.setLineDash([]);
  c.beginPath();
  c.moveTo(X(done), middle - 5);
  c.lineTo(X(done), middle + 5);
  c.stroke();
}

function labels(c, w, X) {
  const write = (text, x, y, font, color, align) => {
    c.font = `${font} ${FONT}`;
    c.fillStyle = colour(color);
    c.textAlign = align;
    c.fillText(text, x, y);
  };
  const ticks = Math.min(8, Math.max(2, (w - LEFT) / 95)), raw = (T.view[1] - T.view[0]) / ticks;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find(m => m * power >= raw);
  for (let t = Math.ceil(T.view[0] / step) * step; t <= T.view[1]; t += step) {
    if (X(t) < LEFT || X(t) > w - 50) continue;
    c.fillStyle = colour("--line");
    c.fillRect(X(t), 4, 1, T.height - 4 - GAP);
    write(`${count(t)} clk`, X(t) + 3, 12, "11px", "--dim", "left");
  }
  c.fillStyle = colour("--bg");
  c.fillRect(0, 0, LEFT - 2, T.height);
  for (const [simd, y] of T.strips) {
    write(`SIMD ${simd}`, 2, y - 4, "600 11px", "--fg", "left");
    STRIPS.forEach((name, n) => write(name, LEFT - 6, y + n * STRIP + 7.5, "9.5px", "--dim", "right"));
    for (let slot = 0; slot < T.used.get(simd); ++slot) {
      write(`slot ${slot}`, LEFT - 6, T.slots.get(simd) + slot * SLOT + 11, "9.5px", "--dim", "right");
    }
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
  const i = T.p.instructions[e[1]], w = T.waves.get(e[0]), why = T.p.timeline.reasons[e[2]];
  const text = [`${hex(i.pc)}  ${i.text}`, [i.source || "no source line", i.caller].filter(Boolean).join(" in "),
    `workgroup ${w.group}, SIMD ${w.simd}, slot ${w.slot}; issued at ${count(e[4])} clk`];
  if (e[3] < e[4]) text.push(`waited ${count(e[4] - e[3])} clk: ${why}, ${REASON_TEXT[why] || ""}`);
  if (e[8] !== null) text.push(`answered after ${count(e[8] - e[4])} clk`);
  return text.join("\n");
}

function listen(canvas) {
  const at = event => [event.offsetX, event.offsetY];
  const timeAt = x => T.view[0] + (x - LEFT) / scale(canvas.clientWidth);
  let drag = null;
  canvas.onwheel = event => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoomAt(timeAt(at(event)[0]), Math.exp(event.deltaY * .002));
  };
  canvas.ondblclick = event => zoomAt(timeAt(at(event)[0]), .4);
  canvas.onpointerdown = event => { drag = {x: event.clientX, view: T.view, moved: false} };
  canvas.onpointermove = event => {
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
  canvas.onclick = event => {
    const e = !drag?.moved && eventAt(...at(event));
    drag = null;
    if (e) goToInstruction(e[1]);
  };
  canvas.onpointerleave = event => {
    drag = T.mark = null;
    drawTimeline();
    showTip(event, "");
  };
}

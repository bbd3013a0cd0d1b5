// SPDX-License-Identifier: MIT
// What all parts of the page use: the data, numbers as text, bars, the tooltip.
const {profiles, sources, comparison, left_out: leftOut} = JSON.parse(document.getElementById("data").textContent);
addEventListener("error", event => document.body.insertAdjacentHTML("afterbegin",
  `<p class="note"><b>This page failed: ${event.message}</b></p>`));
const $ = id => document.getElementById(id);
const esc = text => String(text).replace(/[&<>"]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}[c]));
const sum = list => list.reduce((a, b) => a + b, 0);
const total = object => sum(Object.values(object));

const REASONS = {
  "vmcnt": "--vmcnt", "lgkmcnt": "--lgkmcnt", "barrier": "--barrier", "matrix result": "--result",
  "matrix pipe": "--pipe", "vector port": "--port", "issue port": "--issueport", "memory queue": "--memqueue",
  "LDS queue": "--ldsqueue", "fetch": "--fetch"};
const REASON_TEXT = {
  "vmcnt": "a wait for vector memory", "lgkmcnt": "a wait for LDS or scalar memory",
  "barrier": "other waves of the workgroup", "matrix result": "the result of a matrix operation",
  "matrix pipe": "the matrix pipe is taken",
  "vector port": "another wave issues vector arithmetic", "issue port": "the unit takes another wave's instruction",
  "memory queue": "the queue of the address unit is full", "LDS queue": "the queue of the LDS is full",
  "fetch": "instructions are being fetched", "issues": "the wave issues instructions"};
// Words that the page uses, explained by the tooltip wherever a head or label has them.
const WORDS = {
  ...REASON_TEXT,
  "clk": "cycles of the chip's clock", "lanes": "the 64 work-items of a wave, which execute one instruction together",
  "pc": "offset of the instruction from the kernel's first one, in hexadecimal, as reports have it",
  "L1": "cache of a CU, 32 KB", "L2": "cache that the CUs of an XCD share, 4 MB",
  "MALL": "cache between all L2s and memory, 256 MB, also called Infinity Cache",
  "LDS": "memory of a workgroup, 64 KB a CU",
  "occupancy": "how many waves share a SIMD and take turns while others wait",
  "hits": "how often what is asked for was there", "share": "of the waves' time, issuing and waiting",
  "issues, waits": "time in which waves issue the instruction, then what they wait for before it, by reason",
  "waits most for": "the reason that costs most of the time here",
  "line": "where the instruction comes from; of an inlined function its own line, in the kernel's line that calls it",
  "instruction": "as the disassembler writes it", "reason": "what it waits for most",
  "retired": "→ the wait that retires it; ← what the wait retires",
  "spills": "registers that did not fit and live in scratch memory: slow",
  "conflicts": "lanes of one phase ask for different dwords of one bank, which come one after the other"};
const LIMITS = {"vector registers": "the kernel's", "scalar registers": "the kernel's", "LDS": "the kernel's"};
const SLOTS = {"waves": "wave slots, 8 per SIMD", "workgroups": "workgroup slots of the CU"};
const UNITS = {"matrix": "--matrix", "vector": "--vector", "LDS": "--lds", "memory": "--memory", "scalar": "--scalar",
  "other": "--other"};
const UNIT_OF = {mfma: "matrix", valu: "vector", trans: "vector", ds: "LDS", global: "memory", flat: "memory",
  mubuf: "memory", scratch: "memory", smem: "scalar", salu: "scalar", branch: "scalar"};
const unitOf = instruction => UNIT_OF[instruction.class] || "other";
const variable = name => `var(${name})`;
// Canvases need the value.
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Three digits and a decimal prefix: 12.5 k, 1.31 P, 33.4 µs.
function num(value, unit = "") {
  const prefixes = {"-2": "µ", "-1": "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P"};
  let step = 0;
  while (Math.abs(value) >= 999.5 && step < 5) { value /= 1000; ++step }
  while (unit === "s" && value && Math.abs(value) < 0.9995 && step > -2) { value *= 1000; --step }
  const size = Math.abs(value), whole = step === 0 && Number.isInteger(value);
  const digits = whole || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  const mark = prefixes[step] + unit;
  return value.toFixed(digits) + (mark ? " " + mark : "");
}
const tick = value => num(value).replace(/\.0+(?= |$)/, "");
const count = value => value < 1e5 ? (Math.round(value) + 0).toLocaleString("en").replace(/,/g, " ") : num(value);
const pct = share => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
const hex = value => value.toString(16);
const plural = (n, one) => `${count(n)} ${one}${n === 1 ? "" : "s"}`;

const spent = instruction => instruction.busy_clk + total(instruction.stall_clk);
const waited = instruction => total(instruction.stall_clk);
// "file:line" → [file, line].
function place(source) {
  const at = source.lastIndexOf(":");
  return at < 0 ? ["", 0] : [source.slice(0, at), +source.slice(at + 1)];
}
const tail = (path, parts) => path.split("/").length > parts ? "…/" + path.split("/").slice(-parts).join("/") : path;
const shortPlace = source => source.slice(source.lastIndexOf("/") + 1);
// An instruction's own line, and the kernel's line that calls the inlined function it belongs to.
const placeOf = i => esc(shortPlace(i.source) || "(no line)") + (i.caller ? ` in <b>${esc(shortPlace(i.caller))}</b>` : "");
const author = i => i.caller || i.source;
const placeTip = (i, p) => [i.source, i.caller && `called in ${i.caller}`, (p.lines[i.source] || "").trim(),
  i.caller && (p.lines[i.caller] || "").trim()].filter(Boolean).join("\n");

// Parts of HTML. A tip is shown by the tooltip.
const tipped = tip => tip ? ` data-tip="${esc(tip)}"` : "";
const term = (name, tip = "") => `<span class="term"${tipped(tip)}>${name}</span>`;
const td = (html, kind = "", tip = "") => `<td${kind && ` class="${kind}"`}${tipped(tip)}>${html}</td>`;
const th = ([name, kind = "", tip = WORDS[name] || ""]) =>
  `<th${kind && ` class="${kind}"`}${tipped(tip)}>${tip ? term(name) : name}</th>`;
const tr = (cells, attributes = "") => `<tr ${attributes}>${cells.join("")}</tr>`;
// Heads are [name, class, tip].
const table = (heads, rows, kind = "full") =>
  `<table class="${kind}"><thead>${tr(heads.map(th))}</thead><tbody>${rows.join("")}</tbody></table>`;
const bar = (parts, width = "") => {
  const piece = ([share, color]) => {
    const wide = Math.max(0, Math.min(100, 100 * share)).toFixed(2);
    return `<i style="width:${wide}%;background:${variable(color)}"></i>`;
  };
  return `<span class="bar"${width && ` style="width:${width}"`}>${parts.map(piece).join("")}</span>`;
};
const barRow = (name, parts, text, tip = "") => `<span${tipped(tip)}>${tip ? term(esc(name)) : esc(name)}</span>` +
  `<span${tipped(tip)}>${bar(parts)}</span><span class="value">${esc(text)}</span>`;
const tile = (value, label, tip = "", kind = "") =>
  `<div class="tile ${kind}"${tipped(tip)}><b>${esc(value)}</b><span${tip && ' class="term"'}>${esc(label)}</span></div>`;
// Rows of `box` that match are clickable.
const onRows = (box, attribute, act) => {
  for (const row of box.querySelectorAll(`tr[data-${attribute}]`)) row.onclick = () => act(row.dataset[attribute]);
};

// Any element with data-tip has a tooltip; canvases show theirs by hand.
function showTip(event, text) {
  const tip = $("tip");
  tip.style.display = text ? "block" : "none";
  if (!text) return;
  tip.textContent = text;
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  const below = event.clientY + 16;
  tip.style.top = (below + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : below) + "px";
}
document.addEventListener("mousemove", event => {
  if (event.target.tagName === "CANVAS") return;
  showTip(event, event.target.closest ? event.target.closest("[data-tip]")?.dataset.tip : "");
});
document.addEventListener("click", event => {      // a finger has nothing else to point with
  if (event.target.tagName !== "CANVAS") showTip(event, event.target.closest("[data-tip]")?.dataset.tip || "");
});
document.addEventListener("mouseleave", event => showTip(event, ""));

// SPDX-License-Identifier: MIT
// What pages_in_browser.py runs beside pages: finds text in them that cannot be read.
const LEAST_PX = 9, LEAST_CONTRAST = 4.5, BAND = 32;    // WCAG 2.1, 1.4.3; pixels

const LOOKS = ["backgroundColor", "color", "colorScheme", "fill", "fillOpacity", "fontSize", "opacity", "overflowX",
  "overflowY", "position", "visibility"];

// Text of canvases has no elements: what is written there is kept, in pixels of the window.
function keepCanvasText(view) {
  const context = view.CanvasRenderingContext2D.prototype, write = context.fillText, fill = context.fillRect;
  view.written = new Map();
  context.fillRect = function (x, y, w, h) {       // a new picture
    if (x === 0 && y === 0 && w >= this.canvas.clientWidth) view.written.set(this.canvas, []);
    fill.apply(this, arguments);
  };
  context.fillText = function (text, x, y) {
    const size = this.measureText(text), px = parseFloat(this.font.match(/([\d.]+)px/)[1]);
    view.written.get(this.canvas)?.push({text, px, color: this.fillStyle, left: x - size.actualBoundingBoxLeft,
      right: x + size.actualBoundingBoxRight, top: y - size.actualBoundingBoxAscent,
      bottom: y + size.actualBoundingBoxDescent});
    write.apply(this, arguments);
  };
}

const pixel = Object.assign(document.createElement("canvas"), {width: 1, height: 1}).getContext("2d",
  {willReadFrequently: true});

// "rgb(…)", "color(srgb …)" → [red, green, blue, opacity], of 0 to 1.
const rgba = kept(color => {
  pixel.clearRect(0, 0, 1, 1);
  pixel.fillStyle = color;
  pixel.fillRect(0, 0, 1, 1);
  return [...pixel.getImageData(0, 0, 1, 1).data].map(value => value / 255);
});

// A function that remembers its answers.
function kept(make) {
  const known = new Map();
  return key => known.get(key) ?? known.set(key, make(key)).get(key);
}

const over = ([r, g, b, a], below) => [r, g, b].map((value, n) => value * a + below[n] * (1 - a));
const light = color => color.map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((all, v, n) => all + v * [.2126, .7152, .0722][n], 0);

function contrast(one, other) {
  const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
  return (high + .05) / (low + .05);
}

function check(view) {
  const page = view.document, root = page.documentElement, found = [], told = (kind, text) => {
    found.push(`${kind}: ${text.replace(/\s+/g, " ").trim().slice(0, 60)}`);
  };
  const style = kept(element => {
    const all = view.getComputedStyle(element);       // reads what it is asked for each time
    return Object.fromEntries(LOOKS.map(name => [name, all[name]]));
  });
  const edges = kept(one => one.getBoundingClientRect());
  for (const one of page.querySelectorAll("details")) one.open = true;
  if (!page.querySelector("meta[name=viewport]")) told("no viewport", "a phone draws this page as wide as a desk's");
  if (root.scrollWidth > view.innerWidth) told("wide", `${root.scrollWidth} px of ${view.innerWidth}`);

  const isDark = view.matchMedia("(prefers-color-scheme: dark)").matches && /dark/.test(style(root).colorScheme);
  const canvas = rgba(isDark ? "#121212" : "#ffffff");      // behind a page without a background

  // The part of a box that its ancestors show; and whether one cuts it that nobody can scroll.
  function shown(box, element) {
    let {left, right, top, bottom} = box, isCut = false;
    for (let one = element; one && one !== root; one = one.parentElement) {
      const {overflowX, overflowY} = style(one), edge = edges(one);
      isCut ||= /hidden|clip/.test(overflowX) && (left < edge.left - 1 || right > edge.right + 1) ||
        /hidden|clip/.test(overflowY) && (top < edge.top - 1 || bottom > edge.bottom + 1);
      const head = one.tHead?.rows[0]?.cells[0];      // one that stays lies over the rows that are scrolled away
      if (head && !head.parentElement.contains(element) && style(head).position === "sticky") {
        top = Math.max(top, edges(head).bottom);
      }
      if (overflowX !== "visible") [left, right] = [Math.max(left, edge.left), Math.min(right, edge.right)];
      if (overflowY !== "visible") [top, bottom] = [Math.max(top, edge.top), Math.min(bottom, edge.bottom)];
    }
    return {left, right, top, bottom, isCut: isCut || left < 0 || top < -view.scrollY};
  }

  // Filled shapes of a picture by bands of its height.
  const shapes = kept(svg => {
    const bands = new Map();
    for (const one of svg.querySelectorAll("rect, circle, path, polygon")) {
      if (style(one).fill === "none") continue;
      for (let n = Math.floor(edges(one).top / BAND); n <= edges(one).bottom / BAND; ++n) {
        if (!bands.has(n)) bands.set(n, []);
        bands.get(n).push(one);
      }
    }
    return bands;
  });

  // The colour behind a text: shapes of its picture that are drawn before it, on what its ancestors are filled with.
  function behind(element, box) {
    const layers = [], x = (box.left + box.right) / 2, y = (box.top + box.bottom) / 2;
    for (let one = element; one; one = one.parentElement) layers.unshift(rgba(style(one).backgroundColor));
    const svg = element.ownerSVGElement;
    if (svg) {
      for (const one of shapes(svg).get(Math.floor(y / BAND)) || []) {
        const {left, right, top, bottom} = edges(one), {fill, fillOpacity} = style(one), [r, g, b, a] = rgba(fill);
        const layer = [r, g, b, a * fillOpacity * opacity(one)], isBefore = one.compareDocumentPosition(element) & 4;
        if (y < top || bottom < y) continue;
        if (isBefore && left <= x && x <= right) layers.push(layer);
        else if (!isBefore && layer[3] > .2 && /rect|circle/.test(one.tagName) && left < box.right - 2 &&
            box.left < right - 2) told("covered", element.textContent);
      }
    }
    return layers.reduce((below, layer) => over(layer, below), canvas);
  }

  const opacity = kept(element =>
    style(element).opacity * (element.parentElement ? opacity(element.parentElement) : 1));

  function readable(text, px, color, ground) {
    const ratio = contrast(over(color, ground), ground);
    if (px < LEAST_PX - .01) told("small", `${px.toFixed(1)} px, ${text}`);
    if (ratio < LEAST_CONTRAST) told("contrast", `${ratio.toFixed(2)}, ${text}`);
  }

  // Lines of a text; of one that is turned its letters, whose boxes are not larger than they are.
  function boxesOf(node, isTurned) {
    range.selectNodeContents(node);
    if (!isTurned) return [...range.getClientRects()];
    return [...node.data].flatMap((_, n) => {
      range.setStart(node, n);
      range.setEnd(node, n + 1);
      return [...range.getClientRects()];
    });
  }

  const boxes = [], walker = page.createTreeWalker(page.body || root, 4), range = page.createRange();
  for (let node; (node = walker.nextNode());) {
    const element = node.parentElement, text = node.data, {visibility, color, fill, fontSize} = style(element);
    if (!text.trim() || visibility !== "visible" || element.closest("script, style, title, option")) continue;
    const svg = element.ownerSVGElement, matrix = svg && element.getScreenCTM();
    const zoom = svg ? Math.sqrt(Math.abs(matrix.a * matrix.d - matrix.b * matrix.c)) : 1;
    const [r, g, b, a] = rgba(svg ? fill : color);
    let isFirst = true;
    for (const box of boxesOf(node, svg && matrix.b)) {
      if (box.width < 1 || box.height < 1) continue;
      const seen = shown(box, element);
      if (seen.isCut) told("clipped", text);
      if (isFirst) readable(text, parseFloat(fontSize) * zoom, [r, g, b, a * opacity(element)], behind(element, box));
      isFirst = false;
      const line = .2 * (box.bottom - box.top);      // ink is lower than its line
      boxes.push({...seen, text, element, gap: svg ? 1 : -1, top: Math.max(seen.top, box.top + line),
        bottom: Math.min(seen.bottom, box.bottom - line)});
    }
  }
  for (const [canvas, texts] of view.written || []) {
    const {width, height} = canvas.getBoundingClientRect(), ground = rgba(style(canvas).backgroundColor).slice(0, 3);
    for (const one of texts) {
      readable(one.text, one.px, rgba(one.color), ground);
      if (one.left < 0 || one.right > width || one.top < 0 || one.bottom > height) told("clipped", one.text);
      boxes.push({...one, element: canvas, canvas, gap: 1});
    }
  }
  overlaps(boxes).forEach(([one, other]) => told("overlap", `${one.text.trim()} | ${other.text.trim()}`));
  return found;
}

// Pairs of texts of different elements, one on the other, in pictures also without a gap; canvases have pixels of their
// own.
function overlaps(boxes) {
  const found = [], seen = boxes.filter(one => one.right - one.left > 1 && one.bottom > one.top);
  seen.sort((one, other) => one.top - other.top);
  seen.forEach((one, n) => {
    for (let m = n + 1; m < seen.length && seen[m].top < one.bottom - .5; ++m) {
      const other = seen[m], gap = Math.min(one.gap, other.gap);
      if (one.canvas === other.canvas && (one.canvas || one.element !== other.element) &&
          one.left < other.right + gap && other.left < one.right + gap) found.push([one, other]);
    }
  });
  return found;
}

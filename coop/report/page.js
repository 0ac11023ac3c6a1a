"use strict";
// Draws the report. Blocks never overlap in address and time, so painting them pixel by pixel into
// an image costs at most the blocks in view plus the pixels of the plot: no library is needed, and
// 200,000 blocks pan without a stutter. Blocks below a pixel only fill what is still empty.

const facts = JSON.parse(document.getElementById("facts").textContent);
const CLASSES = [
  { name: "root", text: "parameters, gradients, optimizer state, inputs: never evicted", color: [91, 107, 140] },
  { name: "expensive", text: "products, convolutions, attention: from the left end", color: [222, 132, 45] },
  { name: "cheap", text: "everything else that can be recomputed: from the right end", color: [70, 150, 214] },
  { name: "small", text: "at most 10 KiB: an area of their own", color: [150, 105, 190] },
  { name: "temporary", text: "made and freed inside one operator", color: [176, 176, 140] },
];
const ENDS = ["freed", "evicted", "rewritten in place, or made a root", "alive at the end"];
const EVICTED = [201, 42, 42], RECOMPUTED = [46, 158, 91];
const GUTTER = 76, AXIS = 18;
const shown = CLASSES.map(() => true);
let data = null, chunks = null, view = null, home = null, dirty = true, image = null;
const timing = { frames: 0, lastMs: 0 };

// --- reading -------------------------------------------------------------------------------------

const TYPES = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u2: Uint16Array, u1: Uint8Array };

async function read() {
  const text = atob(document.getElementById("columns").textContent.trim());
  const packed = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const columns = {};
  for (const { name, type, offset, length } of facts.layout) {
    columns[name] = new TYPES[type](buffer, offset, length);
  }
  return columns;
}

// Lives are in order of their begin; the latest end of every 512 lets a view skip the others.
const CHUNK = 512;
function latestEnds() {
  const latest = new Float64Array(Math.ceil(data.begin.length / CHUNK));
  for (let i = 0; i < data.end.length; i++) {
    const c = (i / CHUNK) | 0;
    if (data.end[i] > latest[c]) latest[c] = data.end[i];
  }
  return latest;
}

function forEachInView(visit) {
  const count = data.begin.length;
  for (let c = 0; c < chunks.length; c++) {
    const first = c * CHUNK;
    if (data.begin[first] > view.t1) break;
    if (chunks[c] < view.t0) continue;
    const last = Math.min(first + CHUNK, count);
    for (let i = first; i < last; i++) {
      if (data.end[i] < view.t0 || data.begin[i] > view.t1) continue;
      if (shown[data.flags[i] & 7]) visit(i);
    }
  }
}

// --- words ---------------------------------------------------------------------------------------

function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < 4) { bytes /= 1024; unit++; }
  return (unit ? bytes.toPrecision(bytes >= 100 ? 4 : 3) : bytes) + " " + units[unit];
}
function timeText(ns) {
  if (ns === 0) return "0";
  const [size, unit] = ns >= 1e9 ? [1e9, "s"] : ns >= 1e6 ? [1e6, "ms"] : ns >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return +(ns / size).toPrecision(3) + " " + unit;
}
// Of an axis: as many digits as tell one tick from the next.
function timeTick(ns, tick) {
  const [size, unit] = view.t1 >= 1e9 ? [1e9, "s"] : view.t1 >= 1e6 ? [1e6, "ms"] : view.t1 >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return ns === 0 ? "0" : (ns / size).toFixed(Math.max(Math.ceil(Math.log10(size / tick)), 0)) + " " + unit;
}
function addressTick(bytes, tick) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (unit < 4 && view.a1 >= 1024 ** (unit + 1) && tick * 8 >= 1024 ** (unit + 1)) unit++;
  return bytes / 1024 ** unit + " " + units[unit];
}
const percent = (x) => (100 * x).toFixed(1) + "%";
const color = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
function element(tag, text, parent) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (parent) parent.append(made);
  return made;
}
// Asked for once: asking takes longer than drawing.
const theme = new Map();
function style(name) {
  if (!theme.has(name)) theme.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return theme.get(name);
}

// --- drawing -------------------------------------------------------------------------------------

const strips = ["memory", "arena", "churn", "forced"].map((id) => {
  const canvas = document.getElementById(id);
  return { id, canvas, context: canvas.getContext("2d"), css: canvas.height };
});
const arena = strips[1].canvas;
const X = (t, plot) => plot.x + ((t - view.t0) / (view.t1 - view.t0)) * plot.w;

function layout() {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  for (const strip of strips) {
    const width = Math.max(strip.canvas.clientWidth, 320);
    strip.canvas.style.height = strip.css + "px";
    strip.canvas.width = Math.round(width * ratio);
    strip.canvas.height = Math.round(strip.css * ratio);
    strip.ratio = ratio;
    strip.plot = { x: GUTTER, y: 4, w: width - GUTTER - 4, h: strip.css - 8 - (strip.id === "arena" ? AXIS : 0) };
  }
  image = null;
  dirty = true;
}

function clear(strip) {
  const { context, plot, ratio } = strip;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, strip.canvas.width, strip.canvas.height);
  context.fillStyle = style("--plot");
  context.fillRect(plot.x, plot.y, plot.w, plot.h);
  context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
}

function frame(strip, top, bottom) {
  const { context, plot } = strip;
  context.strokeStyle = style("--line");
  context.strokeRect(plot.x + 0.5, plot.y + 0.5, plot.w - 1, plot.h - 1);
  context.fillStyle = style("--quiet");
  context.textAlign = "right";
  context.fillText(top, plot.x - 6, plot.y + 9);
  context.fillText(bottom, plot.x - 6, plot.y + plot.h);
}

function stepLines(strip, labels) {
  const { context, plot } = strip;
  context.fillStyle = style("--quiet");
  let last = -1e9;
  for (const [time, number] of facts.steps) {
    const x = X(time, plot);
    if (x < plot.x || x > plot.x + plot.w) continue;
    if (x - last < 3) continue;
    context.globalAlpha = 0.5;
    context.fillRect(x, plot.y, 1, plot.h);
    context.globalAlpha = 1;
    if (labels && x - last > 64) {
      const text = "step " + number, width = context.measureText(text).width + 6;
      context.textAlign = "right";
      context.fillStyle = style("--panel");
      context.fillRect(x - width - 1, plot.y + 1, width, 14);
      context.fillStyle = style("--text");
      context.fillText(text, x - 4, plot.y + 12);
      context.fillStyle = style("--quiet");
      last = x;
    } else if (!labels) last = x;
  }
}

function drawArena(strip) {
  const { context, plot, ratio } = strip;
  clear(strip);
  const w = Math.round(plot.w * ratio), h = Math.round(plot.h * ratio);
  if (!image || image.width !== w || image.height !== h) image = context.createImageData(w, h);
  const pixels = new Uint32Array(image.data.buffer);
  pixels.fill(0);
  const pack = ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r;
  const mix = (c, other, share) => c.map((v, k) => Math.round(v * (1 - share) + other[k] * share));
  const fill = CLASSES.map((c) => pack(c.color));
  const hatch = CLASSES.map((c) => pack(mix(c.color, [255, 255, 255], 0.45)));
  const edge = CLASSES.map((c) => pack(mix(c.color, [0, 0, 0], 0.35)));
  const red = pack(EVICTED), green = pack(RECOMPUTED);
  const sx = w / (view.t1 - view.t0), sy = h / (view.a1 - view.a0);
  const thick = Math.max(2, Math.round(2 * ratio));
  forEachInView((i) => {
    const flags = data.flags[i], kind = flags & 7;
    const left = (data.begin[i] - view.t0) * sx, right = (data.end[i] - view.t0) * sx;
    const low = (data.offset[i] - view.a0) * sy, high = low + data.bytes[i] * sy;
    if (high < 0 || low > h) return;
    let x0 = Math.floor(left), x1 = Math.round(right), y0 = h - Math.round(high), y1 = h - Math.floor(low);
    const detailed = right - left >= 4 && high - low >= 4;
    const speck = right - left < 1 && high - low < 1;
    if (x1 <= x0) x1 = x0 + 1;
    if (y1 <= y0) y0 = y1 - 1;
    const fx0 = x0, fx1 = x1, fy1 = y1;
    x0 = Math.max(x0, 0); y0 = Math.max(y0, 0); x1 = Math.min(x1, w); y1 = Math.min(y1, h);
    if (x0 >= x1 || y0 >= y1) return;
    if (speck) {
      if (pixels[y0 * w + x0] === 0) pixels[y0 * w + x0] = fill[kind];
      return;
    }
    const recomputed = flags & 32;
    for (let y = y0; y < y1; y++) {
      const row = y * w;
      if (recomputed) {
        for (let x = x0; x < x1; x++) pixels[row + x] = ((x + y) & 7) < 2 ? hatch[kind] : fill[kind];
      } else pixels.fill(fill[kind], row + x0, row + x1);
    }
    if (!detailed) return;
    if (fy1 <= h) pixels.fill(edge[kind], (fy1 - 1) * w + x0, (fy1 - 1) * w + x1);
    const vertical = (from, to, paint) => {
      for (let y = y0; y < y1; y++) pixels.fill(paint, y * w + Math.max(from, x0), y * w + Math.min(to, x1));
    };
    if (fx0 >= 0) vertical(fx0, fx0 + (recomputed ? thick : 1), recomputed ? green : edge[kind]);
    if (((flags >> 3) & 3) === 1 && fx1 <= w) vertical(fx1 - thick, fx1, red);
    if (flags & 64) {
      pixels.fill(0xff000000 | 0, y0 * w + x0, y0 * w + x1);
      if (y0 + 1 < y1) pixels.fill(0xff000000 | 0, (y0 + 1) * w + x0, (y0 + 1) * w + x1);
    }
  });
  // putImageData would erase the background: through a canvas of its own, empty pixels stay empty.
  const layer = drawArena.layer || (drawArena.layer = document.createElement("canvas"));
  if (layer.width !== w || layer.height !== h) { layer.width = w; layer.height = h; }
  layer.getContext("2d").putImageData(image, 0, 0);
  context.drawImage(layer, plot.x, plot.y, plot.w, plot.h);
  stepLines(strip, true);
  frame(strip, bytesText(view.a1), bytesText(Math.max(view.a0, 0)));
  addressAxis(strip);
  timeAxis(strip);
}

// Round addresses between the ends.
function addressAxis(strip) {
  const { context, plot } = strip;
  const span = view.a1 - view.a0;
  const tick = 2 ** Math.ceil(Math.log2(span / 6));
  context.fillStyle = style("--quiet");
  context.textAlign = "right";
  for (let a = Math.ceil(view.a0 / tick) * tick; a <= view.a1; a += tick) {
    const y = plot.y + plot.h * (1 - (a - view.a0) / span);
    context.fillRect(plot.x - 4, y, 4, 1);
    if (y > plot.y + 20 && y < plot.y + plot.h - 14) context.fillText(addressTick(a, tick), plot.x - 6, y + 4);
  }
}

function timeAxis(strip) {
  const { context, plot } = strip;
  const span = view.t1 - view.t0;
  const rough = span / Math.max(plot.w / 120, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const tick = [1, 2, 5, 10].map((m) => m * power).find((t) => t >= rough);
  context.fillStyle = style("--quiet");
  context.textAlign = "center";
  for (let t = Math.ceil(view.t0 / tick) * tick; t <= view.t1; t += tick) {
    const x = X(t, plot);
    context.fillRect(x, plot.y + plot.h, 1, 4);
    if (x < plot.x + plot.w - 20) context.fillText(timeTick(t, tick), x, plot.y + plot.h + 15);
  }
}

function drawMemory(strip) {
  const { context, plot } = strip;
  const budget = facts.stats.budget_bytes, top = budget * 1.08;
  const Y = (bytes) => plot.y + plot.h * (1 - bytes / top);
  clear(strip);
  const { curve_time: time, curve_least: least, curve_most: most } = data;
  // One column of pixels at a time: what was held least and most in it.
  const columns = Math.round(plot.w), low = new Float64Array(columns).fill(-1), high = new Float64Array(columns).fill(-1);
  for (let i = 0; i < time.length; i++) {
    const until = i + 1 < time.length ? time[i + 1] : facts.end_ns;
    if (until < view.t0 || time[i] > view.t1) continue;
    const from = Math.max(0, Math.floor(X(time[i], plot) - plot.x));
    const to = Math.min(columns - 1, Math.floor(X(until, plot) - plot.x));
    for (let x = from; x <= to; x++) {
      if (high[x] < most[i]) high[x] = most[i];
      if (low[x] < 0 || low[x] > least[i]) low[x] = least[i];
    }
  }
  context.fillStyle = style("--held");
  context.globalAlpha = 0.45;
  for (let x = 0; x < columns; x++) {
    if (high[x] >= 0) context.fillRect(plot.x + x, Y(low[x]), 1, plot.y + plot.h - Y(low[x]));
  }
  context.globalAlpha = 1;
  for (let x = 0; x < columns; x++) {
    if (high[x] >= 0) context.fillRect(plot.x + x, Y(high[x]) - 0.5, 1, Math.max(Y(low[x]) - Y(high[x]), 1));
  }
  stepLines(strip, false);
  context.strokeStyle = context.fillStyle = style("--budget");
  context.setLineDash([6, 4]);
  context.beginPath();
  context.moveTo(plot.x, Y(budget)); context.lineTo(plot.x + plot.w, Y(budget));
  context.stroke();
  context.setLineDash([]);
  context.textAlign = "right";
  context.fillText(bytesText(budget), plot.x - 6, Y(budget) + 9);
  frame(strip, "", "0");
}

function drawChurn(strip) {
  const { context, plot } = strip;
  clear(strip);
  const columns = Math.round(plot.w), out = new Float64Array(columns), back = new Float64Array(columns);
  const column = (t) => Math.floor(((t - view.t0) / (view.t1 - view.t0)) * columns);
  forEachInView((i) => {
    const flags = data.flags[i];
    if (((flags >> 3) & 3) === 1) { const x = column(data.end[i]); if (x >= 0 && x < columns) out[x] += data.bytes[i]; }
    if (flags & 32) { const x = column(data.begin[i]); if (x >= 0 && x < columns) back[x] += data.bytes[i]; }
  });
  let most = 1;
  for (let x = 0; x < columns; x++) most = Math.max(most, out[x], back[x]);
  const middle = plot.y + plot.h / 2, scale = (plot.h / 2 - 2) / most;
  context.fillStyle = color(EVICTED);
  for (let x = 0; x < columns; x++) {
    if (out[x]) context.fillRect(plot.x + x, middle, 1.5, Math.max(out[x] * scale, 1));
  }
  context.fillStyle = color(RECOMPUTED);
  for (let x = 0; x < columns; x++) {
    if (back[x]) context.fillRect(plot.x + x, middle - Math.max(back[x] * scale, 1), 1.5, Math.max(back[x] * scale, 1));
  }
  context.fillStyle = style("--line");
  context.fillRect(plot.x, middle, plot.w, 1);
  frame(strip, most > 1 ? bytesText(most) : "", "");
}

function drawForced(strip) {
  const { context, plot } = strip;
  clear(strip);
  let most = 0.01;
  for (const free of data.forced_free) most = Math.max(most, free * 1.1);
  context.fillStyle = style("--text");
  context.globalAlpha = 0.7;
  for (let i = 0; i < data.forced_time.length; i++) {
    const x = X(data.forced_time[i], plot);
    if (x < plot.x || x > plot.x + plot.w) continue;
    context.fillRect(x - 1.5, plot.y + plot.h * (1 - data.forced_free[i] / most) - 1.5, 3, 3);
  }
  context.globalAlpha = 1;
  frame(strip, percent(most), "0");
}

function draw() {
  requestAnimationFrame(draw);
  if (dirty && data) paint();
}

function paint() {
  dirty = false;
  const begin = performance.now();
  drawMemory(strips[0]); drawArena(strips[1]); drawChurn(strips[2]); drawForced(strips[3]);
  timing.lastMs = performance.now() - begin;
  timing.frames++;
}

// --- moving --------------------------------------------------------------------------------------

function setView(next) {
  const least = Math.max(home.t1 / 1e7, 1), span = home.a1;
  let { t0, t1, a0, a1 } = { ...view, ...next };
  if (t1 - t0 < least) { const middle = (t0 + t1) / 2; t0 = middle - least / 2; t1 = middle + least / 2; }
  if (a1 - a0 < 64) { a1 = a0 + 64; }
  const width = Math.min(t1 - t0, home.t1), height = Math.min(a1 - a0, span);
  t0 = Math.min(Math.max(t0, 0), home.t1 - width);
  a0 = Math.min(Math.max(a0, 0), span - height);
  view = { t0, t1: t0 + width, a0, a1: a0 + height };
  dirty = true;
}

function zoom(px, py, factor, addresses) {
  const { plot } = strips[1];
  if (addresses) {
    const at = view.a1 - ((py - plot.y) / plot.h) * (view.a1 - view.a0);
    setView({ a0: at - (at - view.a0) * factor, a1: at + (view.a1 - at) * factor });
  } else {
    const at = view.t0 + ((px - plot.x) / plot.w) * (view.t1 - view.t0);
    setView({ t0: at - (at - view.t0) * factor, t1: at + (view.t1 - at) * factor });
  }
}

function pan(dx, dy) {
  const { plot } = strips[1];
  const dt = (dx / plot.w) * (view.t1 - view.t0), da = (dy / plot.h) * (view.a1 - view.a0);
  setView({ t0: view.t0 - dt, t1: view.t1 - dt, a0: view.a0 + da, a1: view.a1 + da });
}

function listen() {
  let dragged = null;
  for (const { canvas, id } of strips) {
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const delta = event.deltaY || event.deltaX;
      zoom(event.offsetX, event.offsetY, Math.exp(Math.max(-50, Math.min(50, delta)) * 0.004), event.shiftKey && id === "arena");
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      dragged = { x: event.clientX, y: event.clientY };
      canvas.setPointerCapture(event.pointerId);
      canvas.classList.add("dragging");
      hide();
    });
    canvas.addEventListener("pointermove", (event) => {
      if (dragged) {
        pan(event.clientX - dragged.x, id === "arena" ? event.clientY - dragged.y : 0);
        dragged = { x: event.clientX, y: event.clientY };
      } else if (id === "arena") hover(event);
    });
    const drop = () => { dragged = null; canvas.classList.remove("dragging"); };
    canvas.addEventListener("pointerup", drop);
    canvas.addEventListener("pointercancel", drop);
    canvas.addEventListener("pointerleave", hide);
    canvas.addEventListener("dblclick", () => setView(home));
  }
  arena.addEventListener("keydown", (event) => {
    const { plot } = strips[1], middle = plot.x + plot.w / 2, centre = plot.y + plot.h / 2;
    const keys = {
      ArrowLeft: () => pan(plot.w / 8, 0), ArrowRight: () => pan(-plot.w / 8, 0),
      ArrowUp: () => pan(0, plot.h / 8), ArrowDown: () => pan(0, -plot.h / 8),
      "+": () => zoom(middle, 0, 0.7, false), "-": () => zoom(middle, 0, 1 / 0.7, false),
      "]": () => zoom(0, centre, 0.7, true), "[": () => zoom(0, centre, 1 / 0.7, true),
      0: () => setView(home), Enter: () => tell(middle, centre), Escape: hide,
    };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  window.addEventListener("resize", layout);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { theme.clear(); dirty = true; });
  // On paper the page is light and has another width; no frame is asked for while it prints.
  matchMedia("print").addEventListener("change", () => { theme.clear(); layout(); paint(); });
}

// --- hovering ------------------------------------------------------------------------------------

// The life at a place of the arena's canvas, in CSS pixels; -1: free.
function pick(px, py) {
  const { plot } = strips[1];
  const t = view.t0 + ((px - plot.x) / plot.w) * (view.t1 - view.t0);
  const a = view.a1 - ((py - plot.y) / plot.h) * (view.a1 - view.a0);
  const slack = (view.t1 - view.t0) / plot.w;
  let found = -1;
  forEachInView((i) => {
    if (a < data.offset[i] || a >= data.offset[i] + data.bytes[i]) return;
    if (t < data.begin[i] - slack / 2 || t >= Math.max(data.end[i], data.begin[i] + slack)) return;
    found = i;
  });
  return found;
}

function describe(i) {
  const flags = data.flags[i], kind = CLASSES[flags & 7];
  const lines = [
    `${bytesText(data.bytes[i])} at ${bytesText(data.offset[i])}, ${kind.name}` + (flags & 64 ? ", kept" : ""),
  ];
  if (data.cost[i]) lines.push(`costs ${timeText(data.cost[i])} to recompute, without its inputs`);
  if (flags & 32) lines.push(`recomputation ${data.number[i] - 1} of this value`);
  lines.push(`from ${timeText(data.begin[i])} to ${timeText(data.end[i])}: ${ENDS[(flags >> 3) & 3]}`);
  lines.push(`value ${data.value[i]}`);
  const [place, code] = facts.sources[data.source[i]] ?? ["", ""];
  return { operator: facts.operators[data.op[i]] ?? "outside of operators", place, code, text: lines.join("\n") };
}

const box = document.getElementById("hover");
const hide = () => { box.hidden = true; };
// The same for the keyboard, at a place of the arena's canvas.
function tell(px, py) {
  const corner = arena.getBoundingClientRect();
  hover({ offsetX: px, offsetY: py, clientX: corner.x + px, clientY: corner.y + py });
}
function hover(event) {
  const found = data ? pick(event.offsetX, event.offsetY) : -1;
  if (found < 0) return hide();
  const { operator, place, code, text } = describe(found);
  box.replaceChildren(element("b", operator));
  if (place) box.append("\n" + place);
  if (code) element("code", code, box);
  box.append((code ? "" : "\n") + text);
  box.hidden = false;
  const { offsetWidth: w, offsetHeight: h } = box;
  box.style.left = Math.min(event.clientX + 14, innerWidth - w - 8) + "px";
  box.style.top = (event.clientY + 14 + h > innerHeight ? event.clientY - h - 10 : event.clientY + 14) + "px";
}

// --- words and tables ----------------------------------------------------------------------------

function header() {
  const s = facts.stats;
  document.getElementById("title").textContent = facts.title;
  document.getElementById("subtitle").textContent =
    `policy ${facts.policy}, on ${facts.device}${facts.rank ? ", " + facts.rank : ""}. The numbers are of the whole session.`;
  // As at the end of `coop run`: a word, and what is to be said of it.
  const summary = document.getElementById("summary");
  for (const line of facts.summary) {
    const [, word, rest] = line.match(/^(\S+)\s+(.*)$/);
    element("dt", word, summary);
    element("dd", rest, summary);
  }
  const overhead = s.compute_ns ? s.replay_ns / s.compute_ns : 0;
  const numbers = [
    ["budget", bytesText(s.budget_bytes), "the size of the arena: all the memory there is"],
    ["peak", `${bytesText(s.peak_bytes)} (${percent(s.peak_bytes / s.budget_bytes)})`, "the most bytes held at one time"],
    ["needed", `${s.needed_is_estimate ? "about " : ""}${bytesText(s.needed_bytes)}`, "the budget from which on nothing is evicted"],
    ["steps", s.num_steps, "of the optimizer"],
    ["operators", s.num_operators, "that the program asked for"],
    ["evictions", `${s.num_evictions} (${bytesText(s.evicted_bytes)})`, "values whose bytes were given up for others"],
    ["recomputations", s.num_replays, "operators that ran again, to bring a value back"],
    ["overhead, estimated", percent(overhead), "cost of the recomputations / of the operators that the program asked for"],
    ["fragmentation", percent(s.fragmentation), "the share of the budget that was free when something had to be evicted, on average"],
    ["searches", s.num_searches ? `${s.num_searches}, ${timeText(s.search_ns / s.num_searches)} each` : 0, "for the cheapest neighbours to evict"],
    ["copies", s.num_copies, "of bytes that were overwritten while a value still depended on them"],
    ["copied to the host", s.num_saves ? `${s.num_saves} (${bytesText(s.saved_bytes)})` : 0, "evicted values whose bytes are kept outside of the budget"],
    ["schedules", s.num_schedules ? `${s.num_schedules}, ${s.num_followed} steps followed, ${s.num_left} left` : 0, "what leaves and what is recomputed in a whole step, foreseen from the steps before"],
  ];
  for (const [name, value, meaning] of numbers) {
    const part = element("div", "", document.getElementById("numbers"));
    part.title = meaning;
    element("dt", name, part);
    element("dd", value, part);
  }
  const own = [
    ["recomputed", "hatched, with a green edge where the value came back"],
    ["ends with an eviction", "a red edge: the bytes were given up, and recomputed if they were needed again"],
    ["kept", "a black edge: may not be evicted; the table below says why"],
  ];
  const words = document.querySelector("#words dl");
  for (const [name, meaning] of [...CLASSES.map(({ name, text }) => [name, text]), ...own, ...numbers.map(([name, , meaning]) => [name, meaning])]) {
    element("dt", name, words);
    element("dd", meaning, words);
  }
  if (facts.failures.length) {
    const failure = document.getElementById("failure");
    failure.hidden = false;
    failure.querySelector("pre").textContent = facts.failures[facts.failures.length - 1];
  }
}

function legend() {
  const parent = document.getElementById("legend");
  CLASSES.forEach(({ name, text, color: paint }, kind) => {
    const button = element("button", "", parent);
    button.title = text + " (click to hide or show)";
    button.setAttribute("aria-pressed", "true");
    element("i", "", button).style.background = color(paint);
    button.append(name);
    button.addEventListener("click", () => {
      shown[kind] = !shown[kind];
      button.setAttribute("aria-pressed", String(shown[kind]));
      dirty = true;
    });
  });
  const key = (text, background) => {
    const span = element("span", "", parent);
    span.style.cssText = "display:inline-flex;align-items:center;gap:6px";
    element("i", "", span).style.background = background;
    span.append(text);
  };
  key("recomputed", `linear-gradient(90deg, ${color(RECOMPUTED)} 3px, #0000 3px), repeating-linear-gradient(135deg, #4696d6 0 5px, #9cc6e9 5px 7px)`);
  key("ends with an eviction", `linear-gradient(270deg, ${color(EVICTED)} 3px, #4696d6 3px)`);
  key("kept", "linear-gradient(180deg, #000 3px, #5b6b8c 3px)");
}

function table(id, headings, rows, none) {
  const parent = document.getElementById(id);
  if (!rows.length) { element("td", none, element("tr", "", parent)).className = "none"; return; }
  const head = element("tr", "", parent);
  for (const heading of headings) element("th", heading, head);
  for (const row of rows) {
    const line = element("tr", "", parent);
    for (const cell of row) {
      const made = element("td", typeof cell === "object" ? "" : cell, line);
      if (typeof cell === "object") {
        made.className = "bar";
        element("i", "", made).style.width = `calc(${cell.share} * (100% - 48px))`;
        made.append(percent(cell.share));
      }
    }
  }
}

function tables() {
  const total = facts.by_operator.reduce((sum, row) => sum + row.replay_ns, 0) || 1;
  const top = facts.by_operator.slice(0, 12), rest = facts.by_operator.slice(12);
  if (rest.length) {
    const sum = (key) => rest.reduce((all, row) => all + row[key], 0);
    top.push({ operator: `${rest.length} others`, replays: sum("replays"), runs: sum("runs"), replay_ns: sum("replay_ns") });
  }
  table("by-operator", ["operator", "runs", "recomputed", "time again", "share"],
    top.map((row) => [row.operator, row.runs, row.replays, timeText(row.replay_ns), { share: row.replay_ns / total }]),
    "nothing was recomputed");
  table("most-recomputed", ["operator", "asked for by", "step", "bytes", "recomputed", "time again"],
    facts.most_recomputed.map((row) => [row.operator, facts.sources[row.source]?.[0] ?? "", row.step, bytesText(row.bytes), row.replays, timeText(row.replay_ns)]),
    "nothing was recomputed");
  table("kept", ["reason", "operator", "blocks", "most at once", "at the end"],
    facts.kept.map((row) => [row.reason, row.operator, row.blocks, bytesText(row.peak_bytes), bytesText(row.final_bytes)]),
    "nothing was kept");
  const graphs = facts.graphs;
  document.getElementById("graphs-part").hidden = !graphs.length;
  table("graphs", ["graph", "runs", "recomputed", "time", "time again"],
    graphs.map((row) => [row.operator, row.runs, row.replays, timeText(row.compute_ns), timeText(row.replay_ns)]), "");
  const groups = facts.step_groups;
  table("steps", ["steps", "how", "wall time", "overhead, estimated", "evictions", "recomputations", "searches", "copied to the host"],
    groups.map((row) => [
      row.first === row.last ? row.first : `${row.first} to ${row.last}`, row.way, timeText(row.step_seconds * 1e9),
      percent(row.overhead), row.num_evictions, row.num_replays, row.num_searches, bytesText(row.saved_bytes)]),
    "no step ended while events were recorded");
  const notes = [];
  const more = groups.length ? groups[groups.length - 1].num_more : 0;
  if (more) notes.push(`${more} later steps are not in the table of steps.`);
  const drawn = data.begin.length;
  if (drawn < facts.num_lives) notes.push(`${facts.num_lives - drawn} of ${facts.num_lives} blocks are too small in the picture to be drawn.`);
  if (facts.num_dropped) notes.push(`The log was full: ${facts.num_dropped} later events are not shown.`);
  document.getElementById("omitted").textContent = notes.join(" ");
}

async function main() {
  header();
  legend();
  data = await read();
  chunks = latestEnds();
  home = { t0: 0, t1: Math.max(facts.end_ns, 1), a0: 0, a1: facts.stats.budget_bytes };
  view = home;
  tables();
  layout();
  listen();
  requestAnimationFrame(draw);
  window.coopReport = {
    numBlocks: data.begin.length, timing, pick, describe, setView, zoom, pan,
    get view() { return view; }, home,
  };
}
main();

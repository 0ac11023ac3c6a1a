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

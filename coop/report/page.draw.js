// --- drawing -------------------------------------------------------------------------------------

const strips = ["memory", "arena", "churn", "forced", "host", "link"].map((id) => {
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

// One column of pixels at a time: what was held least and most in it.
function drawCurve(strip, time, least, most, top) {
  const { context, plot } = strip;
  const Y = (bytes) => plot.y + plot.h * (1 - bytes / top);
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
  return Y;
}

function drawMemory(strip) {
  const { context, plot } = strip;
  const budget = facts.stats.budget_bytes;
  clear(strip);
  const Y = drawCurve(strip, data.curve_time, data.curve_least, data.curve_most, budget * 1.08);
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

function drawHost(strip) {
  let most = 1;
  for (const held of data.host_most) most = Math.max(most, held);
  clear(strip);
  drawCurve(strip, data.host_time, data.host_least, data.host_most, most * 1.08);
  stepLines(strip, false);
  frame(strip, bytesText(most), "0");
}

function drawLink(strip) {
  const { plot } = strip;
  clear(strip);
  const columns = Math.round(plot.w), out = new Float64Array(columns), back = new Float64Array(columns);
  for (let i = 0; i < data.link_time.length; i++) {
    const x = Math.floor(X(data.link_time[i], plot) - plot.x);
    if (x < 0 || x >= columns) continue;
    out[x] += data.link_out[i];
    back[x] += data.link_back[i];
  }
  drawBothWays(strip, out, back);
}

function drawChurn(strip) {
  const { plot } = strip;
  clear(strip);
  const columns = Math.round(plot.w), out = new Float64Array(columns), back = new Float64Array(columns);
  const column = (t) => Math.floor(((t - view.t0) / (view.t1 - view.t0)) * columns);
  forEachInView((i) => {
    const flags = data.flags[i];
    if (((flags >> 3) & 3) === 1) { const x = column(data.end[i]); if (x >= 0 && x < columns) out[x] += data.bytes[i]; }
    if (flags & 32) { const x = column(data.begin[i]); if (x >= 0 && x < columns) back[x] += data.bytes[i]; }
  });
  drawBothWays(strip, out, back);
}

// By columns of pixels.
function drawBothWays(strip, out, back) {
  const { context, plot } = strip;
  const columns = out.length;
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
  if (data.link_time.length) { drawHost(strips[4]); drawLink(strips[5]); }
  timing.lastMs = performance.now() - begin;
  timing.frames++;
}

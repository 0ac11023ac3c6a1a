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

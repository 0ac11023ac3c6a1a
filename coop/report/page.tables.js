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
  const overhead = s.compute_ns ? (s.replay_ns + s.host_wait_ns) / s.compute_ns : 0;
  const numbers = [
    ["budget", bytesText(s.budget_bytes), "the size of the arena: all the memory there is"],
    ["peak", `${bytesText(s.peak_bytes)} (${percent(s.peak_bytes / s.budget_bytes)})`, "the most bytes held at one time"],
    ["needed", `${s.needed_is_estimate ? "about " : ""}${bytesText(s.needed_bytes)}`, "the budget from which on nothing is evicted"],
    ["steps", s.num_steps, "of the optimizer"],
    ["operators", s.num_operators, "that the program asked for"],
    ["evictions", `${s.num_evictions} (${bytesText(s.evicted_bytes)})`, "values whose bytes were given up for others"],
    ["recomputations", s.num_replays, "operators that ran again, to bring a value back"],
    ["overhead, estimated", percent(overhead), "cost of the recomputations and copies / of the operators that the program asked for"],
    ["fragmentation", percent(s.fragmentation), "the share of the budget that was free when something had to be evicted, on average"],
    ["searches", s.num_searches ? `${s.num_searches}, ${timeText(s.search_ns / s.num_searches)} each` : 0, "for the cheapest neighbours to evict"],
    ["copies", s.num_copies, "of bytes that were overwritten while a value still depended on them"],
    ["copied to the host", s.num_saves ? `${s.num_saves} (${bytesText(s.saved_bytes)})` : 0, "evicted values whose bytes are kept outside of the budget"],
    ...(s.host_bytes ? [
      ["room for copies", `${bytesText(s.host_bytes)}, at most ${bytesText(s.host_peak_bytes)} used`, "main memory for copies of what leaves (host=)"],
      ["copied out, and back", `${bytesText(s.host_saved_bytes)}, ${bytesText(s.host_loaded_bytes)}`, "bytes over the link to main memory"],
      ["waited for copies, estimated", timeText(s.host_wait_ns), "what the copies take beyond the operators beside them, as the link is modelled"],
    ] : []),
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
  const copied = facts.most_copied;
  for (const id of ["host-part", "copied-part"]) document.getElementById(id).hidden = !copied.length;
  table("most-copied", ["made by", "bytes", "out", "back"],
    copied.map((row) => [row.operator, bytesText(row.bytes), row.out, row.back]), "");
  const graphs = facts.graphs;
  document.getElementById("graphs-part").hidden = !graphs.length;
  table("graphs", ["graph", "inside", "line", "runs", "recomputed", "time", "time again"],
    graphs.map((row) => [row.operator, row.inside, row.line, row.runs, row.replays, timeText(row.compute_ns), timeText(row.replay_ns)]), "");
  const groups = facts.step_groups;
  table("steps", ["steps", "how", "wall time", "overhead, estimated", "evictions", "recomputations", "searches", "copied to the host", "copied out", "and back"],
    groups.map((row) => [
      row.first === row.last ? row.first : `${row.first} to ${row.last}`, row.way, timeText(row.step_seconds * 1e9),
      percent(row.overhead), row.num_evictions, row.num_replays, row.num_searches, bytesText(row.saved_bytes),
      bytesText(row.host_saved_bytes), bytesText(row.host_loaded_bytes)]),
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

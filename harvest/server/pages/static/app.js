// Live pages without a build step. One stream says what moved; a page that shows it is fetched again, and what differs is put in place.
"use strict";
const base = document.querySelector('meta[name="harvest-base"]').content;
const $ = (query, root = document) => root.querySelector(query);
const all = (query, root = document) => [...root.querySelectorAll(query)];
const make = (tag, text, name) => { const e = document.createElement(tag); if (text !== undefined) e.textContent = text; if (name) e.className = name; return e; };

// --- putting a fresh page in place, without losing what the reader has opened, typed or focused

const KEEP = new Set(["open", "value", "checked"]);

function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || (old.id || "") !== (fresh.id || "")) { old.replaceWith(fresh.cloneNode(true)); return; }
  if (old.nodeType !== Node.ELEMENT_NODE) { if (old.data !== fresh.data) old.data = fresh.data; return; }
  if (old.nodeName === "OUTPUT") return;
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !KEEP.has(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (!KEEP.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  const known = new Map();
  for (const child of old.childNodes) if (child.id) known.set(child.id, child);
  let at = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const same = next.id ? known.get(next.id) : undefined;
    if (same) {
      if (same !== at) old.insertBefore(same, at); else at = at.nextSibling;
      morph(same, next);
    } else if (at && !(at.id && !next.id) && !next.id && at.nodeName === next.nodeName && !at.id) {
      const here = at; at = at.nextSibling; morph(here, next);
    } else old.insertBefore(next.cloneNode(true), at);
  }
  while (at) { const gone = at; at = at.nextSibling; gone.remove(); }
}

let fetching = false, again = false, loaded = 0;

async function refresh(url = location.href) {
  if (fetching) { again = true; return; }
  fetching = true;
  try {
    const answer = await fetch(url, { headers: { Accept: "text/html" } });
    if (answer.redirected && new URL(answer.url).pathname.endsWith("/login")) { location.href = answer.url; return; }
    if (answer.ok && url === location.href) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const section of all("[data-live], main > section[id]")) { const fresh = page.getElementById(section.id); if (fresh) morph(section, fresh); else if (section.dataset.live) section.remove(); }
      const shown = all("main > [id], main > .columns > [id]").map((e) => e.id);
      for (const fresh of all("main > [data-live][id]", page)) if (!shown.includes(fresh.id)) { const before = fresh.nextElementSibling && document.getElementById(fresh.nextElementSibling.id); $("main").insertBefore(fresh.cloneNode(true), before || null); }
      document.title = page.title;
    }
  } catch (_) { /* the stream tells that the server is away */ } finally {
    fetching = false;
    loaded = Date.now();
    if (again) { again = false; soon(); }
  }
}

let timer, later, tails = [], pointed = 0, stale = false;
document.addEventListener("mousemove", () => { pointed = Date.now(); }, { passive: true });
const held = () => Date.now() - pointed < 1500 && $("#list .rows:hover") !== null;  // rows must not move away from under a pointer that is about to click
const catchUp = () => { clearTimeout(later); if (!stale || document.hidden) return; if (held()) later = setTimeout(catchUp, 1600); else { stale = false; refresh(); } };
const look = () => { if (document.hidden || held()) { stale = true; catchUp(); } else refresh(); };
const soon = () => { clearTimeout(timer); timer = setTimeout(look, Math.max(120, 500 - (Date.now() - loaded))); tails.forEach(clearTimeout); tails = [3500, 20000, 65000].map((ms) => setTimeout(look, ms)); };
// The later ones catch up with what the server had not read anew yet: what takes long it keeps for a while.
document.addEventListener("visibilitychange", catchUp);
document.addEventListener("mouseout", catchUp);

// --- the stream

const topics = new Set(all("[data-live]").flatMap((e) => e.dataset.live.split(" ")));
const pulse = $("#pulse");

function listen(again = 1000) {
  const stream = new EventSource(`${base}/api/changes`);
  const say = (text, name) => { pulse.textContent = text; pulse.className = `pulse ${name}`; };
  stream.addEventListener("hello", () => { again = 1000; say("live", "live"); refresh(); });  // what moved before it was heard of
  stream.onerror = () => { say("away", "lost"); if (stream.readyState === EventSource.CLOSED) setTimeout(() => listen(Math.min(2 * again, 15000)), again); };  // it gives up for good after an answer that is an error
  const mine = $("[data-run]");
  stream.addEventListener("runs", (event) => {
    const { runs, more } = JSON.parse(event.data);
    if (topics.has("runs")) soon();
    else if (topics.has("run") && (more || runs.some((r) => r.workflow_id === mine.dataset.run))) soon();
  });
  for (const topic of ["fleet", "figures"]) stream.addEventListener(topic, () => { if (topics.has(topic)) soon(); });
}
if (topics.size) listen(); else if (pulse) pulse.hidden = true;

// --- forms that call the API

async function call(method, path, body) {
  const answer = await fetch(base + path, { method, headers: body === undefined ? {} : { "Content-Type": "application/json" }, body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await answer.text();
  let value = null;
  try { value = text ? JSON.parse(text) : null; } catch (_) { if (answer.ok) throw new Error(`${path}: the answer is not JSON`); }
  if (!answer.ok) throw new Error(`${value?.error ?? answer.status}: ${value?.detail ?? answer.statusText}${value?.hint ? `\n${value.hint}` : ""}`);
  return { status: answer.status, value };
}

function show(output, text, name) { output.textContent = text; output.className = name; }

function bodyOf(form, skip) {
  const body = {};
  for (const field of form.elements) {
    if (!field.name || skip.includes(field.name) || field.value === "") continue;
    if (field.dataset.json !== undefined) { try { body[field.name] = JSON.parse(field.value); if (field.name.endsWith("args") && !Array.isArray(body[field.name])) body[field.name] = [body[field.name]]; } catch (e) { throw new Error(`${field.name}: not JSON: ${e.message}`); } }
    else body[field.name] = field.dataset.number !== undefined ? Number(field.value) : field.value;
  }
  return body;
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.dataset.api) {
    event.preventDefault();
    if (form.dataset.confirm && !confirm(form.dataset.confirm)) return;
    const output = $("output", form), button = $("button", form), used = [];
    button.disabled = true;
    try {
      const [method, pattern] = form.dataset.api.split(" ");
      const path = pattern.replace(/\{(\w+)\}/g, (_, name) => { used.push(name); return encodeURIComponent(form.elements[name].value); });
      const fields = [...form.elements].some((f) => f.name && !used.includes(f.name));
      const { status, value } = await call(method, path, fields ? bodyOf(form, used) : undefined);
      if (form.dataset.goto) { location.href = base + form.dataset.goto.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(value[name] ?? form.elements[name]?.value ?? "")); return; }
      const result = value && "result" in value ? JSON.stringify(value.result) : status === 202 ? "stored; no worker has done it yet" : "done";
      show(output, result, "good");
      soon();
    } catch (e) { show(output, e.message, "bad"); } finally { button.disabled = false; }
  } else if (form.dataset.bulk !== undefined) { event.preventDefault(); bulk(form); }
  else if (form.dataset.filter !== undefined) { event.preventDefault(); filter(form); }
});

// --- filter as you type

function filter(form) {
  const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
  history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}`);
  refresh();
}
let typing;
document.addEventListener("input", (event) => {
  const form = event.target.form;
  if (form?.dataset.filter !== undefined) { clearTimeout(typing); typing = setTimeout(() => filter(form), 150); }
  if (event.target.name === "verb") for (const e of all("[data-for]", form)) e.hidden = e.dataset.for !== event.target.value;
});
document.addEventListener("click", (event) => {
  const chip = event.target.closest("a[data-state]");
  const form = $("[data-filter]");
  if (chip && form?.elements.state && !event.ctrlKey && !event.metaKey) { event.preventDefault(); form.elements.state.value = chip.dataset.state; filter(form); }
});

// --- one act on all that match

function bulkOf(form) {
  const given = Object.fromEntries([...new FormData($("[data-filter]"))].filter(([, value]) => value));
  const filters = {};
  if (given.q) filters.prefix = given.q;
  for (const name of ["type", "queue"]) if (given[name]) filters[name] = given[name];
  if (given.state && !["RUNNING", "PAUSED"].includes(given.state)) throw new Error(`the list shows runs that are ${given.state.toLowerCase().replaceAll("_", " ")}: only open ones can be acted on`);
  if (given.state) filters.state = given.state;
  if (given.attribute && !given.attribute.includes("=")) throw new Error("attribute: name=value");
  if (given.attribute) { const [name, ...rest] = given.attribute.split("="); let value = rest.join("="); try { value = JSON.parse(value); } catch (_) { /* a text */ } filters.search_attributes = { [name]: value }; }
  const body = { verb: form.elements.verb.value, filters, everything: Object.keys(filters).length === 0, dry_run: true };
  if (form.elements.reason.value) body.reason = form.elements.reason.value;
  if (body.verb === "signal") body.signal = form.elements.signal.value;
  return body;
}

// `seen` is what the dry run asked for: whatever was typed since, the act is about that, and about no run that is newer.
async function bulk(form, seen) {
  const output = $("output", form);
  try {
    const body = seen ?? bulkOf(form);
    show(output, seen ? "at it…" : "looking…", "");
    const { value } = await call("POST", "/api/workflows/bulk", body);
    if (!seen) {
      show(output, `${value.matched} open run${value.matched === 1 ? "" : "s"} would get ${value.verb}${body.everything ? " (every open run: no filter is set)" : ""}`, "");
      const list = make("ul"); for (const run of value.sample) list.append(make("li", `${run.workflow_id} (${run.type}, ${run.state.toLowerCase()})`)); if (value.matched > value.sample.length) list.append(make("li", `… ${value.matched - value.sample.length} more`));
      const go = make("button", `${value.verb} ${value.matched} run${value.matched === 1 ? "" : "s"}`, "danger"); go.type = "button"; go.disabled = !value.matched; go.addEventListener("click", () => bulk(form, { ...body, dry_run: false, filters: { ...body.filters, before: value.before } }));
      output.append(list, go);
    } else {
      show(output, `${value.done} of ${value.matched} done${value.stored ? `, ${value.stored} stored: no worker has done it yet` : ""}${value.failed.length ? `, ${value.failed.length} failed: ${value.failed[0].workflow_id}: ${value.failed[0].error}` : ""}`, value.failed.length ? "bad" : "good");
      soon();
    }
  } catch (e) { show(output, e.message, "bad"); }
}

// --- the SQL console

async function ask(card) {
  const output = $("output", card), button = $("[data-run-sql]", card);
  button.disabled = true;
  const began = performance.now();
  try {
    const { value } = await call("POST", card.dataset.console, { sql: $("textarea", card).value });
    output.className = "answer";
    output.replaceChildren(meta(value, performance.now() - began), ...chart(value), table(value));
  } catch (e) { show(output, e.message, "answer bad"); } finally { button.disabled = false; }
}

function meta(value, took) {
  const facts = [`${value.rows.length} row${value.rows.length === 1 ? "" : "s"}`, `${value.milliseconds.toFixed(1)} ms on the server, ${took.toFixed(0)} ms in all`];
  if (value.source) facts.push(`read from ${value.source}, as of event ${value.event_id}`);
  if (value.freshness) facts.push(value.complete ? `complete: ${value.freshness.length} partitions of ${new Set(value.freshness.map((f) => f.worker_id)).size} workers` : `incomplete: ${value.unanswered.map((u) => u.reason).join("; ")}`);
  return make("p", facts.join(" · "), value.complete === false ? "bad small" : "muted small");
}

function chart({ columns, rows }) {
  if (columns.length !== 2 || rows.length < 2 || rows.length > 60 || !rows.every((r) => typeof r[1] === "number" && r[1] >= 0)) return [];
  const most = Math.max(...rows.map((r) => r[1])) || 1, bars = make("div", undefined, "bars");
  bars.setAttribute("role", "img"); bars.setAttribute("aria-label", `${columns[1]} by ${columns[0]}`);
  for (const [name, n] of rows) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    svg.setAttribute("viewBox", "0 0 100 10"); svg.setAttribute("preserveAspectRatio", "none"); rect.setAttribute("width", (100 * n) / most); rect.setAttribute("height", 10); svg.append(rect);
    bars.append(make("span", name === null ? "null" : String(name)), svg, make("b", n.toLocaleString()));
  }
  return [bars];
}

function table({ columns, rows }) {
  const box = make("div", undefined, "scroll"), grid = make("table", undefined, "list small"), head = grid.createTHead().insertRow(), body = grid.createTBody();
  for (const column of columns) head.append(make("th", column));
  for (const row of rows.slice(0, 1000)) { const line = body.insertRow(); for (const cell of row) line.append(make("td", cell !== null && typeof cell === "object" ? JSON.stringify(cell) : String(cell), cell === null ? "muted" : typeof cell === "number" ? "num" : undefined)); }
  box.append(grid);
  if (rows.length > 1000) box.append(make("p", `the first 1,000 of ${rows.length.toLocaleString()} rows are shown`, "muted small"));
  return box;
}

document.addEventListener("click", (event) => {
  const card = event.target.closest("[data-console]");
  if (event.target.dataset?.sql !== undefined) { $("textarea", card).value = event.target.dataset.sql; ask(card); }
  else if (event.target.dataset?.runSql !== undefined) ask(card);
  else if (event.target.id === "help-button") $("#help").showModal();
});

// --- the keyboard

let going = false;
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { const card = event.target.closest("[data-console]"); if (card) ask(card); return; }
  if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) { if (event.key === "Escape") event.target.blur(); return; }
  if (going) { going = false; const link = $(`nav a[data-key="${CSS.escape(event.key)}"]`); if (link) { event.preventDefault(); link.click(); } return; }
  const links = all(".rows tbody td:first-child a"), at = links.indexOf(document.activeElement);
  if (event.key === "/" ) { const first = $("[data-first]"); if (first) { event.preventDefault(); first.focus(); first.select(); } }
  else if (event.key === "g") going = true;
  else if (event.key === "?") $("#help").showModal();
  else if (event.key === "j") links[Math.min(at + 1, links.length - 1)]?.focus();
  else if (event.key === "k") links[Math.max(at - 1, 0)]?.focus();
});

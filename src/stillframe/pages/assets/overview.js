// The running system at a glance: its graph, pending snapshots, totals, events, and snapshots.

import { clock, count, duration, make, makePanel, makeScrolling, makeSvg, setText } from "./dom.js";
import { Graph } from "./graph.js";
import { ChannelTable } from "./channels.js";
import { SnapshotList } from "./list.js";

const CHART_WIDTH = 480;
const CHART_HEIGHT = 130;
const PAD = 6;
const EVENTS_SHOWN = 30;
const TOTALS_S = 2;

/** The view of the running system. */
export class Overview {
  constructor(model) {
    this.model = model;
    this.isVisible = false;
    this.stale = new Set();
    this.totalsAt = 0;
    this.root = make("div", { class: "overview" });
    document.addEventListener("close", () => this.list.catchUp(), true); // of a dialog; it does not bubble
    this.begin();
  }

  /** Build everything again: for another system, or after a change of its topology. */
  begin() {
    const { about } = this.model;
    this.graph?.stop();
    this.graph = about === null ? null : new Graph(about);
    this.channels = about === null ? null : new ChannelTable(about);
    const isPipeline = about?.kind === "pipeline";
    if (this.list === undefined || this.list.isPipeline !== isPipeline) this.list = new SnapshotList(this.model);
    this.pending = make("div", {});
    this.totals ??= make("div", {});
    this.events ??= make("ol", { class: "event-log" });
    this.note = make("p", { class: "muted" }, "Waiting for the server …");
    this.staleness = make("p", { class: "muted", hidden: true }, "");
    this.root.replaceChildren(
      panel(isPipeline ? "The pipeline" : "The system", "graph-panel", this.note, this.staleness, this.graph?.root ?? null, this.channels?.root ?? null),
      make(
        "div",
        { class: "side" },
        panel("Pending snapshots", "pending", this.pending),
        isPipeline ? null : panel("Conserved totals", "totals", this.totals),
        panel("Events", "happened", makeScrolling("Events, the newest first", { kind: "low" }, this.events)),
      ),
      panel("Snapshots", "snapshots", this.list.root),
    );
    for (const what of ["system", "snapshots", "verdicts", "events"]) this.update(what);
  }

  /** Schedule the drawing of a part that changed, if the overview is visible. */
  update(what) {
    this.stale.add(what);
    if (this.isVisible && this.stale.size === 1) requestAnimationFrame(() => this.draw());
  }

  /** Put the overview into the page. */
  show(main) {
    if (this.root.parentElement !== main) main.replaceChildren(this.root);
    this.isVisible = true;
    this.stale.add("snapshots"); // the list may have been left without an event
    requestAnimationFrame(() => this.draw());
  }

  /** Stop drawing until it is shown again. */
  hide() {
    this.isVisible = false;
  }

  draw() {
    if (!this.isVisible) return;
    const stale = [...this.stale];
    this.stale.clear();
    for (const what of stale) this[`draw_${what}`]();
  }

  draw_system() {
    const { about, system } = this.model;
    if (about === null || system === null) return;
    this.note.hidden = about.kind === "pipeline" ? system.explanation === "" : system.is_running;
    setText(this.note, system.explanation || "The processes are starting.");
    this.showStaleness(system);
    this.graph.update(system);
    this.channels.update(system);
    showPending(this.pending, system);
    if (system.naive && system.at - this.totalsAt > TOTALS_S) this.update("verdicts");
  }

  /** Show how old the cut of the newest snapshot is, if it was found afterwards. */
  showStaleness(system) {
    const newest = [...this.model.rows.values()].reduce((last, row) => (last === null || row.number > last.number ? row : last), null);
    const staleness = newest?.staleness_s;
    this.staleness.hidden = typeof staleness !== "number";
    if (this.staleness.hidden) return;
    const age = duration(Math.max(0, system.at - newest.completed_at));
    setText(this.staleness, `The newest snapshot, ${newest.id}, was taken ${age} ago with a staleness of ${duration(staleness)}.`);
  }

  draw_snapshots() {
    this.list.update();
  }

  draw_timeline() {
    if (this.model.timeline !== null) this.graph?.playMarkers(this.model.timeline);
  }

  draw_verdicts() {
    this.totalsAt = this.model.system?.at ?? 0;
    if (this.model.about?.kind !== "pipeline") showTotals(this.totals, this.model);
    this.list.updateVerdicts();
  }

  draw_events() {
    const rows = this.model.events.slice(-EVENTS_SHOWN).reverse();
    const items = rows.map(({ at, kind, sentence }) => make("li", { class: `event-entry ${kind}` }, make("time", {}, clock(at)), " ", sentence));
    this.events.replaceChildren(...(rows.length > 0 ? items : [make("li", { class: "muted" }, "nothing yet")]));
  }
}

function panel(title, kind, ...content) {
  return makePanel(title, { id: `title-${kind}`, kind }, ...content);
}

/** Show the pending snapshots and their stragglers. */
function showPending(root, system) {
  const snapshots = system.pending ?? [];
  if (snapshots.length === 0) {
    if (root.firstChild?.className !== "muted") root.replaceChildren(make("p", { class: "muted" }, "No snapshot is pending."));
    return;
  }
  const shown = snapshots.map((one) => [
    make("h3", {}, `${one.id}: pending for ${duration(Math.max(0, system.at - one.initiated_at))}`),
    one.recorded === undefined ? null : make("p", {}, `${one.mode}; recorded: ${Object.keys(one.recorded).join(", ") || "none yet"}`),
    make("p", {}, `missing: ${one.missing.join(", ")}; abandoned in ${duration(Math.max(0, one.deadline - system.at))}`),
    make("ul", {}, one.sentences.map((sentence) => make("li", {}, sentence))),
  ]);
  root.replaceChildren(...shown.map((content) => make("div", { class: "pending-snapshot" }, content)));
}

/** Fill `root` with a chart and a sentence for each conserved quantity. */
function showTotals(root, model) {
  const verdicts = [...model.verdicts.values()].sort((a, b) => a.at - b.at);
  const quantities = new Set(verdicts.flatMap((one) => Object.keys(one.totals)));
  for (const [, totals] of model.naive) for (const quantity of Object.keys(totals)) quantities.add(quantity);
  if (quantities.size === 0) {
    const error = model.system?.quantities_error;
    root.replaceChildren(make("p", { class: error ? "bad" : "muted" }, error || "No process declares a conserved quantity: implement 'conserved()' in those that hold one."));
    return;
  }
  root.replaceChildren(...[...quantities].sort().slice(0, 6).map((quantity) => showQuantity(quantity, verdicts, model.naive)));
}

function showQuantity(quantity, verdicts, naive) {
  const found = verdicts.filter((one) => Object.hasOwn(one.totals, quantity)).map((one) => ({ at: one.at, amount: one.totals[quantity] }));
  const asked = naive.filter(([, totals]) => Object.hasOwn(totals, quantity)).map(([at, totals]) => ({ at, amount: totals[quantity] }));
  const sentence = `${inSnapshots(found)} ${inAnswers(asked, found)}`;
  return make(
    "figure",
    { class: "total" },
    make("figcaption", {}, make("strong", {}, quantity), `: ${sentence}`),
    chart(found, asked, `${quantity}: ${sentence}`),
    make("p", { class: "legend" }, make("span", { class: "key exact" }, "in snapshots"), " ", make("span", { class: "key naive" }, "polling all processes")),
  );
}

function inSnapshots(found) {
  if (found.length === 0) return "no snapshot has been evaluated yet;";
  const amounts = new Set(found.map(({ amount }) => amount));
  if (amounts.size === 1) return `${count(found[0].amount)} in ${found.length === 1 ? "the last snapshot" : `each of the last ${found.length} snapshots`};`;
  const [least, most] = extremes(found);
  return `between ${count(least)} and ${count(most)} in the last ${found.length} snapshots;`;
}

function inAnswers(asked, found) {
  if (asked.length === 0) return "the processes were not polled while it ran.";
  const [least, most] = extremes(asked);
  const range = `polling all processes returned ${count(least)}${most > least ? ` to ${count(most)}` : ""}`;
  if (found.length === 0) return `${range}.`;
  const right = asked.filter(({ at, amount }) => amount === truthAt(at, found)).length;
  return `${range}, and was correct ${right} of ${asked.length} times.`;
}

/** Return the total in the latest snapshot before a time, or in the first. */
function truthAt(at, found) {
  return (found.findLast((one) => one.at <= at) ?? found[0]).amount;
}

/** Return the least and the largest amount, in the type in which they came. */
function extremes(points) {
  const sorted = points.map(({ amount }) => amount).sort((a, b) => Number(a) - Number(b));
  return [sorted[0], sorted.at(-1)];
}

function chart(found, asked, label) {
  const points = [...found, ...asked];
  const [from, to] = [Math.min(...points.map((p) => p.at)), Math.max(...points.map((p) => p.at))];
  const [low, high] = extremes(points).map(Number);
  const x = (at) => PAD + ((at - from) / Math.max(1e-9, to - from)) * (CHART_WIDTH - 2 * PAD);
  const y = (amount) => (high === low ? CHART_HEIGHT / 2 : CHART_HEIGHT - PAD - ((Number(amount) - low) / (high - low)) * (CHART_HEIGHT - 2 * PAD));
  const line = (list) => list.map((p) => `${x(p.at).toFixed(1)},${y(p.amount).toFixed(1)}`).join(" ");
  return makeSvg(
    "svg",
    { class: "chart", viewBox: `0 0 ${CHART_WIDTH} ${CHART_HEIGHT}`, role: "img", "aria-label": label, preserveAspectRatio: "none" },
    makeSvg("polyline", { class: "naive", points: line(asked) }),
    makeSvg("polyline", { class: "exact", points: line(found) }),
  );
}

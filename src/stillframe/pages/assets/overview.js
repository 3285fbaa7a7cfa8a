// The running system at a glance: its graph, pending snapshots, totals, events, and snapshots.

import { make, makePanel, makeScrolling, setText, clock, duration } from "./dom.js";
import { Graph } from "./graph.js";
import { ChannelTable } from "./channels.js";
import { SnapshotList } from "./list.js";
import { showTotals } from "./totals.js";

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
    this.root.replaceChildren(
      panel(isPipeline ? "The pipeline" : "The system", "graph-panel", this.note, this.graph?.root ?? null, this.channels?.root ?? null),
      make(
        "div",
        { class: "side" },
        panel("Pending snapshots", "pending", this.pending),
        isPipeline ? null : panel("Conserved totals", "totals", this.totals),
        panel("What happened", "happened", makeScrolling("Happenings, the newest first", { kind: "low" }, this.events)),
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
    this.graph.update(system);
    this.channels.update(system);
    showPending(this.pending, system);
    if (system.naive && system.at - this.totalsAt > TOTALS_S) this.update("verdicts");
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

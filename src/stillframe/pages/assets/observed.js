// The newest observation of services at a glance, and the list of all observations.

import { bytes, clock, count, duration, make, makePanel, makeScrolling, setText } from "./dom.js";
import { SnapshotList } from "./list.js";
import { ObservationView } from "./watched_observation.js";
import { Overview } from "./overview.js";

/** The overview of services that are observed. */
export class ObservedOverview extends Overview {
  begin() {
    this.view = new ObservationView();
    this.list = new ObservationList(this.model);
    this.note = make("p", { class: "muted" }, "Waiting for the server …");
    this.events ??= make("ol", { class: "event-log" });
    const { graph, deadlock, amounts, unresolved } = this.view.panels;
    const log = makeScrolling("Events, the newest first", { kind: "low" }, this.events);
    const events = makePanel("Events", { id: "title-happened" }, log);
    const list = makePanel("Observations", { id: "title-snapshots", kind: "snapshots" }, this.note, this.list.root);
    this.root.replaceChildren(graph, make("div", { class: "side" }, deadlock, amounts, events), unresolved, list);
    this.root.classList.add("observed");
    for (const what of ["system", "observation", "snapshots", "events"]) this.update(what);
  }

  draw_system() {
    if (this.model.system === null) return;
    const { at, explanation, counts } = this.model.system;
    const found = Object.entries(counts).map(([quality, number]) => `${count(number)} ${quality}`);
    const newest = this.model.observation;
    const age = newest === null ? "" : `The newest observation is ${duration(Math.max(0, at - newest.completed_at))} old. `;
    setText(this.note, explanation || `${age}${found.join(", ")}. Abandoned observations are not stored. An observation cannot be restored.`);
    this.note.className = explanation === "" ? "muted" : "bad";
  }

  draw_observation() {
    if (this.model.observation !== null) this.view.update(this.model.observation);
  }

  /** Observations have no verdicts. */
  draw_verdicts() {}
}

/** The list of observations. */
class ObservationList extends SnapshotList {
  noun() {
    return "observation";
  }

  heads() {
    return ["observation", "completed", "duration", "amounts", "instances", "open calls", "unresolved", "size"];
  }

  cellsOf(row) {
    const number = (text) => make("td", { class: "number" }, text);
    return [
      clock(row.completed_at),
      number(duration(row.duration_s)),
      row.quality,
      number(count(row.instance_count)),
      number(count(row.open_count)),
      number(count(row.unresolved_count)),
      number(bytes(row.bytes)),
    ];
  }
}

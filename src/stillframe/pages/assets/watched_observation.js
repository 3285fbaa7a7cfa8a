// An observation of services: who waits for whom, deadlock, unresolved calls, amounts, instances.

import { address, addressed, bytes, clock, count, counted, duration, make, makePanel, makeRow, makeScrolling, makeTable, moment, setText } from "./dom.js";
import { CallGraph, ageOf, endsOf, placesOfCalls } from "./call_graph.js";

const NOTHING = "";

/** A table whose rows are replaced; it says how many are left out, and in a sentence that it is empty. */
class RowTable {
  constructor({ caption, heads, none, numbers = [], all = "stillframe show --json prints all" }) {
    this.none = none;
    this.all = all;
    this.numbers = numbers;
    this.heads = heads;
    this.body = make("tbody", {});
    this.rest = make("p", { class: "left-out muted", hidden: true });
    const cells = heads.map((head, place) => make("th", { scope: "col", class: numbers.includes(place) ? "number" : NOTHING }, head));
    this.box = makeScrolling(caption, { role: "region", kind: "rows" }, makeTable({}, cells, this.body, caption));
    this.root = make("div", {}, this.box, this.rest);
  }

  /** Show rows, each an array of text, and the number of those that are left out. */
  show(rows, leftOutCount) {
    const cellOf = (text, place) => make("td", { class: this.numbers.includes(place) ? "number" : NOTHING }, text);
    this.body.replaceChildren(...rows.map(([name, ...cells]) => makeRow(make("th", { scope: "row" }, name), ...cells.map((text, index) => cellOf(text, index + 1)))));
    this.box.hidden = rows.length === 0;
    this.rest.hidden = rows.length > 0 && leftOutCount === 0;
    setText(this.rest, rows.length === 0 ? this.none : `and ${counted(leftOutCount, "row")} more: ${this.all}`);
  }
}

/** A table that is drawn while it is open. */
class FoldedTable {
  constructor(summary, words, rowsOf) {
    this.table = new RowTable(words);
    this.rowsOf = rowsOf;
    this.root = make("details", { class: "tables" }, make("summary", {}, summary), this.table.root);
    this.root.addEventListener("toggle", () => this.update(this.observation));
  }

  update(observation) {
    this.observation = observation;
    if (this.root.open) this.table.show(...this.rowsOf(observation));
  }
}

/** The parts of the page that show an observation; `update` shows another one in the same elements, so
 * that the focus and what is open stay. */
export class ObservationView {
  constructor() {
    this.head = make("p", {}, "Waiting for the first observation …");
    this.reasons = make("ul", {});
    this.picture = make("div", {});
    this.leftOut = make("p", { class: "left-out muted", hidden: true });
    this.waits = new FoldedTable("Who waits for whom, as text", { caption: "Who waits for whom", heads: ["caller", "waits for", "calls", "oldest", "where"], numbers: [2, 3], none: "No call is open." }, waitRows);
    this.calls = new FoldedTable("Open calls", { caption: "Open calls, the oldest first", heads: ["caller", "waits for", "at", "place", "since", "until"], none: "No call is open." }, callRows);
    this.instances = new FoldedTable("Instances", { caption: "Instances, those that wait most first", heads: ["instance", "service", "open calls", "waits for locks", "serves"], numbers: [2, 3, 4], none: "No instance was connected." }, instanceRows);
    this.deadlock = make("div", {});
    this.unresolved = new RowTable({ caption: "Calls whose callers do not wait for them", heads: ["call", "name", "kind", "status", "it"], none: "No call is unresolved." });
    this.timedOut = new RowTable({ caption: "Calls that timed out so far, the newest first", heads: ["call", "callee", "name", "sent", "status", "accepted", "it"], none: "No call has timed out.", all: "stillframe calls --json prints those that are kept" });
    this.amounts = make("div", {});
    this.amountTable = null;
    this.panels = {
      graph: makePanel("Services and open calls", { id: "title-graph", kind: "graph-panel" }, this.head, this.reasons, this.picture, this.leftOut, this.waits.root, this.calls.root, this.instances.root),
      deadlock: makePanel("Deadlock", { id: "title-deadlock" }, this.deadlock),
      amounts: makePanel("Conserved amounts", { id: "title-amounts" }, this.amounts),
      unresolved: makePanel("Unresolved calls", { id: "title-unresolved", kind: "unresolved" }, this.unresolved.root, this.timedOut.root),
    };
  }

  /** Show an observation. */
  update(observation) {
    setText(this.head, headOfObservation(observation));
    this.head.className = observation.quality === "exact" ? "good" : "warn";
    this.showReasons(observation);
    this.showGraph(observation);
    for (const table of [this.waits, this.calls, this.instances]) table.update(observation);
    this.showDeadlock(observation);
    const { rows, left_out_count: leftOutCount } = observation.unresolved;
    this.unresolved.show(rows.map((one) => [one.call, one.name, one.kind, statusOf(one), one.known]), leftOutCount);
    this.showTimedOut(observation.timed_out);
    this.showAmounts(observation);
  }

  showTimedOut({ rows, left_out_count: leftOutCount }) {
    const sent = ({ since }) => (since === null ? NOTHING : moment(since));
    this.timedOut.show(rows.map((one) => [one.call, one.callee, one.name, sent(one), statusOf(one), one.accepted, one.known]), leftOutCount);
  }

  showReasons({ quality, reasons, disconnected, comparable }) {
    const lines = [...limited(reasons, "reason").map((reason) => `${quality}: ${reason}`), ...limited(disconnected, "instance").map((name) => `disconnected: ${name}`), comparable];
    if (this.shownReasons === lines.join("\n")) return;
    this.shownReasons = lines.join("\n");
    this.reasons.replaceChildren(...lines.map((line) => make("li", {}, line)));
  }

  showGraph(observation) {
    const { graph } = observation;
    const about = { ...graph, kind: "observations", waits: null };
    const drawn = JSON.stringify(about);
    if (this.drawn !== drawn) {
      this.drawn = drawn;
      this.graph = new CallGraph(about);
      const held = this.picture.contains(document.activeElement);
      this.picture.replaceChildren(this.graph.root);
      if (held) this.picture.querySelector("[tabindex]")?.focus();
    }
    this.graph.update(observation);
    const parts = [
      graph.is_by_service ? "There are too many instances for a picture, so it shows services." : null,
      graph.discs_left_out_count > 0 ? `Left out: ${counted(graph.discs_left_out_count, graph.is_by_service ? "service or address" : "address")} with the fewest calls.` : null,
      graph.edges_left_out_count > 0 ? `Left out: ${counted(graph.edges_left_out_count, "arrow")}.` : null,
    ].filter((part) => part !== null);
    this.leftOut.hidden = parts.length === 0;
    setText(this.leftOut, parts.join(" "));
  }

  showDeadlock({ deadlock }) {
    if (deadlock === null) {
      this.deadlock.replaceChildren(make("p", { class: "muted" }, "No activities keep each other blocked."));
      return;
    }
    const { sentence, waits, behind_count: behind, ends_at: endsAt } = deadlock;
    this.deadlock.replaceChildren(
      make("p", { class: "bad" }, make("strong", {}, sentence)),
      make("ul", {}, limited(waits, "wait").map((wait) => make("li", {}, wait))),
      behind > 0 ? make("p", {}, `Activities that wait for these: ${count(behind)}.`) : NOTHING,
      make("p", {}, endsAt === null ? "No time-out of these calls is known." : `The first known time-out ends it at ${clock(endsAt)}.`),
    );
  }

  showAmounts({ amounts, quality }) {
    const { rows, left_out_count: leftOutCount } = amounts;
    if (rows.length === 0) {
      this.amountTable = null;
      this.amounts.replaceChildren(make("p", { class: "muted" }, "No call or state has a conserved amount."));
      return;
    }
    if (this.amountTable === null) {
      const places = Object.keys(rows[0]).filter((name) => name !== "unit" && name !== "total");
      this.columns = ["total", ...places];
      const heads = ["unit", ...this.columns.map((name) => name.replaceAll("_", " "))];
      this.amountTable = new RowTable({ caption: "Where each amount is", heads, numbers: heads.map((_, place) => place).slice(1), none: NOTHING });
      this.amountNote = make("p", {});
      this.amounts.replaceChildren(this.amountNote, this.amountTable.root);
    }
    const totals = rows.map((row) => `${count(row.total)} ${row.unit}`).join(", ");
    setText(this.amountNote, quality === "exact" ? `In total: ${totals}.` : `In total as far as it is known, because the observation is ${quality}: ${totals}.`);
    this.amountTable.show(rows.map((row) => [row.unit, ...this.columns.map((name) => count(row[name]))]), leftOutCount);
  }
}

/** Fill `root` with the document of one observation. */
export function showObservation(observation, root) {
  const view = new ObservationView();
  const { graph, deadlock, amounts, unresolved } = view.panels;
  root.replaceChildren(
    make("header", { class: "snapshot-head" }, make("h1", {}, `Observation ${observation.number}`), make("p", { class: "muted" }, `Initiated ${moment(observation.initiated_at)}, ${bytes(observation.bytes)}. It is no snapshot and cannot be restored.`)),
    make("div", { class: "overview observed" }, graph, make("div", { class: "side" }, deadlock, amounts), unresolved),
  );
  view.update(observation);
  const id = String(observation.number);
  if (addressed().get("snapshot") !== id) address({ snapshot: id });
}

function statusOf({ status }) {
  return status === null ? NOTHING : String(status);
}

function headOfObservation({ number, quality, duration_s: took, service_count: services, instance_count: instances, open_count: open, unresolved_count: unresolved }) {
  return `Observation ${number}, complete after ${duration(took)}: ${quality}. ${counted(instances, "instance")} of ${counted(services, "service")}, ${counted(open, "open call")}, ${count(unresolved)} unresolved.`;
}

/** Return rows, and a line about those that are left out. */
function limited({ rows, left_out_count: leftOutCount }, noun) {
  return leftOutCount > 0 ? [...rows, `and ${counted(leftOutCount, `more ${noun}`)}`] : rows;
}

function waitRows(observation) {
  const { waits, edges_left_out_count: leftOutCount } = observation.graph;
  const rows = waits.map((wait, index) => [...endsOf(observation, index), count(wait.count), ageOf(wait, observation), placesOfCalls(wait)]);
  return [rows, leftOutCount];
}

function callRows(observation) {
  const { rows, left_out_count: leftOutCount } = observation.calls;
  const time = (at) => (at === null ? NOTHING : clock(at));
  const placeOf = ({ place, served_by: server }) => (server === null ? place : `${place} by ${server}`);
  const cells = (one) => [one.caller, `${one.name} ${one.call}`.trim(), one.target, placeOf(one), `${time(one.since)} ${ageOf(one, observation) && `(${ageOf(one, observation)})`}`, time(one.deadline)];
  return [rows.map(cells), leftOutCount];
}

function instanceRows({ instances }) {
  const cells = (one) => [one.instance, one.service, count(one.waiting_count), count(one.lock_count), count(one.serving_count)];
  return [instances.rows.map(cells), instances.left_out_count];
}

// A snapshot: its properties, its cut, and the contents of each process and each channel.

import { make, address, addressed, bytes, duration, moment } from "./dom.js";
import { showStates, showChannels } from "./state_table.js";
import { showCut } from "./cut.js";

/** Fill `root` with the document that snapshot_document() in Python returns; the address has the id of
 * the snapshot, and the `step` that is shown. */
export function showSnapshot(snapshot, root) {
  root.replaceChildren(
    snapshotHead(snapshot),
    ...(snapshot.diagram ? [showCut(snapshot)] : []),
    make("div", { class: "columns" }, showStates(snapshot), showChannels(snapshot)),
  );
  if (addressed().get("snapshot") !== snapshot.id) address({ snapshot: snapshot.id });
}

function snapshotHead(snapshot) {
  const contradiction = snapshot.contradictions.length > 0;
  const facts = snapshotFacts(snapshot).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)));
  return make(
    "header",
    { class: "snapshot-head" },
    make("h1", {}, "Snapshot ", make("span", { class: "mono" }, snapshot.id)),
    make("p", { class: contradiction ? "verdict bad" : "verdict good" }, snapshot.verdict),
    make("dl", { class: "facts" }, facts),
    make(
      "details",
      { class: "checked" },
      make("summary", {}, "What was verified"),
      make("ul", {}, [...snapshot.contradictions, ...snapshot.verified].map((text) => make("li", {}, text))),
    ),
  );
}

function snapshotFacts(snapshot) {
  const excluded = Object.entries(snapshot.excluded);
  return [
    ["Initiated", moment(snapshot.initiated_at)],
    ["By", snapshot.initiator],
    ["Epoch", String(snapshot.epoch)],
    ["Recorded in", duration(snapshot.recorded_s)],
    ["Published after", duration(snapshot.published_s)],
    snapshot.pause_s === undefined ? null : ["Longest pause", duration(snapshot.pause_s)],
    snapshot.mode === undefined ? null : ["Mode", snapshot.mode],
    ["Size", `${bytes(snapshot.bytes)}${snapshot.mode !== undefined ? "" : snapshot.bases.length > 0 ? ", changes only" : ", whole"}`],
    snapshot.bases.length > 0 ? ["Based on", `${snapshot.bases.join(", ")} (a chain of ${snapshot.chain_length})`] : null,
    snapshot.savepoints.length > 0 ? ["Savepoint", snapshot.savepoints.join(", ")] : null,
    snapshot.is_current ? ["A restore", "goes back to this one"] : null,
    ...(snapshot.systems ?? []).map(({ name, store, snapshot }) => [`System ${name}`, `${snapshot} in ${store}`]),
    excluded.length > 0 ? ["Took no part", excluded.map(([process, since]) => `${process} (its state is that of ${since})`).join(", ")] : null,
  ].filter((each) => each !== null);
}

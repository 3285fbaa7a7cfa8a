// A snapshot: what it is, how the cut went, and what each process and each channel held.

import { make, bytes, duration } from "./dom.js";
import { showStates, showChannels } from "./state_table.js";
import { showCut } from "./cut.js";
import { moment, fragmentPlace } from "./time_scale.js";

/**
 * Show a snapshot.
 * @param {Object} held - what snapshot_document() in Python returns.
 * @param {Element} root - is emptied, and gets it.
 * @param {{parameters: URLSearchParams, put: function(Object)}} place - holds the step that is
 *     shown, as `step`, and is told which snapshot and step are.
 */
export function showSnapshot(held, root, place = fragmentPlace()) {
  root.replaceChildren(
    snapshotHead(held),
    ...(held.diagram ? [showCut(held, place)] : []),
    make("div", { class: "columns" }, showStates(held), showChannels(held)),
  );
  if (place.parameters.get("snapshot") !== held.id) place.put({ snapshot: held.id });
}

function snapshotHead(held) {
  const contradiction = held.contradictions.length > 0;
  return make(
    "header",
    { class: "snapshot-head" },
    make("h1", {}, "Snapshot ", make("span", { class: "mono" }, held.id)),
    make("p", { class: contradiction ? "verdict bad" : "verdict good" }, held.verdict),
    make("dl", { class: "facts" }, snapshotFacts(held).map(fact)),
    make(
      "details",
      { class: "checked" },
      make("summary", {}, "What was verified"),
      make("ul", {}, [...held.contradictions, ...held.verified].map((text) => make("li", {}, text))),
    ),
  );
}

function fact([name, value]) {
  return make("div", {}, make("dt", {}, name), make("dd", {}, value));
}

function snapshotFacts(held) {
  const excluded = Object.entries(held.excluded);
  return [
    ["Initiated", moment(held.initiated_at)],
    ["By", held.initiator],
    ["Epoch", String(held.epoch)],
    ["Recorded in", duration(held.recorded_s)],
    ["Published after", duration(held.published_s)],
    held.pause_s === undefined ? null : ["Longest pause", duration(held.pause_s)],
    held.mode === undefined ? null : ["Mode", held.mode],
    ["Size", `${bytes(held.bytes)}${held.mode !== undefined ? "" : held.bases.length > 0 ? ", changes only" : ", whole"}`],
    held.bases.length > 0 ? ["Based on", `${held.bases.join(", ")} (a chain of ${held.chain_length})`] : null,
    held.savepoints.length > 0 ? ["Savepoint", held.savepoints.join(", ")] : null,
    held.is_current ? ["A restore", "goes back to this one"] : null,
    ...(held.systems ?? []).map(({ name, store, snapshot }) => [`System ${name}`, `${snapshot} in ${store}`]),
    excluded.length > 0 ? ["Took no part", excluded.map(([process, since]) => `${process} (its state is that of ${since})`).join(", ")] : null,
  ].filter((each) => each !== null);
}

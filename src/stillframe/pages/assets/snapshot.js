// A snapshot: its properties, its cut, and the contents of each process and each channel.

import { address, addressed, announce, bytes, count, duration, make, makePanel, makeScrolling, moment, parseSvg, setText } from "./dom.js";
import { showStates, showChannels } from "./state_table.js";
import { stepControls } from "./stepping.js";

const SCROLL_MARGIN = 60;

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
    typeof snapshot.staleness_s === "number" ? ["Staleness", duration(snapshot.staleness_s)] : null,
    typeof snapshot.data_age_s === "number" ? ["Data age", duration(snapshot.data_age_s)] : null,
    ["Size", `${bytes(snapshot.bytes)}${snapshot.mode !== undefined ? "" : snapshot.bases.length > 0 ? ", incremental" : ", full"}`],
    snapshot.bases.length > 0 ? ["Based on", `${snapshot.bases.join(", ")} (a chain of ${snapshot.chain_length})`] : null,
    snapshot.savepoints.length > 0 ? ["Savepoint", snapshot.savepoints.join(", ")] : null,
    snapshot.is_current ? ["Restore point", "a restore uses this one"] : null,
    ...(snapshot.systems ?? []).map(({ name, store, snapshot }) => [`System ${name}`, `${snapshot} in ${store}`]),
    excluded.length > 0 ? ["Excluded", excluded.map(([process, since]) => `${process} (its state is from ${since})`).join(", ")] : null,
  ].filter((each) => each !== null);
}

/** Return the section with the diagram of a snapshot and, if the steps are known, their controls; the
 * address has the current step. */
function showCut(snapshot) {
  const box = makeScrolling("diagram of the cut", { role: "region", kind: "picture" }, parseSvg(snapshot.diagram.svg));
  const samples = snapshot.diagram.legend.map(({ sample, text }) => make("li", {}, make("span", { class: `sample ${sample}`, "aria-hidden": "true" }), text));
  const has = snapshot.steps.length > 0;
  if (!has) requestAnimationFrame(() => bringToMiddle(box, box.querySelector("[data-key^='cut']")));
  return makePanel(
    "The cut",
    { id: "the-cut", kind: "cut-panel" },
    has ? recordingSteps(snapshot, box) : null,
    box,
    make("ul", { class: "samples" }, samples),
    snapshot.diagram.left_out === "" ? null : make("p", { class: "left-out" }, `${snapshot.diagram.left_out}.`),
    make("p", { class: "muted" }, snapshot.diagram.note),
  );
}

function recordingSteps(snapshot, box) {
  const { steps } = snapshot;
  const parts = new Map([...box.querySelectorAll("[data-key]")].map((part) => [part.dataset.key, part]));
  const since = new Map();
  steps.forEach(({ keys }, index) => keys.forEach((key) => since.set(key, since.get(key) ?? index + 1)));
  const sentence = make("p", { class: "sentence" });
  const rule = make("p", { class: "muted rule-quoted" });
  const items = steps.map((step, index) => make("li", {}, make("button", { type: "button", class: "step", on: { click: () => controls.go(index + 1) } }, step.sentence)));
  const controls = stepControls({ of: "the recording", noun: "step", last: steps.length, onStep: show });

  function show(now) {
    const step = steps[now - 1];
    for (const [key, part] of parts) {
      part.classList.toggle("later", now > 0 && (since.get(key) ?? 0) > now);
      part.classList.toggle("now", now > 0 && step.keys.includes(key));
    }
    setText(sentence, now === 0 ? "The whole cut. Use the buttons to see the steps in which it was recorded." : step.sentence);
    setText(rule, now === 0 ? "" : step.rule);
    items.forEach((item, index) => item.firstChild.setAttribute("aria-current", index + 1 === now ? "step" : "false"));
    address({ snapshot: snapshot.id, step: now === 0 ? undefined : now });
    if (now > 0) announce(`Step ${now}: ${step.sentence}`);
    requestAnimationFrame(() => bringToMiddle(box, now === 0 ? parts.get(steps[0].keys[0]) : parts.get(step.keys[0])));
  }

  listenWhile(box, "keydown", controls.press);
  const follow = () => controls.go(Number(addressed().get("step")) || 0);
  listenWhile(box, "hashchange", follow, window);
  follow();
  const leftOut = snapshot.steps_left_out_count;
  return [
    controls.element,
    sentence,
    rule,
    make(
      "details",
      {},
      make("summary", {}, "All steps"),
      make("ol", { class: "steps" }, items),
      leftOut > 0 ? make("p", { class: "muted" }, `and ${count(leftOut)} in which a marker found nothing to record`) : null,
    ),
  ];
}

/** Listen while an element is in the page. */
function listenWhile(element, name, listener, target = document) {
  let wasThere = false;
  const listen = (event) => {
    wasThere ||= element.isConnected;
    if (element.isConnected) listener(event);
    else if (wasThere) target.removeEventListener(name, listen);
  };
  target.addEventListener(name, listen);
}

function bringToMiddle(box, part) {
  if (!part) return;
  const [outer, inner] = [box.getBoundingClientRect(), part.getBoundingClientRect()];
  const isSeen = inner.left >= outer.left + SCROLL_MARGIN && inner.right <= outer.right - SCROLL_MARGIN;
  if (!isSeen) box.scrollLeft += (inner.left + inner.right - outer.left - outer.right) / 2;
}

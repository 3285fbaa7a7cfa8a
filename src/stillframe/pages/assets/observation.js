// An observation of services: why it is not exact, its deadlock, its cut, and the calls and states.

import { address, addressed, bytes, count, counted, duration, make, makePanel, makeRest, makeRow, makeScrolling, makeTable, moment, parseSvg } from "./dom.js";
import { filtered, foldable, shownValue, showStates } from "./state_table.js";

const VERDICTS = { exact: "good", partial: "warn", "not exact": "warn" };
const SHOW_HAS_ALL = ": stillframe show --json prints all of them";

/** Fill `root` with the document that observation_document() in Python returns; the address has the
 * number of the observation. */
export function showObservation(observation, root) {
  root.replaceChildren(
    ...[
      observationHead(observation),
      observation.deadlock ? deadlockPanel(observation.deadlock) : null,
      callPicture(observation),
      make("div", { class: "columns" }, openCalls(observation), showStates(observation)),
      observation.unresolved_count > 0 ? unresolvedCalls(observation) : null,
      observation.amounts.length > 0 ? amountTable(observation) : null,
    ].filter((part) => part !== null),
  );
  const number = String(observation.number);
  if (addressed().get("observation") !== number) address({ observation: number });
}

function observationHead(observation) {
  const facts = [
    ["Initiated", moment(observation.initiated_at)],
    ["Complete after", duration(observation.recorded_s)],
    ["Instances", `${count(observation.instance_count)} of ${counted(observation.service_count, "service")}`],
    ["Open calls", count(observation.open_count)],
    ["Unresolved calls", count(observation.unresolved_count)],
    ["Size", bytes(observation.bytes)],
  ];
  const disconnected = observation.disconnected.map((name) => `${name} was disconnected`);
  const reasons = [...observation.reasons, ...disconnected, observation.comparable].map((reason) => make("li", {}, reason));
  return make(
    "header",
    { class: "snapshot-head" },
    make("h1", {}, `Observation ${count(observation.number)}`),
    make("p", { class: `verdict ${VERDICTS[observation.quality]}` }, observation.verdict),
    make("ul", { class: "reasons" }, reasons),
    makeRest(observation.reasons_left_out_count, "reason", SHOW_HAS_ALL),
    makeRest(observation.disconnected_left_out_count, "disconnected instance", SHOW_HAS_ALL),
    make("dl", { class: "facts" }, facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
    make("p", { class: "muted" }, "An observation is for looking. It is no snapshot and cannot be restored."),
    make("details", { class: "checked" }, make("summary", {}, "What was verified"), make("ul", {}, observation.verified.map((text) => make("li", {}, text)))),
  );
}

function deadlockPanel(deadlock) {
  const rings = deadlock.rings.map((ring) => [
    make("ol", { class: "ring-waits" }, ring.waits.map((wait) => make("li", {}, wait.sentence, make("span", { class: "muted" }, times(wait))))),
    makeRest(ring.left_out_count, "wait"),
  ]);
  const end = deadlock.ends_at === null ? "None of these waits has a time-out that is known." : `The first known time-out is at ${moment(deadlock.ends_at)}.`;
  const behind = deadlock.behind.map((sentence) => make("li", {}, sentence));
  return makePanel(
    "Deadlock",
    { id: "deadlock", kind: "deadlock" },
    make("p", { class: "bad" }, "Each of these activities waits for another one, and stays blocked until one of the waits times out."),
    ...rings.flat(),
    makeRest(deadlock.rings_left_out_count, "ring"),
    make("p", {}, make("strong", {}, end)),
    ...(behind.length > 0 ? [make("p", {}, "Waiting for them:"), make("ul", {}, behind)] : []),
    makeRest(deadlock.behind_left_out_count, "activity that waits for them", SHOW_HAS_ALL),
  );
}

function times(wait) {
  const since = wait.since === null ? "" : `, since ${moment(wait.since)}`;
  return `${since}${wait.deadline === null ? "" : `, until ${moment(wait.deadline)}`}`;
}

function callPicture(observation) {
  const { diagram } = observation;
  const samples = diagram.legend.map(({ sample, text }) => make("li", {}, make("span", { class: `sample ${sample}`, "aria-hidden": "true" }), text));
  return makePanel(
    "The cut",
    { id: "the-cut", kind: "cut-panel" },
    makeScrolling("diagram of the cut", { role: "region", kind: "picture" }, parseSvg(diagram.svg)),
    make("ul", { class: "samples" }, samples),
    diagram.left_out === "" ? null : make("p", { class: "left-out" }, `${diagram.left_out}. The list of open calls below has more.`),
    make("p", { class: "muted" }, "From left to right is the order of causes and effects, not the time of a clock. A request in transit ends at the address that was called: no instance has accepted it."),
  );
}

function openCalls(observation) {
  const entries = observation.calls.map((call) => ({
    text: [call.name, call.words, call.call, call.place, call.serving, call.target].join(" ").toLowerCase(),
    make: (isOpen) => callEntry(call, isOpen),
  }));
  return makePanel(
    "Open calls",
    { id: "calls" },
    make("p", {}, entries.length === 0 ? "No call was open." : `Their callers wait for ${counted(observation.open_count, "answer")}.`),
    filtered("calls", "calls", entries),
    makeRest(observation.calls_left_out_count, "call", SHOW_HAS_ALL),
  );
}

function callEntry(call, isOpen) {
  const kind = call.is_blocked ? "bad" : call.place === "being served" ? "muted" : "warn";
  const summary = [
    make("span", { class: kind }, call.is_blocked ? `${call.place}, in a deadlock` : call.place),
    make("span", { class: "muted" }, `${call.caller} → ${call.served_by ?? call.target}`),
  ];
  return foldable(call.name, summary, isOpen, () => [make("p", {}, `${call.words}.`), callFacts(call)]);
}

function callFacts(call) {
  const rows = [
    ["number", call.call],
    ["sent to", call.target],
    ["accepted by", call.served_by],
    ["status of the answer", call.status],
    ["made while serving", call.serving],
    ["sent at", call.began_at === null ? null : moment(call.began_at)],
    ["open for", call.open_s === null ? null : `${duration(call.open_s)}, when the observation was initiated`],
    ["waits until", call.deadline === null ? null : moment(call.deadline)],
    ["amounts in transit", amountText(call.amounts)],
  ].filter(([, value]) => value !== null);
  const fields = call.fields.map((field) => makeRow(field.name, shownValue(field)));
  return makeTable({ class: "fields", "aria-label": `call ${call.call}` }, [], [...rows.map(([name, value]) => makeRow(name, value)), ...fields]);
}

function amountText(amounts) {
  const texts = Object.entries(amounts).map(([unit, amount]) => `${amount} ${unit}`);
  return texts.length > 0 ? texts.join(", ") : null;
}

function unresolvedCalls(observation) {
  const rows = observation.unresolved.map((one) => makeRow(make("th", { scope: "row", class: "mono" }, one.call), one.name, one.kind, one.status ?? "", one.known, amountText(one.amounts) ?? ""));
  const heads = ["call", "name", "kind", "status", "what is known: it", "amounts"];
  return makePanel(
    "Unresolved calls",
    { id: "unresolved" },
    make("p", {}, "Their callers do not wait for an answer."),
    makeScrolling("table of unresolved calls", {}, makeTable({ "aria-label": "unresolved calls" }, heads, rows)),
    makeRest(observation.unresolved_left_out_count, "unresolved call", SHOW_HAS_ALL),
  );
}

function amountTable(observation) {
  const [unit, ...places] = Object.keys(observation.amounts[0]);
  const figure = (text) => make("td", { class: "number" }, /^-?\d+$/.test(text) ? count(text) : text);
  const rows = observation.amounts.map((row) => makeRow(row[unit], ...places.map((place) => figure(row[place]))));
  const heads = [unit, ...places.map((place) => make("th", { scope: "col", class: "number" }, place.replaceAll("_", " ")))];
  return makePanel(
    "Amounts",
    { id: "amounts" },
    makeScrolling("table of amounts", {}, makeTable({ "aria-label": "amounts" }, heads, rows)),
    makeRest(observation.amounts_left_out_count, "unit", SHOW_HAS_ALL),
  );
}

// What a snapshot has recorded after so many steps: process by process, channel by channel.

import { counted, make } from "./dom.js";

/**
 * Return what is recorded for a cut after some steps, as elements.
 * @param {Object} held - the document of player_document.py.
 * @param {Object} choice - one of its choices.
 * @param {number} step - after how many steps.
 */
export function recordedTables(held, choice, step) {
  const did = choice.is_snapshot ? "recorded state" : "events before the cut";
  const processes = choice.states.map(([at, state], number) => {
    const isKnown = at !== null && at <= step;
    return recordedRow(held.processes[number], isKnown ? state : "not yet", isKnown ? "known" : "quiet");
  });
  const channels = choice.channels.map((channel) => {
    const [words, kind] = contents(channel, step);
    return recordedRow(channel.name, words, kind);
  });
  const title = choice.is_snapshot ? `Recorded for ${choice.name}` : "At the cut";
  return [
    make("h2", {}, title),
    recordedTable("processes", ["process", did], processes),
    recordedTable("channels", ["channel", "holds"], channels),
    choice.unlisted > 0 ? make("p", { class: "quiet" }, `and ${counted(choice.unlisted, "channel")} more`) : "",
  ];
}

function contents(channel, step) {
  if (channel.begin === null || step < channel.begin) return ["not yet", "quiet"];
  const names = channel.holds.filter(([at]) => at <= step).map(([, name]) => name);
  const isOver = channel.end !== null && channel.end <= step;
  if (isOver && channel.orphans.length > 0) {
    return [`impossible: ${channel.orphans.join(", ")} came before the cut, and was sent after it`, "bad"];
  }
  if (!isOver) return [`records${names.length > 0 ? `: ${names.join(", ")}` : ", nothing so far"}`, "under-way"];
  return names.length > 0 ? [names.join(", "), "known caught"] : ["empty", "known"];
}

/** Return a row: a name, and what is said of it. */
export function recordedRow(name, words, kind) {
  return make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: kind }, words));
}

/** Return a table of such rows. */
export function recordedTable(name, heads, rows) {
  const head = make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)));
  return make("table", { class: name }, make("thead", {}, head), make("tbody", {}, ...rows));
}

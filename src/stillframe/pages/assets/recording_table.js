// The recording of a snapshot after a number of steps: process by process, channel by channel.

import { make, makeRest, makeRow, makeTable } from "./dom.js";

/** Return the tables of what is recorded for one of the choices of an execution after `step` steps. */
export function recordedTables(execution, choice, step) {
  const did = choice.is_snapshot ? "recorded state" : "events before the cut";
  const processes = choice.states.map(([at, state], number) => {
    const isKnown = at !== null && at <= step;
    return recordedRow(execution.processes[number], isKnown ? state : "not yet", isKnown ? "known" : "muted");
  });
  const channels = choice.channels.map((channel) => {
    const [words, kind] = contents(channel, step);
    return recordedRow(channel.name, words, kind);
  });
  const title = choice.is_snapshot ? `Recorded for ${choice.name}` : "At the cut";
  return [
    make("h2", {}, title),
    makeTable({ class: "processes" }, ["process", did], processes),
    makeTable({ class: "channels" }, ["channel", "holds"], channels),
    makeRest(choice.unlisted, "channel") ?? "",
  ];
}

function contents(channel, step) {
  if (channel.begin === null || step < channel.begin) return ["not yet", "muted"];
  const names = channel.holds.filter(([at]) => at <= step).map(([, name]) => name);
  const isOver = channel.end !== null && channel.end <= step;
  if (isOver && channel.orphans.length > 0) {
    return [`impossible: ${channel.orphans.join(", ")} came before the cut, and was sent after it`, "bad"];
  }
  if (!isOver) return [`records${names.length > 0 ? `: ${names.join(", ")}` : ", nothing so far"}`, "under-way"];
  return names.length > 0 ? [names.join(", "), "known caught"] : ["empty", "known"];
}

/** Return a row with a name and its value. */
export function recordedRow(name, words, kind) {
  return makeRow(name, make("td", { class: kind }, words));
}

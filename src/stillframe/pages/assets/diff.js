// Two snapshots: in what they differ, field by field and channel by channel.

import { make, count, counted, duration, bytes } from "./dom.js";
import { shownValue, filtered, foldable } from "./state_table.js";
import { moment } from "./time_scale.js";

const COUNT_NAMES = ["sent", "received", "in the channel"];
const PREVIEW_MAX = 60;

/**
 * Show in what two snapshots differ.
 * @param {Object} held - what comparison_document() in Python returns.
 * @param {Element} root - is emptied, and gets it.
 */
export function showComparison(held, root) {
  root.replaceChildren(
    comparisonHead(held),
    make("div", { class: "columns" }, fieldDifferences(held), channelDifferences(held)),
  );
}

function comparisonHead(held) {
  const names = [held.before.id, held.after.id].map((id) => make("span", { class: "mono" }, id));
  return make(
    "header",
    { class: "snapshot-head" },
    make("h1", {}, "From ", names[0], " to ", names[1]),
    make("p", { class: "verdict" }, comparisonSentence(held)),
    held.note === "" ? null : make("p", { class: "quiet" }, held.note),
    make("div", { class: "scrolling", tabindex: 0, role: "group", "aria-label": "the two snapshots" }, headTable(held)),
  );
}

function comparisonSentence(held) {
  if (held.is_equal) return held.equal;
  const fields = `${counted(held.field_count, "field")} of ${counted(held.process_count, "process")}`;
  return `They differ in ${fields} and in ${counted(held.channel_count, "channel")}.`;
}

function headTable(held) {
  const rows = [
    ["initiated", (each) => moment(each.initiated_at)],
    ["epoch", (each) => String(each.epoch)],
    ["processes", (each) => count(each.process_count)],
    ["channels", (each) => count(each.channel_count)],
    [`${held.noun}s caught`, (each) => count(each.message_count)],
    ["recorded in", (each) => duration(each.recorded_s)],
    ["size", (each) => bytes(each.bytes)],
  ];
  const head = make("tr", {}, make("td"), snapshotColumns(held));
  const body = rows.map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value(held.before)), make("td", {}, value(held.after))));
  return make("table", { class: "narrow" }, make("thead", {}, head), make("tbody", {}, body));
}

function snapshotColumns(held) {
  return [held.before.id, held.after.id].map((id) => make("th", { scope: "col", class: "mono" }, id));
}

function fieldDifferences(held) {
  const byProcess = new Map();
  for (const found of held.fields) {
    byProcess.set(found.process, [...(byProcess.get(found.process) ?? []), found]);
  }
  const entries = [...byProcess].map(([process, fields]) => ({
    text: `${process} ${JSON.stringify(fields)}`.toLowerCase(),
    make: (isOpen) => processDifference(held, process, fields, isOpen),
  }));
  const left = held.field_count - held.fields.length;
  return make(
    "section",
    { class: "panel", "aria-labelledby": "states" },
    make("h2", { id: "states" }, "States"),
    held.field_count === 0 ? make("p", {}, "Every process recorded the same.") : filtered("states", "processes", entries),
    left > 0 ? make("p", { class: "quiet" }, `and ${counted(left, "field")} more: stillframe diff has them all`) : null,
  );
}

function processDifference(held, process, fields, isOpen) {
  const only = held.only_before.includes(process) ? `only in ${held.before.id}` : held.only_after.includes(process) ? `only in ${held.after.id}` : "";
  const summary = make(
    "summary",
    {},
    make("span", { class: "name" }, process),
    make("span", { class: "quiet" }, fields.map(differencePreview).join(", ")),
    only === "" ? null : make("span", { class: "warn" }, only),
  );
  return foldable(process, summary, isOpen, () => fields.map((found) => fieldDifference(held, found)));
}

function differencePreview(found) {
  if (found.keys !== undefined) return `${found.field}: ${counted(found.added_count + found.removed_count + found.changed_count, "key")}`;
  const text = `${found.field} ${found.before.text} → ${found.after.text}`;
  return text.length <= PREVIEW_MAX ? text : found.field;
}

function fieldDifference(held, found) {
  const head = make("tr", {}, make("th", { scope: "col" }, found.keys === undefined ? "field" : "key"), snapshotColumns(held));
  if (found.keys === undefined) {
    const row = make("tr", {}, make("th", { scope: "row", class: "mono" }, found.field), make("td", {}, shownValue(found.before)), make("td", {}, shownValue(found.after)));
    return make("table", { class: "pair", "aria-label": `${found.process} ${found.field}` }, make("thead", {}, head), make("tbody", {}, row));
  }
  const rows = found.keys.map((row) => make("tr", {}, make("th", { scope: "row" }, shownValue(row.key)), make("td", {}, side(row.before)), make("td", {}, side(row.after))));
  const counts = ["added", "removed", "changed"].map((what) => `${count(found[`${what}_count`])} ${what}`).join(", ");
  const left = found.keys_left_out_count;
  return [
    make("h3", {}, make("span", { class: "mono" }, found.field), make("span", { class: "quiet" }, ` keys: ${counts}`)),
    make("table", { class: "pair", "aria-label": `${found.process} ${found.field}` }, make("thead", {}, head), make("tbody", {}, rows)),
    left > 0 ? make("p", { class: "left-out quiet" }, `and ${counted(left, "key")} more`) : null,
  ];
}

function side(value) {
  return value === undefined ? make("span", { class: "quiet" }, "not there") : shownValue(value);
}

function channelDifferences(held) {
  const left = held.channel_count - held.channels.length;
  return make(
    "section",
    { class: "panel", "aria-labelledby": "channels" },
    make("h2", { id: "channels" }, "Channels"),
    held.channel_count === 0 ? make("p", {}, "Every channel counted and held the same.") : filtered("channels", "channels", channelRows(held)),
    left > 0 ? make("p", { class: "quiet" }, `and ${counted(left, "channel")} more`) : null,
  );
}

function channelRows(held) {
  return held.channels.map((found) => ({
    text: found.channel.toLowerCase(),
    make: (isOpen) => channelDifference(held, found, isOpen),
  }));
}

function channelDifference(held, found, isOpen) {
  const kept = [found.before[2], found.after[2]].map(count);
  const note = found.is_same_count ? held.same_count : `held ${kept[0]}, then ${kept[1]}`;
  const summary = make("summary", {}, make("span", { class: "name" }, found.channel), make("span", { class: "quiet" }, note));
  return foldable(found.channel, summary, isOpen, () => {
    const head = make("tr", {}, make("th", { scope: "col" }, `${held.noun}s`), snapshotColumns(held), make("th", { scope: "col" }, "more by"));
    const rows = COUNT_NAMES.map((name, index) => {
      const [before, after] = [found.before[index], found.after[index]];
      const cells = [count(before), count(after), before === after ? "" : signed(after - before)];
      return make("tr", {}, make("th", { scope: "row" }, name), cells.map((cell) => make("td", { class: "number" }, cell)));
    });
    return make("table", { "aria-label": `counts of ${found.channel}` }, make("thead", {}, head), make("tbody", {}, rows));
  });
}

function signed(number) {
  return `${number > 0 ? "+" : "−"}${count(Math.abs(number))}`;
}

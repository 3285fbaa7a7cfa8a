// The difference of two snapshots, field by field and channel by channel.

import { make, makePanel, makeRest, makeRow, makeScrolling, makeTable, count, counted, duration, bytes, moment } from "./dom.js";
import { shownValue, filtered, foldable } from "./state_table.js";

const COUNT_NAMES = ["sent", "received", "in the channel"];
const PREVIEW_MAX = 60;

/** Fill `root` with the document that diff_document() in Python returns. */
export function showDiff(diff, root) {
  root.replaceChildren(diffHead(diff), make("div", { class: "columns" }, fieldDifferences(diff), channelDifferences(diff)));
}

function diffHead(diff) {
  const names = [diff.before.id, diff.after.id].map((id) => make("span", { class: "mono" }, id));
  const fields = `${counted(diff.field_count, "field")} of ${counted(diff.process_count, "process")}`;
  return make(
    "header",
    { class: "snapshot-head" },
    make("h1", {}, "From ", names[0], " to ", names[1]),
    make("p", { class: "verdict" }, diff.is_equal ? diff.equal : `They differ in ${fields} and in ${counted(diff.channel_count, "channel")}.`),
    diff.note === "" ? null : make("p", { class: "muted" }, diff.note),
    makeScrolling("the two snapshots", {}, headTable(diff)),
  );
}

function headTable(diff) {
  const rows = [
    ["initiated", (each) => moment(each.initiated_at)],
    ["epoch", (each) => String(each.epoch)],
    ["processes", (each) => count(each.process_count)],
    ["channels", (each) => count(each.channel_count)],
    [`${diff.noun}s in channels`, (each) => count(each.message_count)],
    ["recorded in", (each) => duration(each.recorded_s)],
    ["size", (each) => bytes(each.bytes)],
  ];
  const body = rows.map(([name, value]) => makeRow(name, value(diff.before), value(diff.after)));
  return makeTable({ class: "narrow" }, [make("td"), ...snapshotColumns(diff)], body);
}

function snapshotColumns(diff) {
  return [diff.before.id, diff.after.id].map((id) => make("th", { scope: "col", class: "mono" }, id));
}

function fieldDifferences(diff) {
  const entries = [...Map.groupBy(diff.fields, (found) => found.process)].map(([process, fields]) => ({
    text: `${process} ${JSON.stringify(fields)}`.toLowerCase(),
    make: (isOpen) => processDifference(diff, process, fields, isOpen),
  }));
  return makePanel(
    "States",
    { id: "states" },
    diff.field_count === 0 ? make("p", {}, "The states are the same.") : filtered("states", "processes", entries),
    makeRest(diff.field_count - diff.fields.length, "field", ": stillframe diff prints all of them"),
  );
}

function processDifference(diff, process, fields, isOpen) {
  const only = diff.only_before.includes(process) ? `only in ${diff.before.id}` : diff.only_after.includes(process) ? `only in ${diff.after.id}` : "";
  const summary = [make("span", { class: "muted" }, fields.map(differencePreview).join(", ")), only === "" ? null : make("span", { class: "warn" }, only)];
  return foldable(process, summary, isOpen, () => fields.map((found) => fieldDifference(diff, found)));
}

function differencePreview(found) {
  if (found.keys !== undefined) return `${found.field}: ${counted(found.added_count + found.removed_count + found.changed_count, "key")}`;
  const text = `${found.field} ${found.before.text} → ${found.after.text}`;
  return text.length <= PREVIEW_MAX ? text : found.field;
}

function fieldDifference(diff, found) {
  const properties = { class: "pair", "aria-label": `${found.process} ${found.field}` };
  if (found.keys === undefined) {
    const name = make("th", { scope: "row", class: "mono" }, found.field);
    return makeTable(properties, ["field", ...snapshotColumns(diff)], [makeRow(name, shownValue(found.before), shownValue(found.after))]);
  }
  const side = (value) => (value === undefined ? make("span", { class: "muted" }, "not there") : shownValue(value));
  const rows = found.keys.map((row) => makeRow(shownValue(row.key), side(row.before), side(row.after)));
  const counts = ["added", "removed", "changed"].map((what) => `${count(found[`${what}_count`])} ${what}`).join(", ");
  return [
    make("h3", {}, make("span", { class: "mono" }, found.field), make("span", { class: "muted" }, ` keys: ${counts}`)),
    makeTable(properties, ["key", ...snapshotColumns(diff)], rows),
    makeRest(found.keys_left_out_count, "key"),
  ];
}

function channelDifferences(diff) {
  const entries = diff.channels.map((found) => ({
    text: found.channel.toLowerCase(),
    make: (isOpen) => channelDifference(diff, found, isOpen),
  }));
  return makePanel(
    "Channels",
    { id: "channels" },
    diff.channel_count === 0 ? make("p", {}, "The channels are the same.") : filtered("channels", "channels", entries),
    makeRest(diff.channel_count - diff.channels.length, "channel"),
  );
}

function channelDifference(diff, found, isOpen) {
  const kept = [found.before[2], found.after[2]].map(count);
  const note = found.is_same_count ? diff.same_count : `held ${kept[0]}, then ${kept[1]}`;
  return foldable(found.channel, make("span", { class: "muted" }, note), isOpen, () => {
    const rows = COUNT_NAMES.map((name, index) => {
      const [before, after] = [found.before[index], found.after[index]];
      const more = before === after ? "" : `${after > before ? "+" : "−"}${count(Math.abs(after - before))}`;
      const cells = [count(before), count(after), more];
      return makeRow(name, ...cells.map((cell) => make("td", { class: "number" }, cell)));
    });
    return makeTable({ "aria-label": `counts of ${found.channel}` }, [`${diff.noun}s`, ...snapshotColumns(diff), "more by"], rows);
  });
}

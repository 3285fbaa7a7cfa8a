// The contents of a snapshot: the states of processes, and the messages in transit. Details are built
// when they are opened, because there may be thousands.

import { make, makePanel, makeRest, makeRow, makeScrolling, makeTable, count, counted, setText, own } from "./dom.js";

const AT_ONCE = 100;
const OPEN_AT_ONCE = 3;
const FILTER_FROM = 8;
const PREVIEW_CHARS = 90;

/** Return the states of the processes of a snapshot, each as a foldable entry. */
export function showStates(snapshot) {
  const entries = snapshot.processes.map((state) => ({
    text: `${state.process} ${state.kind} ${state.fields.map(fieldText).join(" ")}`.toLowerCase(),
    make: (isOpen) => stateEntry(state, own(snapshot.excluded, state.process), isOpen),
  }));
  const left = snapshot.processes_left_out_count;
  const member = snapshot.member ?? "process";
  return makePanel(
    "States",
    { id: "states" },
    filtered("states", member === "process" ? "processes" : `${member}s`, entries),
    left > 0 ? make("p", { class: "muted" }, `${counted(left, member)} more: stillframe show prints all of them`) : null,
  );
}

/** Return the channels of a snapshot: those that held messages first, then the empty ones. */
export function showChannels(snapshot) {
  const full = snapshot.channels.filter((channel) => channel.message_count > 0);
  const empty = snapshot.channels.filter((channel) => channel.message_count === 0);
  const entries = full.map((channel) => ({
    text: channelText(channel),
    make: (isOpen) => channelEntry(snapshot, channel, isOpen),
  }));
  const emptyCount = empty.length + snapshot.channels_left_out_count;
  const topics = snapshot.topics ?? [];
  return makePanel(
    "Channels",
    { id: "channels" },
    snapshot.channels.length === 0 && topics.length > 0 ? null : make("p", {}, full.length === 0 ? `No channel held a ${snapshot.noun}.` : `${counted(full.length, "channel")} held ${counted(snapshot.message_count, snapshot.noun)}.`),
    topics.length > 0 ? topicTable(topics) : null,
    filtered("channels", "channels", entries),
    emptyCount > 0 ? emptyChannels(empty, snapshot.channels_left_out_count) : null,
  );
}

/** Return where the cut lies in topics of Kafka; their records are not in the snapshot. */
function topicTable(topics) {
  const rows = topics.map(({ channel, positions, ends }) => makeRow(make("td", { class: "mono" }, channel), positions, ends));
  const caption = "Topics of Kafka: offsets by partition. A restored query continues at its position, without records of later micro-batches.";
  return makeScrolling("Topics of Kafka", { role: "region" }, makeTable({}, ["channel", "position", "end when it was taken"], rows, caption));
}

/** Return the elements of a value: its text, or the keys of a mapping. */
export function shownValue(value) {
  if (value.rows === undefined) {
    const skipped = value.skipped ? make("span", { class: "muted" }, `(${value.skipped}) … `) : null;
    return [skipped, make("code", { class: "value" }, value.text), leftOut(value.left_out)];
  }
  const rows = value.rows.map(([key, each]) => makeRow(shownValue(key), shownValue(each)));
  const more = value.left_out_count > 0 ? `and ${counted(value.left_out_count, "key")} more` : "";
  return [make("span", { class: "muted" }, counted(value.row_count, "key")), makeTable({ class: "keys" }, [], rows), leftOut(more)];
}

function leftOut(text) {
  return text ? make("span", { class: "left-out muted" }, ` … ${text}`) : null;
}

function fieldText(field) {
  const rows = field.rows ?? [];
  const text = field.text ?? rows.map(([key, value]) => `${key.text} ${value.text}`).join(" ");
  return `${field.name} ${text}`;
}

function channelText(channel) {
  const messages = channel.messages.map((message) => `${message.kind} ${message.fields.map(fieldText).join(" ")}`);
  return `${channel.channel} ${messages.join(" ")}`.toLowerCase();
}

function preview(fields) {
  const parts = fields.map((field) => (field.rows === undefined ? `${field.name} = ${field.text}` : `${field.name}: ${counted(field.row_count, "key")}`));
  const text = parts.join(", ");
  return text.length <= PREVIEW_CHARS ? text : `${text.slice(0, PREVIEW_CHARS)}…`;
}

function stateEntry(state, since, isOpen) {
  const summary = [make("span", { class: "muted" }, state.kind), make("code", { class: "preview" }, preview(state.fields))];
  return foldable(state.process, summary, isOpen, () => [
    since === undefined ? null : make("p", { class: "warn" }, `Excluded: this is its state from snapshot ${since}.`),
    state.fields.length === 0
      ? make("p", { class: "muted" }, "No field is declared.")
      : makeTable({ class: "fields", "aria-label": `state of ${state.process}` }, [], state.fields.map((field) => makeRow(field.name, shownValue(field)))),
  ]);
}

function channelEntry(snapshot, channel, isOpen) {
  const summary = [
    make("span", { class: "caught-count" }, counted(channel.message_count, snapshot.noun)),
    make("span", { class: "muted" }, `${count(channel.sent_count)} sent, ${count(channel.received_count)} received`),
  ];
  return foldable(channel.channel, summary, isOpen, () => messageTable(snapshot, channel));
}

function messageTable(snapshot, channel) {
  const rows = channel.messages.map(({ number, kind, fields }) => {
    const shown = fields.map((field) => make("div", {}, make("span", { class: "muted" }, `${field.name} `), shownValue(field)));
    return makeRow(make("td", { class: "number" }, count(number)), kind, shown);
  });
  const heads = [make("th", { scope: "col", class: "number" }, "number"), snapshot.noun, "fields"];
  const left = channel.messages_left_out_count;
  return [
    channel.error ? make("p", { class: "bad" }, channel.error) : null,
    channel.messages.length === 0 ? null : makeTable({ class: "messages", "aria-label": `${snapshot.noun}s on ${channel.channel}` }, heads, rows),
    left > 0 ? make("p", { class: "left-out muted" }, `${channel.messages.length > 0 ? `and ${counted(left, snapshot.noun)} more` : `${counted(left, snapshot.noun)}, which are not in this page`}: ${snapshot.rest}`) : null,
  ];
}

function emptyChannels(channels, leftOutCount) {
  const total = channels.length + leftOutCount;
  return foldable(counted(total, "empty channel"), make("span", { class: "muted" }, "sent = received"), false, () => {
    const body = make("tbody");
    const heads = ["channel", make("th", { scope: "col", class: "number" }, "sent and received")];
    const table = makeTable({ "aria-label": "empty channels" }, heads, body);
    const rows = channels.map((channel) => ({
      make: () => makeRow(make("td", { class: "mono" }, channel.channel), make("td", { class: "number" }, count(channel.sent_count))),
    }));
    return [table, inPortions(body, rows, "channels"), makeRest(leftOutCount, "channel")];
  });
}

/** Return an entry that shows its name, `summary` and, once it is open, what `content` builds. */
export function foldable(name, summary, isOpen, content) {
  const box = makeScrolling(name, { kind: "content" });
  const entry = make("details", { class: "entry", open: isOpen }, make("summary", {}, make("span", { class: "name" }, name), summary), box);
  const fill = () => {
    if (entry.open && box.childNodes.length === 0) box.append(...[content()].flat(2).filter((each) => each !== null));
  };
  entry.addEventListener("toggle", fill);
  fill();
  return entry;
}

/** Return a list of entries, a portion at a time; a long one has a filter above it. Each entry has the
 * `text` to filter by, in lower case, and `make`, which builds it, open or not. */
export function filtered(name, noun, entries) {
  const list = make("div", { class: "entries" });
  const more = make("div");
  const status = make("span", { class: "muted", role: "status" });
  const show = (wanted) => {
    const found = wanted === "" ? entries : entries.filter((entry) => entry.text.includes(wanted));
    const isOpen = found.length <= OPEN_AT_ONCE;
    list.replaceChildren();
    more.replaceChildren(inPortions(list, found.map((entry) => ({ make: () => entry.make(isOpen) })), noun) ?? "");
    setText(status, wanted === "" ? "" : `${count(found.length)} of ${count(entries.length)} ${noun}`);
  };
  show("");
  if (entries.length < FILTER_FROM) return [list, more];
  const input = make("input", { type: "search", id: `filter-${name}`, autocomplete: "off", on: { input: () => show(input.value.trim().toLowerCase()) } });
  return [make("div", { class: "row filter" }, make("label", { for: `filter-${name}` }, "Filter"), input, status), list, more];
}

/** Append the first entries to a list; return a button for more, null if there are none. */
function inPortions(list, entries, noun) {
  let done = 0;
  const next = () => {
    list.append(...entries.slice(done, done + AT_ONCE).map((entry) => entry.make()));
    done = Math.min(entries.length, done + AT_ONCE);
  };
  next();
  if (done === entries.length) return null;
  const label = () => `Show more ${noun} (${count(entries.length - done)})`;
  const advance = () => {
    next();
    if (done === entries.length) button.remove();
    else setText(button, label());
  };
  const button = make("button", { type: "button", on: { click: advance } }, label());
  return button;
}

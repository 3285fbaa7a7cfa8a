// What a snapshot holds: the states of processes, and the messages that were on channels. Details
// are made when somebody opens them: there may be thousands.

import { make, count, counted, setText, own } from "./dom.js";

const AT_ONCE = 100;
const OPEN_AT_ONCE = 3;
const FILTER_FROM = 8;
const PREVIEW_CHARS = 90;

/** Return the states of the processes of a snapshot, one to open for each. */
export function showStates(held) {
  const entries = held.processes.map((state) => ({
    text: stateText(state),
    make: (isOpen) => stateEntry(state, own(held.excluded, state.process), isOpen),
  }));
  const left = held.processes_left_out_count;
  return make(
    "section",
    { class: "panel", "aria-labelledby": "states" },
    make("h2", { id: "states" }, "States"),
    filtered("states", "processes", entries),
    left > 0 ? make("p", { class: "quiet" }, `${counted(left, "process")} more: stillframe show has them all`) : null,
  );
}

/** Return the channels of a snapshot: those that held messages first, then the empty ones. */
export function showChannels(held) {
  const full = held.channels.filter((channel) => channel.message_count > 0);
  const empty = held.channels.filter((channel) => channel.message_count === 0);
  const entries = full.map((channel) => ({
    text: channelText(channel),
    make: (isOpen) => channelEntry(held, channel, isOpen),
  }));
  const emptyCount = empty.length + held.channels_left_out_count;
  return make(
    "section",
    { class: "panel", "aria-labelledby": "channels" },
    make("h2", { id: "channels" }, "Channels"),
    make("p", {}, full.length === 0 ? `No channel held a ${held.noun}.` : `${counted(full.length, "channel")} held ${counted(held.message_count, held.noun)}.`),
    filtered("channels", "channels", entries),
    emptyCount > 0 ? emptyChannels(empty, held.channels_left_out_count) : null,
  );
}

/** Return a value as a page shows it: its text, or the keys that a mapping holds. */
export function shownValue(value) {
  if (value.rows === undefined) {
    const skipped = value.skipped ? make("span", { class: "quiet" }, `(${value.skipped}) … `) : null;
    return [skipped, make("code", { class: "value" }, value.text), leftOut(value.left_out)];
  }
  const rows = value.rows.map(([key, each]) => make("tr", {}, make("th", { scope: "row" }, shownValue(key)), make("td", {}, shownValue(each))));
  const more = value.left_out_count > 0 ? `and ${counted(value.left_out_count, "key")} more` : "";
  return [make("span", { class: "quiet" }, counted(value.row_count, "key")), make("table", { class: "keys" }, make("tbody", {}, rows)), leftOut(more)];
}

function leftOut(text) {
  return text ? make("span", { class: "left-out quiet" }, ` … ${text}`) : null;
}

function stateText(state) {
  return `${state.process} ${state.kind} ${state.fields.map(fieldText).join(" ")}`.toLowerCase();
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
  const summary = make(
    "summary",
    {},
    make("span", { class: "name" }, state.process),
    make("span", { class: "quiet" }, state.kind),
    make("code", { class: "preview" }, preview(state.fields)),
  );
  return foldable(state.process, summary, isOpen, () => [
    since === undefined ? null : make("p", { class: "warn" }, `It took no part: this is its state of snapshot ${since}.`),
    state.fields.length === 0 ? make("p", { class: "quiet" }, "No field is declared.") : fieldTable(state),
  ]);
}

function fieldTable(state) {
  const rows = state.fields.map((field) => make("tr", {}, make("th", { scope: "row" }, field.name), make("td", {}, shownValue(field))));
  return make("table", { class: "fields", "aria-label": `state of ${state.process}` }, make("tbody", {}, rows));
}

function channelEntry(held, channel, isOpen) {
  const summary = make(
    "summary",
    {},
    make("span", { class: "name" }, channel.channel),
    make("span", { class: "caught-count" }, counted(channel.message_count, held.noun)),
    make("span", { class: "quiet" }, `${count(channel.sent_count)} sent, ${count(channel.received_count)} received`),
  );
  return foldable(channel.channel, summary, isOpen, () => messageTable(held, channel));
}

function messageTable(held, channel) {
  const rows = channel.messages.map((message) =>
    make("tr", {}, make("td", { class: "number" }, count(message.number)), make("td", {}, message.kind), make("td", {}, messageFields(message))),
  );
  const heads = [make("th", { scope: "col", class: "number" }, "number"), make("th", { scope: "col" }, held.noun), make("th", { scope: "col" }, "fields")];
  const left = channel.messages_left_out_count;
  return [
    channel.error ? make("p", { class: "bad" }, channel.error) : null,
    channel.messages.length === 0 ? null : make("table", { class: "messages", "aria-label": `${held.noun}s on ${channel.channel}` }, make("thead", {}, make("tr", {}, heads)), make("tbody", {}, rows)),
    left > 0 ? make("p", { class: "left-out quiet" }, `${channel.messages.length > 0 ? `and ${counted(left, held.noun)} more` : `${counted(left, held.noun)}, which the page does not hold`}: ${held.rest}`) : null,
  ];
}

function messageFields(message) {
  return message.fields.map((field) => make("div", {}, make("span", { class: "quiet" }, `${field.name} `), shownValue(field)));
}

function emptyChannels(channels, leftOutCount) {
  const total = channels.length + leftOutCount;
  const summary = make("summary", {}, make("span", { class: "name" }, `${count(total)} empty`), make("span", { class: "quiet" }, "sent = received"));
  return foldable("empty channels", summary, false, () => {
    const body = make("tbody");
    const table = make("table", { "aria-label": "empty channels" }, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "channel"), make("th", { scope: "col", class: "number" }, "sent and received"))), body);
    const rows = channels.map((channel) => ({
      make: () => make("tr", {}, make("td", { class: "mono" }, channel.channel), make("td", { class: "number" }, count(channel.sent_count))),
    }));
    const more = leftOutCount > 0 ? make("p", { class: "quiet" }, `and ${counted(leftOutCount, "channel")} more`) : null;
    return [table, inPortions(body, rows, "channels"), more];
  });
}

/**
 * Return something to open, whose content is made when it is.
 * @param {string} name - of the content, for those who cannot see it.
 * @param {Element} summary - what is seen before.
 * @param {boolean} isOpen - whether it is open already.
 * @param {function(): (Node|Node[])} content - makes it.
 */
export function foldable(name, summary, isOpen, content) {
  const box = make("div", { class: "content scrolling", tabindex: 0, role: "group", "aria-label": name });
  const entry = make("details", { class: "entry", open: isOpen }, summary, box);
  const fill = () => {
    if (entry.open && box.childNodes.length === 0) box.append(...[content()].flat(2).filter((each) => each !== null));
  };
  entry.addEventListener("toggle", fill);
  fill();
  return entry;
}

/**
 * Return a list of entries, a portion at a time; if they are many, with a filter above it.
 * @param {string} name - of the list, for an id.
 * @param {string} noun - what the entries are.
 * @param {{text: string, make: function(boolean): Element}[]} entries - what the filter looks at, in
 *     lower case, and what makes an entry, open or not.
 */
export function filtered(name, noun, entries) {
  const list = make("div", { class: "entries" });
  const more = make("div");
  const said = make("span", { class: "quiet", role: "status" });
  const show = (wanted) => {
    const found = wanted === "" ? entries : entries.filter((entry) => entry.text.includes(wanted));
    const isOpen = found.length <= OPEN_AT_ONCE;
    list.replaceChildren();
    more.replaceChildren(inPortions(list, found.map((entry) => ({ make: () => entry.make(isOpen) })), noun) ?? "");
    setText(said, wanted === "" ? "" : `${count(found.length)} of ${count(entries.length)} ${noun}`);
  };
  show("");
  if (entries.length < FILTER_FROM) return [list, more];
  const input = make("input", { type: "search", id: `filter-${name}`, autocomplete: "off", on: { input: () => show(input.value.trim().toLowerCase()) } });
  return [make("div", { class: "row filter" }, make("label", { for: `filter-${name}` }, "Filter"), input, said), list, more];
}

/** Put the first entries into a list; return a button for more, null if there are none. */
function inPortions(list, entries, noun) {
  let done = 0;
  const next = () => {
    list.append(...entries.slice(done, done + AT_ONCE).map((entry) => entry.make()));
    done = Math.min(entries.length, done + AT_ONCE);
  };
  next();
  if (done === entries.length) return null;
  const button = make("button", { type: "button", on: { click: advance } }, label());
  function label() {
    return `Show more ${noun} (${count(entries.length - done)})`;
  }
  function advance() {
    next();
    if (done === entries.length) button.remove();
    else setText(button, label());
  }
  return button;
}

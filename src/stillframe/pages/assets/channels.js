// The graph as tables: processes and channels in words and figures.

import { make, makeRow, makeScrolling, makeTable, setText, count, bytes, duration } from "./dom.js";
import { STATUS_WORDS, channelName } from "./graph.js";

const CHANNELS_SHOWN = 40;
const figure = (column, format = count, kind = "number") => [kind, ({ channels }, index) => (channels[column][index] === null ? "?" : format(channels[column][index]))];
const rateFigure = figure("rate", (rate) => count(Math.round(rate)));

/** Return how many items the target of a log is behind; a topic has none. */
function itemsBehind({ channels }, index) {
  if (channels.items[index] !== null) return count(channels.items[index]);
  return channels.received[index] === null ? "?" : "";
}

/** The tables; each column of what changes has the class of its cells, and the text of one. */
const OF_SYSTEM = {
  summary: "Processes and channels in figures",
  heads: ["process", "class", "channel"],
  captions: ["Processes", "Channels"],
  processes: { state: ["", ({ statuses }, index) => statuses[index]] },
  channels: {
    "messages/s": rateFigure,
    "in transit": figure("in_transit"),
    "not handled": figure("bytes", bytes),
    connection: figure("is_connected", (isConnected) => (isConnected ? "connected" : "not connected"), ""),
  },
};
const OF_PIPELINE = {
  summary: "Queries, services and channels in figures",
  heads: ["participant", "kind", "channel"],
  captions: ["Queries and services", "Channels"],
  processes: {
    state: ["", ({ statuses }, index) => STATUS_WORDS[statuses[index]]],
    "last micro-batch": ["", ({ batches }, index) => (batches[index] === null ? "" : count(batches[index]))],
    "last moved": ["", ({ at, since }, index) => (since[index] === null ? "" : `${duration(Math.max(0, at - since[index]))} ago`)],
  },
  channels: { "records/s": rateFigure, appended: figure("sent"), read: figure("received"), behind: figure("in_transit"), "items behind": ["number", itemsBehind] },
};

/** The tables below the graph; that of channels shows the busiest ones. */
export class ChannelTable {
  constructor(about) {
    this.about = about;
    this.words = about.kind === "pipeline" ? OF_PIPELINE : OF_SYSTEM;
    const { summary, heads, captions, processes, channels } = this.words;
    const cellsOf = (columns) => Object.values(columns).map(([kind]) => make("td", { class: kind }));
    this.processes = about.processes.slice(0, about.participant_count).map(() => cellsOf(processes));
    this.rows = Array.from({ length: Math.min(CHANNELS_SHOWN, about.channels.length) }, () => [make("td", { class: "mono" }), ...cellsOf(channels)]);
    const named = this.processes.map((cells, index) => makeRow(make("th", { scope: "row", class: "mono" }, about.processes[index][0]), about.processes[index][1], ...cells));
    const isCut = about.channels.length > this.rows.length;
    this.root = make(
      "details",
      { class: "tables" },
      make("summary", {}, summary),
      tableOf([...heads.slice(0, 2), ...Object.keys(processes)], named, captions[0]),
      tableOf(
        [heads[2], ...Object.keys(channels)],
        this.rows.map((cells) => make("tr", {}, cells)),
        isCut ? `The ${this.rows.length} busiest channels of ${count(about.channels.length)}` : captions[1],
      ),
    );
    this.root.addEventListener("toggle", () => this.system && this.update(this.system));
  }

  /** Show the current status of the system, if the tables are open. */
  update(system) {
    this.system = system;
    if (!this.root.open) return;
    const show = (cells, columns, index) => Object.values(columns).forEach(([, text], place) => setText(cells[place], text(system, index)));
    this.processes.forEach((cells, index) => show(cells, this.words.processes, index));
    const { channels } = system;
    if (channels === undefined) return;
    const order = this.about.channels.map((_, index) => index);
    if (order.length > this.rows.length) order.sort((a, b) => (channels.rate[b] ?? 0) - (channels.rate[a] ?? 0));
    this.rows.forEach(([name, ...cells], position) => {
      setText(name, channelName(this.about, order[position]));
      show(cells, this.words.channels, order[position]);
    });
  }
}

function tableOf(heads, rows, caption) {
  return makeScrolling(caption, { role: "region" }, makeTable({}, heads, rows, caption));
}

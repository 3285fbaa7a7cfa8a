// The graph as tables: processes and channels in words and figures.

import { make, makeRow, makeScrolling, makeTable, setText, count, bytes, duration } from "./dom.js";
import { STATUS_WORDS, channelName } from "./graph.js";

const CHANNELS_SHOWN = 40;
const OF_SYSTEM = {
  summary: "Processes and channels in figures",
  processes: ["process", "class", "state"],
  channels: ["channel", "messages/s", "on their way", "not handled", "connection"],
};
const OF_PIPELINE = {
  summary: "Queries, services and logs in figures",
  processes: ["participant", "kind", "state", "last micro-batch", "last moved"],
  channels: ["log", "records/s", "appended", "read", "behind", "items behind"],
};

/** The tables below the graph; that of channels shows the busiest ones. */
export class ChannelTable {
  constructor(about) {
    this.about = about;
    this.isPipeline = about.kind === "pipeline";
    const words = this.isPipeline ? OF_PIPELINE : OF_SYSTEM;
    this.processes = about.processes.slice(0, about.participant_count).map(([name, kind]) => {
      const cells = words.processes.slice(2).map(() => make("td", {}));
      return { cells, row: makeRow(make("th", { scope: "row", class: "mono" }, name), kind, ...cells) };
    });
    this.rows = Array.from({ length: Math.min(CHANNELS_SHOWN, about.channels.length) }, () => {
      const kinds = words.channels.map((_, column) => (column === 0 ? "mono" : "number"));
      if (!this.isPipeline) kinds[4] = "";
      const cells = kinds.map((kind) => make("td", { class: kind }));
      return { cells, row: make("tr", {}, cells) };
    });
    const left = about.channels.length - this.rows.length;
    this.root = make(
      "details",
      { class: "tables" },
      make("summary", {}, words.summary),
      tableOf(words.processes, this.processes.map(({ row }) => row), this.isPipeline ? "Queries and services" : "Processes"),
      tableOf(
        words.channels,
        this.rows.map(({ row }) => row),
        left > 0 ? `The ${this.rows.length} busiest channels of ${count(about.channels.length)}` : this.isPipeline ? "Logs" : "Channels",
      ),
    );
    this.root.addEventListener("toggle", () => this.system && this.update(this.system));
  }

  /** Show the current status of the system, if the tables are open. */
  update(system) {
    this.system = system;
    if (!this.root.open) return;
    this.processes.forEach(({ cells }, index) => this.showProcess(cells, system, index));
    const { channels } = system;
    if (channels === undefined) return;
    const order = this.about.channels.map((_, index) => index);
    if (order.length > this.rows.length) order.sort((a, b) => (channels.rate[b] ?? 0) - (channels.rate[a] ?? 0));
    this.rows.forEach(({ cells }, position) => {
      const index = order[position];
      const shown = (column, format) => (channels[column][index] === null ? "?" : format(channels[column][index]));
      setText(cells[0], channelName(this.about, index));
      setText(cells[1], shown("rate", (rate) => count(Math.round(rate))));
      if (this.isPipeline) {
        ["sent", "received", "in_transit", "items"].forEach((column, place) => setText(cells[2 + place], shown(column, count)));
        return;
      }
      setText(cells[2], shown("in_transit", count));
      setText(cells[3], shown("bytes", bytes));
      setText(cells[4], shown("is_connected", (isConnected) => (isConnected ? "connected" : "not connected")));
    });
  }

  showProcess(cells, system, index) {
    const status = system.statuses[index];
    setText(cells[0], this.isPipeline ? STATUS_WORDS[status] : status);
    if (!this.isPipeline) return;
    const [batch, since] = [system.batches[index], system.since[index]];
    setText(cells[1], batch === null ? "" : count(batch));
    setText(cells[2], since === null ? "" : `${duration(Math.max(0, system.at - since))} ago`);
  }
}

function tableOf(heads, rows, caption) {
  return makeScrolling(caption, { role: "region" }, makeTable({}, heads, rows, caption));
}

// Processes and channels in words and figures: the same as the graph shows.

import { make, setText, count, bytes } from "./dom.js";

const CHANNELS_SHOWN = 40;

/** The tables below the graph; the one of channels shows the busiest. */
export class ChannelTable {
  /** @param {Object} about - names of processes, and channels as pairs of their places. */
  constructor(about) {
    this.about = about;
    this.processes = about.processes.map(([name, kind]) => {
      const status = make("td", {});
      return { status, row: make("tr", {}, make("th", { scope: "row", class: "mono" }, name), make("td", {}, kind), status) };
    });
    this.rows = Array.from({ length: Math.min(CHANNELS_SHOWN, about.channels.length) }, () => {
      const cells = ["mono", "number", "number", "number", ""].map((kind) => make("td", { class: kind }));
      return { cells, row: make("tr", {}, cells) };
    });
    const left = about.channels.length - this.rows.length;
    this.details = make(
      "details",
      { class: "tables" },
      make("summary", {}, "Processes and channels in figures"),
      tableOf(["process", "class", "state"], this.processes.map(({ row }) => row), "Processes"),
      tableOf(
        ["channel", "messages/s", "on their way", "not handled", "connection"],
        this.rows.map(({ row }) => row),
        left > 0 ? `The ${this.rows.length} busiest channels of ${count(about.channels.length)}` : "Channels",
      ),
    );
    this.details.addEventListener("toggle", () => this.system && this.update(this.system));
    this.root = this.details;
  }

  /** Show how the system is now, if anybody has opened the tables. */
  update(system) {
    this.system = system;
    if (!this.details.open) return;
    this.processes.forEach(({ status }, index) => setText(status, system.statuses[index]));
    const { channels } = system;
    if (channels === undefined) return;
    const order = this.about.channels.map((_, index) => index);
    if (order.length > this.rows.length) order.sort((a, b) => (channels.rate[b] ?? 0) - (channels.rate[a] ?? 0));
    this.rows.forEach(({ cells }, position) => {
      const index = order[position];
      const [source, target] = this.about.channels[index];
      const names = this.about.processes;
      const told = (column, say) => (channels[column][index] === null ? "?" : say(channels[column][index]));
      setText(cells[0], `${names[source][0]}->${names[target][0]}`);
      setText(cells[1], told("rate", (rate) => count(Math.round(rate))));
      setText(cells[2], told("in_transit", count));
      setText(cells[3], told("bytes", bytes));
      setText(cells[4], told("is_connected", (isConnected) => (isConnected ? "connected" : "not connected")));
    });
  }
}

function tableOf(heads, rows, caption) {
  return make(
    "div",
    { class: "scrolling", tabindex: 0, role: "region", "aria-label": caption },
    make(
      "table",
      {},
      make("caption", {}, caption),
      make("thead", {}, make("tr", {}, heads.map((head) => make("th", { scope: "col" }, head)))),
      make("tbody", {}, rows),
    ),
  );
}

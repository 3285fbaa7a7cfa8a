// The graph of processes and channels: how they are, how much goes over them, and the markers.

import { make, makeSvg, setText, count, duration } from "./dom.js";
import { Wave } from "./wave.js";

const WIDTH = 760;
const HEIGHT = 560;
const BADGES_MAX = 60;
const STATUS_WORDS = { running: "runs", busy: "is in an action", silent: "does not answer", starting: "is starting", dead: "died", stopped: "does not run" };

/** Where everything is, and its elements. */
export class Graph {
  /** @param {Object} about - names of processes, and channels as pairs of their places. */
  constructor(about) {
    this.about = about;
    this.size = sizeFor(about.processes.length);
    this.places = placesOf(about, this.size);
    this.paths = about.channels.map((channel) => pathOf(channel, this.places, about.channels, this.size));
    this.edges = this.paths.map((path, index) => this.makeEdge(path, index));
    this.discs = about.processes.map((process, index) => this.makeDisc(process, index));
    this.above = make("div", { class: "markers", "aria-hidden": "true" });
    this.caption = make("p", { class: "wave-caption quiet" }, "");
    const picture = makeSvg(
      "svg",
      { class: "graph", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": graphLabel(about) },
      makeSvg("g", {}, ...this.edges.map((edge) => edge.root)),
      makeSvg("g", {}, ...this.discs.map((disc) => disc.root)),
    );
    this.stage = make("div", { class: "stage" }, picture, this.above);
    const legend = make("p", { class: "quiet" }, "The wider a line, the more messages a second; figures: messages on their way.");
    this.root = make("div", { class: "graph-box" }, this.stage, legend, this.caption);
    this.wave = null;
  }

  makeEdge(path, index) {
    const line = makeSvg("path", { class: "edge", d: path.d });
    const badge = this.paths.length <= BADGES_MAX ? makeSvg("text", { class: "badge", x: path.at(0.62).x, y: path.at(0.62).y + 4 }) : null;
    const [source, target] = this.about.channels[index];
    const name = `${this.about.processes[source][0]}->${this.about.processes[target][0]}`;
    const title = makeSvg("title", {}, name);
    return { root: makeSvg("g", { class: "channel" }, title, line, badge), badge, title, name, kind: "" };
  }

  makeDisc([name, kind], index) {
    const { x, y, labelX, labelY, anchor } = this.places[index];
    const ring = makeSvg("circle", { class: "phase", cx: x, cy: y, r: this.size + 5 });
    const disc = makeSvg("circle", { class: "disc", cx: x, cy: y, r: this.size });
    const label = makeSvg("text", { class: "process-name", x: labelX, y: labelY, "text-anchor": anchor }, name);
    const more = makeSvg("text", { class: "process-more", x: labelX, y: labelY + 15, "text-anchor": anchor });
    const title = makeSvg("title", {}, `${name}: ${kind}`);
    return { root: makeSvg("g", { class: "process" }, title, ring, disc, label, more), title, more, name, kind, status: "" };
  }

  /** Show how the system is now. */
  update(system) {
    this.discs.forEach((disc, index) => {
      const status = system.statuses[index];
      const phases = (system.under_way ?? []).map((one) => one.phases[disc.name] ?? "idle");
      const phase = phases.includes("recording") ? "recording" : phases.includes("idle") ? "awaited" : phases.length ? "recorded" : "";
      const kind = `process ${status} ${phase}`;
      if (disc.status !== kind) {
        disc.status = kind;
        disc.root.setAttribute("class", kind);
        setText(disc.title, `${disc.name} (${disc.kind}) ${STATUS_WORDS[status] ?? status}`);
        if (this.discs.length <= 16) setText(disc.more, status === "running" ? "" : (STATUS_WORDS[status] ?? status));
      }
    });
    const columns = system.channels;
    this.edges.forEach((edge, index) => this.updateEdge(edge, index, columns));
  }

  updateEdge(edge, index, columns) {
    const rate = columns?.rate[index] ?? null;
    const held = columns?.in_transit[index] ?? null;
    const isConnected = columns === undefined || columns.is_connected[index] !== 0;
    const strength = rate === null || rate === 0 ? 0 : Math.min(5, 1 + Math.floor(Math.log10(1 + rate)));
    const kind = `channel strength-${strength}${isConnected ? "" : " disconnected"}`;
    if (edge.kind !== kind) {
      edge.kind = kind;
      edge.root.setAttribute("class", kind);
    }
    if (edge.badge !== null) setText(edge.badge, held ? count(held) : "");
    const told = columns === undefined ? "nothing is known" : `${rate === null ? "?" : count(Math.round(rate))} messages a second, about ${held === null ? "?" : count(held)} on their way${isConnected ? "" : ", not connected"}`;
    setText(edge.title, `${edge.name}: ${told}`);
  }

  /** Show how the markers of a snapshot went, slowly; not while others are shown. */
  playWave(wave) {
    if (this.wave !== null || !this.root.isConnected) return;
    const places = new Map(this.about.processes.map(([name], index) => [name, index]));
    this.wave = new Wave(wave, {
      layer: this.above,
      scale: () => this.stage.clientWidth / WIDTH,
      pathOf: (source, target) => this.paths[this.about.channels.findIndex(([s, t]) => s === places.get(source) && t === places.get(target))],
      cut: (process, isCut) => this.discs[places.get(process)]?.root.classList.toggle("cut", isCut),
      ended: () => {
        this.wave = null;
      },
    });
    const took = wave.took_s === null ? "" : `, which took ${duration(wave.took_s)}`;
    setText(this.caption, `The markers of ${wave.id}${took}, shown ${count(Math.round(this.wave.slowness))} times slower. Black: has recorded its state.`);
    this.wave.play();
  }

  /** Draw no more. */
  stop() {
    this.wave?.stop();
  }
}

function sizeFor(processCount) {
  if (processCount <= 8) return 30;
  if (processCount <= 16) return 22;
  if (processCount <= 60) return 11;
  return 6;
}

function placesOf(about, size) {
  if (about.columns) return layered(about, size);
  const total = about.processes.length;
  const isSmall = total <= 8;
  const radiusX = WIDTH / 2 - (isSmall ? size + 24 : size + 90);
  const radiusY = HEIGHT / 2 - (isSmall ? size + 24 : size + 28);
  const names = new Intl.Collator("en", { numeric: true });
  const order = about.processes.map((_, index) => index).sort((a, b) => names.compare(about.processes[a][0], about.processes[b][0]));
  const turns = new Map(order.map((index, turn) => [index, turn]));
  return about.processes.map((_, index) => {
    const angle = total === 1 ? 0 : (2 * Math.PI * turns.get(index)) / total - Math.PI / 2;
    const x = WIDTH / 2 + (total === 1 ? 0 : radiusX * Math.cos(angle));
    const y = HEIGHT / 2 + (total === 1 ? 0 : radiusY * Math.sin(angle));
    if (isSmall) return { x, y, labelX: x, labelY: y + 4, anchor: "middle" };
    const anchor = Math.abs(Math.cos(angle)) < 0.2 ? "middle" : Math.cos(angle) > 0 ? "start" : "end";
    return { x, y, labelX: x + (size + 7) * Math.cos(angle), labelY: y + (size + 10) * Math.sin(angle) + 4, anchor };
  });
}

/** Where things are that flow from left to right: each in its column. */
function layered(about, size) {
  const columnCount = 1 + Math.max(...about.columns);
  return about.processes.map((_, index) => {
    const column = about.columns[index];
    const inColumn = about.columns.map((c, i) => [c, i]).filter(([c]) => c === column).map(([, i]) => i);
    const x = ((column + 0.5) * WIDTH) / columnCount;
    const y = ((inColumn.indexOf(index) + 0.5) * HEIGHT) / inColumn.length;
    return { x, y, labelX: x, labelY: y + size + 18, anchor: "middle" };
  });
}

/** The way of a channel: bowed if there is one back, so that both are seen. */
function pathOf([source, target], places, channels, size) {
  const from = places[source];
  const to = places[target];
  const hasBack = channels.length <= 3000 && channels.some(([s, t]) => s === target && t === source);
  const dx = to.x - from.x;
  const dy = to.y - from.y;
  const length = Math.hypot(dx, dy) || 1;
  const bow = hasBack ? 0.1 : 0;
  const control = { x: (from.x + to.x) / 2 - dy * bow, y: (from.y + to.y) / 2 + dx * bow };
  const begin = { x: from.x + (dx / length) * (size + 3), y: from.y + (dy / length) * (size + 3) };
  const end = { x: to.x - (dx / length) * (size + 7), y: to.y - (dy / length) * (size + 7) };
  const round = (value) => Math.round(value * 10) / 10;
  const at = (part) => {
    const rest = 1 - part;
    return {
      x: rest * rest * begin.x + 2 * part * rest * control.x + part * part * end.x,
      y: rest * rest * begin.y + 2 * part * rest * control.y + part * part * end.y,
    };
  };
  return { d: `M${round(begin.x)} ${round(begin.y)}Q${round(control.x)} ${round(control.y)} ${round(end.x)} ${round(end.y)}`, at };
}

function graphLabel(about) {
  return `A graph of ${about.processes.length} processes and ${about.channels.length} channels; the tables below say the same in words.`;
}

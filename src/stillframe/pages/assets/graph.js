// The graph of processes and channels: their status, their traffic, and the markers.

import { make, makeScrolling, makeSvg, setText, count, duration, own } from "./dom.js";

const WIDTH = 760;
const HEIGHT = 560;
const BADGES_MAX = 60;
const NAMES_MAX = 24;
const ROW_HEIGHT = 170;
const END_SIZE = 7;
const LONG_NAME_WIDTH = 190;
const LOOP_SIZE = 34;
const INNER_PART = 0.4;
const SKIP_BOW = -0.35;
const PARALLEL_BOW = 0.28;
const SHOWN_MS = 2200;
const REST_MS = 900;
const MARKERS_MAX = 200;
const STATIONS = 12;
const BARRIER_LEGEND = "Green ring: has recorded. Orange ring: has its barriers and delays the snapshot. Dashed: waits for barriers. Stroke across a log: the barrier.";
export const STATUS_WORDS = { running: "runs", busy: "is in an action", silent: "does not answer", starting: "is starting", dead: "died", stopped: "does not run", absent: "has not joined", output: "", input: "" };

/** The graph of a system, a pipeline or services; `about` names its processes and channels. */
export class Graph {
  constructor(about) {
    this.about = about;
    this.isPipeline = about.kind === "pipeline";
    const total = about.processes.length;
    this.size = total <= 8 ? 30 : total <= 16 ? 22 : total <= 60 ? 11 : 6;
    const height = about.columns ? layeredHeight(about) : HEIGHT;
    this.places = placesOf(about, this.size, height);
    this.paths = about.channels.map((channel, index) => pathOf(channel, this.places, about, this.size, index));
    this.edges = this.paths.map((path, index) => this.makeEdge(path, index));
    this.discs = about.processes.map((process, index) => this.makeDisc(process, index));
    this.above = make("div", { class: "markers", "aria-hidden": "true" });
    this.caption = make("p", { class: "marker-caption muted" }, "");
    const { what, legend, isWide } = this.description();
    const label = `A graph of ${what}; the tables below show the same as text.`;
    const picture = makeSvg(
      "svg",
      { class: isWide ? "graph wide" : "graph", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label },
      makeSvg("g", {}, ...this.edges.map((edge) => edge.root)),
      makeSvg("g", {}, ...this.discs.map((disc) => disc.root)),
    );
    this.stage = make("div", { class: "stage" }, picture, this.above);
    const box = isWide ? makeScrolling("The graph", { role: "region" }, this.stage) : this.stage;
    this.root = make("div", { class: "graph-box" }, box, make("p", { class: "muted" }, legend), this.caption);
    this.animation = null; // or what ends it
  }

  /** Return the words for the graph, and whether it scrolls on a narrow screen. */
  description() {
    const { processes, channels, participant_count: participants } = this.about;
    if (this.isPipeline) {
      const legend = "Wider lines carry more records a second; numbers: records that the reader of a channel is behind.";
      return { what: `${participants} queries and services and the channels between them`, legend, isWide: true };
    }
    const legend = "Wider lines carry more messages a second; numbers: messages in transit.";
    return { what: `${processes.length} processes and ${channels.length} channels`, legend, isWide: false };
  }

  makeEdge(path, index) {
    const line = makeSvg("path", { class: "edge", d: path.d });
    const place = this.isPipeline ? path.at(0.5) : path.at(0.62);
    const badge = this.paths.length <= BADGES_MAX ? makeSvg("text", { class: "badge", x: place.x, y: place.y + (this.isPipeline ? 16 : 4) }) : null;
    const name = channelName(this.about, index);
    const title = makeSvg("title", {}, name);
    const isNamed = this.isPipeline && this.paths.length <= NAMES_MAX;
    const label = isNamed ? makeSvg("text", { class: "log-name", x: place.x, y: place.y - 6 }, this.about.logs[index]) : null;
    const barrier = this.isPipeline ? makeSvg("path", { class: "barrier" }) : null;
    return { root: makeSvg("g", { class: "channel" }, title, line, label, badge, barrier), badge, title, barrier, name, kind: "" };
  }

  makeDisc([name, kind], index) {
    const { x, y, labelX, labelY, anchor } = this.places[index];
    const isEnd = isEndOfChannel(kind);
    const ring = isEnd ? null : makeSvg("circle", { class: "phase", cx: x, cy: y, r: this.size + 5 });
    const disc = isEnd
      ? makeSvg("rect", { class: "disc", x: x - END_SIZE, y: y - END_SIZE, width: 2 * END_SIZE, height: 2 * END_SIZE })
      : makeSvg("circle", { class: "disc", cx: x, cy: y, r: this.size });
    const label = makeSvg("text", { class: "process-name", x: labelX, y: labelY, "text-anchor": anchor }, name);
    const more = makeSvg("text", { class: "process-more", x: labelX, y: labelY + 15, "text-anchor": anchor });
    const title = makeSvg("title", {}, `${name}: ${kind}`);
    return { root: makeSvg("g", { class: "process" }, title, ring, disc, label, more), title, more, name, kind, status: "" };
  }

  /** Show the current status of the system. */
  update(system) {
    this.discs.forEach((disc, index) => {
      const status = system.statuses[index];
      const phases = (system.pending ?? []).map((one) => own(one.phases, disc.name) ?? "idle");
      const phase = phases.includes("recording") ? (this.isPipeline ? "straggler" : "recording") : phases.includes("idle") ? "pending" : phases.length ? "recorded" : "";
      const kind = `process ${status} ${phase}`;
      if (disc.status !== kind) {
        disc.status = kind;
        disc.root.setAttribute("class", kind);
        setText(disc.title, `${disc.name} (${disc.kind}) ${STATUS_WORDS[status] ?? status}`);
        if (this.discs.length <= 16 && !this.isPipeline) setText(disc.more, status === "running" ? "" : (STATUS_WORDS[status] ?? status));
      }
      if (this.isPipeline) setText(disc.more, isEndOfChannel(status) ? this.endSentence(system, index) : activityOf(system, index));
    });
    this.edges.forEach((edge, index) => this.updateEdge(edge, index, system));
    if (this.isPipeline) setText(this.caption, system.pending.length > 0 ? BARRIER_LEGEND : "");
  }

  endSentence(system, index) {
    const channel = this.about.channels.findIndex(([source, target]) => source === index || target === index);
    const sent = system.channels.sent[channel];
    return sent === null ? "" : `${count(sent)} ${this.unitOf(channel)}`;
  }

  updateEdge(edge, index, system) {
    const columns = system.channels;
    const rate = columns?.rate[index] ?? null;
    const held = columns?.in_transit[index] ?? null;
    const isConnected = columns === undefined || columns.is_connected[index] !== 0;
    const strength = rate === null || rate === 0 ? 0 : Math.min(5, 1 + Math.floor(Math.log10(1 + rate)));
    const kind = `channel strength-${strength}${isConnected ? "" : " disconnected"}`;
    if (edge.kind !== kind) {
      edge.kind = kind;
      edge.root.setAttribute("class", kind);
    }
    if (this.isPipeline) return this.showLog(edge, index, system);
    if (edge.badge !== null) setText(edge.badge, held ? count(held) : "");
    const traffic = columns === undefined ? "no data" : `${rate === null ? "?" : count(Math.round(rate))} messages a second, about ${held === null ? "?" : count(held)} in transit${isConnected ? "" : ", not connected"}`;
    setText(edge.title, `${edge.name}: ${traffic}`);
  }

  /** Show the lag of the target of a log, and the position of the barrier in it. */
  showLog(edge, index, system) {
    const held = system.channels.in_transit[index];
    if (edge.badge !== null) setText(edge.badge, held ? `${count(held)} behind` : "");
    const barrier = system.barriers[index];
    const isAhead = barrier !== null && barrier[0] === "ahead";
    edge.barrier.setAttribute("d", isAhead ? across(this.paths[index], barrier[1] === 0 ? 0.94 : 0.8) : "");
    setText(edge.title, `${edge.name}: ${logSentence(system, index, this.unitOf(index))}`);
  }

  /** Return the unit of the figures of a channel: some offsets of a topic may have no record. */
  unitOf(index) {
    return this.about.topics.includes(this.about.logs[index]) ? "offsets" : "records";
  }

  /** Show the markers of a snapshot in slow motion, unless others are being shown. Each is an element that
   * the browser moves without drawing the graph again, which saves CPU time of the system. `timeline` has
   * the cuts of processes and the arrivals of markers, in seconds after its start. */
  playMarkers(timeline) {
    if (this.animation !== null || !this.root.isConnected) return;
    const cuts = Object.entries(timeline.cuts);
    const last = Math.max(1e-6, ...cuts.map(([, at]) => at), ...timeline.arrivals.map(([, , at]) => at));
    const slowness = Math.max(1, SHOWN_MS / 1000 / last);
    const isReduced = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const shownMs = (seconds) => (isReduced ? 0 : seconds * slowness * 1000);
    const places = new Map(this.discs.map(({ name }, index) => [name, index]));
    const setCut = (process, isCut) => this.discs[places.get(process)]?.root.classList.toggle("cut", isCut);
    const timers = cuts.map(([process, at]) => setTimeout(setCut, shownMs(at), process, true));
    const flights = timeline.arrivals.filter(([source]) => own(timeline.cuts, source) !== undefined);
    for (const [source, target, came] of isReduced ? [] : flights.slice(0, MARKERS_MAX)) {
      const [from, to] = [places.get(source), places.get(target)];
      const channel = this.about.channels.findIndex(([s, t]) => s === from && t === to);
      if (channel >= 0) this.fly(this.paths[channel], shownMs(own(timeline.cuts, source)), shownMs(came));
    }
    this.animation = () => {
      timers.forEach(clearTimeout);
      this.above.replaceChildren();
      for (const [process] of cuts) setCut(process, false);
      this.animation = null;
    };
    timers.push(setTimeout(this.animation, SHOWN_MS + REST_MS));
    const took = timeline.duration_s === null ? "" : `, which took ${duration(timeline.duration_s)}`;
    setText(this.caption, `The markers of ${timeline.id}${took}, shown ${count(Math.round(slowness))} times slower. Filled: has recorded its state.`);
  }

  fly(path, beginMs, endMs) {
    const scale = this.stage.clientWidth / WIDTH;
    const stations = Array.from({ length: STATIONS + 1 }, (_, station) => {
      const { x, y } = path.at(station / STATIONS);
      return { transform: `translate(${x * scale}px, ${y * scale}px) rotate(45deg)`, opacity: 1 };
    });
    const mark = make("div", { class: "flying-marker" });
    this.above.append(mark);
    mark.animate(stations, { delay: beginMs, duration: Math.max(50, endMs - beginMs) });
  }

  /** Stop the animation. */
  stop() {
    this.animation?.();
  }
}

/** Return the name of a channel. */
export function channelName(about, index) {
  if (about.names) return about.names[index];
  const [source, target] = about.channels[index];
  return `${about.processes[source][0]}->${about.processes[target][0]}`;
}

/** Return the current activity of a query or service in a few words. */
function activityOf(system, index) {
  const status = system.statuses[index];
  const batch = system.batches[index];
  if (status === "running" || status === "busy") return batch === null ? "" : `batch ${count(batch)}`;
  const word = STATUS_WORDS[status] ?? status;
  return batch === null || batch === undefined ? word : `${word}, batch ${count(batch)}`;
}

/** Return whether this kind is that of the end or the beginning of a channel, or of an address. */
function isEndOfChannel(kind) {
  return kind === "output" || kind === "input" || kind === "address";
}

function logSentence(system, index, unit) {
  const { sent, rate, received, in_transit: held, items } = system.channels;
  const shown = (value) => (value === null ? "?" : count(value));
  const appended = `${shown(sent[index])} ${unit} appended, ${rate[index] === null ? "?" : count(Math.round(rate[index]))} a second`;
  const barrier = system.barriers[index];
  const where = barrier === null ? "" : barrier[0] === "passed" ? "; the barrier was passed" : `; the barrier is on it${barrier[1] === null ? "" : `, ${count(barrier[1])} entries ahead`}`;
  if (received[index] === null && items[index] === null) return `${appended}${where}`;
  const entries = items[index] === null ? "" : `, in ${count(items[index])} items`;
  return `${appended}; ${shown(received[index])} read, ${shown(held[index])} behind${entries}${where}`;
}

/** Return a stroke across a path, as the outline of an SVG path. */
function across(path, part) {
  const here = path.at(part);
  const next = path.at(part + 0.01);
  const length = Math.hypot(next.x - here.x, next.y - here.y) || 1;
  const dx = (-(next.y - here.y) / length) * 11;
  const dy = ((next.x - here.x) / length) * 11;
  return `M${here.x - dx} ${here.y - dy}L${here.x + dx} ${here.y + dy}`;
}

function placesOf(about, size, height) {
  if (about.columns) return layered(about, size, height);
  const total = about.processes.length;
  const hasLongNames = about.kind === "observations";
  const isSmall = total <= 8 && !hasLongNames;
  const radiusX = WIDTH / 2 - size - (hasLongNames ? LONG_NAME_WIDTH : isSmall ? 24 : 90);
  const radiusY = HEIGHT / 2 - (isSmall ? size + 24 : size + 28);
  const names = new Intl.Collator("en", { numeric: true });
  const order = about.processes.map((_, index) => index).sort((a, b) => names.compare(about.processes[a][0], about.processes[b][0]));
  // Addresses come and go with each observation: they are inside, so that instances keep their places.
  const isInner = (index) => about.processes[index][1] === "address";
  const [inner, outer] = [order.filter(isInner), order.filter((index) => !isInner(index))];
  const turns = new Map([inner, outer].flatMap((circle) => circle.map((index, turn) => [index, turn / circle.length])));
  return about.processes.map((_, index) => {
    const isAlone = isInner(index) ? inner.length === 1 : total === 1;
    const angle = total === 1 ? 0 : 2 * Math.PI * turns.get(index) - Math.PI / 2;
    const part = isAlone ? 0 : isInner(index) ? INNER_PART : 1;
    const x = WIDTH / 2 + part * radiusX * Math.cos(angle);
    const y = HEIGHT / 2 + part * radiusY * Math.sin(angle);
    if (isInner(index)) return { x, y, labelX: x, labelY: y + END_SIZE + 16, anchor: "middle" };
    if (isSmall) return { x, y, labelX: x, labelY: y + 4, anchor: "middle" };
    const anchor = Math.abs(Math.cos(angle)) < 0.2 ? "middle" : Math.cos(angle) > 0 ? "start" : "end";
    return { x, y, labelX: x + (size + 7) * Math.cos(angle), labelY: y + (size + 10) * Math.sin(angle) + 4, anchor };
  });
}

/** The layout of a pipeline, from left to right: each participant in its column. */
function layeredHeight({ columns }) {
  const sizes = columns.map((column) => columns.filter((other) => other === column).length);
  return Math.min(HEIGHT, ROW_HEIGHT * (1 + Math.max(...sizes)));
}

function layered(about, size, height) {
  const columnCount = 1 + Math.max(...about.columns);
  return about.processes.map((_, index) => {
    const column = about.columns[index];
    const inColumn = about.columns.map((c, i) => [c, i]).filter(([c]) => c === column).map(([, i]) => i);
    const x = ((column + 0.5) * WIDTH) / columnCount;
    const y = ((inColumn.indexOf(index) + 0.5) * height) / inColumn.length;
    return { x, y, labelX: x, labelY: y + size + 18, anchor: "middle" };
  });
}

/** The path of a channel: bowed if there is one in the other direction, so that both are visible. */
function pathOf([source, target], places, about, size, index) {
  if (source === target) return loopOf(places[source], size);
  const from = places[source];
  const to = places[target];
  const dx = to.x - from.x;
  const dy = to.y - from.y;
  const length = Math.hypot(dx, dy) || 1;
  const bow = bowOf([source, target], about, index);
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

/** The path from a disc to itself: below it, on its left. */
function loopOf({ x, y }, size) {
  const [radius, from, to] = [size + LOOP_SIZE, 0.75 * Math.PI, 1.05 * Math.PI];
  const corner = (angle, away) => ({ x: x + away * Math.cos(angle), y: y + away * Math.sin(angle) });
  const [begin, first, last, end] = [corner(from, size + 3), corner(from - 0.2, radius * 1.4), corner(to + 0.2, radius * 1.4), corner(to, size + 7)];
  const at = (part) => {
    const rest = 1 - part;
    const weigh = (axis) => rest ** 3 * begin[axis] + 3 * rest ** 2 * part * first[axis] + 3 * rest * part ** 2 * last[axis] + part ** 3 * end[axis];
    return { x: weigh("x"), y: weigh("y") };
  };
  const text = ({ x: left, y: top }) => `${left.toFixed(1)} ${top.toFixed(1)}`;
  return { d: `M${text(begin)}C${text(first)} ${text(last)} ${text(end)}`, at };
}

function bowOf([source, target], { channels, columns }, index) {
  if (channels.length > 3000) return 0;
  if (columns) {
    const alike = channels.map(([s, t], i) => [s, t, i]).filter(([s, t]) => s === source && t === target);
    const place = alike.findIndex(([, , i]) => i === index) - (alike.length - 1) / 2;
    const isNext = columns[target] === columns[source] + 1;
    return PARALLEL_BOW * place + (isNext ? 0 : SKIP_BOW);
  }
  return channels.some(([s, t]) => s === target && t === source) ? 0.1 : 0;
}

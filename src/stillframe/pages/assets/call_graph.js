// The graph of the open calls of an observation: an arrow leads from each caller to what it waits for.

import { makeSvg, setText, count, counted, duration } from "./dom.js";
import { Graph } from "./graph.js";

const FEW_DISCS = 8;
const LABEL_CHARS_MAX = 22;
const COUNTED_EDGES_MAX = 40;
const HEAD_LENGTH = 10;

/** The graph; `about` is that of a document of observation_document() in Python. */
export class CallGraph extends Graph {
  description() {
    const { processes, channels, is_by_service: isByService } = this.about;
    const what = `${processes.length} ${isByService ? "services" : "instances"} and addresses, and ${counted(channels.length, "arrow")} from those that wait to what they wait for`;
    const legend = "An arrow leads from a caller to the instance that has its call, or to the address that it called (a square). Numbers: open calls, and how long the oldest has waited. Red: a deadlock.";
    return { what, legend, isWide: processes.length > FEW_DISCS };
  }

  makeDisc([name, kind], index) {
    const disc = super.makeDisc([shortName(name), kind], index);
    disc.root.setAttribute("class", `process${kind === "address" ? " address" : ""}${this.about.ring.includes(index) ? " ring" : ""}`);
    setText(disc.title, `${name}: ${kind}`);
    return disc;
  }

  makeEdge(path, index) {
    const [line, head] = [makeSvg("path", { class: "edge", d: path.d }), makeSvg("path", { class: "arrow-head", d: headOf(path) })];
    const { x, y } = path.at(0.5);
    const badge = index < COUNTED_EDGES_MAX ? makeSvg("text", { class: "badge", x, y: y - 6 }) : null;
    const title = makeSvg("title", {});
    return { root: makeSvg("g", {}, title, line, head, badge), badge, title };
  }

  /** Show the calls of another observation with the same discs and edges. */
  update(observation) {
    observation.graph.waits.forEach((wait, index) => {
      const edge = this.edges[index];
      const strength = Math.min(5, 1 + Math.floor(2 * Math.log10(wait.count)));
      edge.root.setAttribute("class", `channel strength-${strength}${wait.is_in_ring ? " ring" : ""}`);
      const age = ageOf(wait, observation);
      if (edge.badge !== null) setText(edge.badge, age === "" ? count(wait.count) : `${count(wait.count)} · ${age}`);
      setText(edge.title, waitSentence(observation, index));
    });
  }
}

/** Return how long the oldest call of an edge, or a call, has waited; empty if that is not known. */
export function ageOf({ since }, { completed_at: at }) {
  return since === null ? "" : duration(Math.max(0, at - since));
}

/** Return the names of the two ends of an edge. */
export function endsOf({ graph }, index) {
  return graph.channels[index].map((place) => graph.processes[place][0]);
}

/** Return how many calls of an edge are where. */
export function placesOfCalls({ places }) {
  return Object.entries(places).map(([place, number]) => `${place}: ${count(number)}`).join(", ");
}

function waitSentence(observation, index) {
  const wait = observation.graph.waits[index];
  const [caller, server] = endsOf(observation, index);
  const age = ageOf(wait, observation);
  return `${caller} waits for ${server}: ${counted(wait.count, "call")}${age === "" ? "" : `, the oldest for ${age}`} (${placesOfCalls(wait)})`;
}

/** Return a name as a label: its beginning and its end. */
function shortName(name) {
  if (name.length <= LABEL_CHARS_MAX) return name;
  const tail = Math.floor(LABEL_CHARS_MAX / 2);
  return `${name.slice(0, LABEL_CHARS_MAX - tail - 1)}…${name.slice(-tail)}`;
}

/** Return the head of the arrow at the end of a path, as the outline of an SVG path. */
function headOf(path) {
  const [tip, before] = [path.at(1), path.at(0.95)];
  const length = Math.hypot(tip.x - before.x, tip.y - before.y) || 1;
  const [dx, dy] = [((tip.x - before.x) / length) * HEAD_LENGTH, ((tip.y - before.y) / length) * HEAD_LENGTH];
  const corner = (side) => `${(tip.x - dx - (side * dy) / 2).toFixed(1)} ${(tip.y - dy + (side * dx) / 2).toFixed(1)}`;
  return `M${tip.x.toFixed(1)} ${tip.y.toFixed(1)}L${corner(1)}L${corner(-1)}Z`;
}

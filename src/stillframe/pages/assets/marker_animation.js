// The markers of one snapshot on their way through the graph, in slow motion. Each marker is an
// element that the browser moves without drawing the graph again, which saves CPU time of the system.

import { make, own } from "./dom.js";

const SHOWN_MS = 2200;
const REST_MS = 900;
const MARKERS_MAX = 200;
const STATIONS = 12;

export class MarkerAnimation {
  /** `timeline` has the cuts of processes and the arrivals of markers, in seconds after its start.
   * `stage` has a `layer` for the markers, `scale()` from units of the graph to pixels,
   * `pathOf(source, target)`, `cut(process, isCut)`, and `ended()`. */
  constructor(timeline, stage) {
    this.stage = stage;
    this.cuts = Object.entries(timeline.cuts);
    this.flights = timeline.arrivals.filter(([source]) => own(timeline.cuts, source) !== undefined).slice(0, MARKERS_MAX);
    this.sent = timeline.cuts;
    const last = Math.max(1e-6, ...this.cuts.map(([, at]) => at), ...timeline.arrivals.map(([, , at]) => at));
    this.slowness = Math.max(1, SHOWN_MS / 1000 / last);
    this.timers = [];
    this.marks = [];
  }

  /** Show the markers once, and remove them. */
  play() {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      for (const [process] of this.cuts) this.stage.cut(process, true);
    } else {
      for (const [process, at] of this.cuts) {
        this.timers.push(setTimeout(() => this.stage.cut(process, true), this.shownMs(at)));
      }
      const scale = this.stage.scale();
      for (const flight of this.flights) this.fly(flight, scale);
    }
    this.timers.push(setTimeout(() => this.stop(), SHOWN_MS + REST_MS));
  }

  fly([source, target, came], scale) {
    const path = this.stage.pathOf(source, target);
    if (path === undefined) return;
    const begin = this.shownMs(own(this.sent, source));
    const mark = make("div", { class: "flying-marker" });
    const stations = Array.from({ length: STATIONS + 1 }, (_, station) => {
      const { x, y } = path.at(station / STATIONS);
      return { transform: `translate(${x * scale}px, ${y * scale}px) rotate(45deg)`, opacity: 1 };
    });
    this.stage.layer.append(mark);
    this.marks.push(mark);
    mark.animate(stations, { delay: begin, duration: Math.max(50, this.shownMs(came) - begin) });
  }

  shownMs(seconds) {
    return seconds * this.slowness * 1000;
  }

  /** Remove the markers. */
  stop() {
    this.timers.forEach(clearTimeout);
    for (const mark of this.marks) mark.remove();
    for (const [process] of this.cuts) this.stage.cut(process, false);
    this.stage.ended();
  }
}

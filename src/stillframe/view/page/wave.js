// The markers of one snapshot on their way through the graph, slowed down until people can see it.

import { makeSvg } from "./dom.js";

const SHOWN_MS = 2200;
const REST_MS = 900;
const MARKERS_MAX = 400;

/** One wave; `play` shows it once. */
export class Wave {
  /**
   * @param {Object} wave - cuts of processes and arrivals of markers, in seconds after its beginning.
   * @param {Object} stage - `layer` for the markers, `pathOf(source, target)`, `cut(process, isCut)`,
   *     and `ended()`.
   */
  constructor(wave, stage) {
    this.stage = stage;
    this.cuts = Object.entries(wave.cuts);
    const last = Math.max(1e-6, ...this.cuts.map(([, at]) => at), ...wave.came.map(([, , at]) => at));
    this.slowness = Math.max(1, SHOWN_MS / 1000 / last);
    this.flights = wave.came
      .slice(0, MARKERS_MAX)
      .filter(([source]) => wave.cuts[source] !== undefined)
      .map(([source, target, came]) => this.flight(stage.pathOf(source, target), wave.cuts[source], came))
      .filter((flight) => flight !== null);
  }

  flight(path, sent, came) {
    if (path === undefined) return null;
    const mark = makeSvg("path", { class: "flying", d: "M0 -6L6 0L0 6L-6 0Z" });
    mark.style.visibility = "hidden";
    this.stage.layer.append(mark);
    return { path, sent, came: Math.max(came, sent), mark };
  }

  /** Show it, and clear it away. */
  play() {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.draw(Infinity);
      this.timer = setTimeout(() => this.stop(), SHOWN_MS);
      return;
    }
    const begin = performance.now();
    const step = (now) => {
      this.draw(Math.max(0, now - begin) / 1000 / this.slowness);
      if (now - begin < SHOWN_MS + REST_MS) this.frame = requestAnimationFrame(step);
      else this.stop();
    };
    this.frame = requestAnimationFrame(step);
  }

  draw(at) {
    for (const [process, cut] of this.cuts) this.stage.cut(process, cut <= at);
    for (const { path, sent, came, mark } of this.flights) {
      const isFlying = sent <= at && at < came;
      mark.style.visibility = isFlying ? "visible" : "hidden";
      if (isFlying) {
        const { x, y } = path.at((at - sent) / (came - sent));
        mark.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
      }
    }
  }

  /** Clear it away. */
  stop() {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.timer);
    for (const { mark } of this.flights) mark.remove();
    for (const [process] of this.cuts) this.stage.cut(process, false);
    this.stage.ended();
  }
}

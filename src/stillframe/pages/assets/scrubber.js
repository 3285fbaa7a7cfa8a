// A snapshot to drag: its initiation, its initiator, and the arrival of each marker. Python draws the
// application (scrubber_document.py); the snapshot is drawn over it as it is dragged.

import { announce, counted, letGrow, make, makeSvg, makeTable, parseSvg, recordedRow } from "./dom.js";

/** Maximum number of events that are listed, as in the player. */
const LABELS_MAX = 8;

/** Return the section that shows a document of scrubber_document.py. */
export function showScrubber(model) {
  const picture = letGrow(parseSvg(model.picture));
  picture.setAttribute("aria-label", "the execution, with the snapshot to drag");
  const over = makeSvg("g", { class: "over colour-0" });
  picture.append(over);
  const side = make("div", { class: "recorded" });
  const outcome = make("p", { class: "outcome" });
  const request = originalRequest(model);
  const view = { model, request, snapshot: null, picture, refresh };
  const curve = makeSvg("path", { class: "cut" });
  over.append(curve);
  const places = [...model.channels.map((_, channel) => markerHandle(view, channel, over)), initiationHandle(view, over)];

  function refresh() {
    view.snapshot = simulateSnapshot(model, request);
    colour(view);
    curve.setAttribute("d", cutPath(view));
    for (const place of places) place();
    side.replaceChildren(...snapshotTables(view));
    outcome.replaceChildren(outcomeOf(view));
  }

  const again = () => {
    Object.assign(request, originalRequest(model));
    refresh();
    announce(`reset: ${summaryOf(view)}`);
  };
  const section = make(
    "section",
    { class: "scrubber", "aria-label": "the snapshot to drag" },
    make("h2", {}, "Drag the snapshot"),
    make(
      "p",
      { class: "muted" },
      `${model.unit === "tick" ? "The same execution by the clock" : "The same execution, in steps"}. Drag the diamond sideways to choose when the snapshot is initiated, and up or down to choose the process. Drag the end of a marker to choose when it arrives. With the keyboard: Tab, then the arrow keys. Markers and messages of one channel never overtake each other.`,
    ),
    make("div", { class: "row" }, make("button", { type: "button", on: { click: again } }, "Reset"), outcome),
    make("div", { class: "stage sided" }, make("div", { class: "scrolling panel stage-picture" }, picture), side),
  );
  refresh();
  return section;
}

function originalRequest(model) {
  return { initiator: model.initiator, at: model.at, delays: model.channels.map(([, , delay]) => delay) };
}

function xOf(model, half) {
  return model.x[0] + model.x[1] * Math.min(half, model.end);
}

function yOf(model, process) {
  return model.y[0] + model.y[1] * process;
}

/** Return a time between two ticks, or between two steps, in words. */
function timeOf(model, half) {
  if (half === Infinity) return "never";
  return model.unit === "tick" ? `at tick ${half / 2}` : `after step ${(half - 1) / 2}`;
}

function nearestOdd(half) {
  return 2 * Math.round((half - 1) / 2) + 1;
}

function markerName({ model }, channel) {
  const [source, target] = model.channels[channel];
  return `${model.processes[source]}->${model.processes[target]}`;
}

function colour({ model, snapshot, picture }) {
  for (const element of picture.querySelectorAll("[data-event]")) {
    const isWhite = snapshot.whites[Number(element.dataset.event)];
    element.classList.toggle("white", isWhite);
    element.classList.toggle("red", !isWhite);
  }
  for (const element of picture.querySelectorAll("[data-message]")) {
    const number = Number(element.dataset.message);
    const [, channel] = model.messages[number];
    element.classList.toggle("caught", snapshot.held[channel].includes(number));
  }
}

function cutPath({ model, snapshot }) {
  const points = snapshot.cuts.map((cut, process) => [xOf(model, cut), yOf(model, process)]);
  const [first, last] = [points[0], points.at(-1)];
  const all = [[first[0], first[1] - 26], ...points, [last[0], last[1] + 26]];
  const curves = all.slice(1).map(([x, y], index) => {
    const [x0, y0] = all[index];
    const bow = (y - y0) * 0.45;
    return ` C${x0},${y0 + bow} ${x},${y - bow} ${x},${y}`;
  });
  return `M${all[0]}${curves.join("")}`;
}

/** Make a handle that pointer and keyboard can move, and the function that shows it at a place. */
function handleOf(view, name, shape, { origin, move, press, value }) {
  const element = makeSvg("g", { class: "handle", role: "slider", tabindex: 0, "aria-label": name }, makeSvg("circle", { class: "grip", r: 15 }), shape);
  const tell = () => announce(`${element.getAttribute("aria-valuetext")}: ${summaryOf(view)}`);
  element.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    element.focus();
    element.setPointerCapture(event.pointerId);
    const [begin, grabbed] = [origin(), pointAt(view.picture, event)];
    const drag = (moved) => {
      const now = pointAt(view.picture, moved);
      move(begin[0] + now[0] - grabbed[0], begin[1] + now[1] - grabbed[1]);
      view.refresh();
    };
    element.addEventListener("pointermove", drag);
    const end = () => {
      element.removeEventListener("pointermove", drag);
      tell();
    };
    element.addEventListener("lostpointercapture", end, { once: true });
  });
  element.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || !press(event.key)) return;
    event.preventDefault();
    view.refresh();
    tell();
  });
  function place(x, y) {
    const [now, low, high, words] = value();
    element.setAttribute("transform", `translate(${x},${y})`);
    const values = { now: now / 2, min: low / 2, max: high / 2, text: words };
    for (const [name, value] of Object.entries(values)) element.setAttribute(`aria-value${name}`, value);
  }
  return { element, place };
}

function pointAt(picture, event) {
  const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(picture.getScreenCTM().inverse());
  return [point.x, point.y];
}

function initiationHandle(view, over) {
  const { model, request } = view;
  const latest = model.end;
  const set = (at, process) => {
    request.at = Math.min(Math.max(1, at), latest);
    request.initiator = Math.min(Math.max(0, process), model.processes.length - 1);
    return true;
  };
  const handle = handleOf(view, "initiation", makeSvg("polygon", { class: "head", points: "0,-10 10,0 0,10 -10,0" }), {
    origin: () => [xOf(model, request.at), yOf(model, request.initiator)],
    move: (x, y) => set(nearestOdd((x - model.x[0]) / model.x[1]), Math.round((y - model.y[0]) / model.y[1])),
    press: (key) => {
      const steps = { ArrowLeft: [-2, 0], ArrowRight: [2, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-latest, 0], End: [latest, 0] };
      return key in steps && set(nearestOdd(request.at + steps[key][0]), request.initiator + steps[key][1]);
    },
    value: () => [request.at, 1, latest, `${model.processes[request.initiator]} initiates ${timeOf(model, request.at)}`],
  });
  over.append(handle.element);
  return () => handle.place(xOf(model, request.at), yOf(model, request.initiator));
}

function markerHandle(view, channel, over) {
  const { model, request } = view;
  const [source, target] = model.channels[channel];
  const name = markerName(view, channel);
  const room = () => markerWindow(model, channel, view.snapshot.cuts[source]);
  const set = (arrival) => {
    const [low, high] = room();
    request.delays[channel] = Math.min(Math.max(arrival, low), high) - view.snapshot.cuts[source];
    return true;
  };
  const arrow = makeSvg("path", { class: "arrow" });
  const come = makeSvg("polygon", { class: "open", points: "0,-4 4,0 0,4 -4,0" });
  const handle = handleOf(view, `marker ${name}`, makeSvg("circle", { class: "end", r: 6 }), {
    origin: () => [xOf(model, view.snapshot.arrivals[channel]), yOf(model, target)],
    move: (x) => set(nearestOdd((x - model.x[0]) / model.x[1])),
    press: (key) => {
      const arrival = view.snapshot.arrivals[channel];
      const moves = { ArrowLeft: arrival - 2, ArrowDown: arrival - 2, ArrowRight: arrival + 2, ArrowUp: arrival + 2, Home: 0, End: model.end };
      return key in moves && set(moves[key]);
    },
    value: () => [view.snapshot.arrivals[channel], ...room(), `marker ${name} comes ${timeOf(model, view.snapshot.arrivals[channel])}`],
  });
  over.append(makeSvg("g", { class: "marker colour-0" }, arrow, come, handle.element));
  return () => {
    const isThere = view.snapshot.arrivals[channel] !== Infinity;
    for (const element of [arrow, come, handle.element]) element.classList.toggle("away", !isThere);
    if (!isThere) return;
    const begin = [xOf(model, view.snapshot.cuts[source]), yOf(model, source)];
    const end = [xOf(model, view.snapshot.arrivals[channel]), yOf(model, target)];
    const length = Math.hypot(end[0] - begin[0], end[1] - begin[1]) || 1;
    const [x, y] = [0, 1].map((axis) => end[axis] - ((end[axis] - begin[axis]) / length) * 20);
    arrow.setAttribute("d", `M${begin} L${end}`);
    come.setAttribute("transform", `translate(${end})`);
    handle.place(x, y);
  };
}

function stateOf({ model, snapshot }, process) {
  const labels = model.events.filter(([own], number) => own === process && snapshot.whites[number]).map(([, label]) => label);
  return labels.length > LABELS_MAX ? `after ${counted(labels.length, "event")}` : `{${labels.join(", ")}}`;
}

function heldOn({ model, snapshot }, channel) {
  return snapshot.held[channel].map((message) => model.messages[message][0]).join(", ");
}

function snapshotTables(view) {
  const { model, snapshot } = view;
  const states = model.processes.map((process, number) =>
    recordedRow(process, snapshot.cuts[number] === Infinity ? "never" : `${stateOf(view, number)} ${timeOf(model, snapshot.cuts[number])}`, "known"),
  );
  const channels = model.channels.map((_, channel) => {
    const held = heldOn(view, channel);
    return recordedRow(markerName(view, channel), held || "empty", held ? "known caught" : "known");
  });
  return [makeTable({ class: "processes" }, ["process", "recorded state"], states), makeTable({ class: "channels" }, ["channel", "held"], channels)];
}

function outcomeOf({ model, snapshot }) {
  const missing = model.processes.filter((_, process) => snapshot.cuts[process] === Infinity);
  if (missing.length > 0) return `The snapshot is never complete: no marker arrives at ${missing.join(", ")}.`;
  if (!snapshot.wasPresent) return "The system was never in this state, but it could have been.";
  return `So it was after ${counted(snapshot.whiteCount, "event")}.`;
}

function summaryOf(view) {
  const states = view.model.processes.map((process, number) => `${process} ${stateOf(view, number)}`);
  const held = view.snapshot.held.flatMap((messages, channel) => (messages.length > 0 ? [`${markerName(view, channel)} held ${heldOn(view, channel)}`] : []));
  return [...states, ...(held.length > 0 ? held : ["all channels are empty"])].join("; ");
}

/** Simulate a snapshot by Chandy and Lamport's rules with given times, in half ticks: the application
 * acts at even ones, the snapshot at odd ones. Tests compare this with the simulator.
 *
 * The request has the initiation, and the travel time of the marker of each channel if nothing delays
 * it. Returned is when each process records its state and each marker arrives (Infinity: never), which
 * events are before the cut, which messages each channel holds, and whether the system was ever in
 * that state. */
function simulateSnapshot(model, request) {
  const cuts = model.processes.map(() => Infinity);
  const arrivals = model.channels.map(() => Infinity);
  cuts[request.initiator] = request.at;
  const open = new Set(cuts.keys());
  while (open.size > 0) {
    const process = [...open].reduce((first, other) => (cuts[other] < cuts[first] ? other : first));
    open.delete(process);
    if (cuts[process] === Infinity) break;
    model.channels.forEach(([source, target], channel) => {
      if (source !== process) return;
      const [low, high] = markerWindow(model, channel, cuts[process]);
      arrivals[channel] = Math.min(Math.max(cuts[process] + request.delays[channel], low), high);
      cuts[target] = Math.min(cuts[target], arrivals[channel]);
    });
  }
  const whites = model.events.map(([process, , at]) => at < cuts[process]);
  const firstRed = whites.indexOf(false);
  return {
    cuts,
    arrivals,
    whites,
    held: model.channels.map((_, channel) => inFlight(model, channel, cuts)),
    wasPresent: firstRed < 0 || !whites.includes(true, firstRed),
    whiteCount: whites.filter(Boolean).length,
  };
}

/** Return the earliest and latest arrival of a marker that is sent at `cut`: it overtakes no message,
 * and no message overtakes it. */
function markerWindow(model, channel, cut) {
  let [low, high] = [cut, model.end];
  for (const [, on, sent, accepted] of model.messages) {
    if (on !== channel) continue;
    const came = model.events[accepted][2];
    if (model.events[sent][2] < cut) low = Math.max(low, came + 1);
    else high = Math.min(high, came - 1);
  }
  return [low, Math.max(low, high)];
}

function inFlight(model, channel, cuts) {
  const [source, target] = model.channels[channel];
  return model.messages
    .map((message, number) => [number, ...message])
    .filter(([, , on, sent, accepted]) => on === channel && model.events[sent][2] < cuts[source] && model.events[accepted][2] > cuts[target])
    .map(([number]) => number);
}

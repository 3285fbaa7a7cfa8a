// The player: an execution step by step, with the rule that each step follows, the colours of EWD
// 864a, and what is recorded so far. Python draws the picture (animated_svg.py); parts of it are shown.

import { address, addressed, announce, counted, letGrow, make, makeRest, makeScrolling, makeTable, parseSvg, recordedRow } from "./dom.js";
import { showInterchanges } from "./interchanges.js";
import { stepControls } from "./stepping.js";
import { showScrubber } from "./scrubber.js";

/** Show a document of player_document.py in `main`. */
export function showPlayer(execution, main) {
  const picture = letGrow(parseSvg(execution.picture));
  const rule = make("div", { class: "panel rule" });
  const side = make("div", { class: "recorded" });
  const scroller = makeScrolling("space-time diagram", { role: "region", kind: "panel stage-picture" }, picture);
  const choice = choiceOf(execution, () => choose(Number(choice.select.value)));
  const changes = make("section", { class: "changes", "aria-label": "interchanges" });
  const parts = findParts(picture);
  let chosen = execution.choices.length > 0 ? execution.chosen : null;
  let words = [];
  let stop = () => {};

  const controls = stepControls({ of: "the execution", noun: "step", last: execution.steps.length, onStep: show });

  function show(step) {
    for (const { element, from, to, choices } of parts) {
      element.classList.toggle("away", step < from || step >= to || !(choices?.includes(chosen) ?? true));
    }
    mark(parts, step, scroller);
    const beginning = execution.steps.length > 0 ? "Nothing has happened yet." : "Nothing happens in this execution.";
    const lines = step > 0 ? execution.steps[step - 1] : [beginning];
    if (lines.join("\n") !== words.join("\n")) {
      words = lines;
      rule.replaceChildren(...ruleLines(lines));
      announce(lines.join(". "));
    }
    if (chosen !== null) side.replaceChildren(...recordedTables(execution, execution.choices[chosen], step));
    address({ snapshot: chosen === null ? undefined : execution.choices[chosen].name, step });
  }

  function choose(number, step = controls.step()) {
    chosen = number;
    choice.select.value = String(number);
    stop();
    stop = showInterchanges(execution, execution.choices[number], changes);
    controls.go(step);
  }

  /** Follow the address; an unknown name changes nothing. */
  function follow() {
    const wanted = addressed();
    const named = execution.choices.findIndex((one) => one.name === wanted.get("snapshot"));
    const step = wanted.has("step") ? Number(wanted.get("step")) : controls.step();
    const number = named >= 0 ? named : chosen;
    if (number === null) controls.go(step);
    else if (number !== chosen || changes.childElementCount === 0) choose(number, step);
    else controls.go(step);
  }

  for (const { element, step } of parts) {
    if (step !== null) element.addEventListener("click", () => controls.go(step));
  }
  const drawn = make("div", { class: "drawn" }, scroller, legendOf(execution));
  const stage = make("div", { class: chosen === null ? "stage" : "stage sided" }, drawn, side);
  const row = make("div", { class: "row" }, choice.element, controls.element);
  const play = make("section", { class: "play", "aria-label": "step by step" }, row, rule, stage);
  main.append(make("div", { class: "player" }, headOf(execution), play, changes, execution.scrubber === null ? null : showScrubber(execution.scrubber)));
  document.addEventListener("keydown", (event) => {
    if (!event.target.closest?.(".changes, .scrubber")) controls.press(event);
  });
  addEventListener("hashchange", follow);
  follow();
}

function headOf(execution) {
  const notices = [execution.notice, execution.unlisted > 0 ? `${counted(execution.unlisted, "snapshot")} cannot be chosen here` : ""];
  const warnings = notices.filter(Boolean).map((text) => make("p", { class: "warn" }, text));
  return make("header", {}, make("h1", {}, execution.title), make("p", { class: "muted" }, execution.about), warnings);
}

function choiceOf(execution, onChange) {
  const options = execution.choices.map((one, number) => make("option", { value: number }, one.is_snapshot ? `snapshot ${one.name}` : "the selected cut"));
  const select = make("select", { on: { change: onChange } }, ...options);
  return { select, element: options.length > 1 ? make("label", { class: "row" }, "colours of", select) : "" };
}

function ruleLines([first, ...others]) {
  const rows = others.map((line) => make("li", { class: line.startsWith("  ") ? "inner" : "" }, line.trim()));
  return [make("p", { class: "rule-sentence" }, first), rows.length > 0 ? make("ul", {}, ...rows) : null].filter(Boolean);
}

/** Return the parts of the picture that are shown only in some steps, or can be marked. */
function findParts(picture) {
  const found = picture.querySelectorAll("[data-from], [data-to], [data-choices], [data-step]");
  return [...found].map((element) => ({
    element,
    from: Number(element.dataset.from ?? 0),
    to: Number(element.dataset.to ?? Infinity),
    choices: element.dataset.choices?.split(" ").map(Number) ?? null,
    step: element.dataset.step === undefined ? null : Number(element.dataset.step),
  }));
}

/** Mark the part of a step, and scroll to it. */
function mark(parts, step, scroller) {
  for (const part of parts) {
    const isNow = part.step === step && !part.element.classList.contains("away");
    part.element.classList.toggle("now", isNow);
    if (isNow) reveal(part.element, scroller);
  }
}

function reveal(element, scroller) {
  const [one, all] = [element.getBoundingClientRect(), scroller.getBoundingClientRect()];
  const margin = Math.min(60, all.width / 4);
  if (one.left < all.left + margin) scroller.scrollLeft -= all.left + margin - one.left;
  if (one.right > all.right - margin) scroller.scrollLeft += one.right - all.right + margin;
}

function legendOf(execution) {
  if (execution.choices.length === 0) return make("p", { class: "muted" }, "No snapshot was taken in this execution.");
  const chip = (colour) => make("span", { class: `colour-chip ${colour}`, "aria-hidden": "true" });
  const entries = [
    [chip("white"), " white: before the cut of its process"],
    [chip("red"), " red: after it"],
    ...["with a ring: in a recorded state", "dotted: markers", "thick: a message that its channel held"],
  ];
  return make("p", { class: "muted row colour-key" }, entries.map((entry) => make("span", {}, entry)));
}

/** Return the tables of what is recorded for one of the choices of an execution after `step` steps. */
function recordedTables(execution, choice, step) {
  const did = choice.is_snapshot ? "recorded state" : "events before the cut";
  const processes = choice.states.map(([at, state], number) => {
    const isKnown = at !== null && at <= step;
    return recordedRow(execution.processes[number], isKnown ? state : "not yet", isKnown ? "known" : "muted");
  });
  const channels = choice.channels.map((channel) => recordedRow(channel.name, ...contents(channel, step, execution.is_exact)));
  return [
    make("h2", {}, choice.is_snapshot ? `Recorded for ${choice.name}` : "At the cut"),
    makeTable({ class: "processes" }, ["process", did], processes),
    makeTable({ class: "channels" }, ["channel", execution.is_exact ? "holds" : "holds at least"], channels),
    makeRest(choice.unlisted, "channel") ?? "",
  ];
}

function contents(channel, step, isExact) {
  if (channel.begin === null || step < channel.begin) return ["not yet", "muted"];
  const names = channel.holds.filter(([at]) => at <= step).map(([, name]) => name);
  const isOver = channel.end !== null && channel.end <= step;
  if (isOver && channel.orphans.length > 0) {
    return [`impossible: ${channel.orphans.join(", ")} arrived before the cut, and was sent after it`, "bad"];
  }
  if (!isOver) return [`records${names.length > 0 ? `: ${names.join(", ")}` : ", nothing so far"}`, "under-way"];
  return names.length > 0 ? [names.join(", "), "known caught"] : [isExact ? "empty" : "nothing known", "known"];
}

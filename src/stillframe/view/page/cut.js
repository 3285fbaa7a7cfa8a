// The diagram of a snapshot's cut, and the steps in which it was recorded, rule by rule.

import { make, parseSvg, setText, announce, count } from "./dom.js";

const SCROLL_MARGIN = 120;

/**
 * Return the section with the diagram; if the steps are known, with buttons to go through them.
 * @param {Object} held - the document of the snapshot.
 * @param {{parameters: URLSearchParams, put: function(Object)}} place - has the step, and is told.
 */
export function showCut(held, place) {
  const picture = parseSvg(held.diagram.svg);
  const box = make("div", { class: "scrolling picture", tabindex: 0, role: "region", "aria-label": "Diagram of the cut" }, picture);
  const stepping = held.steps.length > 0 ? stepsThrough(held, place, box) : null;
  if (!place.parameters.has("step")) requestAnimationFrame(() => bringToMiddle(box, box.querySelector("[data-key^='cut']")));
  return make(
    "section",
    { class: "panel", "aria-labelledby": "the-cut" },
    make("h2", { id: "the-cut" }, "The cut"),
    stepping,
    box,
    held.diagram.left_out === "" ? null : make("p", { class: "left-out" }, `${held.diagram.left_out}.`),
    make("p", { class: "quiet" }, held.diagram.note),
  );
}

function stepsThrough(held, place, box) {
  const steps = held.steps;
  const parts = new Map();
  for (const part of box.querySelectorAll("[data-key]")) parts.set(part.dataset.key, part);
  const since = firstSteps(steps);
  const sentence = make("p", { class: "sentence" });
  const rule = make("p", { class: "quiet rule" });
  const where = make("span", { class: "where" });
  const items = steps.map((step, index) => make("li", {}, make("button", { type: "button", class: "step", on: { click: () => go(index + 1) } }, step.sentence)));
  const buttons = {
    all: make("button", { type: "button", on: { click: () => go(0) } }, "Whole cut"),
    back: make("button", { type: "button", on: { click: () => go(now - 1) } }, "← Back"),
    next: make("button", { type: "button", class: "chief", on: { click: () => go(now + 1) } }, "Next step →"),
  };
  const leftOut = held.steps_left_out_count;
  const more = leftOut > 0 ? make("p", { class: "quiet" }, `and ${count(leftOut)} in which markers found nothing to record`) : null;
  let now = 0;

  function draw() {
    for (const [key, part] of parts) {
      const first = since.get(key);
      part.classList.toggle("later", now > 0 && first !== undefined && first > now);
      part.classList.toggle("now", now > 0 && steps[now - 1].keys.includes(key));
    }
    box.classList.toggle("stepping", now > 0);
    setText(where, now === 0 ? `${count(steps.length)} steps` : `step ${count(now)} of ${count(steps.length)}`);
    setText(sentence, now === 0 ? "All of it: go through the steps in which it was recorded." : steps[now - 1].sentence);
    setText(rule, now === 0 ? "" : steps[now - 1].rule);
    buttons.all.disabled = now === 0;
    buttons.back.disabled = now === 0;
    buttons.next.disabled = now === steps.length;
    items.forEach((item, index) => item.firstChild.setAttribute("aria-current", index + 1 === now ? "step" : "false"));
  }

  function go(wanted) {
    now = Math.max(0, Math.min(steps.length, wanted));
    draw();
    place.put({ snapshot: held.id, step: now === 0 ? undefined : now });
    announce(now === 0 ? "The whole cut" : `Step ${now}: ${steps[now - 1].sentence}`);
    if (now > 0) bringToMiddle(box, parts.get(steps[now - 1].keys[0]));
  }

  box.addEventListener("keydown", (event) => {
    const move = { n: 1, p: -1 }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey || move === undefined) return;
    event.preventDefault();
    go(now + move);
  });
  now = Math.max(0, Math.min(steps.length, Math.trunc(Number(place.parameters.get("step"))) || 0));
  draw();
  if (now > 0) requestAnimationFrame(() => bringToMiddle(box, parts.get(steps[now - 1].keys[0])));
  return [
    make("div", { class: "row" }, buttons.all, buttons.back, buttons.next, where, make("span", { class: "quiet keys-hint" }, "keys n and p in the diagram")),
    sentence,
    rule,
    make("details", {}, make("summary", {}, "All steps"), make("ol", { class: "steps" }, items), more),
  ];
}

function firstSteps(steps) {
  const since = new Map();
  steps.forEach((step, index) => step.keys.forEach((key) => since.set(key, since.get(key) ?? index + 1)));
  return since;
}

function bringToMiddle(box, part) {
  if (!part) return;
  const [outer, inner] = [box.getBoundingClientRect(), part.getBoundingClientRect()];
  const isSeen = inner.left >= outer.left + SCROLL_MARGIN && inner.right <= outer.right - SCROLL_MARGIN;
  if (!isSeen) box.scrollLeft += (inner.left + inner.right - outer.left - outer.right) / 2;
}

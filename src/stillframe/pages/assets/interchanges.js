// EWD 864a: neighbours change places, one pair at a time, until every white event precedes every
// red one. Python finds the pairs (player_document.py).

import { announce, count, counted, make, setText } from "./dom.js";
import { stepControls } from "./stepping.js";

/** Fill `section` with the interchanges of one of the choices of an execution; return a function that
 * stops the playback. */
export function showInterchanges(execution, choice, section) {
  const { events = [], swaps, total, problem, broken } = choice.interchanges;
  section.onkeydown = null;
  section.replaceChildren(
    make("h2", {}, "White events before red events"),
    make("p", { class: "muted" }, "The same events in the order in which they happened. A red event and a white one right after it, of different processes, can change places: the white one does not depend on the red one."),
  );
  if (problem) section.append(make("p", { class: "bad problem" }, problem));
  const chips = events.map(([process, label, isWhite], place) => eventChip(execution.processes[process], label, isWhite, broken.includes(place)));
  const row = make("ol", { class: "events" }, chips);
  if (problem || swaps.length === 0) {
    const sorted = events.length > 0 ? "Every white event precedes every red one already: there is no inversion." : "There are no events.";
    if (!problem) section.append(make("p", { class: "words" }, sorted));
    section.append(row);
    return () => {};
  }
  const status = make("p", { class: "words" });
  const left = make("p", { class: "left" });
  const orders = orderAfter(chips, swaps);
  const controls = stepControls({ of: "the interchanges", noun: "interchange", last: swaps.length, onStep: show });

  function show(step) {
    const order = orders(step);
    rearrange(row, order);
    const [white, red] = step > 0 ? order.slice(swaps[step - 1], swaps[step - 1] + 2) : [];
    const isSorted = step === total;
    const isRed = (chip) => chip.classList.contains("red");
    for (const [place, chip] of order.entries()) {
      chip.classList.toggle("moved", chip === white || chip === red);
      chip.classList.toggle("first-red", isSorted && place > 0 && isRed(chip) && !isRed(order[place - 1]));
    }
    setText(left, leftOver(total, step, swaps.length));
    const words = step > 0
      ? `${white.dataset.name} and ${red.dataset.name} changed places: the white one accepts nothing that the red one sent.`
      : "In the order in which they happened.";
    if (status.textContent !== "" && status.textContent !== words) announce(`${words} ${left.textContent}`);
    setText(status, words);
  }

  section.append(make("div", { class: "row" }, controls.element), status, row, left);
  section.onkeydown = controls.press;
  controls.go(0);
  return controls.pause;
}

function eventChip(process, label, isWhite, isBroken) {
  const colour = isWhite ? "white" : "red";
  const properties = { class: `event-chip ${colour}${isBroken ? " broken" : ""}`, "data-name": `${label} of ${process}` };
  return make("li", properties, make("b", {}, label), make("small", {}, process), make("span", { class: "visually-hidden" }, `, ${colour}`));
}

/** Rearrange chips, with an animation of those that move. */
function rearrange(row, order) {
  const moving = order.filter((chip, place) => row.children[place] !== chip);
  const before = moving.map((chip) => chip.getBoundingClientRect());
  order.forEach((chip, place) => {
    if (row.children[place] !== chip) row.insertBefore(chip, row.children[place] ?? null);
  });
  if (matchMedia("(prefers-reduced-motion: reduce)").matches || moving.length > 2) return;
  moving.forEach((chip, number) => {
    const after = chip.getBoundingClientRect();
    const from = `translate(${before[number].left - after.left}px, ${before[number].top - after.top}px)`;
    chip.animate([{ transform: from }, { transform: "none" }], { duration: 350, easing: "ease-in-out" });
  });
}

/** Return a function that gives the order after a number of interchanges; making one again undoes it. */
function orderAfter(chips, swaps) {
  const order = [...chips];
  let made = 0;
  const exchange = (place) => ([order[place], order[place + 1]] = [order[place + 1], order[place]]);
  return (step) => {
    while (made < step) exchange(swaps[made++]);
    while (made > step) exchange(swaps[--made]);
    return order;
  };
}

function leftOver(total, step, shown) {
  const left = total - step;
  const inversions = left > 0 ? `${counted(left, "inversion")} left of ${count(total)}: pairs of a red event and a later white one.` : "No inversion is left: every white event precedes every red one, and the state in between is the recorded one.";
  return step === shown && left > 0 ? `${inversions} Only the first ${count(shown)} interchanges are shown.` : inversions;
}

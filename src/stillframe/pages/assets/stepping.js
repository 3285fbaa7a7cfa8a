// Controls to go through steps, forwards and backwards: buttons, a slider, keys, and playback.

import { count, make, setText } from "./dom.js";

const PAUSE_MS = 1200;

/** Make the controls of something with steps from 0 to `last`: their `element`, `go` to a step,
 * `pause`, `step`, which returns the current one, and `press`, for key events. `of` and `noun` name it
 * and a step for screen readers; `onStep` is called with the step to show. */
export function stepControls({ of, noun, last: end, onStep }) {
  let step = 0;
  let timer = null;
  const button = (label, sign, move) =>
    make("button", { type: "button", "aria-label": label, title: label, on: { click: () => jump(move()) } }, sign);
  const begin = button(`to the start of ${of}`, "|◀", () => 0);
  const back = button(`one ${noun} back`, "◀", () => step - 1);
  const on = button(`one ${noun} on`, "▶", () => step + 1);
  const finish = button(`to the end of ${of}`, "▶|", () => end);
  const play = make("button", { type: "button", class: "primary playing", on: { click: toggle } }, "Play");
  const slide = () => jump(Number(slider.value));
  const slider = make("input", { type: "range", min: 0, max: end, value: 0, "aria-label": `${noun} of ${of}`, on: { input: slide } });
  const place = make("span", { class: "place" });
  const element = make("div", { class: "row controls" }, begin, back, play, on, finish, slider, place);

  function jump(wanted) {
    pause();
    go(wanted);
  }

  function go(wanted) {
    step = Math.min(Math.max(0, Math.trunc(wanted) || 0), end);
    const words = `${noun} ${count(step)} of ${count(end)}`;
    slider.value = step;
    slider.setAttribute("aria-valuetext", words);
    setText(place, words);
    for (const one of [begin, back]) one.disabled = step === 0;
    for (const one of [on, finish]) one.disabled = step === end;
    for (const one of [play, slider]) one.disabled = end === 0;
    onStep(step);
  }

  function toggle() {
    if (timer !== null) return pause();
    setText(play, "Pause");
    if (step === end) go(0);
    timer = setInterval(() => (step < end ? go(step + 1) : pause()), PAUSE_MS);
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    setText(play, "Play");
  }

  return { element, go: jump, pause, step: () => step, press: (event) => pressed(event, jump, step, end) };
}

/** Handle a key that means a step, unless the focused element needs it itself. */
function pressed(event, jump, step, end) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (event.target.closest?.("input, select, textarea, [role=slider], .scrolling")) return;
  const moves = { ArrowLeft: step - 1, ArrowRight: step + 1, Home: 0, End: end };
  if (event.key in moves) {
    event.preventDefault();
    jump(moves[event.key]);
  }
}

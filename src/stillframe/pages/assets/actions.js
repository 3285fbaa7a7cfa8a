// What people do with a running system: the requests, and the questions asked before them.

import { make, setText } from "./dom.js";

const READ_MS_MAX = 60_000;
const ACT_MS_MAX = 300_000;

/**
 * Read a document of the server.
 * @param {string} path - where it is.
 * @returns what it says.
 * @throws {Error} with a sentence for people: it is not there, or there was no answer.
 */
export async function ask(path) {
  let answer;
  try {
    answer = await fetch(path, { signal: AbortSignal.timeout(READ_MS_MAX) });
  } catch (error) {
    throw new Error(`The server did not answer (${error.message}): try again when it is back.`);
  }
  const isJson = answer.headers.get("Content-Type") === "application/json";
  const told = isJson ? await answer.json() : { detail: await answer.text() };
  if (!answer.ok) throw new Error(told.detail);
  return told;
}

/**
 * Ask the server to do something, and say what came of it.
 * @param {Object} wish - as the server reads it: `type` and what belongs to it.
 * @param {Element} said - gets the sentence.
 * @param {HTMLButtonElement} button - cannot be used meanwhile.
 */
export async function act(wish, said, button) {
  button.disabled = true;
  said.className = "said quiet";
  setText(said, "…");
  let sentence;
  let isDone = false;
  try {
    const answer = await fetch("/api/action", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(wish),
      signal: AbortSignal.timeout(ACT_MS_MAX),
    });
    const isJson = answer.headers.get("Content-Type") === "application/json";
    const outcome = isJson ? await answer.json() : { detail: await answer.text() };
    isDone = outcome.is_done === true;
    sentence = outcome.sentence ?? outcome.detail;
  } catch (error) {
    sentence = `the server did not answer (${error.message}); whether it was done is not known`;
  }
  said.className = `said ${isDone ? "good" : "bad"}`;
  setText(said, sentence);
  button.disabled = false;
}

/** Ask for the name of a savepoint; null if somebody thinks better of it. */
export function askForName(title, text) {
  const input = make("input", {
    id: "savepoint-name",
    name: "name",
    required: true,
    maxlength: 64,
    pattern: "[A-Za-z0-9][A-Za-z0-9_.\\-]*",
    autocomplete: "off",
  });
  const label = make("label", { for: "savepoint-name" }, "Name ", input);
  return question(title, [make("p", {}, text), label], "Take it", () => input.value);
}

/** Ask whether to go on; true or null. */
export function confirm(title, text, word) {
  return question(title, [make("p", {}, text)], word, () => true);
}

/** Say what has to be done elsewhere. */
export function explain(title, content) {
  return question(title, content, null, () => true);
}

function question(title, content, word, value) {
  const form = make(
    "form",
    { method: "dialog" },
    make("h2", { id: "question" }, title),
    ...content,
    make(
      "div",
      { class: "row" },
      word === null ? null : make("button", { class: "chief", value: "yes" }, word),
      make("button", { type: "button", on: { click: () => dialog.close() } }, word === null ? "Close" : "Leave it"),
    ),
  );
  const dialog = make("dialog", { "aria-labelledby": "question" }, form);
  document.body.append(dialog);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes" ? value() : null);
      dialog.remove();
    });
    dialog.showModal();
  });
}

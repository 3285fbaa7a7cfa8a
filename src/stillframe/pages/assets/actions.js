// Actions of users on a running system: the requests, and the dialogs before them.

import { make, setText } from "./dom.js";

const READ_TIMEOUT_MS = 60_000;
const ACTION_TIMEOUT_MS = 300_000;

/** Read a document of the server; an Error says in a sentence that it does not exist, or that there
 * was no answer. */
export async function fetchDocument(path) {
  let response;
  try {
    response = await fetch(path, { signal: AbortSignal.timeout(READ_TIMEOUT_MS) });
  } catch (error) {
    throw new Error(`The server did not answer (${error.message}): try again when it runs.`);
  }
  const content = await contentOf(response);
  if (!response.ok) throw new Error(content.detail);
  return content;
}

async function contentOf(response) {
  const isJson = response.headers.get("Content-Type") === "application/json";
  return isJson ? response.json() : { detail: await response.text() };
}

/** Let the server perform an action of a `type` with arguments, and show the outcome in `status`; the
 * button is disabled meanwhile. */
export async function performAction(action, status, button) {
  button.disabled = true;
  status.className = "action-status muted";
  setText(status, "…");
  let outcome;
  try {
    const response = await fetch("/api/action", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(action),
      signal: AbortSignal.timeout(ACTION_TIMEOUT_MS),
    });
    outcome = await contentOf(response);
  } catch (error) {
    outcome = { detail: `the server did not answer (${error.message}); the action may or may not have been performed` };
  }
  status.className = `action-status ${outcome.is_done === true ? "good" : "bad"}`;
  setText(status, outcome.sentence ?? outcome.detail);
  button.disabled = false;
}

/** Ask for the name of a savepoint; null if the user cancels. */
export function promptForName(title, text) {
  const pattern = "[A-Za-z0-9][A-Za-z0-9_.\\-]*";
  const input = make("input", { id: "savepoint-name", name: "name", required: true, maxlength: 64, pattern, autocomplete: "off" });
  const label = make("label", { for: "savepoint-name" }, "Name ", input);
  return openDialog(title, [make("p", {}, text), label], "Take it", () => input.value);
}

/** Ask for confirmation; true or null. */
export function confirm(title, text, word) {
  return openDialog(title, [make("p", {}, text)], word, () => true);
}

/** Explain what to do outside the page. */
export function explain(title, content) {
  return openDialog(title, content, null, () => true);
}

function openDialog(title, content, word, value) {
  const yes = word === null ? null : make("button", { class: "primary", value: "yes" }, word);
  const no = make("button", { type: "button", on: { click: () => dialog.close() } }, word === null ? "Close" : "Leave it");
  const form = make("form", { method: "dialog" }, make("h2", { id: "question" }, title), ...content, make("div", { class: "row" }, yes, no));
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

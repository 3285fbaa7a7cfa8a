// The bar at the top: the name of the system, its status, and its actions.

import { make, setText, clock } from "./dom.js";
import { performAction, promptForName } from "./actions.js";

/** Make the bar, which shows `model` when it is updated. */
export function makeBar(model) {
  const title = make("h1", {}, "Stillframe");
  const state = make("span", { class: "state", role: "status" }, "connecting …");
  const take = make("button", { class: "primary", type: "button", disabled: true }, "Take a snapshot");
  const save = make("button", { type: "button", disabled: true }, "Take a savepoint …");
  const connectionLost = make("p", { class: "connection-lost", role: "alert", hidden: true });
  const status = make("p", { class: "action-status", role: "status" });
  let isConnected = false;

  take.addEventListener("click", () => performAction({ type: "take" }, status, take));
  save.addEventListener("click", async () => {
    const name = await promptForName("Take a savepoint", "A savepoint is a snapshot with a name; it stays until you delete it.");
    if (name !== null) performAction({ type: "take", name }, status, save);
  });

  function update() {
    const { about, system } = model;
    if (about !== null) {
      setText(title, about.store.split("/").filter(Boolean).at(-1) ?? about.store);
      title.title = about.store;
    }
    if (system !== null) {
      const isObserved = about?.kind === "observations";
      const [word, kind] = isObserved ? observedState(model) : about?.kind === "pipeline" ? pipelineState(about, system) : stateOf(system);
      for (const button of [take, save]) button.hidden = isObserved;
      setText(state, word);
      state.className = `state ${kind}`;
    }
    const canTake = about?.kind === "pipeline" ? system?.pending.length === 0 : system?.is_running;
    for (const button of [take, save]) button.disabled = !isConnected || !canTake;
  }

  return {
    root: make("div", { class: "bar" }, make("div", { class: "row" }, title, state, make("span", { class: "spacer" }), take, save), status, connectionLost),
    update,
    connected() {
      isConnected = true;
      connectionLost.hidden = true;
      document.body.classList.remove("stale");
      update();
    },
    disconnected(why) {
      if (why !== undefined) {
        setText(connectionLost, why);
      } else if (isConnected || connectionLost.hidden) {
        setText(connectionLost, `The connection to 'stillframe watch' was lost at ${clock(Date.now() / 1000)}, and the page shows the state of that moment. Reconnecting …`);
      }
      isConnected = false;
      connectionLost.hidden = false;
      document.body.classList.add("stale");
      update();
    },
  };
}

/** Return the state of services in the newest observation, without its number: it is read aloud when it
 * changes. */
function observedState({ observation }) {
  if (observation === null) return ["no observation yet", "warn"];
  if (observation.deadlock !== null) return ["deadlock", "bad"];
  return [observation.quality, observation.quality === "exact" ? "good" : "warn"];
}

function pipelineState(about, system) {
  const running = system.running.length;
  const word = running === 0 ? "stopped" : running === about.participant_count ? "running" : `${running} of ${about.participant_count} running`;
  return [`${word} · epoch ${system.epoch}`, running === 0 ? "bad" : running === about.participant_count ? "good" : "warn"];
}

/** Words for a system that does not run: it reports so itself, or is unreachable. */
const NOT_RUNNING = {
  "": ["is starting", "warn"],
  silent: ["does not answer", "bad"],
  starting: ["is starting or stopping", "warn"],
  stopped: ["does not run", "bad"],
};

/** Return the status of a system or pipeline that does not run, and its severity. */
export function notRunning({ unreachable }) {
  return NOT_RUNNING[unreachable ?? "stopped"];
}

function stateOf(system) {
  if (system.is_running) return [`runs · epoch ${system.epoch}`, "good"];
  const [words, kind] = notRunning(system);
  return [system.unreachable === "" ? `${words} · epoch ${system.epoch}` : words, kind];
}

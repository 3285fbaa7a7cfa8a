// The live page: receives the events of the server, keeps a model of the system, and shows what the
// address selects: the running system, one of its snapshots, or the difference of two; or the newest
// observation of services, or another one.

import { make, addressed, announce } from "./dom.js";
import { Overview } from "./overview.js";
import { makeBar, notRunning } from "./bar.js";
import { fetchDocument } from "./actions.js";
import { showDiff } from "./diff.js";
import { showSnapshot } from "./snapshot.js";
import { ObservedOverview } from "./observed.js";
import { showObservation } from "./watched_observation.js";

const ROWS_KEPT_MAX = 400;
const POINTS_MAX = 300;

const model = { about: null, system: null, observation: null, timeline: null, rows: new Map(), count: 0, verdicts: new Map(), naive: [], events: [] };

const main = document.getElementById("main");
let overview = new Overview(model);
const bar = makeBar(model);
document.getElementById("bar").replaceChildren(bar.root);

/** The handler of each kind of event. */
const handlers = {
  about(about) {
    const before = JSON.stringify(model.about);
    model.about = about;
    document.title = `${about.store} · Stillframe`;
    if (JSON.stringify(about) !== before) beginOverview(about);
    bar.update();
  },
  system(system) {
    const last = model.system;
    model.system = system;
    if (system.naive && Object.keys(system.naive).length > 0) {
      model.naive.push([system.at, system.naive]);
      model.naive.splice(0, model.naive.length - POINTS_MAX);
    }
    announceChange(last, system);
    bar.update();
    overview.update("system");
  },
  observation(observation) {
    model.observation = observation;
    bar.update();
    overview.update("observation");
  },
  timeline(timeline) {
    model.timeline = timeline;
    overview.update("timeline");
  },
  snapshots({ count, rows, gone }) {
    model.count = count;
    for (const id of gone) model.rows.delete(id);
    for (const row of rows) model.rows.set(row.id, row);
    const oldest = [...model.rows.values()].sort((a, b) => a.number - b.number);
    for (const { id } of oldest.slice(0, Math.max(0, oldest.length - ROWS_KEPT_MAX))) {
      if (!overview.list.shown.has(id)) model.rows.delete(id);
    }
    overview.update("snapshots");
  },
  predicates(status) {
    model.verdicts.set(status.snapshot, status);
    while (model.verdicts.size > POINTS_MAX) model.verdicts.delete(model.verdicts.keys().next().value);
    overview.update("verdicts");
  },
  events(events) {
    const seen = new Set(model.events.map(({ at, sentence }) => `${at} ${sentence}`));
    model.events.push(...events.filter(({ at, sentence }) => !seen.has(`${at} ${sentence}`)));
    announce(events.at(-1).sentence);
    overview.update("events");
  },
  past({ naive, predicates, events }) {
    model.naive = naive;
    model.verdicts = new Map(predicates.sort((a, b) => a.at - b.at).map((one) => [one.snapshot, one]));
    model.events = events;
    overview.update("verdicts");
    overview.update("events");
  },
};

/** Build the overview again, for what is watched. */
function beginOverview({ kind }) {
  if (kind !== "observations" || overview instanceof ObservedOverview) return overview.begin();
  const { isVisible } = overview;
  overview.hide();
  overview = new ObservedOverview(model);
  if (isVisible) overview.show(main);
}

function announceChange(last, system) {
  if (last === null || (last.is_running === system.is_running && last.unreachable === system.unreachable)) return;
  const what = model.about?.kind === "pipeline" ? "pipeline" : "system";
  announce(system.is_running ? `The ${what} runs, epoch ${system.epoch}.` : `The ${what} ${notRunning(system)[0]}.`);
}

/** What a link leads back to, by the kind of what is watched. */
const BACK = { system: "running system", pipeline: "running pipeline", observations: "newest observation" };

let source = null;

/** Listen to the events while the page is visible: a browser has few connections. */
function listen() {
  if (document.hidden || source !== null) return;
  source = new EventSource("/events");
  for (const [kind, handle] of Object.entries(handlers)) {
    source.addEventListener(kind, (event) => handle(JSON.parse(event.data)));
  }
  source.addEventListener("open", () => {
    model.rows.clear();
    bar.connected();
  });
  source.addEventListener("error", () => {
    bar.disconnected();
    // A browser does not reconnect after an error response; we do.
    if (source?.readyState === EventSource.CLOSED) {
      source = null;
      fetchDocument("/page/index.html").catch((error) => bar.disconnected(error.message));
      setTimeout(listen, 2000);
    }
  });
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    source?.close();
    source = null;
  } else {
    listen();
  }
});

/** Return what the address selects: the path of its document, its name, and its view. */
function routeTarget() {
  const [one, first, second] = ["snapshot", "first", "second"].map((name) => addressed().get(name));
  if (one !== null) return [["snapshot", one], `snapshot ${one}`, showSnapshot];
  if (first !== null && second !== null) {
    return [["comparison", first, second], `snapshots ${first} and ${second}`, showDiff];
  }
  return null;
}

async function route() {
  const target = routeTarget();
  if (target === null) return overview.show(main);
  const [path, name, show] = target;
  overview.hide();
  const place = make("div", {}, make("p", { class: "muted" }, `Reading ${name} …`));
  const back = make("a", { href: "#" }, `← The ${BACK[model.about?.kind] ?? BACK.system}`);
  main.replaceChildren(make("nav", { "aria-label": "Breadcrumb" }, back), place);
  main.focus();
  try {
    const found = await fetchDocument(`/api/${path.map(encodeURIComponent).join("/")}`);
    if (place.isConnected) (found.kind === "observation" ? showObservation : show)(found, place);
  } catch (error) {
    place.replaceChildren(make("p", { class: "bad", role: "alert" }, error.message));
  }
}

window.addEventListener("hashchange", () => {
  if (location.hash !== "#main") route();
});
route();
listen();

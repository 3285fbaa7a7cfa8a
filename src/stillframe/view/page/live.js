// The live page: takes the news of the server, keeps what is known, and shows what the address asks
// for: the running system, or one of its snapshots.

import { make, announce } from "./dom.js";
import { Overview } from "./overview.js";
import { makeBar } from "./bar.js";
import { showComparison } from "./comparison.js";
import { showSnapshot } from "./snapshot.js";

const ROWS_KEPT_MAX = 400;
const POINTS_MAX = 300;

const known = {
  about: null,
  system: null,
  wave: null,
  rows: new Map(),
  count: 0,
  judged: new Map(),
  naive: [],
  happenings: [],
};

const main = document.getElementById("main");
const overview = new Overview(known);
const bar = makeBar(known);
document.getElementById("bar").append(bar.root);

/** What to do with each kind of news. */
const takes = {
  about(about) {
    const before = JSON.stringify(known.about);
    known.about = about;
    document.title = `${about.store} · Stillframe`;
    if (JSON.stringify(about) !== before) overview.begin();
    bar.update();
  },
  system(system) {
    const last = known.system;
    known.system = system;
    if (system.naive && Object.keys(system.naive).length > 0) {
      known.naive.push([system.at, system.naive]);
      known.naive.splice(0, known.naive.length - POINTS_MAX);
    }
    sayChange(last, system);
    bar.update();
    overview.update("system");
  },
  wave(wave) {
    known.wave = wave;
    overview.update("wave");
  },
  snapshots({ count, rows, gone }) {
    known.count = count;
    for (const id of gone) known.rows.delete(id);
    for (const row of rows) known.rows.set(row.id, row);
    for (const id of [...known.rows.keys()].slice(0, Math.max(0, known.rows.size - ROWS_KEPT_MAX))) {
      if (!overview.isShown(id)) known.rows.delete(id);
    }
    overview.update("snapshots");
  },
  judged(judged) {
    known.judged.set(judged.snapshot, judged);
    while (known.judged.size > POINTS_MAX) known.judged.delete(known.judged.keys().next().value);
    overview.update("judged");
  },
  happenings(happenings) {
    known.happenings.push(...happenings);
    announce(happenings.at(-1).sentence);
    overview.update("happenings");
  },
  past({ naive, judged, happenings }) {
    known.naive = naive;
    known.judged = new Map(judged.sort((a, b) => a.at - b.at).map((one) => [one.snapshot, one]));
    known.happenings = happenings;
    overview.update("judged");
    overview.update("happenings");
  },
};

function sayChange(last, system) {
  if (last !== null && last.is_running !== system.is_running) {
    const what = known.about?.kind === "pipeline" ? "pipeline" : "system";
    announce(system.is_running ? `The ${what} runs, epoch ${system.epoch}.` : `The ${what} does not run.`);
  }
}

function listen() {
  const source = new EventSource("/events");
  for (const [kind, take] of Object.entries(takes)) {
    source.addEventListener(kind, (event) => take(JSON.parse(event.data)));
  }
  source.addEventListener("open", () => {
    known.rows.clear();
    bar.connected();
  });
  source.addEventListener("error", () => {
    bar.disconnected();
    // A browser gives up when the server answers with an error; we do not.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 2000);
  });
}

/** What the address asks for: where its document is, its name, and what shows it. */
function wanted() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const [one, first, second] = ["snapshot", "first", "second"].map((name) => parameters.get(name));
  if (one !== null) return [["snapshot", one], `snapshot ${one}`, showSnapshot];
  if (first !== null && second !== null) {
    return [["comparison", first, second], `snapshots ${first} and ${second}`, showComparison];
  }
  return null;
}

async function route() {
  const asked = wanted();
  if (asked === null) {
    overview.show(main);
    return;
  }
  const [path, name, show] = asked;
  overview.hide();
  const place = make("div", {}, make("p", { class: "quiet" }, `Reading ${name} …`));
  main.replaceChildren(
    make("nav", { "aria-label": "Where you are" }, make("a", { href: "#" }, known.about?.kind === "pipeline" ? "← The running pipeline" : "← The running system")),
    place,
  );
  main.focus();
  const answer = await fetch(`/api/${path.map(encodeURIComponent).join("/")}`);
  const held = await answer.json();
  if (!place.isConnected) return;
  if (answer.ok) show(held, place);
  else place.replaceChildren(make("p", { class: "bad", role: "alert" }, held.detail));
}

window.addEventListener("hashchange", () => {
  if (location.hash !== "#main") route();
});
route();
listen();

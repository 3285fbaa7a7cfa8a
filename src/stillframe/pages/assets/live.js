// The live page: takes the news of the server, keeps what is known, and shows what the address asks
// for: the running system, or one of its snapshots.

import { make, announce } from "./dom.js";
import { Overview } from "./overview.js";
import { makeBar, notRunning } from "./bar.js";
import { ask } from "./actions.js";
import { showComparison } from "./diff.js";
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
document.getElementById("bar").replaceChildren(bar.root);

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
    const oldest = [...known.rows.values()].sort((a, b) => a.number - b.number);
    for (const { id } of oldest.slice(0, Math.max(0, oldest.length - ROWS_KEPT_MAX))) {
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
    const told = new Set(known.happenings.map(({ at, sentence }) => `${at} ${sentence}`));
    known.happenings.push(...happenings.filter(({ at, sentence }) => !told.has(`${at} ${sentence}`)));
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
  if (last === null || (last.is_running === system.is_running && last.unheard === system.unheard)) return;
  const what = known.about?.kind === "pipeline" ? "pipeline" : "system";
  announce(system.is_running ? `The ${what} runs, epoch ${system.epoch}.` : `The ${what} ${notRunning(system)[0]}.`);
}

let source = null;

/** Listen to the news, as long as somebody can see the page: a browser has few connections. */
function listen() {
  if (document.hidden || source !== null) return;
  source = new EventSource("/events");
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
    if (source?.readyState === EventSource.CLOSED) {
      source = null;
      ask("/page/index.html").catch((error) => bar.disconnected(error.message));
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
  try {
    const held = await ask(`/api/${path.map(encodeURIComponent).join("/")}`);
    if (place.isConnected) show(held, place);
  } catch (error) {
    place.replaceChildren(make("p", { class: "bad", role: "alert" }, error.message));
  }
}

window.addEventListener("hashchange", () => {
  if (location.hash !== "#main") route();
});
route();
listen();

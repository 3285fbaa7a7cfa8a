// Conserved totals over time: what snapshots found, and beside it what asking all processes gives.

import { make, makeSvg, count } from "./dom.js";

const WIDTH = 480;
const HEIGHT = 130;
const PAD = 6;

/**
 * Show a chart and a sentence for each conserved quantity.
 * @param {Element} root - is filled.
 * @param {Object} known - what the page knows.
 */
export function showTotals(root, known) {
  const judged = [...known.judged.values()].sort((a, b) => a.at - b.at);
  const quantities = new Set(judged.flatMap((one) => Object.keys(one.totals)));
  for (const [, totals] of known.naive) for (const quantity of Object.keys(totals)) quantities.add(quantity);
  if (quantities.size === 0) {
    const trouble = known.system?.quantities_trouble;
    root.replaceChildren(make("p", { class: trouble ? "bad" : "quiet" }, trouble || "No process says that anything is conserved: write a method 'conserved' for those that have it."));
    return;
  }
  root.replaceChildren(...[...quantities].sort().slice(0, 6).map((quantity) => showQuantity(quantity, judged, known.naive)));
}

function showQuantity(quantity, judged, naive) {
  const found = judged.filter((one) => quantity in one.totals).map((one) => ({ at: one.at, amount: one.totals[quantity] }));
  const asked = naive.filter(([, totals]) => quantity in totals).map(([at, totals]) => ({ at, amount: totals[quantity] }));
  const sentence = `${inSnapshots(found)} ${inAnswers(asked, found)}`;
  return make(
    "figure",
    { class: "total" },
    make("figcaption", {}, make("strong", {}, quantity), `: ${sentence}`),
    chart(found, asked, `${quantity}: ${sentence}`),
    make("p", { class: "legend" }, make("span", { class: "key exact" }, "in snapshots"), " ", make("span", { class: "key naive" }, "asking all processes")),
  );
}

function inSnapshots(found) {
  if (found.length === 0) return "no snapshot has been judged yet;";
  const amounts = new Set(found.map(({ amount }) => amount));
  if (amounts.size === 1) return `${count(found[0].amount)} in ${found.length === 1 ? "the last snapshot" : `each of the last ${found.length} snapshots`};`;
  return `between ${count(Math.min(...amounts))} and ${count(Math.max(...amounts))} in the last ${found.length} snapshots;`;
}

function inAnswers(asked, found) {
  if (asked.length === 0) return "nobody was asked while it ran.";
  const amounts = asked.map(({ amount }) => amount);
  const right = found.length ? amounts.filter((amount) => amount === found.at(-1).amount).length : null;
  const range = `asking all processes gave ${count(Math.min(...amounts))} to ${count(Math.max(...amounts))}`;
  return right === null ? `${range}.` : `${range}, and was right ${right} of ${amounts.length} times.`;
}

function chart(found, asked, label) {
  const points = [...found, ...asked];
  const [from, to] = [Math.min(...points.map((p) => p.at)), Math.max(...points.map((p) => p.at))];
  const [low, high] = [Math.min(...points.map((p) => p.amount)), Math.max(...points.map((p) => p.amount))];
  const x = (at) => PAD + ((at - from) / Math.max(1e-9, to - from)) * (WIDTH - 2 * PAD);
  const y = (amount) => (high === low ? HEIGHT / 2 : HEIGHT - PAD - ((amount - low) / (high - low)) * (HEIGHT - 2 * PAD));
  const line = (list) => list.map((p) => `${x(p.at).toFixed(1)},${y(p.amount).toFixed(1)}`).join(" ");
  return makeSvg(
    "svg",
    { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label, preserveAspectRatio: "none" },
    makeSvg("polyline", { class: "naive", points: line(asked) }),
    makeSvg("polyline", { class: "exact", points: line(found) }),
  );
}

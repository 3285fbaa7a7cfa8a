// Conserved totals over time: those in snapshots, beside those of polling all processes.

import { make, makeSvg, count } from "./dom.js";

const CHART_WIDTH = 480;
const CHART_HEIGHT = 130;
const PAD = 6;

/** Fill `root` with a chart and a sentence for each conserved quantity. */
export function showTotals(root, model) {
  const verdicts = [...model.verdicts.values()].sort((a, b) => a.at - b.at);
  const quantities = new Set(verdicts.flatMap((one) => Object.keys(one.totals)));
  for (const [, totals] of model.naive) for (const quantity of Object.keys(totals)) quantities.add(quantity);
  if (quantities.size === 0) {
    const error = model.system?.quantities_error;
    root.replaceChildren(make("p", { class: error ? "bad" : "muted" }, error || "No process says that anything is conserved: write a method 'conserved' for those that have it."));
    return;
  }
  root.replaceChildren(...[...quantities].sort().slice(0, 6).map((quantity) => showQuantity(quantity, verdicts, model.naive)));
}

function showQuantity(quantity, verdicts, naive) {
  const found = verdicts.filter((one) => Object.hasOwn(one.totals, quantity)).map((one) => ({ at: one.at, amount: one.totals[quantity] }));
  const asked = naive.filter(([, totals]) => Object.hasOwn(totals, quantity)).map(([at, totals]) => ({ at, amount: totals[quantity] }));
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
  if (found.length === 0) return "no snapshot has been evaluated yet;";
  const amounts = new Set(found.map(({ amount }) => amount));
  if (amounts.size === 1) return `${count(found[0].amount)} in ${found.length === 1 ? "the last snapshot" : `each of the last ${found.length} snapshots`};`;
  const [least, most] = extremes(found);
  return `between ${count(least)} and ${count(most)} in the last ${found.length} snapshots;`;
}

function inAnswers(asked, found) {
  if (asked.length === 0) return "nobody was asked while it ran.";
  const [least, most] = extremes(asked);
  const range = `asking all processes gave ${count(least)} to ${count(most)}`;
  if (found.length === 0) return `${range}.`;
  const right = asked.filter(({ at, amount }) => amount === truthAt(at, found)).length;
  return `${range}, and was right ${right} of ${asked.length} times.`;
}

/** Return the total in the latest snapshot before a time, or in the first. */
function truthAt(at, found) {
  return (found.findLast((one) => one.at <= at) ?? found[0]).amount;
}

/** Return the least and the largest amount, in the type in which they came. */
function extremes(points) {
  const sorted = points.map(({ amount }) => amount).sort((a, b) => Number(a) - Number(b));
  return [sorted[0], sorted.at(-1)];
}

function chart(found, asked, label) {
  const points = [...found, ...asked];
  const [from, to] = [Math.min(...points.map((p) => p.at)), Math.max(...points.map((p) => p.at))];
  const [low, high] = extremes(points).map(Number);
  const x = (at) => PAD + ((at - from) / Math.max(1e-9, to - from)) * (CHART_WIDTH - 2 * PAD);
  const y = (amount) => (high === low ? CHART_HEIGHT / 2 : CHART_HEIGHT - PAD - ((Number(amount) - low) / (high - low)) * (CHART_HEIGHT - 2 * PAD));
  const line = (list) => list.map((p) => `${x(p.at).toFixed(1)},${y(p.amount).toFixed(1)}`).join(" ");
  return makeSvg(
    "svg",
    { class: "chart", viewBox: `0 0 ${CHART_WIDTH} ${CHART_HEIGHT}`, role: "img", "aria-label": label, preserveAspectRatio: "none" },
    makeSvg("polyline", { class: "naive", points: line(asked) }),
    makeSvg("polyline", { class: "exact", points: line(found) }),
  );
}

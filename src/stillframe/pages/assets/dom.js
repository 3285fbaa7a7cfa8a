// Elements and quantities. Text from a process is set as text or as the value of an attribute, never
// as markup.

const SVG = "http://www.w3.org/2000/svg";

/** Make an HTML element with nodes, text or null in it. Of its `properties`, `on` maps events to
 * listeners; undefined, null and false leave an attribute out, true sets it empty. */
export function make(name, properties = {}, ...children) {
  return fill(document.createElement(name), properties, children);
}

/** Make an SVG element; arguments as for `make`. */
export function makeSvg(name, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, name), properties, children);
}

function fill(element, { on = {}, ...attributes }, children) {
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Make a table; `heads` are cells or their text, `rows` is an array, or the body with the rows. */
export function makeTable(properties, heads, rows, caption) {
  const cells = heads.map((head) => (isCell(head) ? head : make("th", { scope: "col" }, head)));
  const body = Array.isArray(rows) ? make("tbody", {}, rows) : rows;
  const head = cells.length > 0 ? make("thead", {}, make("tr", {}, cells)) : null;
  return make("table", properties, caption === undefined ? null : make("caption", {}, caption), head, body);
}

/** Make a row of a table from its cells, or their content; the first one names the row. */
export function makeRow(head, ...cells) {
  const name = isCell(head) ? head : make("th", { scope: "row" }, head);
  return make("tr", {}, name, cells.map((cell) => (isCell(cell) ? cell : make("td", {}, cell))));
}

/** Make a row with a name and one value, of the class `kind`. */
export function recordedRow(name, words, kind) {
  return makeRow(name, make("td", { class: kind }, words));
}

function isCell(content) {
  return content instanceof HTMLTableCellElement;
}

/** Make a box that scrolls if its content is too large, also with the keyboard. */
export function makeScrolling(label, { role = "group", kind = "" }, ...content) {
  return make("div", { class: `scrolling ${kind}`.trim(), tabindex: 0, role, "aria-label": label }, ...content);
}

/** Return the number of entries left out, and where they are; null if there are none. */
export function makeRest(left, noun, where = "") {
  return left > 0 ? make("p", { class: "left-out muted" }, `and ${counted(left, noun)} more${where}`) : null;
}

/** Make a section of the page; `id` is that of its heading. */
export function makePanel(title, { id, kind = "" }, ...content) {
  return make("section", { class: `panel ${kind}`.trim(), "aria-labelledby": id }, make("h2", { id }, title), ...content);
}

/** Return the element of a picture in SVG; it holds no script, and none would run. */
export function parseSvg(text) {
  const parsed = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  if (parsed.localName !== "svg") throw new Error("this is not an SVG picture");
  return document.importNode(parsed, true);
}

/** Let a picture grow with the page within limits, and never become smaller than its size. */
export function letGrow(picture) {
  const width = Number(picture.getAttribute("width"));
  picture.style.minWidth = `${width}px`;
  picture.style.maxWidth = `${width * 1.6}px`;
  return picture;
}

/** Set the text of `element` if it changed: the browser draws nothing again otherwise. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Announce something to users of a screen reader, without moving the focus. */
export function announce(text) {
  const region = document.getElementById("announcements") ?? make("div", { id: "announcements", role: "status", class: "visually-hidden" });
  if (!region.isConnected) document.body.append(region);
  region.textContent = text;
}

/** Return the parameters in the fragment of the address. */
export function addressed() {
  return new URLSearchParams(location.hash.slice(1));
}

/** Put these parameters into the fragment of the address; without those that are undefined. */
export function address(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined);
  history.replaceState(null, "", `#${new URLSearchParams(given)}`);
}

/** Return the own property of an object under a foreign name, never an inherited one. */
export function own(object, name) {
  return object !== undefined && Object.hasOwn(object, name) ? object[name] : undefined;
}

const COUNTS = new Intl.NumberFormat("en");

/** Return a number with separators of thousands; a large integer comes as text. */
export function count(number) {
  return COUNTS.format(typeof number === "string" ? BigInt(number) : number);
}

/** Return a number and its noun: "1 message", "2 messages". */
export function counted(number, noun) {
  const ending = number === 1 ? "" : noun.endsWith("s") ? "es" : "s";
  return `${count(number)} ${noun}${ending}`;
}

/** Return a number of bytes: "512 B", "1.4 kB", "20 MB". */
export function bytes(number) {
  const units = ["B", "kB", "MB", "GB"];
  let [value, unit] = [number, 0];
  for (; unit < 3 && Math.round(value) >= 1000; unit += 1) value /= 1000;
  return `${value.toFixed(unit > 0 && value < 9.95 ? 1 : 0)} ${units[unit]}`;
}

/** Return a duration in seconds as text: "0.40 ms", "12 ms", "3.4 s", "5 min". */
export function duration(seconds) {
  if (seconds === 0) return "0 s";
  const ms = seconds * 1000;
  if (ms < 0.995) return `${ms.toFixed(2)} ms`;
  if (ms < 9.95) return `${ms.toFixed(1)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (seconds < 99.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

/** Return a time, in seconds since 1970, as date and time of day in UTC. */
export function moment(seconds) {
  return new Date(seconds * 1000).toISOString().replace("T", " ").replace("Z", " UTC");
}

/** Return a time, in seconds since 1970, as the local time of day. */
export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

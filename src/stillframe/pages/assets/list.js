// The list of snapshots, newest first, a portion at a time.

import { make, makeRow, makeScrolling, makeTable, setText, count, counted, bytes, duration, clock, own } from "./dom.js";
import { performAction, fetchDocument, promptForName, confirm, explain } from "./actions.js";

const STEP = 25;
const VERDICT_WORDS = {
  termination: ["over", "not over"],
  deadlock: ["deadlock", "no deadlock"],
  loss: ["lost", "nothing lost"],
};

/** The list; call `update` after rows were added or removed. */
export class SnapshotList {
  constructor(model) {
    this.model = model;
    this.isPipeline = model.about?.kind === "pipeline";
    this.shownCount = STEP;
    this.shown = new Map();
    this.summary = make("p", { class: "muted" }, "");
    this.hintCommand = make("code", {});
    this.hint = make("p", { class: "muted", hidden: true }, "After a crash no snapshot is needed. To restore the newest consistent point, stop every program and run ", this.hintCommand);
    this.body = make("tbody", {});
    this.body.addEventListener("mouseleave", () => this.catchUp());
    this.body.addEventListener("focusout", () => this.catchUp());
    this.status = make("p", { class: "action-status", role: "status" });
    this.older = make("button", { type: "button", on: { click: () => this.showOlder() } }, `Show older ${this.noun()}s`);
    const table = makeTable({ class: "snapshots" }, this.heads(), this.body);
    this.root = make("div", {}, this.summary, this.status, makeScrolling(`Rows of ${this.noun()}s`, {}, table), this.older, this.hint);
  }

  /** Return the word for what is listed. */
  noun() {
    return "snapshot";
  }

  /** Return the heads of the columns. */
  heads() {
    return this.isPipeline
      ? ["snapshot", "published", "recorded in", "published after", "in transit", "size", "mode", "savepoint", "actions"]
      : ["snapshot", "ended", "duration", "pause", "in transit", "size", "verdicts", "savepoint", "actions"];
  }

  /** Show the newest rows, and keep the elements of those that are shown already. While the list is
   * in use nothing in it moves, so that no button changes under the pointer; newer rows are shown
   * when the user leaves the list. */
  update() {
    this.isBehind = this.isInUse() && this.shown.size > 0;
    if (this.isBehind) {
      const newer = [...this.model.rows.values()].filter((row) => row.number > this.newest).length;
      setText(this.summary, `${counted(this.model.count, this.noun())} in the store; ${count(newer)} newer ones appear when you leave the list.`);
      for (const [id, one] of this.shown) this.updateNames(one, this.model.rows.get(id));
      return;
    }
    this.redraw();
  }

  /** Show the rows that arrived while the list was in use, unless it still is. */
  catchUp() {
    requestAnimationFrame(() => this.isBehind && this.update());
  }

  isInUse() {
    return this.body.matches(":hover") || this.body.contains(document.activeElement) || document.querySelector("dialog[open]") !== null;
  }

  redraw() {
    const { rows, count: total } = this.model;
    const newest = [...rows.values()].sort((a, b) => b.number - a.number).slice(0, this.shownCount);
    this.newest = newest[0]?.number ?? -1;
    const wanted = new Set(newest.map((row) => row.id));
    for (const [id, one] of this.shown) {
      if (wanted.has(id)) continue;
      one.element.remove();
      this.shown.delete(id);
    }
    let before = null;
    for (const row of newest) {
      let one = this.shown.get(row.id);
      if (one !== undefined) this.updateNames(one, row);
      if (one === undefined || one.row !== row) {
        const made = { row, verdicts: make("td", { class: "verdicts" }), kept: make("span", {}) };
        made.element = this.rowOf(row, made);
        one?.element.replaceWith(made.element);
        this.shown.set(row.id, made);
        one = made;
        this.showVerdict(one);
      }
      const place = before === null ? this.body.firstChild : before.nextSibling;
      if (one.element !== place) this.body.insertBefore(one.element, place);
      before = one.element;
    }
    const newestConsistent = this.model.about?.newest_consistent_command;
    this.hint.hidden = !newestConsistent;
    setText(this.hintCommand, newestConsistent ?? "");
    setText(this.summary, total === 0 ? `No ${this.noun()} yet.` : `${counted(total, this.noun())} ${this.isPipeline ? "of the pipeline" : "in the store"}; the newest ${count(newest.length)} are shown.`);
    this.older.hidden = newest.length >= total;
  }

  /** Show new verdicts. */
  updateVerdicts() {
    for (const one of this.shown.values()) this.showVerdict(one);
  }

  showVerdict(one) {
    const verdict = this.model.verdicts.get(one.row.id);
    if (one.verdict === verdict) return;
    one.verdict = verdict;
    const chips = Object.entries(verdict.verdicts).map(([name, { holds, sentence }]) => {
      const [yes, no] = own(VERDICT_WORDS, name) ?? [`${name}: yes`, `${name}: no`];
      return make("span", { class: `chip ${holds ? "holds" : "not"}`, title: sentence }, holds ? yes : no);
    });
    if (verdict.error) chips.push(make("span", { class: "chip", title: verdict.error }, "not evaluated"));
    one.verdicts.replaceChildren(...chips.flatMap((chip) => [chip, " "]));
  }

  /** Update the part of a row that may change: the names of its savepoints. */
  updateNames(one, row) {
    if (row === undefined || row === one.row || Boolean(row.error) !== Boolean(one.row.error)) return;
    one.row = row;
    setText(one.kept, (row.savepoints ?? []).join(", "));
  }

  rowOf(row, cells) {
    if (row.error) {
      const error = make("td", { colspan: this.heads().length - 1, class: "bad" }, row.error);
      return makeRow(make("th", { scope: "row", class: "mono" }, row.id), error);
    }
    return makeRow(make("a", { class: "mono", href: `#snapshot=${encodeURIComponent(row.id)}` }, row.id), ...this.cellsOf(row, cells));
  }

  cellsOf(row, { verdicts, kept }) {
    const number = (text) => make("td", { class: "number" }, text);
    kept.textContent = row.savepoints.join(", ");
    return [
      clock(row.completed_at),
      number(duration(row.duration_s)),
      number(duration(this.isPipeline ? row.published_s : row.pause_s)),
      number(row.message_count === null ? "" : count(row.message_count)),
      number(bytes(row.bytes)),
      this.isPipeline ? modeOf(row) : verdicts,
      [kept, ...(row.systems ?? []).map(({ name, store, snapshot }) => make("div", { class: "muted" }, `system ${name}: ${snapshot} in ${store}`))],
      make("td", { class: "row" }, this.compareButton(row), this.isPipeline ? null : this.keepButton(row), this.restoreButton(row)),
    ];
  }

  compareButton(row) {
    const button = make("button", { type: "button", class: "compare", value: row.id });
    button.addEventListener("click", () => {
      const first = this.first;
      this.first = first === undefined ? row.id : undefined;
      for (const each of this.body.querySelectorAll(".compare")) this.nameCompare(each);
      if (first !== undefined && first !== row.id) location.hash = String(new URLSearchParams({ first, second: row.id }));
    });
    this.nameCompare(button);
    return button;
  }

  nameCompare(button) {
    const isSecond = this.first !== undefined && this.first !== button.value;
    setText(button, isSecond ? `with ${this.first}` : "Compare …");
    button.setAttribute("aria-label", `Compare ${button.value} with ${isSecond ? this.first : "another"}`);
    button.setAttribute("aria-pressed", String(this.first === button.value));
  }

  keepButton(row) {
    const keep = async () => {
      const name = await promptForName(`Keep ${row.id}`, "It stays under this name until you delete it.");
      if (name !== null) performAction({ type: "keep", snapshot: row.id, name }, this.status, button);
    };
    const button = make("button", { type: "button", "aria-label": `Keep ${row.id} as a savepoint`, on: { click: keep } }, "Keep …");
    return button;
  }

  /** A pipeline is restored when nothing of it runs; else the page explains what to do first. */
  restoreButton(row) {
    const restore = async () => {
      const { about, system } = this.model;
      const title = `Restore the ${this.isPipeline ? "pipeline" : "system"} to ${row.id}?`;
      if (this.isPipeline && system.running.length > 0) {
        const text = `These programs are still running: ${system.running.join(", ")}. Stop them before restoring, then click Restore or run:`;
        const newest = about.newest_consistent_command;
        const other = newest ? [make("p", {}, "To restore the newest consistent point instead, run:"), make("pre", {}, newest)] : [];
        return explain(title, [make("p", {}, text), make("pre", {}, `${about.restore_command} ${row.id}`), ...other]);
      }
      const text = this.isPipeline
        ? "All queries, services and channels are restored together, and verified before anything is changed. Start the programs again afterwards."
        : "All processes and channels are restored together. Everything since is undone, except for effects outside the system.";
      if (await confirm(title, text, "Restore")) performAction({ type: "restore", snapshot: row.id }, this.status, button);
    };
    const button = make("button", { type: "button", "aria-label": `Restore ${row.id}`, on: { click: restore } }, "Restore …");
    return button;
  }

  async showOlder() {
    this.older.disabled = true;
    this.shownCount += STEP;
    try {
      // Rows in between may have been removed: continue from the lowest that is known.
      if (this.model.rows.size < this.shownCount) {
        const oldest = Math.min(...[...this.model.rows.values()].map((row) => row.number));
        const older = await fetchDocument(`/api/snapshots?before=${oldest}`);
        for (const row of older.rows) this.model.rows.set(row.id, row);
      }
    } catch (error) {
      setText(this.status, error.message);
    }
    this.older.disabled = false;
    this.redraw();
  }
}

function modeOf(row) {
  if (typeof row.staleness_s === "number") return `${row.mode}, staleness ${duration(row.staleness_s)}`;
  return row.duplicate_count > 0 ? `${row.mode}, ${counted(row.duplicate_count, "record")} twice` : row.mode;
}

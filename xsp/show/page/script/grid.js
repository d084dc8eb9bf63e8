// Grid: a packed table of a zoo in, a table that sorts and filters out, of any number of rows.
//
// Only those rows are in the document that can be seen, and some around them; rows of space above
// and below stand for the others, so that the bar of the scrolled region is that of all rows.

import { NOTHING } from "./format.js";
import { estimateOf, textOf } from "./quantity.js";

const ROW_PX = 26;
const AROUND = 12; // rows beyond those that can be seen
const MOST_CHOICES = 12; // values of a column that can be chosen from a list

export class Grid {
  constructor(state, article, packed) {
    Object.assign(this, { state, article, columns: packed.columns, arrays: packed.arrays });
    this.height = packed.height;
    this.entry = packed.arrays.entry;
    this.box = article.querySelector(".rows");
    this.table = article.querySelector("table");
    this.body = article.querySelector("tbody");
    this.heads = [...article.querySelectorAll("thead th")];
    this.count = article.querySelector(".count");
    this.counted = this.count.textContent;
    this.words = "";
    this.chosen = new Map(); // column by which rows are chosen, and the number of its text
    this.order = Uint32Array.from({ length: this.height }, (_, at) => at);
    this.found = this.order;
    this.lay();
    this.listen();
    this.filter();
  }

  /** Give columns their widths, once: rows that come later must not move them. */
  lay() {
    const group = document.createElement("colgroup");
    let sum = 0;
    this.columns.forEach((column, at) => {
      const words = this.heads[at].textContent.trim().split(" "); // headings may have two lines
      const cells = column.texts ? longest(column.texts) : column.interval ? 14 : 7;
      const width = Math.max(longest(words) + 2, words.join(" ").length / 2 + 3, cells) + 3;
      this.heads[at].classList.toggle("number", !column.texts);
      const made = document.createElement("col");
      made.style.width = `${width}ch`;
      sum += width;
      group.append(made);
    });
    this.table.prepend(group);
    this.table.style.minWidth = `${sum}ch`;
    this.table.setAttribute("aria-rowcount", this.height + 1);
    const rows = Math.min(this.height + 1.2, 17);
    this.box.style.height = `${rows * ROW_PX + 20}px`;
  }

  listen() {
    this.heads.forEach((head, at) => {
      head.querySelector("button").addEventListener("click", () => this.sort(at));
    });
    this.article.querySelector(".filter").addEventListener("input", (event) => {
      this.words = event.target.value.trim().toLowerCase();
      this.filter();
    });
    this.columns.forEach((column, at) => this.offer(column, at));
    this.box.addEventListener("scroll", () => requestAnimationFrame(() => this.draw()));
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr")?.dataset.entry;
      if (row !== undefined) this.state.select(Number(row));
    });
    this.state.on("select", () => this.show());
  }

  /** Let rows be chosen by a column that has few different texts. */
  offer(column, at) {
    if (!column.texts || column.texts.length < 2 || column.texts.length > MOST_CHOICES) return;
    if (column.texts.length >= this.height || longest(column.texts) > 30) return;
    const heading = this.heads[at].textContent.trim();
    const list = document.createElement("select");
    list.setAttribute("aria-label", `Rows of ${this.article.dataset.grid} by ${heading}`);
    list.append(new Option(`${heading}: all`, ""));
    column.texts.forEach((text, code) => list.append(new Option(text || NOTHING, code)));
    list.addEventListener("change", () => {
      if (list.value === "") this.chosen.delete(column.name);
      else this.chosen.set(column.name, Number(list.value));
      this.filter();
    });
    this.article.querySelector(".choices").append(list);
  }

  /** Sort by a column: numbers from the largest, texts from A; the other way the second time. */
  sort(at) {
    const [head, column] = [this.heads[at], this.columns[at]];
    const before = head.getAttribute("aria-sort");
    const falls = before === "none" ? !column.texts : before === "ascending";
    for (const other of this.heads) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", falls ? "descending" : "ascending");
    const keys = column.texts ? this.ranks(column) : this.arrays[column.name];
    const sign = falls ? -1 : 1;
    // Rows of equal value keep the order that they had; those without one come last.
    this.order = this.order.slice().sort((one, other) => {
      const [a, b] = [keys[one], keys[other]];
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
      return sign * (a - b);
    });
    this.filter();
  }

  /** Return the place in the alphabet of each row's text; NaN for none. */
  ranks(column) {
    const collator = new Intl.Collator("en", { numeric: true });
    const sorted = column.texts.map((_, code) => code);
    sorted.sort((one, other) => collator.compare(column.texts[one], column.texts[other]));
    const rank = new Float64Array(sorted.length);
    sorted.forEach((code, place) => (rank[code] = column.texts[code] === "" ? NaN : place));
    return Float64Array.from(this.arrays[column.name], (code) => rank[code]);
  }

  filter() {
    const tests = this.words ? this.words.split(/\s+/).map((word) => this.matching(word)) : [];
    for (const [name, code] of this.chosen) {
      const codes = this.arrays[name];
      tests.push((row) => codes[row] === code);
    }
    this.found = this.order.filter((row) => tests.every((test) => test(row)));
    const number = this.found.length.toLocaleString("en");
    this.count.textContent = tests.length ? `${number} of ${this.counted}` : this.counted;
    this.box.scrollTop = 0;
    this.draw();
  }

  /** Return whether a word is in one of a row's texts; each different text is looked at once. */
  matching(word) {
    const fitting = this.columns
      .filter((column) => column.texts)
      .map(({ name, texts }) => [
        this.arrays[name],
        texts.map((text) => text.toLowerCase().includes(word)),
      ]);
    return (row) => fitting.some(([codes, fits]) => fits[codes[row]]);
  }

  draw() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW_PX) - AROUND);
    const seen = Math.ceil(this.box.clientHeight / ROW_PX) + 2 * AROUND;
    const last = Math.min(this.found.length, first + seen);
    const rows = [];
    for (let place = first; place < last; place += 1) rows.push(this.row(place));
    this.body.replaceChildren(space(first), ...rows, space(this.found.length - last));
  }

  row(place) {
    const at = this.found[place];
    const made = document.createElement("tr");
    made.dataset.entry = this.entry[at];
    made.setAttribute("aria-rowindex", place + 2);
    if (this.entry[at] === this.state.selected) {
      made.className = "chosen";
      made.setAttribute("aria-selected", "true");
    }
    this.columns.forEach((column, number) => {
      const cell = made.insertCell();
      const text = this.text(column, at);
      if (!column.texts) cell.className = "number";
      cell.title = text;
      if (number === 0) cell.append(link(text));
      else cell.textContent = text;
    });
    return made;
  }

  text({ name, texts, whole, interval }, at) {
    const values = this.arrays[name];
    if (texts) return texts[values[at]] || NOTHING;
    if (!interval) return textOf(name, values[at], whole);
    const [low, high] = ["low", "high"].map((end) => this.arrays[`${name}.${end}`][at]);
    return estimateOf(name, values[at], low, high);
  }

  /** Draw anew with the selected entry marked, and scroll to it where it cannot be seen. */
  show() {
    const place = this.found.findIndex((row) => this.entry[row] === this.state.selected);
    const from = place * ROW_PX;
    const { scrollTop, clientHeight } = this.box;
    const hidden = from < scrollTop || from > scrollTop + clientHeight - 2.5 * ROW_PX;
    if (place >= 0 && hidden) this.box.scrollTop = from - clientHeight / 2;
    this.draw();
  }
}

function longest(texts) {
  return Math.min(40, texts.reduce((most, text) => Math.max(most, text.length), 0));
}

function link(text) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "link";
  made.textContent = text;
  return made;
}

/** Return a row that stands for so many rows. */
function space(rows) {
  const made = document.createElement("tr");
  made.className = "space";
  made.setAttribute("aria-hidden", "true");
  made.style.height = `${rows * ROW_PX}px`;
  return made;
}

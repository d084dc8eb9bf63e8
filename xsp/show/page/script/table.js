// Table: the tables of analyses in, tables that sort, filter, and are linked with the views out.

const LONGEST_PATH = 44;
const SHOWN = 50; // rows at first, as in xsp.show.page.table

/** A table of an analysis on the page. */
class Table {
  constructor(state, article, payload) {
    Object.assign(this, { state, article, ...payload });
    this.trace = Number(article.dataset.scope) || 0; // of a comparison the first
    this.link = Number(article.dataset.link);
    this.body = article.querySelector("tbody");
    this.heads = [...article.querySelectorAll("th")];
    this.more = article.querySelector(".more");
    this.count = article.querySelector(".count");
    this.order = this.texts.map((_, at) => at);
    this.wanted = "";
    this.all = false;
    this.ofSpan = new Map();
    this.spans.forEach((row, at) => row >= 0 && !this.ofSpan.has(row) && this.ofSpan.set(row, at));
    this.listen();
    this.draw();
  }

  listen() {
    this.heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => this.sort(column));
    });
    this.article.querySelector(".filter")?.addEventListener("input", (event) => {
      this.wanted = event.target.value.trim().toLowerCase();
      this.draw();
    });
    this.article.querySelector(".all")?.addEventListener("click", () => {
      this.all = true;
      this.draw();
    });
    this.body.addEventListener("click", (event) => {
      const at = event.target.closest("tr")?.dataset.at;
      if (at !== undefined && this.spans[at] >= 0) this.state.choose(this.trace, this.spans[at]);
    });
    this.state.on("select", () => this.mark());
  }

  /** Sort by a column: numbers from the largest, texts from A; the other way the second time. */
  sort(column) {
    const head = this.heads[column];
    const values = this.values[column];
    const numeric = values.length > 0;
    const before = head.getAttribute("aria-sort");
    const falls = before === "none" ? numeric : before === "ascending";
    for (const other of this.heads) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", falls ? "descending" : "ascending");
    const sign = falls ? -1 : 1;
    const text = (at) => this.texts[at][column];
    this.order.sort((one, other) => {
      if (!numeric) return sign * text(one).localeCompare(text(other), "en", { numeric: true });
      return compare(values[one], values[other], sign);
    });
    this.draw();
  }

  draw() {
    const fits = (at) => this.texts[at].some((text) => text.toLowerCase().includes(this.wanted));
    const found = this.wanted ? this.order.filter(fits) : this.order;
    const shown = this.all ? found : found.slice(0, SHOWN);
    this.body.replaceChildren(...shown.map((at) => this.row(at)));
    this.more.hidden = this.all || this.wanted !== "" || shown.length === found.length;
    this.counted ??= this.count.textContent;
    const fitting = `${found.length.toLocaleString("en")} of ${this.counted}`;
    this.count.textContent = this.wanted ? fitting : this.counted;
    this.mark();
  }

  row(at) {
    const row = document.createElement("tr");
    row.dataset.at = at;
    const linked = this.spans[at] >= 0;
    row.classList.toggle("spans", linked);
    this.texts[at].forEach((text, column) => {
      const cell = row.insertCell();
      cell.className = this.heads[column].className;
      cell.title = text;
      const said = cell.className === "path" ? ending(text) : text;
      if (linked && column === this.link) cell.append(button(said));
      else cell.textContent = said;
    });
    return row;
  }

  /** Mark the row of the selected span, or of the innermost one around it that has a row. */
  mark() {
    for (const row of this.body.querySelectorAll(".extra")) row.remove();
    for (const row of this.body.querySelectorAll(".chosen")) row.classList.remove("chosen");
    const { spans, selected, trace } = this.state;
    if (selected === null || trace !== this.trace) return;
    let row = selected;
    while (row >= 0 && !this.ofSpan.has(row)) row = spans.parent[row];
    if (row >= 0) this.choose(this.ofSpan.get(row));
  }

  /** Mark a row and scroll the table to it; a row that is not shown comes after those that are. */
  choose(at) {
    let chosen = this.body.querySelector(`[data-at="${at}"]`);
    if (!chosen) {
      chosen = this.row(at);
      chosen.classList.add("extra");
      this.body.append(chosen);
    }
    chosen.classList.add("chosen");
    const box = this.article.querySelector(".scroll");
    box.scrollTop = chosen.offsetTop - box.clientHeight / 2;
  }
}

function compare(one, other, sign) {
  if (one === null || other === null) return (one === null) - (other === null);
  return sign * (one - other);
}

/** Return the end of a path, of which the end says most. */
function ending(text) {
  return text.length > LONGEST_PATH ? `…${text.slice(1 - LONGEST_PATH)}` : text;
}

function button(text) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "link";
  made.textContent = text || "(whole model)"; // the root's path within the model is empty
  return made;
}

/** Bring the tables of a trace, or of the comparison, to life. */
export function startTables(state, scope, tables) {
  for (const article of document.querySelectorAll(`.answer[data-scope="${scope}"]`)) {
    new Table(state, article, tables[article.dataset.table]);
  }
}

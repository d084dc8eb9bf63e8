// State: what is selected, found and shown; views change it, and hear of changes by events.
//
// Events: `trace` (another trace is shown), `select` (another span is selected), `found` (other
// spans are found by a search), `zoom` (views show the selected span, or all), `theme`.

export class State extends EventTarget {
  constructor() {
    super();
    this.spans = null;
    this.trace = 0;
    this.selected = null;
    this.last = new Map(); // the span that was selected last, of each trace
    this.found = null; // a Set of rows, null where nothing is searched for
  }

  /** Show a trace, with what was selected in it last: at first its root. */
  show(trace, spans) {
    Object.assign(this, { trace, spans, selected: this.last.get(trace) ?? 0, found: null });
    this.tell("trace");
    this.tell("select");
  }

  select(row) {
    if (row === null || row < 0 || row === this.selected) return;
    this.selected = row;
    this.last.set(this.trace, row);
    this.tell("select");
  }

  /** Select a span of a trace, which may have to be shown first. */
  async choose(trace, row) {
    if (trace !== this.trace) await this.open(trace);
    this.select(row);
  }

  find(rows) {
    this.found = rows === null ? null : new Set(rows);
    this.tell("found");
  }

  zoom(row) {
    this.dispatchEvent(new CustomEvent("zoom", { detail: row }));
  }

  tell(what) {
    this.dispatchEvent(new Event(what));
  }

  on(what, listener) {
    for (const one of what.split(" ")) this.addEventListener(one, listener);
  }
}

// Panel: the selected span in, its numbers, attributes and the largest spans inside out.

import { duration, estimate, percent } from "./format.js";

const LARGEST = 6;

/** Keep the panel and the way from the root up to date. */
export function startPanel(state) {
  const panel = document.getElementById("selected");
  const crumbs = document.getElementById("crumbs");
  state.on("select", async () => {
    const { spans, selected } = state;
    crumbs.replaceChildren(...trail(state));
    panel.replaceChildren(...head(spans, selected), numbers(spans, selected), ...inside(state));
    const attributes = await spans.attributesOf(selected);
    // Another span may have been selected by now, of this trace or of another.
    const still = state.spans === spans && state.selected === selected;
    if (still && attributes.length) {
      panel.append(element("h4", "Attributes"), rows(attributes));
    }
  });
}

function trail(state) {
  return state.spans.lineage(state.selected).flatMap((row, at) => {
    const step = link(state, row);
    return at ? [element("span", "›"), step] : [step];
  });
}

function head(spans, row) {
  const kind = element("div", "", "kind");
  const mark = document.createElement("i");
  mark.style.background = `var(--${spans.kindOf(row)})`;
  kind.append(mark, `${spans.wordsOf(row)} on ${spans.lanes[spans.lane[row]].name}`);
  return [element("h3", spans.nameOf(row)), kind];
}

function numbers(spans, row) {
  const latency = spans.latency_ns[row];
  const told = [
    ["latency", estimate(latency, spans.latency_low_ns[row], spans.latency_high_ns[row])],
    ["of the whole", percent(latency / spans.latency_ns[0])],
    ["self time", duration(spans.self_ns[row])],
    ["on devices", duration(spans.device_ns[row])],
    // Below 0, by noise: nothing was removed.
    ["overhead removed", spans.overhead_ns[row] > 0 ? duration(spans.overhead_ns[row]) : ""],
    ["begins at", duration(spans.start_ns[row])],
    ["steps", spans.runs[row].toLocaleString("en")],
    ["not exact", spans.inexactly(row).join(", ")],
  ];
  return rows(told.filter(([, text]) => text && text !== "—"));
}

function inside(state) {
  const { spans, selected } = state;
  const children = [...spans.childrenOf(selected)];
  if (!children.length) return [];
  const size = (row) => spans.latency_ns[row] || 0;
  children.sort((one, other) => size(other) - size(one));
  const list = element("div", "", "inside");
  for (const row of children.slice(0, LARGEST)) {
    list.append(link(state, row), element("span", duration(spans.latency_ns[row]), "number"));
  }
  const more = children.length - LARGEST;
  const heading = more > 0 ? `Inside: the largest of ${children.length}` : "Inside";
  return [element("h4", heading), list];
}

function link(state, row) {
  const button = element("button", state.spans.nameOf(row), "link");
  button.type = "button";
  button.title = state.spans.nameOf(row);
  button.addEventListener("click", () => state.select(row));
  return button;
}

function rows(pairs) {
  const table = document.createElement("table");
  for (const [name, text] of pairs) {
    const row = table.insertRow();
    row.insertCell().textContent = name.replaceAll("_", " ");
    row.insertCell().textContent = text;
  }
  return table;
}

function element(name, text, style = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (style) made.className = style;
  return made;
}

// Plot: items of Bokeh in, plots on the page out, whose marks select spans or models.

import { theme } from "./theme.js";

/** Embed a Bokeh item in an element and return its figure. */
export async function embed(item, element) {
  const views = await globalThis.Bokeh.embed.embed_item(item, element);
  const [root] = [...views];
  return root.model;
}

/**
 * Embed the plots of a trace, or of the comparison, each when it comes into sight.
 *
 * The browser draws the others when it has nothing else to do, so that a printed page has them.
 * Sources that have a column named by the last argument are tied to the selection by its function.
 */
export function startPlots(state, scope, plots, tied = ["span", tie]) {
  const ahead = { rootMargin: "400px" };
  const left = new Set();
  const begin = (place) => {
    seen.unobserve(place);
    if (left.delete(place)) draw(state, scope, plots[place.dataset.plot], place, tied);
  };
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) begin(target);
  }, ahead);
  for (const place of document.querySelectorAll(`.answer[data-scope="${scope}"] .plot`)) {
    place.hidden = !(place.dataset.plot in plots);
    if (place.hidden) continue;
    // So that nothing moves when the plot comes.
    place.style.minHeight = `${heightOf(plots[place.dataset.plot].doc.roots[0])}px`;
    left.add(place);
    seen.observe(place);
  }
  whenIdle(left, begin);
}

/** Begin with one after the other of the places that are left and not hidden. */
function whenIdle(left, begin) {
  requestIdleCallback(() => {
    const next = [...left].find((place) => place.offsetParent !== null);
    if (!next) return;
    begin(next);
    whenIdle(left, begin);
  });
}

/** Return the height of a figure, or of several below each other, before they are drawn. */
function heightOf({ attributes }) {
  const parts = attributes.children ?? [];
  return attributes.height ?? parts.reduce((sum, part) => sum + heightOf(part), 0);
}

async function draw(state, scope, item, place, [column, tieTo]) {
  const figure = await embed(item, place);
  const pairs = JSON.parse(document.getElementById("pairs").textContent);
  const colors = () => globalThis.xspTheme(figure.document, theme(), pairs);
  state.on("theme", colors);
  colors();
  for (const source of figure.references()) {
    if (source.type === "ColumnDataSource" && source.data[column]) tieTo(state, scope, source);
  }
}

/** Let a click on a mark select its span, and a selected span mark its mark. */
function tie(state, scope, source) {
  const trace = Number(scope) || 0;
  const rows = [...source.data.span];
  const follow = () => {
    const { spans, selected } = state;
    let row = state.trace === trace && selected !== null ? selected : -1;
    while (row >= 0 && !rows.includes(row)) row = spans.parent[row];
    source.selected.indices = row > 0 ? [rows.indexOf(row)] : [];
  };
  let following = false;
  const told = () => {
    const [at] = source.selected.indices;
    if (!following && at !== undefined && rows[at] >= 0) state.choose(trace, rows[at]);
  };
  source.selected.on_change(source.selected.properties.indices, told);
  state.on("select", () => {
    following = true;
    follow();
    following = false;
  });
}

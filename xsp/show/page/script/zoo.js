// Zoo: the page on a zoo in, its tables and pictures brought to life out.

import { Grid } from "./grid.js";
import { startPlots } from "./plot.js";
import { State } from "./state.js";
import { startTheme } from "./theme.js";
import { unpack } from "./unpack.js";

const zooState = new State();

/** Let a click on a mark select its model, and a selected model mark its marks. */
function tieEntries(state, scope, source) {
  const entries = [...source.data.entry];
  let following = false;
  const follow = () => {
    following = true;
    const marked = entries.flatMap((entry, at) => (entry === state.selected ? [at] : []));
    source.selected.indices = marked;
    following = false;
  };
  const told = () => {
    const [at] = source.selected.indices;
    if (!following && at !== undefined) state.select(entries[at]);
  };
  source.selected.on_change(source.selected.properties.indices, told);
  state.on("select", follow);
  follow();
}

/** Say which model is selected in the bar, and let go of it by a key. */
function startSelected(grid) {
  const said = document.getElementById("selected-model");
  const [model] = grid.columns;
  zooState.on("select", () => {
    const at = grid.entry.indexOf(zooState.selected);
    said.textContent = at < 0 ? "" : `${model.texts[grid.arrays[model.name][at]]} · Esc`;
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || zooState.selected === null) return;
    zooState.selected = null;
    zooState.tell("select");
  });
}

async function startZoo() {
  startTheme(zooState);
  const { grids, plots } = JSON.parse(document.getElementById("zoo").textContent);
  for (const article of document.querySelectorAll("[data-grid]")) {
    const name = article.dataset.grid;
    const grid = new Grid(zooState, article, await unpack(grids[name]));
    if (name === "models") startSelected(grid);
  }
  startPlots(zooState, "zoo", plots, ["entry", tieEntries]);
  document.documentElement.dataset.ready = "yes";
}

startZoo();

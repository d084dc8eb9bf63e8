// Main: the page in, everything on it brought to life out.

import { startKeyboard } from "./keyboard.js";
import { startPanel } from "./panel.js";
import { Icicle, Timeline } from "./hierarchy.js";
import { embed, startPlots } from "./plot.js";
import { startSearch } from "./search.js";
import { Spans } from "./spans.js";
import { State } from "./state.js";
import { startTables } from "./table.js";
import { startTheme } from "./theme.js";
import { unpack } from "./unpack.js";

const state = new State();
const chapters = new Map();

const json = (id) => JSON.parse(document.getElementById(id).textContent);

/** Return the spans of a trace; its tables come to life when it is first shown. */
async function chapter(trace) {
  if (!chapters.has(trace)) {
    const packed = json(`trace-${trace}`);
    chapters.set(trace, new Spans(await unpack(packed.spans), packed.attributes));
    await answers(trace, packed);
  }
  return chapters.get(trace);
}

/** Bring the tables and plots of a trace, or of the comparison, to life. */
async function answers(scope, { tables, plots }) {
  startTables(state, scope, (await unpack(tables)).tables);
  startPlots(state, scope, plots);
}

async function show(trace) {
  const spans = await chapter(trace);
  for (const part of document.querySelectorAll(".of-trace")) {
    part.hidden = Number(part.dataset.trace) !== trace;
  }
  state.show(trace, spans);
  legend(spans);
}

function legend(spans) {
  const present = new Set(spans.kind);
  const list = document.querySelector(".legend.kinds");
  list.replaceChildren(
    ...[...present].sort().map((kind) => {
      const item = document.createElement("li");
      const mark = document.createElement("i");
      mark.style.background = `var(--${spans.kinds[kind]})`;
      item.append(mark, spans.words[kind]);
      return item;
    }),
  );
}

function zoomButtons(view, name) {
  const place = document.querySelector(`.buttons[data-view="${name}"]`);
  const buttons = [
    ["+", "Zoom in", () => view.magnify(2)],
    ["−", "Zoom out", () => view.magnify(0.5)],
    ["all", "Show all of it", () => view.zoomTo(null)],
  ];
  for (const [text, label, action] of buttons) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.setAttribute("aria-label", label);
    made.addEventListener("click", action);
    place.append(made);
  }
}

function startChoice() {
  const choice = document.getElementById("traces");
  state.open = async (trace) => {
    if (choice) choice.value = trace;
    await show(trace);
  };
  choice?.addEventListener("change", () => show(Number(choice.value)));
  for (const button of document.querySelectorAll("[data-open]")) {
    button.addEventListener("click", () => state.open(Number(button.dataset.open)));
  }
}

async function view(Kind, name) {
  const host = document.getElementById(name);
  const made = new Kind(state, await embed(json("views")[name], host), host);
  zoomButtons(made, name);
  return made;
}

async function start() {
  startTheme(state);
  startPanel(state);
  startChoice();
  const search = startSearch(state, await chapter(0));
  const icicle = await view(Icicle, "icicle");
  await view(Timeline, "timeline");
  if (document.getElementById("comparison")) {
    await answers("comparison", json("comparison-data"));
  }
  startKeyboard(state, icicle, search);
  await show(0);
  document.documentElement.dataset.ready = "yes";
}

start();

// Keyboard: keys in, the selection moved, views zoomed, the search begun out.

const TYPING = "input, select, textarea";

/** Let keys move the selection in the icicle, and search. */
export function startKeyboard(state, icicle, search) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches(TYPING);
    if (event.key === "/" && !typing) {
      event.preventDefault();
      search.focus();
    } else if (event.key === "Escape") {
      search.clear();
      state.zoom(null);
      if (typing) event.target.blur();
    } else if (event.target.closest(".canvas")) {
      inView(state, icicle, event);
    }
  });
}

function inView(state, icicle, event) {
  const moves = {
    ArrowUp: () => state.spans.parent[state.selected],
    ArrowDown: () => icicle.childrenOf(state.selected)[0],
    ArrowLeft: () => beside(state, icicle, -1),
    ArrowRight: () => beside(state, icicle, 1),
    Enter: () => state.zoom(state.selected),
    "+": () => icicle.magnify(1.5),
    "-": () => icicle.magnify(1 / 1.5),
  };
  if (!(event.key in moves)) return;
  event.preventDefault();
  if (state.selected === null) {
    state.select(0);
    return;
  }
  const to = moves[event.key]();
  if (to !== undefined) state.select(to);
}

function beside(state, icicle, step) {
  const above = state.spans.parent[state.selected];
  if (above < 0) return undefined;
  const rows = icicle.childrenOf(above);
  return rows[rows.indexOf(state.selected) + step];
}

// Search: a text in, the spans of that name found in all views out.

const WAIT_MS = 120;

/** Let the search box find spans. */
export function startSearch(state) {
  const box = document.getElementById("search");
  const said = document.getElementById("found");
  const steps = { "previous-match": -1, "next-match": 1 };
  let rows = [];
  let at = -1;
  let waiting = 0;

  const go = (step) => {
    if (!rows.length) return;
    at = (at + step + rows.length) % rows.length;
    said.textContent = `${at + 1} of ${rows.length.toLocaleString("en")}`;
    state.select(rows[at]);
    bringIntoSight();
  };
  const find = () => {
    const text = box.value.trim();
    rows = text ? state.spans.matching(text) : [];
    at = -1;
    const number = rows.length ? rows.length.toLocaleString("en") : "nothing";
    said.textContent = text ? `${number} found` : "";
    for (const id of Object.keys(steps)) document.getElementById(id).disabled = !rows.length;
    state.find(text ? rows : null);
  };
  box.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(find, WAIT_MS);
  });
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    clearTimeout(waiting);
    if (at < 0) find();
    go(event.shiftKey ? -1 : 1);
  });
  for (const [id, step] of Object.entries(steps)) {
    document.getElementById(id).addEventListener("click", () => go(step));
  }
  state.on("trace", find);
  return {
    focus: () => box.select() ?? box.focus(),
    clear: () => {
      box.value = "";
      find();
    },
  };
}

/** Scroll to the hierarchy, where what was found is marked, unless all of it is in sight. */
function bringIntoSight() {
  const { top, bottom } = document.getElementById("icicle").getBoundingClientRect();
  const bar = document.querySelector(".bar").getBoundingClientRect();
  if (top >= bar.bottom && bottom <= innerHeight) return;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const behavior = still ? "instant" : "smooth";
  document.getElementById("hierarchy").scrollIntoView({ block: "start", behavior });
}

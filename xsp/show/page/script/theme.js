// Theme: light or dark, as the system has it or the reader chose; colors by name.

const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");

/** Follow the system until the reader chooses by the switch. */
export function startTheme(state) {
  const set = (dark) => {
    root.dataset.theme = dark ? "dark" : "light";
    state.tell("theme");
  };
  let chosen = false;
  set(system.matches);
  system.addEventListener("change", () => chosen || set(system.matches));
  document.getElementById("theme").addEventListener("click", () => {
    chosen = true;
    set(root.dataset.theme === "light");
  });
}

/** Return the page's theme, `light` or `dark`. */
export function theme() {
  return root.dataset.theme;
}

/** Return a color of the page by the name of its CSS variable. */
export function color(name) {
  return getComputedStyle(root).getPropertyValue(`--${name}`).trim();
}

/** Return black or white, whichever is read better on a color `#rrggbb`. */
export function inkOn(hex) {
  const part = (at) => {
    const channel = parseInt(hex.slice(at, at + 2), 16) / 255;
    return channel <= 0.04045 ? channel / 12.92 : ((channel + 0.055) / 1.055) ** 2.4;
  };
  const luminance = 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
  return luminance > 0.179 ? "#000000" : "#ffffff";
}

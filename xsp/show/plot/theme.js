// Themes: a document of BokehJS in, the same document in the colors of a light or dark page out.
// The figures are of xsp.plot, whose light colors each have a dark counterpart.

/**
 * Give all figures of a document the colors of a page.
 *
 * @param {object} document A document of `Bokeh.documents`.
 * @param {"light"|"dark"} theme The page's theme.
 * @param {Object<string, string>} pairs Dark color of each light one, as `xsp.plot.PAIRS`.
 */
function xspTheme(document, theme, pairs) {
  const exchange = xspExchange(theme === "dark" ? pairs : xspInverse(pairs));
  for (const root of document.roots()) {
    const dark = root.tags.includes("dark");
    if (dark === (theme === "dark")) continue;
    root.references().forEach((model) => xspRecolor(model, exchange));
    root.tags = root.tags.filter((tag) => tag !== "dark").concat(dark ? [] : ["dark"]);
  }
}

function xspInverse(pairs) {
  return Object.fromEntries(Object.entries(pairs).map(([light, dark]) => [dark, light]));
}

function xspExchange(pairs) {
  const one = (value) => (typeof value === "string" && value in pairs ? pairs[value] : value);
  return (value) => {
    if (value !== null && typeof value === "object" && typeof value.value === "string") {
      return { ...value, value: one(value.value) };
    }
    return one(value);
  };
}

function xspRecolor(model, exchange) {
  if (model.type === "ColumnDataSource") {
    const { color } = model.data;
    if (color !== undefined) model.data = { ...model.data, color: [...color].map(exchange) };
    return;
  }
  const changed = {};
  for (const property of model) {
    const name = property.attr;
    if (!name.includes("color")) continue;
    const value = property.get_value();
    const other = exchange(value);
    if (JSON.stringify(other) !== JSON.stringify(value)) changed[name] = other;
  }
  model.setv(changed);
}

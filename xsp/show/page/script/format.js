// Format: numbers in, texts for people out, as xsp.text writes them.

const UNITS = [
  [1e9, "s"],
  [1e6, "ms"],
  [1e3, "µs"],
  [1, "ns"],
];
export const NOTHING = "—";

/** Return a duration with three significant digits, in the unit that suits its size. */
export function duration(nanoseconds) {
  if (!Number.isFinite(nanoseconds)) return NOTHING;
  const [scale, unit] = unitOf(nanoseconds);
  return `${digits(nanoseconds / scale)} ${unit}`;
}

/** Return size and name of the unit that suits a duration. */
export function unitOf(nanoseconds) {
  const size = Math.abs(nanoseconds);
  if (size === 0) return UNITS[3];
  return UNITS.find(([scale]) => size >= 0.9995 * scale) ?? UNITS[3];
}

function digits(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 99.95) return Math.round(value).toLocaleString("en");
  return value.toFixed(size >= 9.995 ? 1 : 2);
}

/** Return a duration with the reach of its interval, as xsp.analyses.estimate_of does. */
export function estimate(value, low, high) {
  const reach = Math.max(high - value, value - low);
  if (!Number.isFinite(reach) || reach === 0) return duration(value);
  if (Math.abs(value) > reach) {
    return `${duration(value)} ± ${Number(((100 * reach) / Math.abs(value)).toPrecision(2))} %`;
  }
  return low < 0 ? `${duration(value)} ± ${duration(reach)}` : `< ${duration(high)}`;
}

/** Return a fraction as a percentage with one decimal. */
export function percent(part) {
  if (!Number.isFinite(part)) return NOTHING;
  if (part > 0 && part < 0.0005) return "<0.1 %";
  return `${(100 * part).toFixed(1)} %`;
}

/** Return a number with its noun. */
export function counted(number, singular) {
  return `${number.toLocaleString("en")} ${singular}${number === 1 ? "" : "s"}`;
}

/** Return text of at most `width` characters, with an ellipsis at its end. */
export function shorten(text, width) {
  if (text.length <= width) return text;
  return width < 3 ? "" : `${text.slice(0, width - 1)}…`;
}

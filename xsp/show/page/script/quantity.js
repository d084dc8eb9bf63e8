// Quantity: a column's name and a number in, a text for people out, as xsp.analyses.text_of does.

import { duration, NOTHING } from "./format.js";

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB"];
const DECIMAL = ["", "k", "M", "G", "T", "P"];

/** Return a value in the unit that suits its size; `whole` says that a count is meant. */
export function textOf(column, value, whole) {
  if (!Number.isFinite(value)) return NOTHING;
  const ends = (...suffixes) => suffixes.some((suffix) => column.endsWith(suffix));
  if (ends("_pct")) return value > 0 && value < 0.05 ? "<0.1" : grouped(value, 1);
  if (ends("_ns")) return duration(value);
  const rate = ends("_per_s") ? "/s" : "";
  if (ends("_bytes", "_bytes_per_s")) return scaled(value, 1024, BINARY) + rate;
  if (ends("flops", "_per_s")) return scaled(value, 1000, DECIMAL) + rate;
  if (whole) return grouped(value, 0);
  return Math.abs(value) < 1000 ? String(Number(value.toPrecision(3))) : grouped(value, 0);
}

/** Return a value with the reach of its interval, as xsp.analyses.estimate_of does. */
export function estimateOf(column, value, low, high) {
  const text = textOf(column, value, false);
  const reach = Math.max(high - value, value - low);
  if (!Number.isFinite(reach)) return text;
  if (Math.abs(value) <= reach) return `< ${textOf(column, high, false)}`;
  const part = (100 * reach) / Math.abs(value);
  return reach === 0 ? text : `${text} ± ${part < 99.5 ? Number(part.toPrecision(2)) : 100} %`;
}

function grouped(value, decimals) {
  const digits = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
  return value.toLocaleString("en", digits);
}

function scaled(value, base, units) {
  let power = 0;
  let rest = value;
  while (power + 1 < units.length && Math.abs(rest) >= base * 0.9995) {
    rest /= base;
    power += 1;
  }
  if (!power && Number.isInteger(rest)) return `${rest} ${units[0]}`.trimEnd();
  const size = Math.abs(Number(rest.toPrecision(3)));
  const decimals = size ? Math.max(0, 2 - Math.floor(Math.log10(size))) : 0;
  return `${rest.toFixed(decimals)} ${units[power]}`.trimEnd();
}

// Layout: spans in, the place of each one's box out; and of these boxes those that can be seen.
//
// A layout has `left`, `right` and `line` (the line that the box lies in, -1 for none) of each
// span, and for each line its spans from left to right.

const THIN = 1.5; // pixels: boxes that are narrower are drawn as one with their neighbors

/** Return the icicle: the root has the width 1, the spans inside lie below, side by side. */
export function icicle(spans, weight) {
  const weights = weight === "device" ? deviceWeights(spans) : hostWeights(spans);
  const inside = new Float64Array(spans.count);
  for (let row = 1; row < spans.count; row += 1) inside[spans.parent[row]] += weights[row];
  const places = empty(spans.count);
  const next = new Float64Array(spans.count);
  places.right[0] = 1;
  places.line[0] = 0;
  for (let row = 1; row < spans.count; row += 1) {
    const above = spans.parent[row];
    if (!(weights[row] > 0) || places.line[above] < 0) continue;
    // Where the spans inside take longer than the one around them, they are drawn narrower.
    const room = places.right[above] - places.left[above];
    const scale = room / Math.max(weights[above], inside[above]);
    places.left[row] = places.left[above] + next[above];
    next[above] += weights[row] * scale;
    places.right[row] = places.left[above] + next[above];
    places.line[row] = places.line[above] + 1;
  }
  return withLines(places);
}

function hostWeights(spans) {
  const all = spans.lanes.every((lane) => lane.device);
  const weights = Float64Array.from(spans.latency_ns, (value) => value || 0);
  if (!all) weights.forEach((_, row) => row > 0 && spans.onDevice(row) && (weights[row] = 0));
  return weights;
}

/** Return the time at work on devices below each span; a launch is its kernel's, once. */
function deviceWeights(spans) {
  const weights = Float64Array.from(spans.device_ns, (value) => value || 0);
  for (let row = 1; row < spans.count; row += 1) {
    if (spans.kindOf(row) === "launch" && !spans.childrenOf(row).length) weights[row] = 0;
  }
  return weights;
}

/** Return the timeline: a line for each depth of each thread and stream, in ns from the start. */
export function timeline(spans) {
  const places = empty(spans.count);
  const depth = new Int32Array(spans.count);
  const depths = new Int32Array(spans.lanes.length).fill(-1);
  for (let row = 0; row < spans.count; row += 1) {
    const above = spans.parent[row];
    const nested = above >= 0 && spans.lane[above] === spans.lane[row];
    depth[row] = nested ? depth[above] + 1 : 0;
    depths[spans.lane[row]] = Math.max(depths[spans.lane[row]], depth[row]);
  }
  const first = [];
  let lines = 0;
  depths.forEach((deepest, lane) => {
    first[lane] = lines;
    lines += deepest + 2; // an empty line below each
  });
  for (let row = 0; row < spans.count; row += 1) {
    places.left[row] = spans.start_ns[row];
    places.right[row] = spans.end_ns[row];
    places.line[row] = first[spans.lane[row]] + depth[row];
  }
  const laid = withLines(places);
  laid.lanes = first.map((line, lane) => ({ line, lines: depths[lane] + 1 }));
  return laid;
}

function empty(count) {
  const left = new Float64Array(count);
  return { left, right: new Float64Array(count), line: new Int32Array(count).fill(-1) };
}

function withLines(places) {
  const lines = [];
  for (let row = 0; row < places.line.length; row += 1) {
    const line = places.line[row];
    if (line >= 0) (lines[line] ??= []).push(row);
  }
  for (let line = 0; line < lines.length; line += 1) {
    const rows = (lines[line] ??= []);
    const sorted = rows.every((row, at) => !at || places.left[rows[at - 1]] <= places.left[row]);
    if (!sorted) rows.sort((one, other) => places.left[one] - places.left[other]);
  }
  return { ...places, lines };
}

/** Return the boxes that can be seen: `rows` of spans, several where they are too thin. */
export function visible(places, from, to, pixels) {
  const thin = ((to - from) / Math.max(pixels, 1)) * THIN;
  const boxes = [];
  for (const rows of places.lines) {
    let last = null; // the thin box that grows
    for (let at = firstAfter(rows, places.right, from); at < rows.length; at += 1) {
      const row = rows[at];
      const [left, right] = [places.left[row], places.right[row]];
      if (left > to) break;
      const narrow = right - left < thin;
      if (narrow && last && left - last.right < thin) {
        last.right = Math.max(last.right, right);
        last.rows.push(row);
        continue;
      }
      const box = { left, right, line: places.line[row], rows: [row] };
      last = narrow ? box : null;
      boxes.push(box);
    }
  }
  return boxes;
}

/** Return the span whose box has a place in it, or null. */
export function boxAt(places, line, at, reach) {
  const rows = places.lines[line] ?? [];
  let best = null;
  for (let index = firstAfter(rows, places.right, at - reach); index < rows.length; index += 1) {
    const row = rows[index];
    if (places.left[row] > at + reach) break;
    if (places.left[row] <= at && at <= places.right[row]) return row;
    best = row;
  }
  return best;
}

/** Return the first of the sorted rows that does not end before a place. */
function firstAfter(rows, right, place) {
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (right[rows[middle]] < place) low = middle + 1;
    else high = middle;
  }
  return low;
}

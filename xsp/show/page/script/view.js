// View: a layout and an empty Bokeh figure in, boxes that can be zoomed, moved and clicked out.

import { counted, duration, percent, shorten } from "./format.js";
import { boxAt, visible } from "./layout.js";
import { color, inkOn } from "./theme.js";

const LETTER = 6.7; // pixels that a letter of a label takes
const REACH = 3; // pixels beside a box that still hit it
const FRAME = 1.5; // half the width of the frame around what is selected
const MOST_ZOOM = 1e7;

/** One figure of boxes; subclasses say where the boxes lie and how high a line is. */
export class View {
  constructor(state, figure, host, lineHeight) {
    Object.assign(this, { state, figure, host, lineHeight });
    [this.boxes, this.labels, this.marks] = figure.renderers.map((one) => one.data_source);
    this.drawn = [];
    const later = () => this.drawSoon();
    const { start, end } = figure.x_range.properties;
    figure.on_change([start, end, figure.properties.inner_width], later);
    figure.on_event("tap", (event) => this.tapped(event));
    figure.on_event("doubletap", () => state.zoom(state.selected));
    figure.on_event("mousemove", (event) => this.pointed(event));
    figure.on_event("mouseleave", () => hideTooltip());
    state.on("found theme", later);
    state.on("select", () => this.showSelected());
    state.on("trace", () => this.reset());
    state.on("zoom", (event) => this.zoomTo(event.detail));
  }

  /** Lay the boxes out anew and show all of them. */
  reset() {
    hideTooltip();
    this.places = this.layout();
    const lines = this.places.lines.length;
    this.figure.height = Math.max(lines * this.lineHeight + this.beside, 60);
    this.figure.y_range.setv({ start: lines, end: 0 });
    this.zoomTo(null);
    this.drawSoon();
  }

  get width() {
    return this.places.right[0] - this.places.left[0] || 1;
  }

  zoomTo(row) {
    const known = row !== null && row !== undefined && this.places.line[row] >= 0;
    const [left, right] = known
      ? [this.places.left[row], this.places.right[row]]
      : [this.places.left[0], this.end];
    const margin = known && row > 0 ? (right - left) * 0.03 : 0;
    this.range(left - margin, right + margin);
  }

  get end() {
    return this.places.right[0];
  }

  /** Show from one place to another. */
  range(from, to) {
    const least = this.width / MOST_ZOOM;
    const middle = (from + to) / 2;
    const half = Math.max(to - from, least) / 2;
    const [start, end] = [(middle - half) / this.unit, (middle + half) / this.unit];
    this.figure.x_range.setv({ start, end });
  }

  /** Make everything as many times as wide, around the middle. */
  magnify(times) {
    const [from, to] = this.shown;
    const middle = (from + to) / 2;
    this.range(middle - (to - from) / 2 / times, middle + (to - from) / 2 / times);
  }

  get shown() {
    return [this.figure.x_range.start * this.unit, this.figure.x_range.end * this.unit];
  }

  get unit() {
    return 1;
  }

  get perPixel() {
    const [from, to] = this.shown;
    return (to - from) / Math.max(this.figure.inner_width, 1);
  }

  drawSoon() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = null;
      this.draw();
    });
  }

  draw() {
    if (!this.places) return;
    const [from, to] = this.shown;
    this.drawn = visible(this.places, from, to, this.figure.inner_width || 1000);
    const fills = this.fills();
    const quads = { left: [], right: [], top: [], bottom: [], fill: [], alpha: [], line: [] };
    const labels = { x: [], y: [], text: [], ink: [], alpha: [] };
    const page = color("page");
    for (const box of this.drawn) {
      const kind = this.state.spans.kind[box.rows[0]];
      const alpha = this.matches(box) ? 1 : 0.18;
      const wide = (box.right - box.left) / this.perPixel;
      quads.left.push(box.left / this.unit);
      quads.right.push(Math.max(box.right, box.left + this.perPixel) / this.unit);
      quads.top.push(box.line + 0.04);
      quads.bottom.push(box.line + 0.96);
      quads.fill.push(fills[kind].fill);
      quads.alpha.push(alpha);
      quads.line.push(wide > 4 ? page : "rgba(0,0,0,0)");
      this.label(labels, box, [from, to], { ink: fills[kind].ink, alpha });
    }
    this.boxes.data = quads;
    this.labels.data = labels;
    this.mark();
  }

  /** Add the name of a box, if the part of it that can be seen is wide enough. */
  label(labels, box, [from, to], { ink, alpha }) {
    if (box.rows.length > 1) return;
    const left = Math.max(box.left, from);
    const letters = Math.floor(((Math.min(box.right, to) - left) / this.perPixel - 6) / LETTER);
    if (letters < 3) return;
    const text = shorten(this.state.spans.nameOf(box.rows[0]), letters);
    labels.x.push((left + 4 * this.perPixel) / this.unit);
    labels.y.push(box.line + 0.5);
    labels.text.push(text);
    labels.ink.push(alpha < 1 ? color("ink") : ink);
    labels.alpha.push(alpha < 1 ? 0.5 : 1);
  }

  matches(box) {
    const { found } = this.state;
    return found === null || box.rows.some((row) => found.has(row));
  }

  fills() {
    return this.state.spans.kinds.map((kind) => {
      const fill = color(kind);
      return { fill, ink: inkOn(fill) };
    });
  }

  /** Draw a frame around what is selected. */
  mark() {
    const row = this.state.selected;
    const at = row === null ? -1 : this.places.line[row];
    const one = (value) => (at < 0 ? [] : [value]);
    const [left, right] = [this.places.left[row], this.places.right[row]];
    // The frame lies within the box, for what lies beyond the figure's edge is not painted over.
    const inset = right - left > 8 * this.perPixel ? FRAME * this.perPixel : 0;
    const height = FRAME / this.lineHeight;
    this.marks.data = {
      left: one((left + inset) / this.unit),
      right: one((right - inset) / this.unit),
      top: one(at + height),
      bottom: one(at + 1 - height),
      line: one(color("ink")),
    };
  }

  /** Mark what is selected, and move there if that is out of sight. */
  showSelected() {
    const row = this.state.selected;
    if (!this.places || row === null) return;
    const [from, to] = this.shown;
    const [left, right] = [this.places.left[row], this.places.right[row]];
    if (this.places.line[row] >= 0 && (right < from || left > to)) {
      const middle = (left + right) / 2;
      const half = Math.max(to - from, right - left) / 2;
      this.range(middle - half, middle + half);
    }
    this.mark();
  }

  spanAt(event) {
    const reach = REACH * this.perPixel;
    return boxAt(this.places, Math.floor(event.y), event.x * this.unit, reach);
  }

  tapped(event) {
    this.state.select(this.spanAt(event));
    this.host.focus({ preventScroll: true });
  }

  pointed(event) {
    const row = this.spanAt(event);
    if (row === null) {
      hideTooltip();
      return;
    }
    const bounds = this.host.getBoundingClientRect();
    const at = { x: bounds.left + event.sx, y: bounds.top + event.sy - this.host.scrollTop };
    const box = this.drawn.find((one) => one.rows.length > 1 && one.rows.includes(row));
    showTooltip(describe(this.state.spans, row, box), at);
  }
}

/** Return the lines of text that a tooltip says of a span. */
function describe(spans, row, box) {
  const latency = spans.latency_ns[row];
  const lines = [
    spans.nameOf(row),
    `${spans.wordsOf(row)} · ${duration(latency)} · ${percent(latency / spans.latency_ns[0])}`,
  ];
  if (spans.device_ns[row] > 0) lines.push(`${duration(spans.device_ns[row])} on devices`);
  if (box) lines.push(`one of ${counted(box.rows.length, "span")} here: zoom in to see each`);
  return lines;
}

function showTooltip(lines, { x, y }) {
  const tooltip = document.getElementById("tooltip");
  tooltip.replaceChildren(
    ...lines.map((line, at) => {
      const part = document.createElement(at ? "div" : "b");
      part.textContent = shorten(line, 300);
      return part;
    }),
  );
  tooltip.hidden = false;
  const { offsetWidth, offsetHeight } = tooltip;
  tooltip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - offsetWidth - 8))}px`;
  tooltip.style.top = `${y + 18 + offsetHeight > innerHeight ? y - offsetHeight - 10 : y + 18}px`;
}

/** Hide the tooltip. */
export function hideTooltip() {
  document.getElementById("tooltip").hidden = true;
}

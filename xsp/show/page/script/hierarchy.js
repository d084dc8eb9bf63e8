// Hierarchy: empty figures in, the icicle of a trace's spans and their timeline out.

import { counted, duration, unitOf } from "./format.js";
import { icicle, timeline } from "./layout.js";
import { color } from "./theme.js";
import { View } from "./view.js";

/** The icicle of the hierarchy. */
export class Icicle extends View {
  constructor(state, figure, host) {
    super(state, figure, host, 20);
    this.beside = 2;
    this.weight = "host";
    for (const button of document.querySelectorAll("[data-weight]")) {
      button.addEventListener("click", () => this.weigh(button.dataset.weight));
    }
  }

  reset() {
    const { spans } = this.state;
    const share = spans.device_ns[0] / spans.latency_ns[0];
    document.querySelector(".choice").hidden = !(share > 0);
    this.weigh(share > 0.5 ? "device" : "host");
  }

  weigh(weight) {
    this.weight = weight;
    for (const button of document.querySelectorAll("[data-weight]")) {
      button.setAttribute("aria-pressed", String(button.dataset.weight === weight));
    }
    document.getElementById("icicle-note").textContent = NOTES[weight];
    super.reset();
    this.showSelected();
  }

  layout() {
    return icicle(this.state.spans, this.weight);
  }

  /** Return the spans right below one that have a box, from left to right. */
  childrenOf(row) {
    return this.state.spans.childrenOf(row).filter((child) => this.places.line[child] >= 0);
  }
}

const NOTES = {
  host:
    "The width of a box is its latency on the host. Below a box lies what ran inside it; " +
    "where there is nothing below, the time is its own.",
  device:
    "The width of a box is the time that devices worked for it. Below a box lies what it " +
    "consists of, down to kernels, copies and sets.",
};

/** The timeline without overhead. */
export class Timeline extends View {
  constructor(state, figure, host) {
    super(state, figure, host, 16);
    this.beside = 48;
    state.on("theme", () => this.colorAxes());
  }

  get unit() {
    return unitOf(this.end)[0];
  }

  /** The end of what ran last: devices may still work when the root has ended. */
  get end() {
    return this.last;
  }

  layout() {
    const { spans } = this.state;
    this.last = spans.end_ns.reduce((most, end) => Math.max(most, end), 1);
    const places = timeline(spans);
    const labels = new Map();
    const ticks = places.lanes.map(({ line, lines }, lane) => {
      labels.set(line + lines / 2, spans.lanes[lane].name);
      return line + lines / 2;
    });
    const [axis] = this.figure.left;
    axis.major_label_overrides = labels;
    axis.ticker.ticks = ticks;
    this.figure.below[0].axis_label = `${spans.clock} (${unitOf(this.last)[1]})`;
    this.colorAxes();
    const lanes = counted(places.lanes.length, "lane");
    const note = `${lanes}: threads of the host, then streams of devices; ${duration(this.last)}`;
    document.getElementById("timeline-note").textContent = note;
    return places;
  }

  colorAxes() {
    for (const axis of [...this.figure.left, ...this.figure.below]) colorAxis(axis);
  }
}

/** Give an axis the colors of the page. */
export function colorAxis(axis) {
  axis.major_label_text_color = color("ink");
  axis.axis_label_text_color = color("quiet");
}

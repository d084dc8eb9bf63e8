// Spans: an unpacked trace in, its tree out: names, children, ancestors and attributes of rows.

import { unpack } from "./unpack.js";

const NO_ROWS = [];

/** The spans of a trace; a span is the number of its row, the root is 0. */
export class Spans {
  constructor(packed, attributes) {
    Object.assign(this, packed.arrays);
    this.names = packed.names;
    this.modules = packed.modules;
    this.kinds = packed.kinds;
    this.words = packed.words;
    this.lanes = packed.lanes;
    this.clock = packed.clock;
    this.reasons = packed.reasons;
    this.count = this.parent.length;
    this.packedAttributes = attributes;
    this.childLists = childLists(this.parent);
  }

  nameOf(row) {
    return this.names[this.name[row]] || "(no name)";
  }

  kindOf(row) {
    return this.kinds[this.kind[row]];
  }

  /** Return the kind of a span in words. */
  wordsOf(row) {
    return this.words[this.kind[row]];
  }

  childrenOf(row) {
    return this.childLists.get(row) ?? NO_ROWS;
  }

  onDevice(row) {
    return this.lanes[this.lane[row]].device;
  }

  /** Return the spans from the root down to a span. */
  lineage(row) {
    const rows = [];
    for (let at = row; at >= 0; at = this.parent[at]) rows.unshift(at);
    return rows;
  }

  /** Return why the latency of a span is not exact, as words. */
  inexactly(row) {
    const apply = this.reasons.filter((_, bit) => this.inexact[row] & (1 << bit));
    return apply.map(([, words]) => words);
  }

  /** Return name and text of each attribute of a span. */
  async attributesOf(row) {
    this.attributes ??= unpack(this.packedAttributes);
    const { texts, arrays } = await this.attributes;
    const found = [];
    for (const [field, values] of Object.entries(texts)) {
      const at = search(arrays[`${field}.rows`], row);
      if (at >= 0) found.push([field, values[arrays[`${field}.codes`][at]]]);
    }
    return found;
  }

  /** Return the spans whose name or module contains a text, in capitals or not. */
  matching(text) {
    const wanted = text.toLowerCase();
    const fitting = (texts) => texts.map((one) => one.toLowerCase().includes(wanted));
    const [names, modules] = [fitting(this.names), fitting(this.modules)];
    const rows = [];
    for (let row = 0; row < this.count; row += 1) {
      if (names[this.name[row]] || modules[this.module[row]]) rows.push(row);
    }
    return rows;
  }
}

function childLists(parent) {
  const lists = new Map();
  parent.forEach((above, row) => {
    if (above < 0) return;
    const list = lists.get(above);
    if (list) list.push(row);
    else lists.set(above, [row]);
  });
  return lists;
}

/** Return the place of a number in a sorted array, -1 if it is not there. */
function search(sorted, wanted) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return sorted[low] === wanted ? low : -1;
}

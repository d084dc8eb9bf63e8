// Unpack: a text of xsp.show.page.packing in, its header and arrays out.

const TYPES = {
  Float64Array,
  Float32Array,
  Int32Array,
  Uint32Array,
  Uint16Array,
  Uint8Array,
};

/** Return the header of a packed text, its arrays by name in `arrays`. */
export async function unpack(text) {
  const stream = new Blob([bytesOf(text)]).stream();
  const inflated = stream.pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(inflated).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let at = aligned(4 + length);
  const arrays = {};
  for (const [name, type, count] of header.arrays) {
    arrays[name] = new TYPES[type](buffer, at, count);
    at = aligned(at + arrays[name].byteLength);
  }
  return { ...header, arrays };
}

function aligned(at) {
  return Math.ceil(at / 8) * 8;
}

function bytesOf(text) {
  const decoded = atob(text);
  const bytes = new Uint8Array(decoded.length);
  for (let at = 0; at < decoded.length; at += 1) bytes[at] = decoded.charCodeAt(at);
  return bytes;
}

// What the page shows, as plain values with short names, and their form in the address: only what differs from the defaults is
// written, so that a link stays short and a colleague sees the same.

export const DEFAULTS = {
  p: 8, // ranks
  v: 1, // stages per rank
  m: 16, // microbatches
  s: 'ZB-H1', // the schedule: a name, "plan" or "file"
  place: 'any', // where a plan may put stages
  f: 1, // time of F, I and W of a stage
  i: 1,
  w: 1,
  per: '', // times per stage: "F I W;F I W;..." , one entry per stage; empty for all alike
  lat: 0, // latency of a message
  lim: 0, // memory limit; 0 for none
  act: 1, // memory of an activation, from F to B or I
  wg: 1, // memory from I to W
  ws: -1, // what if: this stage ...
  wp: 20, // ... is so many percent faster
  b: '', // second schedule, beside the first
  eff: 1, // effort and seed of plans
  seed: 0,
  cp: 0, // whether the critical path shows
  csv: '', // a schedule of one's own, packed
};

const NUMBERS = new Set(Object.keys(DEFAULTS).filter((key) => typeof DEFAULTS[key] === 'number'));

export function settingsToHash(settings) {
  const parts = new URLSearchParams();
  for (const [key, value] of Object.entries(DEFAULTS)) {
    if (settings[key] !== value) parts.set(key, settings[key]);
  }
  return parts.toString();
}

// Ignores what it does not know, so that links of other versions open.
export function settingsFromHash(hash) {
  const settings = { ...DEFAULTS };
  for (const [key, text] of new URLSearchParams(hash.replace(/^#/, ''))) {
    if (!(key in DEFAULTS)) continue;
    if (!NUMBERS.has(key)) settings[key] = text;
    else if (Number.isFinite(Number(text)) && text !== '') settings[key] = Number(text);
  }
  return settings;
}

export const MOST_PACKED = 24000; // characters of a packed schedule that still make a usable link

export async function pack(text) {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream('deflate-raw'));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  let binary = '';
  for (let at = 0; at < bytes.length; at += 0x8000) binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(binary).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '');
}

export async function unpack(text) {
  const binary = atob(text.replace(/-/g, '+').replace(/_/g, '/'));
  const bytes = Uint8Array.from(binary, (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  return new Response(stream).text();
}

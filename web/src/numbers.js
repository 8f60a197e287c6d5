// Numbers as people read them, with the digits that the command prints.

export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  const text = Number(value).toPrecision(6);
  return text.includes('e') ? String(Number(text)) : text.includes('.') ? text.replace(/\.?0+$/, '') : text;
}

export const percent = (share, digits = 2) => (share === null || share === undefined ? '–' : `${(100 * share).toFixed(digits)}%`);

// The steps of an axis: about `count` round ones over `range`.
export function roundStep(range, count) {
  const rough = range / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-12)));
  for (const factor of [1, 2, 5, 10]) if (factor * power >= rough) return factor * power;
  return 10 * power;
}

// Seconds with a unit that keeps them short.
export function seconds(value) {
  const size = Math.abs(value);
  if (size < 1e-9) return '0';
  if (size >= 1) return `${short(value)} s`;
  if (size >= 1e-3) return `${Number((1e3 * value).toPrecision(4))} ms`;
  return `${Number((1e6 * value).toPrecision(4))} µs`;
}

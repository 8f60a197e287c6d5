// Colours of the charts. Computes have hues that stay apart under the common forms of colour blindness (sky blue, orange, green and
// purple of Okabe and Ito), the same as in the command's SVG; stages of one rank are shades, and every cell has its letter in the tooltip.

const HUES = ['#000000', '#56b4e9', '#e69f00', '#009e73', '#cc79a7', '#888888', '#b0b0b0', '#8f8f8f', '#9b8ab8', '#7fa6c2', '#a9c3d4', '#c2a868', '#d8c79a'];
const PALEST = 0.6;

function channels(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

function mixed(colour, other, share) {
  const [a, b] = [channels(colour), channels(other)];
  return a.map((value, i) => Math.round(value + (b[i] - value) * share));
}

export class Palette {
  constructor() {
    this.read();
  }

  // The page's style says which theme is on.
  read() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    this.text = value('--text');
    this.quiet = value('--quiet');
    this.line = value('--line');
    this.surface = value('--surface');
    this.track = value('--track');
    this.accent = value('--accent');
    this.danger = value('--danger');
    this.dark = value('--dark') === '1';
    this.cache = new Map();
  }

  rgb(kind, shade, shades) {
    const key = kind * 4096 + shade * 64 + Math.min(63, shades);
    let found = this.cache.get(key);
    if (!found) {
      const share = shades < 2 ? 0 : (PALEST * shade) / (shades - 1);
      found = mixed(HUES[kind] || HUES[0], this.dark ? '#1c242d' : '#ffffff', kind <= 5 ? share : 0);
      this.cache.set(key, found);
    }
    return found;
  }

  css(kind, shade = 0, shades = 1) {
    return `rgb(${this.rgb(kind, shade, shades).join(' ')})`;
  }

  // A pixel for ImageData, little endian.
  pixel(kind, shade, shades) {
    const [r, g, b] = this.rgb(kind, shade, shades);
    return (255 << 24) | (b << 16) | (g << 8) | r;
  }

  labelOn(kind, shade, shades) {
    const [r, g, b] = this.rgb(kind, shade, shades);
    return 0.299 * r + 0.587 * g + 0.114 * b > 110 ? '#10161c' : '#f4f7fa';
  }
}

export const pixelOf = (colour) => {
  const [r, g, b] = channels(colour);
  return (255 << 24) | (b << 16) | (g << 8) | r;
};

// Memory over time on the chart's clock: a thin line per rank, a bold one for the rank that is selected or holds the most, and the limit.

import { oncePerFrame } from './frames.js';
import { roundStep, short } from './numbers.js';

const HEIGHT = 120;
const GUTTER = 58;
const FOOT = 6;
const MOST_LINES = 12; // thin ones; more would hide each other, and take longer than a frame

export class MemoryChart {
  constructor(canvas, view, palette) {
    Object.assign(this, { canvas, view, palette, ranks: [], limit: 0, highlighted: -1 });
    this.invalidate = oncePerFrame(canvas, () => this.paint());
    this.context = canvas.getContext('2d');
    view.onChange(() => this.invalidate());
    new ResizeObserver(([entry]) => {
      this.room = entry.contentRect.width;
      this.invalidate();
    }).observe(canvas.parentElement);
  }

  // `points` are triples of rank, time and memory.
  setMemory(points, limit) {
    this.ranks = [];
    this.limit = limit;
    this.most = 0;
    this.fullest = 0;
    for (let i = 0; i < points.length; i += 3) {
      const rank = (this.ranks[points[i]] ||= { times: [], values: [] });
      rank.times.push(points[i + 1]);
      rank.values.push(points[i + 2]);
      if (points[i + 2] > this.most) [this.most, this.fullest] = [points[i + 2], points[i]];
    }
    this.invalidate();
  }

  paint() {
    const ratio = window.devicePixelRatio || 1;
    const width = Math.max(120, this.room || this.canvas.parentElement.clientWidth);
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(HEIGHT * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(HEIGHT * ratio);
    }
    this.width = width;
    const { context } = this;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, HEIGHT);
    this.top = 1.12 * Math.max(this.most || 1, this.limit || 0);
    this.paintAxis();
    const bold = this.highlighted >= 0 ? this.highlighted : this.fullest;
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, width - GUTTER - 6, HEIGHT);
    context.clip();
    const every = Math.ceil(this.ranks.length / MOST_LINES);
    this.ranks.forEach((rank, r) => r !== bold && r % every === 0 && this.paintRank(rank, false));
    if (this.ranks[bold]) this.paintRank(this.ranks[bold], true);
    if (this.limit > 0) this.paintLimit();
    context.restore();
  }

  x(time) {
    return GUTTER + ((time - this.view.begin) / (this.view.end - this.view.begin)) * (this.width - GUTTER - 6);
  }

  y(memory) {
    return HEIGHT - FOOT - (memory / this.top) * (HEIGHT - FOOT - 4);
  }

  paintAxis() {
    const { context } = this;
    const step = roundStep(this.top, 4);
    context.fillStyle = this.palette.quiet;
    context.strokeStyle = this.palette.line;
    context.lineWidth = 1;
    context.font = '10.5px system-ui, sans-serif';
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    for (let at = 0; at <= this.top; at += step) {
      const y = Math.round(this.y(at)) + 0.5;
      context.beginPath();
      context.moveTo(GUTTER, y);
      context.lineTo(this.width - 6, y);
      context.stroke();
      context.fillText(short(at), GUTTER - 8, y);
    }
  }

  // Steps; what happens within half a pixel shows as its extremes.
  paintRank({ times, values }, bold) {
    const { context } = this;
    context.beginPath();
    const first = this.before(times);
    let y = this.y(first > 0 ? values[first - 1] : 0);
    let pixel = Math.max(GUTTER - 2, this.x(0));
    let [low, high] = [y, y];
    const finishPixel = () => {
      context.lineTo(pixel, low);
      if (high !== low) context.lineTo(pixel, high);
      if (y !== high) context.lineTo(pixel, y);
    };
    context.moveTo(pixel, y);
    for (let i = first; i < times.length; ++i) {
      const x = this.x(times[i]);
      if (x > this.width) break;
      if (x - pixel >= 0.75) {
        finishPixel();
        context.lineTo(x, y);
        pixel = x;
        [low, high] = [y, y];
      }
      y = this.y(values[i]);
      [low, high] = [Math.min(low, y), Math.max(high, y)];
    }
    finishPixel();
    const right = Math.min(this.width, this.x(this.view.whole));
    context.lineTo(right, y);
    context.strokeStyle = bold ? this.palette.accent : this.palette.quiet;
    context.globalAlpha = bold ? 1 : Math.max(0.12, Math.min(0.5, 4 / this.ranks.length));
    context.lineWidth = bold ? 2 : 1;
    context.stroke();
    if (bold) {
      context.lineTo(right, this.y(0));
      context.lineTo(Math.max(GUTTER - 2, this.x(0)), this.y(0));
      context.globalAlpha = 0.1;
      context.fillStyle = this.palette.accent;
      context.fill();
    }
    context.globalAlpha = 1;
  }

  // The first point that is in view.
  before(times) {
    let low = 0;
    let high = times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] < this.view.begin) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  paintLimit() {
    const { context } = this;
    context.strokeStyle = this.palette.danger;
    context.lineWidth = 1.5;
    context.setLineDash([6, 4]);
    context.beginPath();
    context.moveTo(GUTTER, this.y(this.limit));
    context.lineTo(this.width, this.y(this.limit));
    context.stroke();
    context.setLineDash([]);
  }
}

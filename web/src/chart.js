// The chart: a row per rank, time to the right, a cell per action. Cells are painted into pixels row by row, so that a frame takes as long as
// its pixels and not as long as its actions: 100,000 actions zoom and pan as smoothly as a hundred. Labels, the critical path, a deadlock and
// the selection are drawn on top.

import { oncePerFrame } from './frames.js';
import { roundStep, short } from './numbers.js';
import { pixelOf } from './palette.js';

const AXIS = 22;
const TOP = 5; // for the name of the first rank, which may be taller than its row
const GUTTER = 58; // for the names of ranks
const LEAST_ROW = 5;
const MOST_ROW = 30;
const ROOM = 470; // the height that rows share before they get smaller
const LABEL_WIDTH = 13;

export class Chart {
  constructor(canvas, view, palette, { unit = '', onPaint = () => {} } = {}) {
    Object.assign(this, { canvas, view, palette, unit, onPaint });
    this.context = canvas.getContext('2d');
    this.actions = null;
    this.path = null; // indices of actions, in order
    this.showPath = false;
    this.cycle = null; // [{from, to}] of indices
    this.selected = -1;
    this.ghost = null; // {index, x, to} while an action is dragged
    this.limit = 0;
    this.invalidate = oncePerFrame(canvas, () => { if (this.actions) this.paint(); });
    this.frames = 0;
    view.onChange(() => this.invalidate());
    // Asked once per change of size: to ask the document in every frame would make it lay itself out.
    new ResizeObserver(([entry]) => {
      this.room = entry.contentRect.width;
      this.resize();
    }).observe(canvas.parentElement);
  }

  setActions(actions, { path = null, cycle = null } = {}) {
    this.actions = actions;
    this.path = path;
    this.cycle = cycle;
    if (this.selected >= actions.count) this.selected = -1;
    [this.longest, this.shortest] = [0, Infinity];
    for (let i = 0; i < actions.count; ++i) {
      const took = actions.of(i, 'end') - actions.of(i, 'start');
      if (actions.of(i, 'kind') > 5 || took === 0) continue;
      this.longest = Math.max(this.longest, actions.of(i, 'kind2') ? 30 : 3 + Math.floor(Math.log10(1 + actions.of(i, 'stage') * actions.of(i, 'microbatch'))));
      this.shortest = Math.min(this.shortest, took);
    }
    this.resize();
  }

  resize() {
    if (!this.actions) return;
    const ratio = window.devicePixelRatio || 1;
    const width = Math.max(120, this.room || this.canvas.parentElement.clientWidth);
    this.row = Math.max(LEAST_ROW, Math.min(MOST_ROW, Math.floor(ROOM / Math.max(1, this.actions.ranks))));
    const height = TOP + this.row * this.actions.ranks + AXIS;
    this.width = width;
    this.height = height;
    this.ratio = ratio;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.height = `${height}px`;
    }
    this.invalidate();
  }

  get plotWidth() {
    return this.width - GUTTER - 6;
  }

  x(time) {
    return GUTTER + ((time - this.view.begin) / (this.view.end - this.view.begin)) * this.plotWidth;
  }

  time(x) {
    return this.view.begin + ((x - GUTTER) / this.plotWidth) * (this.view.end - this.view.begin);
  }

  rankAt(y) {
    return Math.floor((y - TOP) / this.row);
  }

  actionAt(x, y) {
    const rank = this.rankAt(y);
    return x < GUTTER || rank < 0 || rank >= this.actions.ranks ? -1 : this.actions.at(rank, this.time(x));
  }

  // The slot before which an action of this rank would stand if it were dropped at x.
  slotAt(rank, x) {
    const { actions } = this;
    const time = this.time(x);
    for (let i = actions.first[rank]; i < actions.first[rank + 1]; ++i) {
      if ((actions.of(i, 'start') + actions.of(i, 'end')) / 2 > time) return actions.of(i, 'slot');
    }
    const last = actions.first[rank + 1] - 1;
    return last >= actions.first[rank] ? actions.of(last, 'slot') + 1 : 0;
  }

  paint() {
    const { context } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.paintCells();
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    this.paintRanks();
    this.paintLabels();
    this.paintAxis();
    if (this.showPath && this.path) this.paintPath();
    if (this.cycle) this.paintCycle();
    this.paintSelection();
    if (this.ghost) this.paintGhost();
    this.frames += 1;
    this.onPaint();
  }

  paintCells() {
    const { actions, ratio, palette } = this;
    const left = Math.round(GUTTER * ratio);
    const width = Math.round(this.plotWidth * ratio);
    const rowHeight = Math.max(1, Math.round(this.row * ratio));
    const gap = rowHeight > 8 ? Math.max(1, Math.round(2 * ratio)) : 1;
    const image = this.context.createImageData(width, rowHeight);
    const pixels = new Uint32Array(image.data.buffer);
    const line = new Uint32Array(width);
    const track = pixelOf(palette.track);
    const scale = width / (this.view.end - this.view.begin);
    for (let r = 0; r < actions.ranks; ++r) {
      line.fill(track);
      this.paintRow(line, r, scale);
      pixels.fill(0);
      for (let y = 0; y < rowHeight - gap; ++y) pixels.set(line, y * width);
      this.context.putImageData(image, left, Math.round((TOP + r * this.row) * ratio));
    }
  }

  paintRow(line, rank, scale) {
    const { actions, palette, view } = this;
    const shades = actions.stagesOnRank[rank];
    for (let i = this.firstVisible(rank); i < actions.first[rank + 1]; ++i) {
      const start = actions.of(i, 'start');
      if (start > view.end) break;
      const from = Math.max(0, Math.round((start - view.begin) * scale));
      const to = Math.min(line.length, Math.round((actions.of(i, 'end') - view.begin) * scale));
      const second = actions.of(i, 'kind2');
      // A cell of at least three pixels ends one early, so that neighbours stay apart.
      const end = to - from >= 3 ? to - 1 : Math.max(to, from + 1);
      line.fill(palette.pixel(actions.of(i, 'kind'), actions.local[i], shades), from, second ? (from + end) >> 1 : end);
      if (second) line.fill(palette.pixel(second, actions.local[i], shades), (from + end) >> 1, end);
    }
  }

  firstVisible(rank) {
    const { actions } = this;
    let low = actions.first[rank];
    let high = actions.first[rank + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (actions.of(middle, 'end') < this.view.begin) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  paintRanks() {
    const { context } = this;
    context.fillStyle = this.palette.quiet;
    context.font = '11px system-ui, sans-serif';
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    const every = Math.max(1, Math.ceil(12 / this.row));
    for (let r = 0; r < this.actions.ranks; r += every) context.fillText(`rank ${r}`, GUTTER - 8, TOP + r * this.row + this.row / 2 - 1);
  }

  paintLabels() {
    const { actions, context, view } = this;
    if (this.row < 12) return;
    this.labelsInFull = this.narrowest() > 7 * this.longest + 4; // all or none: a chart has one kind of label
    context.textAlign = 'center';
    context.font = `${this.row > 20 ? 11 : 9.5}px system-ui, sans-serif`;
    for (let r = 0; r < actions.ranks; ++r) {
      const y = TOP + r * this.row + this.row / 2 - 1;
      for (let i = this.firstVisible(r); i < actions.first[r + 1]; ++i) {
        if (actions.of(i, 'start') > view.end) break;
        const from = Math.max(GUTTER, this.x(actions.of(i, 'start')));
        const to = Math.min(this.width - 6, this.x(actions.of(i, 'end')));
        if (to - from < LABEL_WIDTH) continue;
        context.fillStyle = this.palette.labelOn(actions.of(i, 'kind'), actions.local[i], actions.stagesOnRank[r]);
        context.fillText(this.label(i, to - from), (from + to) / 2, y);
      }
    }
  }

  label(i, width) {
    if (this.labelsInFull) return this.actions.text(i);
    const microbatch = this.actions.of(i, 'microbatch');
    const text = microbatch >= 0 ? String(microbatch) : '';
    return width > 6.2 * text.length + 2 ? text : '';
  }

  // The width of the shortest compute in view; long labels must fit it.
  narrowest() {
    const scale = this.plotWidth / (this.view.end - this.view.begin);
    return this.shortest * scale;
  }

  paintAxis() {
    const { context, view } = this;
    const y = TOP + this.row * this.actions.ranks + 4;
    const step = roundStep(view.end - view.begin, this.plotWidth / 90);
    context.strokeStyle = this.palette.line;
    context.fillStyle = this.palette.quiet;
    context.font = '10.5px system-ui, sans-serif';
    context.textBaseline = 'top';
    context.beginPath();
    for (let at = Math.ceil(view.begin / step) * step; at <= view.end * (1 + 1e-9); at += step) {
      const x = this.x(at);
      context.moveTo(x, y - 3);
      context.lineTo(x, y + 2);
      context.textAlign = x > this.width - 40 ? 'right' : 'center';
      context.fillText(`${short(at)}${this.unit}`, Math.min(x, this.width - 4), y + 4);
    }
    context.stroke();
  }

  box(i) {
    const from = this.x(this.actions.of(i, 'start'));
    const to = this.x(this.actions.of(i, 'end'));
    const y = TOP + this.actions.of(i, 'rank') * this.row;
    return { from, to, y, height: this.row - (this.row > 8 ? 2 : 1), middle: y + this.row / 2 - 1 };
  }

  // Clips to the plot: what is panned away must not cover the names of ranks.
  clipped(draw) {
    const { context } = this;
    context.save();
    context.beginPath();
    context.rect(GUTTER - 1, 0, this.width - GUTTER + 1, TOP + this.row * this.actions.ranks + 1);
    context.clip();
    draw(context);
    context.restore();
  }

  paintPath() {
    this.clipped((context) => {
      context.strokeStyle = this.palette.text;
      context.lineWidth = this.row > 8 ? 1.75 : 1;
      context.lineJoin = 'round';
      context.beginPath();
      this.path.forEach((i, at) => {
        const box = this.box(i);
        const bottom = box.y + box.height - (this.row > 8 ? 3 : 1);
        if (at === 0) context.moveTo(box.from, bottom);
        else context.lineTo(box.from, bottom);
        context.lineTo(box.to, bottom);
      });
      context.stroke();
    });
  }

  // What is not part of the cycle fades; then who waits for whom, from the waiting action to the one it needs.
  paintCycle() {
    this.clipped((context) => {
      const { palette } = this;
      context.fillStyle = palette.surface;
      context.globalAlpha = 0.62;
      context.fillRect(GUTTER, TOP, this.width, this.row * this.actions.ranks);
      context.globalAlpha = 1;
      for (const index of new Set(this.cycle.flatMap(({ from, to }) => [from, to]))) this.paintAgain(index);
      for (const { from, to } of this.cycle) {
        this.arrow(this.box(from), this.box(to), palette.surface, 6);
        this.arrow(this.box(from), this.box(to), palette.danger, 2.25);
      }
    });
  }

  paintAgain(index) {
    const { actions, context, palette } = this;
    const [box, shades] = [this.box(index), actions.stagesOnRank[actions.of(index, 'rank')]];
    const width = Math.max(3, box.to - box.from - 1);
    context.fillStyle = palette.css(actions.of(index, 'kind'), actions.local[index], shades);
    context.fillRect(box.from, box.y, width, box.height);
    context.strokeStyle = palette.danger;
    context.lineWidth = 2.5;
    context.strokeRect(box.from + 1, box.y + 1, Math.max(2, width - 2), box.height - 2);
    if (width < LABEL_WIDTH || this.row < 12) return;
    context.fillStyle = palette.labelOn(actions.of(index, 'kind'), actions.local[index], shades);
    context.textAlign = 'center';
    context.textBaseline = 'middle';
    context.font = '11px system-ui, sans-serif';
    context.fillText(this.label(index, width), (box.from + box.to) / 2, box.middle);
  }

  // Between the facing edges of two cells, so that no label of theirs is covered.
  arrow(a, b, colour, width) {
    const { context } = this;
    const down = Math.sign(b.y - a.y);
    const apart = b.from >= a.to - 1 ? 1 : a.from >= b.to - 1 ? -1 : 0;
    const [x1, x2] = apart > 0 ? [a.to - 2, b.from] : apart < 0 ? [a.from, b.to - 2] : [(a.from + a.to) / 2, (b.from + b.to) / 2];
    const [y1, y2] = apart !== 0 ? [a.middle, b.middle] : [a.middle + (down * a.height) / 2, b.middle - (down * b.height) / 2];
    const [cx, cy] = [(x1 + x2) / 2, (y1 + y2) / 2 - (down === 0 ? this.row : 0)];
    context.strokeStyle = colour;
    context.fillStyle = colour;
    context.lineWidth = width;
    context.lineCap = 'round';
    context.beginPath();
    context.moveTo(x1, y1);
    context.quadraticCurveTo(cx, cy, x2, y2);
    context.stroke();
    const angle = Math.atan2(y2 - cy, x2 - cx);
    context.beginPath();
    context.moveTo(x2, y2);
    for (const turn of [-0.42, 0.42]) context.lineTo(x2 - 10 * Math.cos(angle + turn), y2 - 10 * Math.sin(angle + turn));
    context.closePath();
    context.fill();
  }

  paintSelection() {
    if (this.selected < 0) return;
    this.clipped((context) => {
      const box = this.box(this.selected);
      context.strokeStyle = this.palette.accent;
      context.lineWidth = 2.5;
      context.strokeRect(box.from, box.y, Math.max(3, box.to - box.from - 1), box.height);
    });
  }

  paintGhost() {
    this.clipped((context) => {
      const box = this.box(this.ghost.index);
      context.globalAlpha = 0.75;
      context.fillStyle = this.palette.css(this.actions.of(this.ghost.index, 'kind'), 0, 1);
      context.fillRect(this.ghost.x - (box.to - box.from) / 2, box.y, Math.max(4, box.to - box.from), box.height);
      context.globalAlpha = 1;
      const at = this.actions.inSlot(this.actions.of(this.ghost.index, 'rank'), this.ghost.to);
      const x = at >= 0 ? this.x(this.actions.of(at, 'start')) : this.x(this.actions.of(this.actions.first[this.actions.of(this.ghost.index, 'rank') + 1] - 1, 'end'));
      context.fillStyle = this.palette.accent;
      context.fillRect(x - 1.5, box.y - 1, 3, box.height + 2);
    });
  }
}

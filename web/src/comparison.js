// The table of all schedules for the same model. Rows are computed a few at a time, so that large shapes do not hold up the page.

import { percent, short } from './numbers.js';
import { byId, make } from './dom.js';

const SLICE = 12; // milliseconds of computing before the page gets a turn

export class Comparison {
  constructor(engine, onChoose) {
    Object.assign(this, { engine, onChoose, rows: [], generation: 0 });
    this.table = byId('comparison');
    this.cache = new Map();
  }

  // `items` are {key, label, source, costs, stagesPerRank}; `bound` is the lower bound of the shown schedule.
  refresh(items, { shown, limit, bound }) {
    this.generation += 1;
    this.items = items;
    this.context = { shown, limit, bound };
    this.outcomes = new Array(items.length).fill(null);
    this.proceed(this.generation, 0);
  }

  proceed(generation, from) {
    if (generation !== this.generation) return;
    const begin = performance.now();
    let at = from;
    for (; at < this.items.length && (at === from || performance.now() - begin < SLICE); ++at) this.outcomes[at] = this.outcome(this.items[at]);
    if (at < this.items.length) setTimeout(() => this.proceed(generation, at), 0);
    if (at === this.items.length || performance.now() - begin > SLICE) this.draw();
  }

  outcome(item) {
    if (item.missing) return { error: item.missing };
    const key = JSON.stringify([item.source.csv ? item.source.csv.length + item.key : item.source, item.costs]);
    if (item.source.csv || !this.cache.has(key)) {
      const [row] = this.engine.call('compare', { items: [{ source: item.source, costs: item.costs }] }).rows;
      if (item.source.csv) return row;
      if (this.cache.size > 200) this.cache.clear();
      this.cache.set(key, row);
    }
    return this.cache.get(key);
  }

  draw() {
    const done = this.items.map((item, at) => ({ item, outcome: this.outcomes[at] })).filter(({ outcome }) => outcome);
    const good = done.filter(({ outcome }) => !outcome.error).sort((a, b) => a.outcome.span - b.outcome.span);
    const best = good.length ? good[0].outcome.span : 0;
    const head = make('tr', {}, ...['Schedule', 'Stages / rank', 'Bubble', '', 'Span', 'Makespan', 'Peak memory', 'Against best'].map((text, at) => make('th', { class: at > 3 || at === 1 ? 'n' : null, scope: 'col' }, text)));
    const body = make('tbody', {}, ...good.map((row) => this.row(row, best)), ...done.filter(({ outcome }) => outcome.error).map((row) => this.failed(row)));
    this.table.replaceChildren(make('thead', {}, head), body);
  }

  row({ item, outcome }, best) {
    const { shown, limit } = this.context;
    const over = limit > 0 && outcome.peak.max > limit + 1e-6;
    const choose = () => this.onChoose(item.key);
    const meter = make('span', { class: 'meter' }, make('i', { style: `width:${Math.min(100, 100 * outcome.bubble_span)}%` }));
    return make('tr', { class: item.key === shown ? 'shown' : null, tabindex: 0, 'data-key': item.key, 'aria-label': `Show ${item.label}`, onclick: choose,
      onkeydown: (event) => (event.key === 'Enter' || event.key === ' ') && (event.preventDefault(), choose()) },
    make('td', {}, item.label), make('td', { class: 'n' }, String(item.stagesPerRank)), make('td', {}, percent(outcome.bubble_span)), make('td', {}, meter),
    make('td', { class: 'n' }, short(outcome.span)), make('td', { class: 'n' }, short(outcome.makespan)),
    make('td', { class: over ? 'n over' : 'n', title: over ? 'above the memory limit' : null }, short(outcome.peak.max) + (over ? ' ▲' : '')),
    make('td', { class: 'n' }, outcome.span <= best ? 'best' : `+${percent(outcome.span / best - 1)}`));
  }

  failed({ item, outcome }) {
    return make('tr', { class: 'out' }, make('td', {}, item.label), make('td', { colspan: 7, style: 'white-space:normal' }, outcome.error));
  }
}

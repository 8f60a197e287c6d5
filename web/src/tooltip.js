// The numbers of an action, beside the pointer or as a line of text.

import { short } from './numbers.js';
import { byId, make } from './dom.js';

export function factsOf(actions, i, { timed = true, format = short, waited = false } = {}) {
  const rows = [['rank', actions.of(i, 'rank')]];
  if (!timed) return rows.concat([['slot', actions.of(i, 'slot')]]);
  const [start, end, slack] = ['start', 'end', 'slack'].map((what) => actions.of(i, what));
  rows.push(['starts', format(start)], ['ends', format(end)], ['takes', format(end - start)]);
  if (waited) rows.push(['waited before', format(slack)]);
  else rows.push(['slack', actions.of(i, 'critical') ? 'none: on the critical path' : format(slack)]);
  return rows;
}

export function describe(actions, i, options) {
  const facts = factsOf(actions, i, options).map(([name, value]) => `${name} ${value}`);
  return `${actions.text(i)}: ${actions.name(i)}; ${facts.join(', ')}`;
}

export class Tooltip {
  constructor() {
    this.box = byId('tooltip');
  }

  show(chart, index, at, options, more = []) {
    if (index < 0 || !at) return this.hide();
    const { actions } = chart;
    const rows = factsOf(actions, index, options).concat(more);
    const table = make('table', {}, ...rows.map(([name, value]) => make('tr', {}, make('td', {}, name), make('td', {}, String(value)))));
    this.box.replaceChildren(make('b', {}, actions.text(index)), ` ${actions.name(index)}`, table);
    this.box.hidden = false;
    if (this.box.parentElement !== chart.canvas.parentElement) chart.canvas.parentElement.append(this.box);
    const width = this.box.offsetWidth;
    this.box.style.left = `${Math.max(0, Math.min(at.x + 14, chart.width - width - 4))}px`;
    this.box.style.top = `${at.y + 18}px`;
    return undefined;
  }

  hide() {
    this.box.hidden = true;
  }
}

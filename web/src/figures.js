// The numbers above the chart, and its legend.

import { byId, make } from './dom.js';
import { percent, short } from './numbers.js';

function figure(name, value, more = '', kind = '', title = '') {
  return make('div', { class: kind || null, title: title || null }, make('dt', {}, name), make('dd', { 'data-figure': name }, value, more ? make('small', {}, more) : null));
}

export function showFigures(reply, settings) {
  const box = byId('figures');
  if (!reply.facts) {
    box.replaceChildren(figure('Verdict', 'refused', 'it cannot run', 'bad'));
    return;
  }
  const bound = reply.lower_bound;
  const reached = bound !== null && reply.span <= bound * (1 + 1e-9);
  const over = settings.lim > 0 && reply.peak.max > settings.lim + 1e-6;
  box.replaceChildren(
    figure('Bubble', percent(reply.bubble_span), '', '', 'Share of the span in which ranks do not compute'),
    figure('Span', short(reply.span), '', '', 'The longest time of a rank from its first F to its last W'),
    figure('Lower bound', short(bound), bound === null ? '' : reached ? 'reached' : `+${percent(reply.span / bound - 1, 1)}`, reached ? 'good' : '', 'No schedule of this placement and memory limit has a shorter span'),
    figure('Makespan', short(reply.makespan), '', '', 'From the first action to the last'),
    figure('Peak memory', short(reply.peak.max), settings.lim > 0 ? `of ${short(settings.lim)}` : '', over ? 'bad' : '', 'The most that any rank holds'),
    figure('Critical path', String(reply.critical.actions), 'actions', '', `Only faster actions of this chain shorten the step. It computes for ${short(reply.critical.compute)} and waits for messages for ${short(reply.critical.messages)}`),
  );
}

const LEGEND = { 1: 'F forward', 2: 'B backward', 3: 'I inputs', 4: 'W weights', 6: 'unshard', 7: 'reshard', 8: 'reduce', 9: 'send F', 10: 'receive F', 11: 'send B', 12: 'receive B' };

export function showLegend(actions, palette) {
  const present = new Set();
  for (let i = 0; i < actions.count; ++i) present.add(actions.of(i, 'kind')).add(actions.of(i, 'kind2'));
  const entries = Object.entries(LEGEND).filter(([kind]) => present.has(Number(kind)));
  byId('legend').replaceChildren(...entries.map(([kind, text]) => make('span', {}, make('i', { style: `background:${palette.css(Number(kind))}` }), text)));
}

// What `check` says about a schedule of one's own, below the chart.

import { byId, make } from './dom.js';

const MODEL_TEXT = { tagged: 'matched by tag', in_order: 'matched by order', rendezvous: 'blocking sends' };

export function showVerdict(verdict, { onShowCycle }) {
  const box = byId('verdict');
  box.hidden = !verdict;
  if (!verdict) return;
  const { report, refusal } = verdict;
  box.className = report.ok ? 'ok' : 'refused';
  box.replaceChildren(make('div', { class: 'models' }, make('b', {}, report.ok ? 'Safe: it cannot deadlock' : 'Refused'),
    ...Object.entries(report.models).map(([name, judged]) => make('span', {}, `${judged.ok ? '✓' : '✗'} ${MODEL_TEXT[name] || name}`)),
    make('span', {}, report.verified_form)));
  if (!refusal) return;
  box.append(make('p', {}, refusal.message));
  if (refusal.details) box.append(make('pre', {}, refusal.details));
  if (verdict.cycle && verdict.cycle.length > 0 && onShowCycle) {
    box.append(make('button', { type: 'button', id: 'show-cycle', onclick: onShowCycle }, 'Show the cycle on the chart'));
  }
}

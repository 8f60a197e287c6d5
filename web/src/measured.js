// A recorded run beside its plan, on one clock: the plan is the chart above, the step as it was is here, and below are the stages and ranks
// that took longer than planned.

import { Actions } from './actions.js';
import { Chart } from './chart.js';
import { ChartKeys } from './chart_keys.js';
import { ChartPointer } from './chart_pointer.js';
import { byId, make } from './dom.js';
import { percent, seconds } from './numbers.js';

export class Measured {
  constructor(view, palette, tooltip, { onCosts, onClose }) {
    this.section = byId('measured');
    this.chart = new Chart(byId('measured-chart'), view, palette);
    this.planned = new Map();
    const options = { format: seconds, waited: true };
    const select = (index) => {
      this.chart.selected = index;
      this.chart.invalidate();
    };
    new ChartPointer(this.chart, { onHover: (i, at) => tooltip.show(this.chart, i, at, options, i >= 0 ? this.against(i) : []), onSelect: select });
    new ChartKeys(this.chart, { onSelect: select });
    byId('measured-costs').addEventListener('click', () => onCosts(this.reply));
    byId('measured-close').addEventListener('click', onClose);
  }

  show(reply, fileName) {
    this.reply = reply;
    this.section.hidden = false;
    const plan = new Actions(reply.actions, reply.facts.ranks);
    this.planned.clear();
    for (let i = 0; i < plan.count; ++i) this.planned.set(plan.text(i), { start: plan.of(i, 'start'), end: plan.of(i, 'end') });
    const actions = new Actions(reply.measured_numbers, reply.facts.ranks);
    this.chart.setActions(actions);
    const { measured } = reply;
    const lost = measured.seconds - reply.makespan;
    byId('measured-facts').textContent = `${fileName}: step ${measured.step} of ${measured.steps} took ${seconds(measured.seconds)}, planned ${seconds(reply.makespan)}: ` +
      `${lost >= 0 ? 'lost' : 'gained'} ${seconds(Math.abs(lost))} (${percent(Math.abs(lost) / reply.makespan, 1)}); ${percent(measured.idle, 1)} of the ranks' time idle`;
    this.drawLosses(measured.losses);
    this.drawRanks(measured.ranks, reply.per_rank, measured.seconds, reply.makespan);
    return actions.end;
  }

  hide() {
    this.section.hidden = true;
  }

  // Rows for the tooltip: when the plan had this action.
  against(i) {
    const plan = this.planned.get(this.chart.actions.text(i));
    if (!plan) return [];
    const took = this.chart.actions.of(i, 'end') - this.chart.actions.of(i, 'start');
    const late = this.chart.actions.of(i, 'start') - plan.start;
    return [['planned start', seconds(plan.start)], [late >= 0 ? 'late by' : 'early by', seconds(Math.abs(late))], ['planned to take', seconds(plan.end - plan.start)],
      ['took longer by', seconds(took - (plan.end - plan.start))]];
  }

  drawLosses(losses) {
    const rows = losses.map((loss) => ({ ...loss, lost: loss.measured - loss.planned })).sort((a, b) => b.lost - a.lost).slice(0, 12);
    byId('losses').replaceChildren(make('tr', {}, ...['Stage', 'Kind', 'Count', 'Measured', 'Planned', 'Lost'].map((text, at) => make('th', { class: at > 1 ? 'n' : null }, text))),
      ...rows.map((row) => make('tr', {}, make('td', {}, `${row.stage} (rank ${row.rank})`), make('td', {}, row.kind), make('td', { class: 'n' }, String(row.count)),
        make('td', { class: 'n' }, seconds(row.measured)), make('td', { class: 'n' }, seconds(row.planned)), make('td', { class: row.lost > 1e-9 ? 'n over' : 'n' }, seconds(row.lost)))));
  }

  drawRanks(measured, planned, took, makespan) {
    byId('measured-ranks').replaceChildren(make('tr', {}, ...['Rank', 'Compute', 'Planned', 'Idle', 'Planned'].map((text, at) => make('th', { class: at > 0 ? 'n' : null }, text))),
      ...measured.map((rank, r) => make('tr', {}, make('td', {}, `rank ${r}`), make('td', { class: 'n' }, seconds(rank.busy)), make('td', { class: 'n' }, seconds(planned[r].busy)),
        make('td', { class: 'n' }, percent(rank.idle / took, 1)), make('td', { class: 'n' }, percent(1 - planned[r].busy / makespan, 1)))));
  }
}

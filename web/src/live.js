// A run while it trains: what it publishes as server-sent events. The last recorded step is drawn here; a click brings it into the
// explorer, beside what was planned for it.

import { Actions } from './actions.js';
import { Chart } from './chart.js';
import { ChartKeys } from './chart_keys.js';
import { ChartPointer } from './chart_pointer.js';
import { byId, make } from './dom.js';
import { percent, seconds, short } from './numbers.js';
import { View } from './view.js';

const bytes = (value) => (value >= 1e9 ? `${(value / 1073741824).toFixed(2)} GiB` : `${(value / 1048576).toFixed(0)} MiB`);

export class LiveRun {
  constructor(app, address) {
    this.app = app;
    this.losses = [];
    this.view = new View();
    this.chart = new Chart(byId('live-chart'), this.view, app.palette);
    app.liveChart = this.chart;
    const select = (index) => {
      this.chart.selected = index;
      this.chart.invalidate();
    };
    new ChartPointer(this.chart, { onHover: (i, at) => app.tooltip.show(this.chart, i, at, { format: seconds, waited: true }), onSelect: select });
    new ChartKeys(this.chart, { onSelect: select });
    byId('live').hidden = false;
    byId('subtitle').textContent = 'a training run, and an explorer of schedules';
    byId('live-explore').addEventListener('click', () => this.trace && app.openTimeline('last step.json', this.trace));
    new ResizeObserver(() => this.drawLosses()).observe(byId('live-loss').parentElement);
    app.onTheme = () => this.drawLosses();
    this.listen(address);
  }

  listen(address) {
    this.source = new EventSource(address);
    const on = (name, act) => this.source.addEventListener(name, (event) => act(JSON.parse(event.data)));
    on('step', (step) => this.step(step));
    on('losses', (losses) => {
      this.losses = losses;
      this.drawLosses();
    });
    on('ranks', (facts) => this.ranks(facts));
    this.source.addEventListener('timeline', (event) => this.timeline(event.data));
    on('end', () => this.end('The run has ended.'));
    this.source.onerror = () => this.source.readyState === EventSource.CLOSED ? this.end('The run has ended, or too many watch it.') : this.lost();
    this.source.onopen = () => {
      this.failures = 0;
    };
  }

  // The browser tries again by itself; a run that stays away has ended.
  lost() {
    this.failures = (this.failures || 0) + 1;
    if (this.failures > 3) this.end('The run does not answer any more: it has ended.');
  }

  end(text) {
    this.source.close();
    byId('live').classList.add('ended');
    byId('live-status').textContent = text;
  }

  step(step) {
    this.last = step;
    byId('live-title').textContent = step.title;
    byId('live-status').textContent = step.steps > 0 ? `step ${step.step} of ${step.steps}` : `step ${step.step}`;
    if (step.loss !== null) {
      const { losses } = this;
      if (!losses.length || losses[losses.length - 1][0] < step.step) losses.push([step.step, step.loss]);
    }
    this.figures();
    this.drawLosses();
  }

  figures() {
    const figure = (name, value) => make('div', {}, make('dt', {}, name), make('dd', { 'data-live': name }, value));
    const items = [];
    if (this.last) items.push(figure('Step', String(this.last.step)), figure('Loss', this.last.loss === null ? 'NaN' : short(this.last.loss)));
    const speed = (name, perSecond) => figure(name, Math.round(perSecond).toLocaleString('en'));
    if (this.last && this.last.tokens_per_second > 0) items.push(speed('Tokens / s', this.last.tokens_per_second));
    else if (this.last && this.last.rows_per_second > 0) items.push(speed('Rows / s', this.last.rows_per_second));
    if (this.facts) {
      const idle = this.facts.ranks.map((rank) => rank.idle).filter((share) => share !== null);
      if (idle.length) items.push(figure('Idle', percent(idle.reduce((sum, share) => sum + share, 0) / idle.length, 1)));
      if (this.facts.seconds > 0) items.push(figure('Recorded step', seconds(this.facts.seconds)));
      items.push(figure(this.facts.shared_memory ? 'Memory of the process' : 'Most memory of a rank', bytes(Math.max(...this.facts.ranks.map((rank) => rank.bytes)))));
    }
    byId('live-figures').replaceChildren(...items);
  }

  ranks(facts) {
    this.facts = facts;
    this.figures();
    const rows = facts.ranks.map((rank, r) => make('div', { title: facts.shared_memory ? null : bytes(rank.bytes) }, make('span', {}, `rank ${r}`),
      make('span', { class: 'meter' }, make('i', { style: `width:${100 * (rank.idle || 0)}%` })), make('span', {}, rank.idle === null ? '–' : percent(rank.idle, 0))));
    byId('live-idle').replaceChildren(...rows);
  }

  // Reads the trace by itself, so that a step that is not whole is shown too.
  timeline(text) {
    this.trace = text;
    const events = JSON.parse(text).traceEvents.filter((event) => event.ph === 'X' && event.args && 'step' in event.args);
    const numbers = [];
    const begin = Math.min(...events.map((event) => event.ts));
    const kinds = { F: 1, B: 2, I: 3, W: 4 };
    const slots = new Map();
    for (const event of events.sort((a, b) => a.pid - b.pid || a.ts - b.ts)) {
      const found = /^(\d+)([FBIW])(\d+)$/.exec(event.name);
      if (!found) continue;
      const slot = slots.get(event.pid) || 0;
      slots.set(event.pid, slot + 1);
      numbers.push(event.pid, slot, kinds[found[2]], Number(found[1]), Number(found[3]), 0, 0, 0, (event.ts - begin) * 1e-6, (event.ts - begin + event.dur) * 1e-6, (event.args.waited || 0) * 1e-6, 0);
    }
    if (!numbers.length) return;
    const actions = new Actions(Float64Array.from(numbers), 0);
    this.chart.setActions(actions);
    this.view.setWhole(actions.end);
  }

  drawLosses() {
    const canvas = byId('live-loss');
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [Math.max(100, canvas.parentElement.clientWidth), 150];
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const points = this.losses.filter(([, loss]) => loss !== null);
    if (points.length < 2) return;
    const context = canvas.getContext('2d');
    context.scale(ratio, ratio);
    const values = points.map(([, loss]) => loss);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const [first, last] = [points[0][0], points[points.length - 1][0]];
    const x = (step) => 44 + ((step - first) / Math.max(1, last - first)) * (width - 52);
    const y = (loss) => 8 + ((high - loss) / Math.max(1e-12, high - low)) * (height - 28);
    const { palette } = this.app;
    context.strokeStyle = palette.line;
    context.fillStyle = palette.quiet;
    context.font = '10.5px system-ui, sans-serif';
    context.textAlign = 'right';
    for (const value of [low, (low + high) / 2, high]) {
      context.beginPath();
      context.moveTo(44, y(value));
      context.lineTo(width - 8, y(value));
      context.stroke();
      context.fillText(Number(value.toPrecision(4)), 38, y(value) + 4);
    }
    context.textAlign = 'left';
    context.fillText(`step ${first}`, 44, height - 4);
    context.textAlign = 'right';
    context.fillText(`step ${last}`, width - 8, height - 4);
    context.strokeStyle = palette.accent;
    context.lineWidth = 1.75;
    context.lineJoin = 'round';
    context.beginPath();
    points.forEach(([step, loss], at) => (at ? context.lineTo(x(step), y(loss)) : context.moveTo(x(step), y(loss))));
    context.stroke();
  }
}

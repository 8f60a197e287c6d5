// The explorer: settings go in, the engine answers, charts and figures follow.

import { Actions } from './actions.js';
import { Chart } from './chart.js';
import { ChartKeys } from './chart_keys.js';
import { ChartPointer } from './chart_pointer.js';
import { Comparison } from './comparison.js';
import { Controls } from './controls.js';
import { costsText, perStage, scalable } from './costs.js';
import { byId, make } from './dom.js';
import { showFigures, showLegend } from './figures.js';
import { Measured } from './measured.js';
import { MemoryChart } from './memory_chart.js';
import { complain, note, settle } from './messages.js';
import { percent, short } from './numbers.js';
import { Palette } from './palette.js';
import { PlanSearch } from './plan_search.js';
import { DEFAULTS, MOST_PACKED, pack, settingsFromHash, settingsToHash, unpack } from './settings.js';
import { generatorFor, namedSource, planRequest, stagesFor } from './sources.js';
import { Theme } from './theme.js';
import { Tooltip, describe } from './tooltip.js';
import { showVerdict } from './verdict.js';
import { View } from './view.js';

const MOST_COMPARED = 256; // stages per rank and more are compared only by the command

export class App {
  constructor(engine, planner) {
    this.engine = engine;
    this.list = engine.call('list');
    this.settings = { ...DEFAULTS };
    this.own = null; // {name, csv}: a schedule of one's own
    this.ownSecond = null;
    this.costsFile = null;
    this.history = [];
    this.reply = null;
    this.view = new View();
    this.palette = new Palette();
    this.tooltip = new Tooltip();
    this.chart = new Chart(byId('chart'), this.view, this.palette);
    this.second = new Chart(byId('second-chart'), this.view, this.palette);
    this.memory = new MemoryChart(byId('memory'), this.view, this.palette);
    this.measured = new Measured(this.view, this.palette, this.tooltip, { onCosts: (reply) => this.useCosts('measured.json', reply.costs), onClose: () => this.closeMeasured() });
    this.comparison = new Comparison(engine, (key) => this.change({ s: key }));
    this.controls = new Controls(this.list, (changed) => this.change(changed));
    this.search = new PlanSearch(planner, () => this.update());
    this.theme = new Theme(() => this.repaint());
    this.listen();
  }

  listen() {
    const select = (index) => this.select(index);
    const move = (index, to) => this.move(index, to);
    new ChartPointer(this.chart, { onHover: (i, at) => this.tooltip.show(this.chart, i, at, { timed: this.timed }), onSelect: select, onMove: move });
    new ChartKeys(this.chart, { onSelect: select, onMove: move, onUndo: () => this.undo(), onPath: () => this.change({ cp: 1 - this.settings.cp }) });
    const selectSecond = (index) => {
      this.second.selected = index;
      this.second.invalidate();
    };
    new ChartPointer(this.second, { onHover: (i, at) => this.tooltip.show(this.second, i, at), onSelect: selectSecond });
    new ChartKeys(this.second, { onSelect: selectSecond });
    byId('zoom-in').addEventListener('click', () => this.view.zoom(1.5));
    byId('zoom-out').addEventListener('click', () => this.view.zoom(1 / 1.5));
    byId('zoom-fit').addEventListener('click', () => this.view.fit());
    byId('undo').addEventListener('click', () => this.undo());
    byId('costs-drop').addEventListener('click', () => this.useCosts('', null));
    byId('plan-stop').addEventListener('click', () => (this.search.running ? this.search.stop() : this.search.again()));
    byId('check').addEventListener('click', () => this.openSchedule('pasted.csv', byId('paste').value));
    byId('edit-shown').addEventListener('click', () => {
      byId('paste').value = this.csv().replace(/\r\n/g, '\n');
      byId('paste').focus();
    });
    window.addEventListener('hashchange', () => this.openHash());
  }

  repaint() {
    this.palette.read();
    if (this.reply) showLegend(this.chart.actions, this.palette);
    if (this.onTheme) this.onTheme();
    for (const chart of [this.chart, this.second, this.memory, this.measured.chart, this.liveChart]) if (chart) chart.invalidate();
  }

  async openHash() {
    const text = window.location.hash.replace(/^#/, '');
    if (text === this.hash) return;
    const settings = settingsFromHash(text);
    if (settings.csv) {
      try {
        this.own = { name: 'shared.csv', csv: await unpack(settings.csv) };
      } catch {
        complain('file', { message: 'the schedule in this link is broken: ask for the link again, or for the file' });
        settings.s = DEFAULTS.s;
        settings.csv = '';
      }
    }
    if (settings.s === 'file' && !this.own) settings.s = DEFAULTS.s;
    if (!['plan', 'file'].includes(settings.s) && !generatorFor(this.list, settings.s)) settings.s = DEFAULTS.s;
    this.settings = settings;
    this.update();
  }

  // Keeps the model when its cut changes: stages half as many are twice as long.
  change(changed) {
    const before = this.settings;
    const settings = { ...before, ...changed };
    if ('s' in changed && generatorFor(this.list, changed.s)) settings.v = stagesFor(generatorFor(this.list, changed.s), settings);
    if ('v' in changed) settings.s = this.scheduleFor(settings);
    if (settings.v !== before.v && scalable(before, this.costsFile)) {
      for (const key of ['f', 'i', 'w', 'act', 'wg']) settings[key] = Number(((before[key] * before.v) / settings.v).toPrecision(12));
    }
    if (settings.p * settings.v !== before.p * before.v) Object.assign(settings, { per: '', ws: -1 });
    this.settings = settings;
    this.update();
  }

  // The relative of a schedule that takes this number of stages per rank.
  scheduleFor({ s, v }) {
    const generator = generatorFor(this.list, s);
    if (!generator || (v >= generator.min_stages_per_rank && v <= generator.max_stages_per_rank)) return s;
    if (v === 1) return 'ZB-H1';
    const relatives = { GPipe: 'LoopedBFS', '1F1B': 'Interleaved1F1B', Eager1F1B: 'Interleaved1F1B', '1F1B-V': 'Interleaved1F1B' };
    return relatives[s] || 'InterleavedZeroBubble';
  }

  // What is to be shown; null while the first plan is on its way.
  source() {
    const { s } = this.settings;
    if (s === 'file') return { csv: this.own.csv, file: this.own.name };
    if (s === 'plan') return this.search.found ? { csv: this.search.found.csv, file: 'plan.csv' } : null;
    return namedSource(generatorFor(this.list, s), this.settings);
  }

  // The number of stages of the shown schedule.
  stages() {
    if (this.settings.s === 'file' && this.ownStages) return this.ownStages;
    return this.settings.p * this.settings.v;
  }

  costs(stages = this.stages(), scale = 1, settings = this.settings) {
    return costsText(settings, stages, this.costsFile, scale);
  }

  csv() {
    return this.reply && this.reply.csv !== undefined ? this.reply.csv : (this.source() || { csv: '' }).csv;
  }

  update() {
    const begin = performance.now();
    if (this.settings.s === 'file' && !this.own) this.settings.s = DEFAULTS.s;
    if (this.settings.s === 'file') this.readOwnShape();
    if (this.settings.s === 'plan' || this.settings.b === 'plan') this.search.want(planRequest(this.settings, this.costs(this.settings.p * this.settings.v)));
    else this.search.stop();
    this.controls.show(this.settings, { stages: Math.min(4096, this.stages()), hasFile: Boolean(this.own), hasSecondFile: Boolean(this.ownSecond || this.own), costsFile: this.costsFile });
    this.writeHash();
    const source = this.source();
    this.search.show();
    try {
      if (source) this.showSchedule(source);
      settle('show');
    } catch (error) {
      complain('show', { message: error.message, details: error.details });
    }
    this.lastUpdate = performance.now() - begin;
  }

  // Ranks and microbatches of a file are its own.
  readOwnShape() {
    if (this.own.shape) return;
    const rows = this.own.csv.trim().split(/\r\n|\n|\r/);
    const stages = new Set();
    let microbatches = 0;
    for (const [, stage, , microbatch] of this.own.csv.matchAll(/(\d+)([FBIW])(\d+)/g)) {
      stages.add(Number(stage));
      microbatches = Math.max(microbatches, Number(microbatch) + 1);
    }
    this.own.shape = { p: rows.length, m: Math.max(1, microbatches), stages: stages.size };
    this.ownStages = stages.size;
    if (perStage(this.settings) && perStage(this.settings).length !== stages.size) this.settings.per = '';
    Object.assign(this.settings, { p: rows.length, v: Math.max(1, Math.round(stages.size / rows.length)), m: this.own.shape.m });
  }

  showSchedule(source) {
    const reply = this.engine.call('show', { source, costs: this.costs(), memory_limit: this.settings.lim, subject: source.file || '' });
    this.reply = reply;
    this.timed = Boolean(reply.facts);
    const actions = new Actions(reply.actions, reply.facts ? reply.facts.ranks : 0);
    this.chart.setActions(actions, { path: this.timed ? this.pathOf(actions, reply.path) : null, cycle: this.timed ? null : this.cycleOf(actions, reply.verdict.cycle) });
    this.chart.showPath = this.settings.cp === 1;
    byId('chart-title').textContent = this.title();
    byId('undo').hidden = this.history.length === 0;
    byId('summary').textContent = this.summary();
    showVerdict(reply.verdict && this.settings.s === 'file' ? reply.verdict : null, { onShowCycle: this.timed ? () => this.showLoweredCycle(source) : null });
    showLegend(actions, this.palette);
    showFigures(reply, this.settings);
    byId('memory-part').hidden = !this.timed;
    this.memory.setMemory(reply.memory || [], this.settings.lim);
    byId('memory-facts').textContent = this.timed ? `peak ${short(reply.peak.max)} on rank ${reply.peak.per_rank.indexOf(reply.peak.max)}; the line of a rank is bold when one of its actions is selected` : '';
    this.showSecond(actions.end);
    this.showWhatIf(source);
    this.refreshComparison();
    this.describeSelection();
  }

  title() {
    if (this.settings.s === 'file') return `${this.own.name}${this.history.length ? ', edited' : ''}`;
    return this.settings.s === 'plan' ? 'Plan' : this.settings.s;
  }

  summary() {
    const generator = generatorFor(this.list, this.settings.s);
    if (generator) return `${generator.summary}. Bubble ${generator.bubble}; memory ${generator.memory}.`;
    return this.settings.s === 'plan' ? 'The schedule with the smallest span that keeps the memory limit.' : 'A schedule of your own.';
  }

  pathOf(actions, path) {
    const indices = [];
    const bySlot = new Map();
    for (let i = 0; i < actions.count; ++i) bySlot.set(actions.of(i, 'rank') * 1e7 + actions.of(i, 'slot'), i);
    for (let at = 0; at < path.length; at += 3) indices.push(bySlot.get(path[at] * 1e7 + path[at + 1]));
    return indices;
  }

  cycleOf(actions, cycle) {
    return (cycle || []).map((link) => ({ from: actions.inSlot(link.rank, link.step), to: actions.inSlot(link.on_rank, link.on_step) })).filter(({ from, to }) => from >= 0 && to >= 0);
  }

  // A deadlock of messages is in the lowered copy: that copy is drawn, slot by slot.
  showLoweredCycle(source) {
    const reply = this.engine.call('check', { source });
    const actions = new Actions(reply.actions, 0);
    this.timed = false;
    this.chart.setActions(actions, { cycle: this.cycleOf(actions, reply.cycle) });
    this.view.setWhole(actions.end);
    this.view.fit();
    byId('chart-title').textContent = `${this.own.name}, ${reply.report.verified_form}`;
    showLegend(actions, this.palette);
  }

  showSecond(end) {
    const { b } = this.settings;
    const box = byId('second');
    let whole = Math.max(end, this.reply.makespan || 0, this.measuredEnd || 0);
    box.hidden = true;
    const file = this.ownSecond || this.own;
    const source = b === 'plan' ? this.search.found && { csv: this.search.found.csv, file: 'plan.csv' }
      : b === 'file' ? file && { csv: file.csv, file: file.name } : b && generatorFor(this.list, b) ? namedSource(generatorFor(this.list, b), this.settings) : null;
    settle('second');
    if (source && this.timed) {
      try {
        const stages = source.csv ? this.stages() : source.ranks * source.stages_per_rank;
        const scale = source.csv || !scalable(this.settings, this.costsFile) ? 1 : this.settings.v / source.stages_per_rank;
        const reply = this.engine.call('show', { source, costs: this.costs(stages, scale), memory_limit: this.settings.lim, subject: source.file || b });
        if (!reply.facts) throw new Error(reply.verdict.refusal.message);
        box.hidden = false;
        this.second.setActions(new Actions(reply.actions, reply.facts.ranks), {});
        byId('second-title').textContent = source.csv ? source.file : b;
        const more = reply.span / this.reply.span - 1;
        byId('second-facts').textContent = `span ${short(reply.span)}, ${more === 0 ? 'the same' : `${percent(Math.abs(more))} ${more > 0 ? 'longer' : 'shorter'}`}; bubble ${percent(reply.bubble_span)}; peak ${short(reply.peak.max)}`;
        whole = Math.max(whole, reply.makespan);
      } catch (error) {
        complain('second', { message: `beside it: ${error.message}`, details: error.details });
      }
    }
    this.view.setWhole(whole);
  }

  showWhatIf(source) {
    const text = byId('what-if');
    if (!this.timed || this.settings.ws < 0 || this.settings.ws >= this.stages()) return void (text.textContent = 'How much does the step gain if one stage becomes faster?');
    const [plain] = this.engine.call('compare', { items: [{ source, costs: this.costs(this.stages(), 1, { ...this.settings, ws: -1 }) }] }).rows;
    if (plain.error) return void (text.textContent = plain.error);
    const gain = 1 - this.reply.makespan / plain.makespan;
    text.textContent = `Makespan ${short(plain.makespan)} becomes ${short(this.reply.makespan)}: ${gain === 0 ? 'no change' : `${percent(Math.abs(gain))} ${gain > 0 ? 'less' : 'more'}`}.`;
    return undefined;
  }

  refreshComparison() {
    if (this.settings.v > MOST_COMPARED) return;
    const items = this.settings.s === 'file' && this.own.shape.stages !== this.settings.p * this.settings.v ? [] : this.list.schedules.filter((one) => one.name !== 'ForwardOnly').map((generator) => this.compared(generator));
    if (this.search.found) items.push({ key: 'plan', label: 'Plan', source: { csv: this.search.found.csv, file: 'plan.csv' }, costs: this.costs(this.settings.p * this.settings.v), stagesPerRank: this.settings.v });
    if (this.own && this.settings.s === 'file' && this.timed) items.push({ key: 'file', label: this.own.name, source: { csv: this.own.csv, file: this.own.name }, costs: this.costs(this.own.shape ? this.own.shape.stages : undefined), stagesPerRank: this.settings.v });
    this.comparison.refresh(items, { shown: this.settings.s, limit: this.settings.lim, bound: this.reply.lower_bound });
  }

  compared(generator) {
    const v = stagesFor(generator, this.settings);
    const item = { key: generator.name, label: generator.name, source: namedSource(generator, this.settings), stagesPerRank: v };
    if (v === this.settings.v) return { ...item, costs: this.costs(this.settings.p * v) };
    if (!scalable(this.settings, this.costsFile)) return { ...item, missing: `needs ${v} stages per rank, and the costs are for ${this.settings.v}` };
    return { ...item, costs: this.costs(this.settings.p * v, this.settings.v / v) };
  }

  select(index) {
    this.chart.selected = index;
    this.memory.highlighted = index < 0 ? -1 : this.chart.actions.of(index, 'rank');
    this.chart.invalidate();
    this.memory.invalidate();
    this.describeSelection();
  }

  describeSelection() {
    const { chart } = this;
    const box = byId('selection');
    this.hint ||= [...box.childNodes];
    if (chart.selected < 0) box.replaceChildren(...this.hint);
    else box.textContent = describe(chart.actions, chart.selected, { timed: this.timed });
  }

  // The action now stands before that in slot `to` of its rank.
  move(index, to) {
    const { actions } = this.chart;
    const [rank, from] = [actions.of(index, 'rank'), actions.of(index, 'slot')];
    if (to === from || to === from + 1) return;
    const text = actions.text(index);
    const before = { settings: this.settings, own: this.own };
    const source = { csv: this.csv(), file: this.settings.s === 'file' ? this.own.name : `${this.settings.s.toLowerCase()}.csv` };
    try {
      const { csv } = this.engine.call('move', { source, rank, from, to });
      this.history.push(before);
      this.own = { name: source.file, csv };
      this.settings = { ...this.settings, s: 'file', csv: '' };
      this.update();
      for (let i = this.chart.actions.first[rank]; i < this.chart.actions.first[rank + 1]; ++i) if (this.chart.actions.text(i) === text) this.select(i);
      this.packOwn();
    } catch (error) {
      complain('show', { message: error.message, details: error.details });
    }
  }

  undo() {
    const before = this.history.pop();
    if (!before) return;
    this.own = before.own;
    if (this.own) this.own.shape = null;
    this.settings = before.settings;
    this.update();
  }

  async packOwn() {
    const { own } = this;
    const packed = await pack(own.csv);
    if (own !== this.own || this.settings.s !== 'file') return;
    this.settings.csv = packed.length <= MOST_PACKED ? packed : '';
    this.writeHash();
  }

  writeHash() {
    this.hash = settingsToHash(this.settings.s === 'file' || this.settings.b === 'file' ? this.settings : { ...this.settings, csv: '' });
    clearTimeout(this.hashTimer);
    this.hashTimer = setTimeout(() => this.flushHash(), 120); // to change the address takes longer than to simulate a schedule
  }

  flushHash() {
    clearTimeout(this.hashTimer);
    const url = this.hash ? `#${this.hash}` : window.location.pathname + window.location.search;
    try {
      window.history.replaceState(null, '', url);
    } catch {
      // some browsers allow few changes of the address per second: a later one will do
    }
  }

  openFile(kind, name, text) {
    if (kind === 'costs') return this.useCosts(name, text);
    if (kind === 'timeline') return this.openTimeline(name, text);
    return this.openSchedule(name, text);
  }

  // The first schedule is shown, a second one beside it.
  openSchedule(name, csv, beside = false) {
    settle('file');
    try {
      this.engine.call('check', { source: { csv, file: name }, subject: name });
    } catch (error) {
      complain('file', { message: error.message, details: error.details });
      return;
    }
    if (beside) {
      this.ownSecond = { name, csv };
      this.change({ b: 'file' });
      return;
    }
    this.own = { name, csv };
    this.history = [];
    this.chart.selected = -1;
    this.settings = { ...this.settings, s: 'file', ws: -1, csv: '' };
    this.view.begin = 0;
    this.view.end = this.view.whole;
    this.update();
    this.packOwn();
  }

  useCosts(name, text) {
    settle('file');
    if (!text) {
      this.costsFile = null;
    } else {
      try {
        const full = this.engine.call('costs', { text, subject: name }).text;
        const stages = JSON.parse(full).stages.length;
        this.costsFile = { name, text, full };
        if (stages > 1 && this.settings.s !== 'file' && stages !== this.settings.p * this.settings.v) this.fitToStages(stages);
      } catch (error) {
        complain('file', { message: error.message, details: error.details });
        return;
      }
    }
    this.change({ per: '', ws: -1 });
  }

  // Costs by stage say how many stages there are.
  fitToStages(stages) {
    const v = stages % this.settings.p === 0 ? stages / this.settings.p : 1;
    this.settings = { ...this.settings, v, p: stages / v };
    this.settings.s = this.scheduleFor(this.settings);
    note(`The costs are for ${stages} stages: now ${this.settings.p} ranks with ${v} each.`);
  }

  openTimeline(name, text) {
    settle('file');
    try {
      const costs = this.costsFile ? this.costsFile.text : null;
      const reply = this.engine.call('timeline', { text, costs, subject: name });
      const planName = `${reply.measured.name || name.replace(/\.json$/, '')}.csv`;
      if (!this.costsFile) this.costsFile = { name, text: reply.costs, full: reply.costs };
      this.measuredEnd = this.measured.show(reply, name);
      this.openSchedule(planName, reply.csv);
    } catch (error) {
      complain('file', { message: error.message, details: error.details });
    }
  }

  closeMeasured() {
    this.measured.hide();
    this.measuredEnd = 0;
    this.update();
  }
}

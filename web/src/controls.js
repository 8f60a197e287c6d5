// The form: settings to inputs and back.

import { byId, make } from './dom.js';
import { perStage } from './costs.js';

const COUNTS = ['p', 'v', 'm'];
const NUMBERS = ['act', 'wg', 'lim', 'eff', 'seed'];
const SLIDERS = ['f', 'i', 'w', 'lat'];

export class Controls {
  // `onChange` gets the changed settings only.
  constructor(list, onChange) {
    this.onChange = onChange;
    this.list = list;
    for (const key of [...COUNTS, ...NUMBERS]) byId(key).addEventListener('input', () => this.number(key, byId(key)));
    for (const key of SLIDERS) {
      byId(key).addEventListener('input', () => this.number(key, byId(key)));
      byId(`${key}-number`).addEventListener('input', () => this.number(key, byId(`${key}-number`)));
    }
    for (const key of ['s', 'place', 'b']) byId(key).addEventListener('change', () => onChange({ [key]: byId(key).value }));
    byId('ws').addEventListener('change', () => onChange({ ws: Number(byId('ws').value) }));
    byId('wp').addEventListener('input', () => onChange({ wp: Number(byId('wp').value) }));
    byId('cp').addEventListener('change', () => onChange({ cp: byId('cp').checked ? 1 : 0 }));
    byId('per-stage').addEventListener('toggle', () => byId('per-stage').open || (this.settings.per && onChange({ per: '' })));
    this.fillSchedules(byId('s'), []);
  }

  number(key, input) {
    const value = input.valueAsNumber;
    const bad = !Number.isFinite(value) || value < 0 || (COUNTS.includes(key) && (!Number.isInteger(value) || value < 1)) || (key === 'eff' && value <= 0) ||
      (key === 'seed' && !Number.isInteger(value));
    input.setAttribute('aria-invalid', bad);
    if (!bad) this.onChange({ [key]: value });
  }

  fillSchedules(select, first) {
    const names = this.list.schedules.filter((one) => one.name !== 'ForwardOnly' || select.id === 's').map((one) => one.name);
    const own = make('optgroup', { label: 'Yours' }, make('option', { value: 'plan' }, 'Plan: search for the best'), make('option', { value: 'file', disabled: select.id === 's' }, 'File or edit'));
    select.replaceChildren(...first, own, make('optgroup', { label: 'Known' }, ...names.map((name) => make('option', { value: name }, name))));
  }

  // Shows the settings; the input that has the focus keeps what its user types.
  show(settings, { stages, hasFile, hasSecondFile, costsFile }) {
    this.settings = settings;
    this.stages = stages;
    for (const key of [...COUNTS, ...NUMBERS]) this.put(byId(key), settings[key]);
    for (const key of SLIDERS) {
      byId(key).max = Math.max(Number(byId(key).max), settings[key]);
      this.put(byId(key), settings[key]);
      this.put(byId(`${key}-number`), settings[key]);
    }
    byId('s').querySelector('option[value=file]').disabled = !hasFile;
    this.put(byId('s'), settings.s);
    this.put(byId('place'), settings.place);
    this.showSecond(settings, hasSecondFile);
    byId('cp').checked = settings.cp === 1;
    byId('planning').hidden = settings.s !== 'plan';
    for (const key of COUNTS) byId(key).disabled = settings.s === 'file';
    byId('costs-file').hidden = !costsFile;
    byId('sliders').hidden = Boolean(costsFile);
    byId('lat').closest('.slider').hidden = Boolean(costsFile);
    for (const key of ['act', 'wg']) byId(key).disabled = Boolean(costsFile);
    if (costsFile) byId('costs-file').firstElementChild.textContent = `Costs from ${costsFile.name}.`;
    this.showWhatIf(settings, stages);
    this.showStages(settings, stages);
  }

  put(input, value) {
    if (document.activeElement === input && input.type === 'number' && Number(input.value) === Number(value)) return;
    if (document.activeElement === input && input.type === 'number') return;
    if (input.value !== String(value)) input.value = value;
    input.removeAttribute('aria-invalid');
  }

  showSecond(settings, hasFile) {
    const select = byId('b');
    if (!select.options.length) this.fillSchedules(select, [make('option', { value: '' }, 'nothing')]);
    select.querySelector('option[value=file]').disabled = !hasFile;
    if (select.value !== settings.b) select.value = settings.b;
  }

  showWhatIf(settings, stages) {
    const select = byId('ws');
    if (select.options.length !== stages + 1) {
      select.replaceChildren(make('option', { value: -1 }, 'none'), ...Array.from({ length: stages }, (_, stage) => make('option', { value: stage }, `stage ${stage}`)));
    }
    select.value = settings.ws < stages ? settings.ws : -1;
    this.put(byId('wp'), settings.wp);
    byId('wp').disabled = settings.ws < 0;
    byId('wp-text').textContent = `${settings.wp} %`;
  }

  showStages(settings, stages) {
    const own = perStage(settings);
    if (own) byId('per-stage').open = true;
    const grid = byId('stages');
    const key = `${stages}`;
    if (grid.dataset.key !== key) {
      grid.dataset.key = key;
      grid.replaceChildren(make('span', {}), ...['F', 'I', 'W'].map((kind) => make('b', { class: `k ${kind.toLowerCase()}` }, kind)),
        ...Array.from({ length: Math.min(stages, 256) }, (_, stage) => [make('span', {}, String(stage)),
          ...['F', 'I', 'W'].map((kind, at) => make('input', { type: 'number', min: 0, step: 'any', 'aria-label': `${kind} of stage ${stage}`, 'data-stage': stage, 'data-part': at, oninput: () => this.stageChanged() }))]).flat());
    }
    for (const input of grid.querySelectorAll('input')) {
      const times = own ? own[input.dataset.stage] : [settings.f, settings.i, settings.w];
      if (times) this.put(input, times[input.dataset.part]);
    }
  }

  stageChanged() {
    const times = Array.from({ length: this.stages }, () => [this.settings.f, this.settings.i, this.settings.w]);
    for (const input of byId('stages').querySelectorAll('input')) {
      if (Number.isFinite(input.valueAsNumber) && input.valueAsNumber >= 0) times[input.dataset.stage][input.dataset.part] = input.valueAsNumber;
    }
    this.onChange({ per: times.map((entry) => entry.join(' ')).join(';') });
  }
}

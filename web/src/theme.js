// Light, dark, or as the system has it.

import { byId } from './dom.js';

const NAMES = { auto: 'as the system', light: 'light', dark: 'dark' };
const SIGNS = { auto: '◐', light: '☀', dark: '☾' };

export class Theme {
  constructor(onChange) {
    this.system = window.matchMedia('(prefers-color-scheme: dark)');
    this.onChange = onChange;
    this.choice = this.stored();
    this.system.addEventListener('change', () => this.apply());
    byId('theme').addEventListener('click', () => this.next());
    this.apply();
  }

  // Some browsers keep nothing for pages opened from a file.
  stored() {
    try {
      return localStorage.getItem('stagecraft-theme') || 'auto';
    } catch {
      return 'auto';
    }
  }

  next() {
    this.choice = { auto: 'dark', dark: 'light', light: 'auto' }[this.choice] || 'auto';
    try {
      localStorage.setItem('stagecraft-theme', this.choice);
    } catch {
      // the choice then lasts as long as the page
    }
    this.apply();
  }

  apply() {
    const dark = this.choice === 'dark' || (this.choice === 'auto' && this.system.matches);
    document.documentElement.dataset.shade = dark ? 'dark' : 'light';
    byId('theme').textContent = SIGNS[this.choice];
    byId('theme').setAttribute('aria-label', `Theme: ${NAMES[this.choice]}`);
    this.onChange();
  }
}

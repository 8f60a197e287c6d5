// What leaves the page: links, texts to paste, and the files that the command would write.

import { byId, copyText, download } from './dom.js';
import { complain, note } from './messages.js';
import { asCommand, asCpp, fileName } from './texts.js';

const TYPES = { csv: 'text/csv', svg: 'image/svg+xml', trace: 'application/json', json: 'application/json' };

export class Exports {
  constructor(app) {
    this.app = app;
    const menu = byId('export-menu');
    const on = (id, act) => byId(id).addEventListener('click', () => {
      menu.open = false;
      try {
        act();
      } catch (error) {
        complain('export', { message: error.message, details: error.details });
      }
    });
    on('copy-link', () => this.copyLink());
    on('copy-command', () => this.copy('the command', asCommand(app.settings, app.list, app.own, app.costs())));
    on('copy-cpp', () => this.copy('the program', asCpp(app.settings, app.list, app.own, app.costs())));
    on('download-csv', () => this.save('csv', 'csv'));
    on('download-svg', () => this.save('svg', 'svg'));
    on('download-trace', () => this.save('trace', 'trace.json'));
    on('download-report', () => this.save('json', 'report.json'));
    on('download-costs', () => download('costs.json', `${app.costs()}\n`, TYPES.json));
    on('print', () => window.print());
    document.addEventListener('click', (event) => menu.contains(event.target) || (menu.open = false));
    menu.addEventListener('keydown', (event) => event.key === 'Escape' && ((menu.open = false), menu.querySelector('summary').focus()));
  }

  copyLink() {
    const { settings } = this.app;
    const left = settings.s === 'file' && !settings.csv ? ' The schedule is too long for it: send the CSV too.' : '';
    this.app.flushHash();
    this.copy('the link', window.location.href, left);
  }

  async copy(what, text, more = '') {
    this.lastCopied = text;
    await copyText(text);
    note(`Copied ${what}.${more}`);
  }

  save(format, extension) {
    const { app } = this;
    const file = fileName(app.settings, app.own, 'csv');
    const { text } = app.engine.call('write', { source: { csv: app.csv(), file }, costs: app.costs(), format, subject: file });
    download(fileName(app.settings, app.own, extension), text, TYPES[format]);
  }
}

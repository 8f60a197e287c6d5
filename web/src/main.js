// The start of the page: loads the engine, then opens what the address and the embedded files say.

import { App } from './app.js';
import { byId } from './dom.js';
import { Engine } from './engine.js';
import { Exports } from './exports.js';
import { Files, kindOf } from './files.js';
import { complain } from './messages.js';
import { LiveRun } from './live.js';
import { Planner } from './planner.js';

async function engineBytes() {
  const packed = Uint8Array.from(atob(byId('wasm').textContent), (character) => character.charCodeAt(0));
  byId('wasm').textContent = '';
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Costs come first: schedules and timelines are then shown with them.
function openEmbedded(app) {
  const files = JSON.parse(byId('embedded').textContent).map(({ name, text }) => ({ name, text, kind: kindOf(name, text) }));
  const rank = { costs: 0, timeline: 1, schedule: 2 };
  files.sort((a, b) => rank[a.kind] - rank[b.kind]);
  let schedules = 0;
  for (const { name, text, kind } of files) {
    if (name === 'stagecraft-live') {
      app.live = new LiveRun(app, text);
      continue;
    }
    if (kind === 'schedule' && schedules++ > 0) app.openSchedule(name, text, true);
    else app.openFile(kind, name, text);
  }
}

async function start() {
  try {
    const wasm = await engineBytes();
    const engine = await Engine.load(createEngine, wasm);
    const app = new App(engine, new Planner(byId('worker').textContent, wasm));
    app.exports = new Exports(app);
    app.files = new Files((name, text) => app.openFile(kindOf(name, text), name, text));
    await app.openHash();
    if (!app.reply && app.settings.s !== 'plan') app.update();
    openEmbedded(app);
    window.stagecraft = app; // for tests, and for those who look inside
    document.documentElement.dataset.ready = '1';
  } catch (error) {
    complain('start', { message: `the page cannot start: ${error.message}: it needs a browser with WebAssembly and DecompressionStream, of 2023 or later` });
  }
}

start();

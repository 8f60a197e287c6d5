// Runs in a worker, so that the page stays usable while a plan is searched. One request per worker: to stop a search, the page ends it.

import { Engine } from './engine.js';

self.onmessage = async ({ data }) => {
  const tell = (event) => self.postMessage(event);
  try {
    const engine = await Engine.load(self.createEngine, data.wasm, tell);
    tell({ done: engine.call('plan', data.request) });
  } catch (error) {
    tell({ error: { message: error.message, details: error.details || '' } });
  }
};

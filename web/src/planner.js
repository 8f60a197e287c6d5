// A search for a plan in a worker: the first plan within a moment, better ones as they are found, and an end on demand.

export class Planner {
  constructor(workerSource, wasm) {
    this.url = URL.createObjectURL(new Blob([workerSource], { type: 'text/javascript' }));
    this.wasm = wasm;
    this.worker = null;
  }

  // `listener` has the functions better, progress, done and failed. A search under way is given up.
  start(request, listener) {
    this.stop();
    const worker = new Worker(this.url);
    this.worker = worker;
    worker.onmessage = ({ data }) => {
      if (this.worker !== worker) return;
      if (data.better) listener.better(data.better);
      if (data.progress) listener.progress(data.progress);
      if (data.done) this.end(() => listener.done(data.done));
      if (data.error) this.end(() => listener.failed(data.error));
    };
    worker.onerror = (event) => this.worker === worker && this.end(() => listener.failed({ message: event.message || 'the search ended without a reason' }));
    worker.postMessage({ wasm: this.wasm, request });
  }

  end(then) {
    this.stop();
    then();
  }

  stop() {
    if (this.worker) this.worker.terminate();
    this.worker = null;
  }

  get running() {
    return this.worker !== null;
  }
}

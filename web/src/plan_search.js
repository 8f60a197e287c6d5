// The plan of the present settings: searched when they ask for one, kept while they stay.

import { byId } from './dom.js';
import { complain, settle } from './messages.js';
import { percent, short } from './numbers.js';

const PAUSE = 150; // milliseconds without a change before a search begins

export class PlanSearch {
  constructor(planner, onFound) {
    Object.assign(this, { planner, onFound, key: '', found: null, status: '', part: 0, timer: null });
  }

  get running() {
    return this.planner.running || this.timer !== null;
  }

  // Starts a search unless the present one is for the same request.
  want(request) {
    const key = JSON.stringify(request);
    if (key === this.key) return;
    this.stop();
    this.key = key;
    this.request = request;
    this.found = null;
    this.again();
  }

  again() {
    settle('plan');
    this.status = 'searching ...';
    this.part = 0;
    this.begun = performance.now();
    this.firstAfter = null;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.timer = null;
      this.planner.start(this.request, this);
      this.show();
    }, this.found ? 0 : PAUSE);
    this.show();
  }

  stop() {
    if (!this.running) return;
    clearTimeout(this.timer);
    this.timer = null;
    this.planner.stop();
    this.status = this.found ? `stopped: span ${short(this.found.span)}, the best so far` : 'stopped';
    this.show();
  }

  better(found) {
    if (this.firstAfter === null) this.firstAfter = performance.now() - this.begun;
    this.found = { ...found, finished: false };
    this.onFound();
  }

  progress({ part, span, bubble, placement, lower_bound: bound }) {
    this.part = part;
    this.status = `${placement}: span ${short(span)}, bubble ${percent(bubble)}, at least ${short(bound)}`;
    this.show();
  }

  done({ plan, csv }) {
    this.found = { csv, span: plan.span, bubble: plan.bubble_span, finished: true, plan };
    this.part = 1;
    this.status = `${plan.trials} trials, found by ${plan.found_by}${plan.proven ? '; nothing is shorter' : ''}. The command finds the same.`;
    this.onFound();
  }

  failed(error) {
    this.status = 'no plan';
    this.found = null;
    complain('plan', error);
    this.show();
  }

  show() {
    byId('plan-progress').value = this.part;
    byId('plan-status').textContent = this.status;
    byId('plan-stop').textContent = this.running ? 'Stop' : 'Again';
  }
}

// Mouse and touch on a chart: hover for numbers, click to select, drag an action to another slot, drag the ground to pan, wheel or pinch to zoom.

const STILL = 4; // pixels that a click may move

export class ChartPointer {
  constructor(chart, { onHover, onSelect, onMove }) {
    Object.assign(this, { chart, onHover, onSelect, onMove });
    this.pointers = new Map();
    const { canvas } = chart;
    canvas.addEventListener('pointerdown', (event) => this.down(event));
    canvas.addEventListener('pointermove', (event) => this.moved(event));
    canvas.addEventListener('pointerup', (event) => this.up(event));
    canvas.addEventListener('pointercancel', (event) => this.cancel(event));
    canvas.addEventListener('pointerleave', () => this.onHover(-1));
    canvas.addEventListener('dblclick', () => chart.view.fit());
    canvas.addEventListener('wheel', (event) => this.wheel(event), { passive: false });
  }

  place(event) {
    const box = this.chart.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  down(event) {
    if (!this.chart.actions || event.button > 0) return;
    const at = this.place(event);
    this.pointers.set(event.pointerId, at);
    this.chart.canvas.setPointerCapture(event.pointerId);
    const index = this.chart.actionAt(at.x, at.y);
    const movable = this.onMove && index >= 0 && event.pointerType !== 'touch' && !event.shiftKey;
    this.drag = this.pointers.size > 1 ? { pinch: this.spread() } : { index, movable, x: at.x, y: at.y, moved: false };
  }

  spread() {
    const [a, b] = [...this.pointers.values()];
    return { distance: Math.max(10, Math.abs(a.x - b.x)), middle: (a.x + b.x) / 2 };
  }

  moved(event) {
    const { chart } = this;
    if (!chart.actions) return;
    const at = this.place(event);
    if (!this.pointers.has(event.pointerId)) return this.onHover(chart.actionAt(at.x, at.y), at);
    const before = this.pointers.get(event.pointerId);
    this.pointers.set(event.pointerId, at);
    if (this.pointers.size > 1) return this.pinch();
    if (!this.drag || this.drag.pinch) return undefined;
    if (Math.abs(at.x - this.drag.x) > STILL || Math.abs(at.y - this.drag.y) > STILL) this.drag.moved = true;
    if (!this.drag.moved) return undefined;
    this.onHover(-1);
    if (this.drag.movable) {
      const rank = chart.actions.of(this.drag.index, 'rank');
      chart.ghost = { index: this.drag.index, x: at.x, to: chart.slotAt(rank, at.x) };
      chart.invalidate();
    } else {
      chart.view.pan(((before.x - at.x) * (chart.view.end - chart.view.begin)) / chart.plotWidth);
    }
    return undefined;
  }

  pinch() {
    const now = this.spread();
    const before = this.drag && this.drag.pinch;
    if (before) this.chart.view.zoom(now.distance / before.distance, this.chart.time(now.middle));
    this.drag = { pinch: now };
  }

  up(event) {
    this.pointers.delete(event.pointerId);
    const { chart, drag } = this;
    this.drag = null;
    if (!drag || drag.pinch) return;
    const { ghost } = chart;
    chart.ghost = null;
    if (ghost) this.onMove(ghost.index, ghost.to);
    else if (!drag.moved) this.onSelect(drag.index);
    chart.invalidate();
  }

  cancel(event) {
    this.pointers.delete(event.pointerId);
    this.drag = null;
    this.chart.ghost = null;
    this.chart.invalidate();
  }

  // Plain wheels scroll the page; with Ctrl (as touchpads say it for a pinch) they zoom, sideways they pan.
  wheel(event) {
    const { chart } = this;
    if (!chart.actions) return;
    const sideways = event.shiftKey ? event.deltaY : event.deltaX;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      chart.view.zoom(Math.exp(-event.deltaY / 240), chart.time(this.place(event).x));
    } else if (Math.abs(sideways) > 0 && Math.abs(sideways) >= Math.abs(event.shiftKey ? 0 : event.deltaY)) {
      event.preventDefault();
      chart.view.pan((sideways * (chart.view.end - chart.view.begin)) / chart.plotWidth);
    }
  }
}

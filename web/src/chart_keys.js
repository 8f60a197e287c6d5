// The keyboard on a chart: everything that the mouse does.

export class ChartKeys {
  constructor(chart, { onSelect, onMove, onUndo, onPath }) {
    Object.assign(this, { chart, onSelect, onMove, onUndo, onPath });
    chart.canvas.addEventListener('keydown', (event) => this.pressed(event));
  }

  pressed(event) {
    if (!this.chart.actions) return;
    if ((event.ctrlKey || event.metaKey) && event.key === 'z') {
      event.preventDefault();
      if (this.onUndo) this.onUndo();
      return;
    }
    if (event.ctrlKey || event.metaKey) return;
    const act = this.action(event.key, event.altKey);
    if (!act) return;
    event.preventDefault();
    act();
  }

  action(key, alt) {
    const { view } = this.chart;
    const length = view.end - view.begin;
    const keys = {
      ArrowRight: () => (alt ? this.shift(1) : this.step(1)),
      ArrowLeft: () => (alt ? this.shift(-1) : this.step(-1)),
      ArrowDown: () => this.changeRank(1),
      ArrowUp: () => this.changeRank(-1),
      Home: () => this.edge(true),
      End: () => this.edge(false),
      '+': () => view.zoom(1.5, this.focus()),
      '=': () => view.zoom(1.5, this.focus()),
      '-': () => view.zoom(1 / 1.5, this.focus()),
      0: () => view.fit(),
      '[': () => view.pan(-length / 5),
      ']': () => view.pan(length / 5),
      c: () => this.onPath && this.onPath(),
      Escape: () => this.onSelect(-1),
    };
    return keys[key];
  }

  focus() {
    const { chart } = this;
    return chart.selected < 0 ? undefined : (chart.actions.of(chart.selected, 'start') + chart.actions.of(chart.selected, 'end')) / 2;
  }

  choose(index) {
    const { chart } = this;
    this.onSelect(index);
    if (index >= 0) chart.view.reveal(chart.actions.of(index, 'start'), chart.actions.of(index, 'end'));
  }

  step(by) {
    const { actions, selected } = this.chart;
    if (selected < 0) return this.choose(0);
    const rank = actions.of(selected, 'rank');
    return this.choose(Math.min(actions.first[rank + 1] - 1, Math.max(actions.first[rank], selected + by)));
  }

  changeRank(by) {
    const { actions, selected } = this.chart;
    if (selected < 0) return this.choose(0);
    const rank = Math.min(actions.ranks - 1, Math.max(0, actions.of(selected, 'rank') + by));
    const time = actions.of(selected, 'start');
    let best = actions.first[rank];
    for (let i = actions.first[rank]; i < actions.first[rank + 1]; ++i) {
      if (Math.abs(actions.of(i, 'start') - time) < Math.abs(actions.of(best, 'start') - time)) best = i;
    }
    return this.choose(best);
  }

  edge(first) {
    const { actions, selected } = this.chart;
    const rank = selected < 0 ? 0 : actions.of(selected, 'rank');
    this.choose(first ? actions.first[rank] : actions.first[rank + 1] - 1);
  }

  // Swaps the action with its neighbour on the rank.
  shift(by) {
    const { actions, selected } = this.chart;
    if (selected < 0 || !this.onMove) return;
    const rank = actions.of(selected, 'rank');
    const neighbour = selected + by;
    if (neighbour < actions.first[rank] || neighbour >= actions.first[rank + 1]) return;
    this.onMove(selected, actions.of(neighbour, 'slot') + (by > 0 ? 1 : 0));
  }
}

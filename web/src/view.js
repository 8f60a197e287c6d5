// The piece of time that charts show. Charts that share a view are on one clock: they zoom and pan together.

export class View {
  constructor() {
    this.whole = 1;
    this.begin = 0;
    this.end = 1;
    this.listeners = [];
  }

  onChange(listener) {
    this.listeners.push(listener);
  }

  // Sets the whole range; what was shown in full stays shown in full.
  setWhole(whole) {
    const full = this.begin === 0 && this.end === this.whole;
    this.whole = whole > 0 ? whole : 1;
    if (full || this.end > this.whole) this.fit();
    else this.changed();
  }

  fit() {
    this.show(0, this.whole);
  }

  show(begin, end) {
    const least = this.whole / 20000;
    const length = Math.min(this.whole, Math.max(least, end - begin));
    this.begin = Math.min(Math.max(0, begin), this.whole - length);
    this.end = this.begin + length;
    this.changed();
  }

  zoom(factor, around = (this.begin + this.end) / 2) {
    this.show(around - (around - this.begin) / factor, around + (this.end - around) / factor);
  }

  pan(time) {
    this.show(this.begin + time, this.end + time);
  }

  // Pans as far as needed to see the range.
  reveal(begin, end) {
    if (begin < this.begin) this.pan(begin - this.begin);
    else if (end > this.end) this.pan(Math.min(end - this.end, begin - this.begin));
  }

  changed() {
    this.listeners.forEach((listener) => listener());
  }
}

// Actions as the engine gives them: twelve numbers each, see picture.h of the engine.

export const WIDTH = 12;
const AT = { rank: 0, slot: 1, kind: 2, stage: 3, microbatch: 4, kind2: 5, stage2: 6, microbatch2: 7, start: 8, end: 9, slack: 10, critical: 11 };
export const KIND_TEXT = ['', 'F', 'B', 'I', 'W', 'OVERLAP_F_B', 'UNSHARD', 'RESHARD', 'REDUCE_GRAD', 'SEND_F', 'RECV_F', 'SEND_B', 'RECV_B'];
const KIND_NAMES = ['idle', 'forward', 'backward', 'input gradient', 'weight gradient', 'overlap', 'gather parameters', 'drop parameters',
  'reduce gradients', 'send activation', 'receive activation', 'send gradient', 'receive gradient'];

export class Actions {
  constructor(numbers, ranks) {
    this.numbers = numbers;
    this.count = numbers.length / WIDTH;
    let highest = 0;
    for (let i = 0; i < this.count; ++i) highest = Math.max(highest, this.of(i, 'rank') + 1);
    this.ranks = Math.max(ranks || 0, highest);
    this.first = new Uint32Array(this.ranks + 1); // of each rank; actions come rank by rank
    for (let i = 0; i < this.count; ++i) this.first[this.of(i, 'rank') + 1] = i + 1;
    for (let r = 1; r <= this.ranks; ++r) this.first[r] = Math.max(this.first[r], this.first[r - 1]);
    this.end = 0;
    for (let i = 0; i < this.count; ++i) this.end = Math.max(this.end, this.of(i, 'end'));
    this.colourGroups();
  }

  of(i, what) {
    return this.numbers[i * WIDTH + AT[what]];
  }

  // Which of its rank's stages an action is of: shades of a colour tell the stages of a rank apart.
  colourGroups() {
    this.local = new Uint8Array(this.count);
    this.stagesOnRank = new Uint16Array(this.ranks);
    for (let r = 0; r < this.ranks; ++r) {
      const stages = new Set();
      for (let i = this.first[r]; i < this.first[r + 1]; ++i) stages.add(this.of(i, 'stage'));
      const order = new Map([...stages].sort((a, b) => a - b).map((stage, index) => [stage, index]));
      this.stagesOnRank[r] = order.size;
      for (let i = this.first[r]; i < this.first[r + 1]; ++i) this.local[i] = Math.min(255, order.get(this.of(i, 'stage')));
    }
  }

  text(i) {
    const part = (kind, stage, microbatch) => `${stage}${KIND_TEXT[kind]}${microbatch >= 0 ? microbatch : ''}`;
    const first = part(this.of(i, 'kind'), this.of(i, 'stage'), this.of(i, 'microbatch'));
    if (this.of(i, 'kind2') === 0) return first;
    return `(${first};${part(this.of(i, 'kind2'), this.of(i, 'stage2'), this.of(i, 'microbatch2'))})OVERLAP_F_B`;
  }

  name(i) {
    const microbatch = this.of(i, 'microbatch');
    const second = this.of(i, 'kind2');
    return `${KIND_NAMES[this.of(i, 'kind')]}${second ? ' with ' + KIND_NAMES[second] : ''} of stage ${this.of(i, 'stage')}${microbatch >= 0 ? `, microbatch ${microbatch}` : ''}`;
  }

  // The action of a rank at a time, or -1.
  at(rank, time) {
    if (rank < 0 || rank >= this.ranks) return -1;
    let low = this.first[rank];
    let high = this.first[rank + 1] - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.of(middle, 'start') <= time) low = middle;
      else high = middle - 1;
    }
    return low < this.first[rank + 1] && this.of(low, 'start') <= time && time <= this.of(low, 'end') ? low : -1;
  }

  inSlot(rank, slot) {
    for (let i = this.first[rank]; i < this.first[rank + 1]; ++i) if (this.of(i, 'slot') === slot) return i;
    return -1;
  }
}

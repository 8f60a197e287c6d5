// Messages above everything: what was wrong, in the words of the engine. One per subject; a subject that is fine again has none.

import { byId, make } from './dom.js';

const shown = new Map();

export function complain(subject, { message, details = '' }, kind = 'error') {
  settle(subject);
  const box = make('div', { class: `message ${kind}`, 'data-subject': subject }, make('p', {}, message),
    make('button', { 'aria-label': 'Close the message', type: 'button', onclick: () => settle(subject) }, '×'));
  if (details) box.append(make('pre', {}, details));
  shown.set(subject, box);
  byId('messages').append(box);
}

export function settle(subject) {
  const box = shown.get(subject);
  if (box) box.remove();
  shown.delete(subject);
}

export function note(text) {
  complain('note', { message: text }, 'note');
  const box = shown.get('note');
  setTimeout(() => shown.get('note') === box && settle('note'), 4000);
}

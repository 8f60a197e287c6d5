// Files that are dropped, chosen, pasted or embedded in the page: what they are is read from their names and contents.

import { byId } from './dom.js';
import { complain, settle } from './messages.js';

const MOST_BYTES = 64 * 1024 * 1024; // as the command

// "schedule", "timeline" or "costs".
export function kindOf(name, text) {
  const start = text.slice(0, 4096).trimStart();
  if (!start.startsWith('{') && !start.startsWith('[')) return 'schedule';
  return start.startsWith('[') || /"traceEvents"/.test(text) ? 'timeline' : 'costs';
}

export class Files {
  constructor(onFile) {
    this.onFile = onFile;
    const zone = byId('dropzone');
    let depth = 0;
    const carriesFiles = (event) => event.dataTransfer && [...event.dataTransfer.types].includes('Files');
    window.addEventListener('dragenter', (event) => carriesFiles(event) && (depth += 1, (zone.hidden = false)));
    window.addEventListener('dragleave', (event) => carriesFiles(event) && --depth <= 0 && ((depth = 0), (zone.hidden = true)));
    window.addEventListener('dragover', (event) => carriesFiles(event) && event.preventDefault());
    window.addEventListener('drop', (event) => {
      if (!carriesFiles(event)) return;
      event.preventDefault();
      depth = 0;
      zone.hidden = true;
      this.open([...event.dataTransfer.files]);
    });
    byId('open-file').addEventListener('click', () => byId('file').click());
    byId('file').addEventListener('change', (event) => {
      this.open([...event.target.files]);
      event.target.value = '';
    });
  }

  async open(files) {
    settle('file');
    for (const file of files) {
      if (file.size > MOST_BYTES) {
        complain('file', { message: `${file.name}: it has ${(file.size / 1048576).toFixed(0)} MiB, and the most is 64 MiB: a schedule, costs or a timeline of a few steps is smaller` });
        continue;
      }
      try {
        this.onFile(file.name, await file.text());
      } catch (error) {
        complain('file', { message: `${file.name}: ${error.message}`, details: error.details });
      }
    }
  }
}

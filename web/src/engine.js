// The engine: the C++ of the command, compiled to WebAssembly. A call takes a request and returns its reply at once; what the command
// would refuse is thrown as an EngineError with the command's own words.

export class EngineError extends Error {
  constructor({ message, details }) {
    super(message);
    this.details = details || '';
  }
}

export class Engine {
  constructor(module) {
    this.module = module;
  }

  // `tell` gets what the engine says during a call: progress of a plan, and better plans.
  static async load(create, wasm, tell = () => {}) {
    return new Engine(await create({ wasmBinary: wasm, onStagecraftEvent: (text) => tell(JSON.parse(text)), print: () => {}, printErr: () => {} }));
  }

  call(name, request = {}) {
    const { module } = this;
    const texts = [name, JSON.stringify(request)].map((text) => this.copyIn(text));
    try {
      module._stagecraft_call(...texts);
    } finally {
      texts.forEach((at) => module._free(at));
    }
    const reply = JSON.parse(this.replyText());
    if (reply.error) throw new EngineError(reply.error);
    if (reply.arrays) this.attachNumbers(reply);
    return reply;
  }

  copyIn(text) {
    const bytes = new TextEncoder().encode(text);
    const at = this.module._malloc(bytes.length + 1);
    if (at === 0) throw new EngineError({ message: 'not enough memory in the page for this input' });
    this.module.HEAPU8.set(bytes, at);
    this.module.HEAPU8[at + bytes.length] = 0;
    return at;
  }

  replyText() {
    const at = this.module._stagecraft_reply();
    return new TextDecoder().decode(this.module.HEAPU8.subarray(at, at + this.module._stagecraft_reply_size()));
  }

  // The numbers are copied: the engine uses their place again.
  attachNumbers(reply) {
    const first = this.module._stagecraft_numbers() / 8;
    for (const [name, [begin, end]] of Object.entries(reply.arrays)) {
      reply[name in reply ? `${name}_numbers` : name] = this.module.HEAPF64.slice(first + begin, first + end);
    }
  }
}

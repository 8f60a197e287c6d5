// A setting as others can use it: a command, a C++ program, the name of a file.

import { generatorFor, stagesFor } from './sources.js';

const quoted = (text) => `'${text.replace(/'/g, "'\\''")}'`;

export function fileName(settings, own, extension) {
  const stem = settings.s === 'file' ? (own ? own.name : 'schedule').replace(/\.[^.]*$/, '') : `${settings.s.toLowerCase()}-${settings.p}x${settings.m}`;
  return `${stem.replace(/[^\w.-]+/g, '-')}.${extension}`;
}

function makeCommand(settings, list, own, costs) {
  const file = fileName(settings, own, 'csv');
  if (settings.s === 'plan') {
    const options = [`--ranks ${settings.p}`, `--stages-per-rank ${settings.v}`, `--microbatches ${settings.m}`];
    if (settings.place !== 'any') options.push(`--placement ${settings.place}`);
    if (settings.lim > 0) options.push(`--memory-limit ${settings.lim}`);
    if (settings.eff !== 1) options.push(`--effort ${settings.eff}`);
    if (settings.seed !== 0) options.push(`--seed ${settings.seed}`);
    return `stagecraft plan ${options.join(' ')} --time-budget 600 --costs - -o ${file} <<< ${quoted(costs)}`;
  }
  if (settings.s === 'file') return `# ${file}: download it with "CSV"`;
  const stages = stagesFor(generatorFor(list, settings.s), settings);
  return `stagecraft schedule ${settings.s} --ranks ${settings.p} --stages-per-rank ${stages} --microbatches ${settings.m} -o ${file}`;
}

export function asCommand(settings, list, own, costs) {
  return `${makeCommand(settings, list, own, costs)}\nstagecraft simulate ${fileName(settings, own, 'csv')} --costs - <<< ${quoted(costs)}\n`;
}

function scheduleInCpp(settings, list, own) {
  if (settings.s === 'plan') {
    const placement = { any: 'kAny', linear: 'kLinear', loop: 'kLoop', v: 'kV' }[settings.place];
    const limit = settings.lim > 0 ? `, .memory_limit = ${settings.lim}` : '';
    return `  const sc::PlanResult planned = sc::plan({.ranks = ${settings.p}, .microbatches = ${settings.m}, .costs = costs${limit},\n` +
      `                                          .placement = sc::PlacementChoice::${placement}, .stages_per_rank = ${settings.v},\n` +
      `                                          .time_budget = 600, .effort = ${settings.eff}, .seed = ${settings.seed}});\n` +
      '  const sc::Schedule& schedule = planned.schedule;\n';
  }
  if (settings.s === 'file') return `  const sc::Schedule schedule = sc::read_schedule("${fileName(settings, own, 'csv')}");\n`;
  const stages = stagesFor(generatorFor(list, settings.s), settings);
  return `  const sc::Schedule schedule = sc::make_schedule(\n      "${settings.s}", {.ranks = ${settings.p}, .stages_per_rank = ${stages}, .microbatches = ${settings.m}});\n`;
}

export function asCpp(settings, list, own, costs) {
  return '#include <stagecraft/schedule.h>\n#include <iostream>\nnamespace sc = stagecraft;\n\nint main() {\n' +
    `  const sc::Costs costs = sc::parse_costs(R"(${costs})");\n${scheduleInCpp(settings, list, own)}` +
    '  const sc::Simulation simulation = sc::simulate(schedule, costs);\n' +
    '  std::cout << "span " << simulation.span << ", bubble " << simulation.bubble_span() << ", peak " << simulation.peak_memory() << "\\n";\n}\n';
}


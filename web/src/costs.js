// The costs that the settings describe, in the JSON that `--costs` reads. A file of costs takes the place of the sliders; what-if and
// the memory limit still apply.

const clean = (value) => Number(value.toPrecision(12)); // 0.8 * 3 is 2.4000000000000004 otherwise

export function perStage(settings) {
  if (!settings.per) return null;
  const times = settings.per.split(';').map((entry) => entry.trim().split(/\s+/).map(Number));
  return times.every((entry) => entry.length === 3 && entry.every((time) => time >= 0 && Number.isFinite(time))) ? times : null;
}

function timesOf(settings, stages) {
  const own = perStage(settings);
  if (own) return own;
  const same = [settings.f, settings.i, settings.w];
  return settings.ws >= 0 && settings.ws < stages ? Array.from({ length: stages }, () => same) : [same];
}

function faster(settings, stages, times) {
  if (settings.ws < 0 || settings.ws >= stages) return times;
  const factor = 1 - settings.wp / 100;
  return times.map((entry, stage) => (stage === settings.ws ? entry.map((time) => clean(time * factor)) : entry));
}

// `stages` is the number that the schedule has. With `scale`, a stage is that part of one of the settings: the same model, cut finer.
export function costsText(settings, stages, file = null, scale = 1) {
  if (file) return fileCosts(settings, stages, file);
  const times = faster(settings, stages, timesOf(settings, stages));
  const column = (at) => (times.length === 1 ? clean(times[0][at] * scale) : times.map((entry) => clean(entry[at] * scale)));
  const costs = { forward: column(0), backward_input: column(1), backward_weight: column(2) };
  if (settings.lat > 0) costs.latency = settings.lat;
  costs.activation_memory = clean(settings.act * scale);
  costs.weight_gradient_memory = clean(settings.wg * scale);
  return JSON.stringify(costs);
}

function fileCosts(settings, stages, file) {
  if (settings.ws < 0 || settings.ws >= stages) return file.text;
  const costs = JSON.parse(file.full);
  if (costs.stages.length === 1) costs.stages = Array.from({ length: stages }, () => ({ ...costs.stages[0] }));
  const stage = costs.stages[settings.ws];
  const factor = 1 - settings.wp / 100;
  for (const key of ['forward', 'backward_input', 'backward_weight', 'backward']) if (key in stage) stage[key] = clean(stage[key] * factor);
  return JSON.stringify(costs);
}

// Whether costs by stage can be cut finer: only costs that are the same for all stages.
export const scalable = (settings, file) => !file && !settings.per && settings.ws < 0;

// Which schedules there are to show: known ones for a shape, the plan, and files.

export function generatorFor(list, name) {
  return list.schedules.find((one) => one.name === name);
}

// The stages per rank that a known schedule gets: those of the settings where it takes them, else its own.
export function stagesFor(generator, settings) {
  const fits = settings.v >= generator.min_stages_per_rank && settings.v <= generator.max_stages_per_rank;
  return fits ? settings.v : generator.default_stages_per_rank;
}

export function namedSource(generator, settings) {
  return { name: generator.name, ranks: settings.p, stages_per_rank: stagesFor(generator, settings), microbatches: settings.m };
}

export function planRequest(settings, costs) {
  return {
    ranks: settings.p, microbatches: settings.m, stages_per_rank: settings.v, placement: settings.place,
    memory_limit: settings.lim, effort: settings.eff, seed: settings.seed, costs,
  };
}

"""What sharding and recompute cost and save, beside a pipeline without them in the same run.

    .venv/bin/python bench/training_bench.py --sharding build/bin/sharding_bench --recompute build/bin/recompute_bench [--mpiexec mpirun] [--json FILE]

Fails (exit code 1) when a target is missed:

  sharding:  at least 80 % of the gatherings and reductions hidden where there is compute to hide them, 2 ranks x 2 replicas as threads and as processes
  bytes:     with Shard::kParameters a rank holds at most its share of parameters, gradients and optimizer state, and two stages whole (parameters
             and gradients), beside what it holds of activations
  recompute: a step of at most 1.40 times the time
"""

import argparse
import json
import os
import re
import subprocess
import sys

ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
REPLICAS = 2


def output_of(command):
    return subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True).stdout


def sharding(options):
    rows, missed = [], []
    print(f"{'2 replicas x 2 ranks':<24} {'as':>9} {'step ms':>8} {'ratio':>6} {'gatherings hidden':>18} {'reductions hidden':>18}")
    for kind, launcher in (("threads", []), ("processes", [options.mpiexec, "-n", "4"])):
        results = [json.loads(line) for line in output_of([*launcher, options.sharding, "512", "4", "256", "8"]).splitlines() if line[:1] == "{"]
        for result in results:
            print(f"{'shard ' + result['shard']:<24} {kind:>9} {1e3 * result['step']:>8.1f} {result['step'] / results[0]['step']:>6.2f} "
                  f"{result['unshard_hidden']:>18.0%} {result['reduce_hidden']:>18.0%}", flush=True)
            rows.append({"as": kind, **result})
            for what in ("unshard_hidden", "reduce_hidden"):
                if result[what] < 0.8:
                    missed.append(f"shard {result['shard']} as {kind}: {what} {result[what]:.0%}, at least 80% wanted")
    return rows, missed


def held(options):
    """One rank per process, few rows, so that activations are small."""
    lines = output_of([options.mpiexec, "-n", "4", options.sharding, "1536", "4", "2", "4"]).splitlines()
    results = {row["shard"]: row for row in map(json.loads, (line for line in lines if line[:1] == "{"))}
    stage, stages = results["none"]["stage_bytes"], results["none"]["stages"]
    whole = 4 * stages * stage  # parameters, gradients, and the two moments of AdamW
    activations = results["none"]["bytes"] - whole
    bound = whole / REPLICAS + 2 * 2 * stage + activations
    missed = []
    print(f"\n{'bytes of one rank':<24} {'MiB':>9} {'ratio':>6} {'at most MiB':>12}")
    for name, row in results.items():
        most = bound if name == "parameters" else None
        print(f"{'shard ' + name:<24} {row['bytes'] / 2**20:>9.1f} {row['bytes'] / results['none']['bytes']:>6.2f} {f'{most / 2**20:.1f}' if most else '':>12}")
        if most and row["bytes"] > most:
            missed.append(f"shard {name} holds {row['bytes']} bytes, at most {most:.0f} wanted")
    return list(results.values()), missed


def recompute(options):
    rows, missed = [], []
    text = output_of([options.recompute])
    print(f"\nrecompute\n{text}", end="")
    for name, ratio in re.findall(r"^(\S.*?) +[\d.]+ ms +([\d.]+) x", text, re.MULTILINE):
        rows.append({"recompute": name, "ratio": float(ratio)})
        if float(ratio) > 1.40:
            missed.append(f"recompute of {name}: {ratio} times the time of a step, at most 1.40 wanted")
    return rows, missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sharding", required=True)
    parser.add_argument("--recompute", required=True)
    parser.add_argument("--mpiexec", default="mpirun")
    parser.add_argument("--json")
    options = parser.parse_args()
    times, missed = sharding(options)
    held_bytes, more = held(options)
    recomputed, still_more = recompute(options)
    missed += more + still_more
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"sharding": times, "bytes": held_bytes, "recompute": recomputed}, file, indent=1)
    for line in missed:
        print(f"MISSED: {line}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()

"""Predicted beside measured step times: the demo's GPT on two ranks, as threads and as processes under mpirun.

    .venv/bin/python bench/fidelity_bench.py --bench build/bin/fidelity_bench [--mpiexec mpirun] [--ranks 2] [--json FILE]

Of each placement two schedules are recorded, one with whole backwards and one with split ones; costs from these predict all. A step is a
turn of the training loop, optimizer included; measured is the median of steps that were not recorded, taken in turns with the recorded
ones. The whole is done three times, and of the three ratios of each schedule the one in the middle counts: what else the machine does would
otherwise decide. `others` is the processor time that other programs took meanwhile. Fails (exit code 1) when a target is missed.

  predicted: within 5 % of measured, for every schedule
  ranking:   of two schedules whose measured times differ by more than 5 %, the predicted order is the measured one
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys

ROUNDS = 3
FAMILIES = 3  # linear, loop, V
TOLERANCE = 0.05
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def measure(command):
    done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def in_the_middle(rounds):
    """Per schedule, the round whose ratio is in the middle."""
    middle = []
    for entries in zip(*rounds):
        by_ratio = sorted(entries, key=lambda entry: entry["predicted"] / entry["measured"])
        middle.append({**by_ratio[len(by_ratio) // 2], "ratios": [e["predicted"] / e["measured"] for e in by_ratio]})
    return middle


def wrong_pairs(entries):
    """Pairs that differ clearly when measured, and the other way when predicted. Of each the median over the rounds."""
    wrong = []
    for a, b in itertools.combinations(entries, 2):
        if abs(a["measured"] / b["measured"] - 1) <= TOLERANCE:
            continue
        if (a["measured"] < b["measured"]) != (a["predicted"] < b["predicted"]):
            wrong.append((a["schedule"], b["schedule"]))
    return wrong


def report(world, rounds):
    print(f"\n{world}: load {os.getloadavg()[0]:.1f}")
    print(f"{'schedule':<24}{'recorded':<10}{'predicted ms':>14}{'measured ms':>14}{'ratio':>8}{'others':>8}   of rounds")
    entries = in_the_middle(rounds)
    good = True
    for entry in entries:
        ratio = entry["predicted"] / entry["measured"]
        within = abs(ratio - 1) <= TOLERANCE
        good &= within
        print(f"{entry['schedule']:<24}{'yes' if entry['recorded'] else 'no':<10}{1e3 * entry['predicted']:>14.2f}"
              f"{1e3 * entry['measured']:>14.2f}{ratio:>8.3f}{entry['disturbance']:>7.0%}   {' '.join(f'{r:.3f}' for r in entry['ratios'])}"
              f"{'' if within else '   MISSED'}")
    # Rounds differ in speed: pairs are judged by what they took on average of all rounds.
    pooled = [{"schedule": each[0]["schedule"], "measured": statistics.median(e["measured"] for e in each),
               "predicted": statistics.median(e["predicted"] for e in each)} for each in zip(*rounds)]
    for a, b in wrong_pairs(pooled):
        good = False
        print(f"MISSED: {a} and {b} are predicted in the wrong order")
    return {"world": world, "entries": entries, "good": good}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--mpiexec", default="mpirun")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json")
    options = parser.parse_args()
    bench = os.path.abspath(options.bench)
    launchers = {"threads": [bench, "--stagecraft-world=threads"],
                 "processes": [options.mpiexec, "-n", str(options.ranks), bench, "--stagecraft-world=mpi"]}
    rounds = {world: [] for world in launchers}
    for _ in range(ROUNDS):
        for world, launcher in launchers.items():
            rounds[world].append([entry for family in range(FAMILIES)
                                  for entry in measure([*launcher, str(family), str(options.ranks)])])
    results = [report(world, rounds[world]) for world in launchers]
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=2)
    sys.exit(0 if all(result["good"] for result in results) else 1)


if __name__ == "__main__":
    main()

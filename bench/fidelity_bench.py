"""Predicted beside measured step times: the demo's GPT on two ranks, as threads and as processes under mpirun.

    .venv/bin/python bench/fidelity_bench.py --bench build/bin/fidelity_bench [--mpiexec mpirun] [--ranks 2] [--placement linear|loop|v]
        [--rounds 150] [--json FILE]

Of each placement two schedules are recorded, one with whole backwards and one with split ones; costs from these predict all. A step is a
turn of the training loop, optimizer included. Schedules take turns, round after round, recorded and not, until every median over the rounds
is known to 1 % (`error`), or ROUNDS are over: on a machine whose speed is its own that is soon. Fails (exit code 1) when a target is missed.
`spread`: the middle half of the measured steps, as a part of their median.

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

TOLERANCE = 0.05
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def measure(command):
    done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def wrong_pairs(entries):
    """Pairs that differ clearly when measured, and the other way when predicted."""
    for a, b in itertools.combinations(entries, 2):
        measured = statistics.median(a["measured"]) / statistics.median(b["measured"])
        predicted = a["predicted"] / b["predicted"]
        if abs(measured - 1) > TOLERANCE and (measured < 1) != (predicted < 1):
            yield a["schedule"], b["schedule"], measured, predicted


def report(world, entries):
    print(f"\n{world}: load {os.getloadavg()[0]:.1f}, {len(entries[0]['measured'])} rounds")
    print(f"{'schedule':<24}{'recorded':<10}{'predicted ms':>14}{'measured ms':>14}{'ratio':>8}{'error':>8}{'spread':>8}")
    good = True
    for entry in entries:
        low, measured, high = statistics.quantiles(entry["measured"], n=4)
        entry["ratio"] = entry["predicted"] / measured
        within = abs(entry["ratio"] - 1) <= TOLERANCE
        good &= within
        print(f"{entry['schedule']:<24}{'yes' if entry['recorded'] else 'no':<10}{1e3 * entry['predicted']:>14.2f}{1e3 * measured:>14.2f}"
              f"{entry['ratio']:>8.3f}{entry['error'] / measured:>8.1%}{(high - low) / measured:>8.0%}"
              f"{'' if within else '   MISSED'}")
    for a, b, measured, predicted in wrong_pairs(entries):
        good = False
        print(f"MISSED: {a} takes {measured:.3f} of {b}, predicted {predicted:.3f}")
    return {"world": world, "entries": entries, "good": good}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--mpiexec", default="mpirun")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--placement", choices=["linear", "loop", "v"])
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--json")
    options = parser.parse_args()
    bench = os.path.abspath(options.bench)
    launchers = {"threads": [bench, "--stagecraft-world=threads"],
                 "processes": [options.mpiexec, "-n", str(options.ranks), bench, "--stagecraft-world=mpi"]}
    arguments = [f"--placement={options.placement}"] if options.placement else []
    arguments += [str(options.ranks), str(options.rounds)]
    results = [report(world, measure([*launcher, *arguments])) for world, launcher in launchers.items()]
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=2)
    sys.exit(0 if all(result["good"] for result in results) else 1)


if __name__ == "__main__":
    main()

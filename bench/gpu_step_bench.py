"""A training step of a GPT, four stages on one rank of a GPU: ours, eager and replayed as a graph, beside torch.distributed.pipelining.

    python bench/gpu_step_bench.py --ours build/bin/gpu_step_bench [--nccl libnccl.so.2] [--width 256] [--json FILE]

Fails (exit code 1) when a target is missed: the ratio of torch's time to that of our graph, for 1F1B and for zero bubble, the ratio of our graph to a bare loop over
the same modules that is captured too, and graphs that are slower than eager steps with 2 and 4 ranks: threads, and with --nccl processes. All share one GPU, for which
NCCL has to be 2.30 or later. Where a ratio to torch is missed, it also says how long torch's kernels alone take: nobody who runs the same kernels one after the other is faster.
"""

import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys

from gpu_python_gpt import add_rows_option, begin, by_package, end, kernels_of, measured, rows_of, text_of

MOST_OVER_BARE = 1.05
MOST_OVER_EAGER = 1.05
MOST_OF_NCCL = 1024  # width: ranks that share a GPU send slowly
START = pathlib.Path(__file__).resolve().parent.parent / "tests/support/start_processes.py"


def several_ranks(ours, setting, ranks, nccl):
    """Of a run with rank threads, or of processes with NCCL, which share the GPU: what it printed, or None if it failed."""
    command, environment = [ours, *map(str, setting), str(ranks)], dict(os.environ)
    if nccl:
        command = [sys.executable, str(START), "-n", str(ranks), *command]
        environment.update(LD_PRELOAD=os.path.abspath(nccl), NCCL_MULTI_RANK_GPU_ENABLE="1", NCCL_NVLS_ENABLE="0", NCCL_MAX_CTAS="1")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    print(done.stderr, end="")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[0]) if done.returncode == 0 and lines else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--nccl")
    add_rows_option(parser)
    parser.add_argument("--json")
    options = parser.parse_args()
    missed, results = begin()
    slower = []  # than wanted, beside torch
    for setting, wanted, wanted_split in rows_of(options):
        done = subprocess.run([options.ours, *map(str, setting)], capture_output=True, text=True, check=False)
        print(done.stderr, end="")
        if done.returncode != 0:
            missed.append(f"{setting}: ours failed")
            continue
        ours = json.loads(done.stdout)
        width = setting[1]
        print(text_of(setting))
        print(f"  {'':<24}{'torch':>9}{'eager':>9}{'graph':>9}{'torch/graph':>13}{'torch GB':>10}{'eager GB':>10}{'graph GB':>10}")
        result = {"setting": setting, "ours": ours}
        for name, at_least in (("Interleaved1F1B", wanted), ("InterleavedZeroBubble", wanted_split)):
            torch_ms, torch_gb = measured(by_package("torch.distributed.pipelining", name), *setting)
            eager, graph = ours[f"{name} eager"], ours[f"{name} graph"]
            result[name] = {"torch": torch_ms, "torch GB": torch_gb}
            print(f"  {name:<24}{torch_ms:9.1f}{eager:9.1f}{graph:9.1f}{torch_ms / graph:13.2f}{torch_gb:10.2f}"
                  f"{ours[f'{name} eager GB']:10.2f}{ours[f'{name} graph GB']:10.2f}", flush=True)
            if torch_ms / graph < at_least:
                slower.append((setting, name, torch_ms, graph, at_least))
        over = ours["Interleaved1F1B graph"] / ours["bare graph"]
        print(f"  bare loop: eager {ours['bare eager']:.1f}, graph {ours['bare graph']:.1f}; ours over it {over:.3f}")
        if over > MOST_OVER_BARE:
            missed.append(f"{setting}: {over:.3f} times a captured bare loop, at most {MOST_OVER_BARE} wanted")
        libraries = [None, options.nccl] if options.nccl and width <= MOST_OF_NCCL else [None]
        for nccl, ranks in itertools.product(libraries, (2, 4)):
            kind = "NCCL ranks" if nccl else "rank threads"
            times = several_ranks(options.ours, setting, ranks, nccl)
            if times is None:
                missed.append(f"{setting}: ours with {ranks} {kind} failed")
                continue
            result.setdefault(kind, {})[ranks] = times
            for name in [key.removesuffix(" eager") for key in times if key.endswith(" eager")]:
                eager, graph = times[name + " eager"], times[name + " graph"]
                print(f"  {ranks} {kind} on this GPU, {name}: eager {eager:.1f} ({times[name + ' eager GB']:.2f} GB), "
                      f"graph {graph:.1f} ({times[name + ' graph GB']:.2f} GB)", flush=True)
                if graph > MOST_OVER_EAGER * eager:
                    missed.append(f"{setting}, {name} on {ranks} {kind}: slower with graphs than without")
        results.append(result)
    for setting, name, torch_ms, graph, at_least in slower:  # at the end, because the profiler slows down what comes after it
        kernels = kernels_of(by_package("torch.distributed.pipelining", name), *setting)
        missed.append(f"{setting}, {name}: {torch_ms / graph:.2f} times faster than torch, {at_least:.2f} wanted "
                      f"(torch {torch_ms:.1f} ms, of which its kernels {kernels:.1f}; ours {graph:.1f})")
    end(missed, results, options.json)


if __name__ == "__main__":
    main()

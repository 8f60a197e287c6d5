"""A training step of a GPT, four stages on one rank of a GPU: ours, eager and replayed as a graph, beside torch.distributed.pipelining.

    python bench/gpu_step_bench.py --ours build/bin/gpu_step_bench [--nccl libnccl.so.2] [--json FILE]

Fails (exit code 1) when a target is missed: the ratio of torch's time to that of our graph, for 1F1B and for zero bubble, the ratio of our graph to a bare loop over
the same modules that is captured too, and graphs that are slower than eager steps with 2 and 4 ranks: threads, and with --nccl processes. All share one GPU, for which
NCCL has to be 2.30 or later.
"""

import argparse
import importlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from gpt_block import Block
from torch import nn

VOCABULARY, STAGES = 8192, 4
# layers, width, microbatches, rows, length, type; times faster than torch's 1F1B, and than its zero bubble
ROWS = [((8, 256, 8, 2, 128, "float"), 5, 10), ((16, 1024, 8, 4, 512, "bfloat16"), 2.4, 4.5), ((16, 2048, 16, 4, 1024, "bfloat16"), 1, 1 / 0.76)]
MOST_OVER_BARE = 1.05
MOST_OVER_EAGER = 1.05
MOST_OF_NCCL = 1024  # width: ranks that share a GPU send slowly
START = pathlib.Path(__file__).resolve().parent.parent / "tests/support/start_processes.py"


def part(layers, width, stage):
    modules = [nn.Embedding(VOCABULARY, width)] if stage == 0 else []
    modules += [Block(width, width // 64) for _ in range(layers // STAGES)]
    return nn.Sequential(*modules, *([nn.Linear(width, VOCABULARY)] if stage + 1 == STAGES else []))


def best_of(step):
    def milliseconds(steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1000 / steps

    for _ in range(2):
        step()
    steps = max(1, min(10, int(300 / milliseconds(1))))
    return min(milliseconds(steps) for _ in range(4 if steps > 1 else 3))


def loss_of(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1).float(), target.flatten())


def measured(make_step, layers, width, microbatches, rows, length, kind):
    """Milliseconds and gigabytes of make_step(modules, microbatches)(tokens, target)."""
    torch.manual_seed(1)
    device = torch.device("cuda", 0)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    parts = [part(layers, width, stage).to(device, getattr(torch, kind)) for stage in range(STAGES)]
    run = make_step(parts, microbatches)
    tokens = torch.randint(VOCABULARY, (microbatches * rows, length), device=device)
    target = torch.randint(VOCABULARY, tokens.shape, device=device)

    def step():
        for module in parts:
            module.zero_grad()
        run(tokens, target)

    return best_of(step), torch.cuda.max_memory_reserved() / 1e9


def by_package(name, schedule):
    """For `measured`: torch.distributed.pipelining, or a package in its place."""

    def make_step(parts, microbatches):
        package = importlib.import_module(name)
        stages = [package.PipelineStage(module, index, STAGES, torch.device("cuda", 0)) for index, module in enumerate(parts)]
        run = package.schedules.get_schedule_class(schedule)(stages, microbatches, loss_fn=loss_of)
        return lambda tokens, target: run.step(tokens, target=target, losses=[])

    return make_step


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
    parser.add_argument("--json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this bench needs a GPU")
    # Without variables: programs that are started from here would take them for their own.
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0))
    missed, results = [], []
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}; milliseconds per step, and gigabytes reserved at most")
    for setting, wanted, wanted_split in ROWS:
        done = subprocess.run([options.ours, *map(str, setting)], capture_output=True, text=True, check=False)
        print(done.stderr, end="")
        if done.returncode != 0:
            missed.append(f"{setting}: ours failed")
            continue
        ours = json.loads(done.stdout)
        layers, width, microbatches, rows, length, kind = setting
        print(f"\n{layers} layers, width {width}, {kind}, {microbatches} microbatches of {rows} x {length}")
        print(f"  {'':<24}{'torch':>9}{'eager':>9}{'graph':>9}{'torch/graph':>13}{'torch GB':>10}{'eager GB':>10}{'graph GB':>10}")
        result = {"setting": setting, "ours": ours}
        for name, at_least in (("Interleaved1F1B", wanted), ("InterleavedZeroBubble", wanted_split)):
            torch_ms, torch_gb = measured(by_package("torch.distributed.pipelining", name), *setting)
            eager, graph = ours[f"{name} eager"], ours[f"{name} graph"]
            result[name] = {"torch": torch_ms, "torch GB": torch_gb}
            print(f"  {name:<24}{torch_ms:9.1f}{eager:9.1f}{graph:9.1f}{torch_ms / graph:13.2f}{torch_gb:10.2f}"
                  f"{ours[f'{name} eager GB']:10.2f}{ours[f'{name} graph GB']:10.2f}", flush=True)
            if torch_ms / graph < at_least:
                missed.append(f"{setting}, {name}: {torch_ms / graph:.2f} times faster than torch, {at_least:.2f} wanted")
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
    dist.destroy_process_group()
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file)
    for line in missed:
        print(f"MISSED: {line}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()

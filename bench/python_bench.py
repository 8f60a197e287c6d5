"""A training step of Python modules: stagecraft.torch beside a bare Python loop and beside torch.distributed.pipelining, in one process.

    PYTHONPATH=build/python .venv/bin/python bench/python_bench.py [--json FILE] [--rounds N] [--alone]

Four stages of Linear, ReLU, Linear of width 16 on one rank, eight microbatches, one thread. The three take turns, so that a slow spell of the
machine hits all; the best turn of each counts. Then two ranks as processes over Gloo (leave out by --alone). Fails (exit code 1) when a target is
missed:

  one rank:        at most 1.10 (zero bubble 1.35) times the bare loop; at least 2.8 (3.8) times faster than torch
  two Gloo ranks:  at most half of torch's step
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist

WIDTH, ROWS, MICROBATCHES, STAGES = 16, 4, 8, 4
# schedule -> (most times the bare loop, least times faster than torch)
TARGETS = {"Interleaved1F1B": (1.10, 2.8), "InterleavedZeroBubble": (1.35, 3.8)}
TARGET_OF_TORCH = 0.5


def modules_of(count):
    torch.manual_seed(1)
    return [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)) for _ in range(count)
    ]


def batch():
    return torch.randn(ROWS * MICROBATCHES, WIDTH), torch.randn(ROWS * MICROBATCHES, WIDTH)


def zeroed(modules, step):
    def run():
        for module in modules:
            module.zero_grad()
        step()

    return run


def bare_loop(modules, x, y):
    def step():
        for a, b in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES)):
            for module in modules:
                a = module(a)
            (torch.nn.functional.mse_loss(a, b) / MICROBATCHES).backward()

    return zeroed(modules, step)


def ours(name, modules, indices, x, y, world=None):
    import stagecraft.torch as sc

    stages = [sc.Stage(module, index) for module, index in zip(modules, indices)]
    pipeline = sc.Pipeline(stages, world=world, schedule=name, microbatches=MICROBATCHES, loss=torch.nn.functional.mse_loss)
    return zeroed(modules, lambda: pipeline.step(x, target=y))


def torchs(name, modules, indices, stages, x, y):
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class

    kind = get_schedule_class(name)
    pieces = [PipelineStage(module, index, stages, torch.device("cpu")) for module, index in zip(modules, indices)]
    schedule = kind(pieces if len(pieces) > 1 else pieces[0], MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)

    def step():
        arguments = (x,) if 0 in indices else ()
        keywords = {"target": y, "losses": []} if stages - 1 in indices else {}
        schedule.step(*arguments, **keywords)

    return zeroed(modules, step)


def per_step(run, steps):
    begin = time.perf_counter()
    for _ in range(steps):
        run()
    return (time.perf_counter() - begin) / steps


def best_of(sides, rounds):
    """The least time per step of each side, in turns."""
    best = {}
    steps = {name: max(1, min(50, int(0.05 / per_step(run, 3)))) for name, run in sides.items()}
    for _ in range(rounds):
        for name, run in sides.items():
            best[name] = min(best.get(name, 1e9), per_step(run, steps[name]))
    return best


def one_rank(rounds, rows):
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    missed = []
    print(f"{'one rank':<24} {'ours ms':>8} {'bare ms':>8} {'torch ms':>9} {'ours/bare':>10} {'torch/ours':>11}")
    x, y = batch()
    for name, (most, least) in TARGETS.items():
        indices = list(range(STAGES))
        sides = {
            "bare": bare_loop(modules_of(STAGES), x, y),
            "ours": ours(name, modules_of(STAGES), indices, x, y),
            "torch": torchs(name, modules_of(STAGES), indices, STAGES, x, y),
        }
        best = best_of(sides, rounds)
        over, faster = best["ours"] / best["bare"], best["torch"] / best["ours"]
        print(f"{name:<24} {1e3 * best['ours']:>8.3f} {1e3 * best['bare']:>8.3f} {1e3 * best['torch']:>9.3f} {over:>9.2f}x {faster:>10.1f}x", flush=True)
        rows.append({"schedule": name, "ranks": 1, "over_bare": over, "faster": faster, **best})
        if over > most:
            missed.append(f"{name}: {over:.2f} times the bare loop, at most {most} wanted")
        if faster < least:
            missed.append(f"{name}: {faster:.1f} times faster than torch, at least {least} wanted")
    dist.destroy_process_group()
    return missed


def rank_of_two():
    """One of two processes: prints its times on rank 0."""
    import stagecraft.torch as sc

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    world = sc.World(timeout=60)
    x, y = batch()
    for name, indices in (("1F1B", [rank]), ("Interleaved1F1B", [rank, rank + 2]), ("InterleavedZeroBubble", [rank, rank + 2])):
        count = 2 * len(indices)
        sides = {
            "ours": ours(name, [modules_of(count)[i] for i in indices], indices, x, y, world),
            "torch": torchs(name, [modules_of(count)[i] for i in indices], indices, count, x, y),
        }
        best = {}
        for _ in range(int(os.environ["BENCH_ROUNDS"])):
            for side, run in sides.items():
                dist.barrier()
                best[side] = min(best.get(side, 1e9), per_step(run, 20))
        if rank == 0:
            print(json.dumps({"schedule": name, "ranks": 2, **best}), flush=True)
    dist.barrier()


def two_ranks(rounds, rows):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(2):
        environment = dict(
            os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2", OMP_NUM_THREADS="1", BENCH_ROUNDS=str(rounds)
        )
        ranks.append(subprocess.Popen([sys.executable, __file__, "--rank-of-two"], env=environment, stdout=subprocess.PIPE, text=True))
    out = ranks[0].communicate()[0]
    ranks[1].communicate()
    if any(one.returncode for one in ranks):
        sys.exit("python_bench: a rank failed")
    missed = []
    print(f"\n{'two Gloo ranks':<24} {'ours ms':>8} {'torch ms':>9} {'ours/torch':>11}")
    for line in out.splitlines():
        best = json.loads(line)
        ratio = best["ours"] / best["torch"]
        print(f"{best['schedule']:<24} {1e3 * best['ours']:>8.3f} {1e3 * best['torch']:>9.3f} {ratio:>10.2f}x", flush=True)
        rows.append({**best, "of_torch": ratio})
        if ratio > TARGET_OF_TORCH:
            missed.append(f"{best['schedule']} on two Gloo ranks: {ratio:.2f} of torch's step, at most {TARGET_OF_TORCH} wanted")
    return missed


def main():
    parser = argparse.ArgumentParser(description="A training step of Python modules beside a bare loop and beside torch")
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--alone", action="store_true", help="one rank only")
    parser.add_argument("--rank-of-two", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.rank_of_two:
        return rank_of_two()
    rows = []
    missed = one_rank(options.rounds, rows)
    if not options.alone:
        missed += two_ranks(options.rounds, rows)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)
    for line in missed:
        print(f"python_bench: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""A training step of Python modules: stagecraft.torch ("ours") and stagecraft.pipelining ("door") beside a bare Python loop and beside
torch.distributed.pipelining, in one process.

    build/python/together/bin/python bench/python_bench.py [--json FILE] [--rounds N] [--only one|two|memory|import]

Four stages of Linear, ReLU, Linear of width 16 on one rank, eight microbatches, one thread. All take turns, so that a slow spell of the
machine hits all; the best turn of each counts. Then two ranks as processes over Gloo, and the peak memory of a small GPT on one rank, one process
for each side. And what importing stagecraft without torch adds to the start of Python, which is printed only: it depends on the disk. Fails
(exit code 1) when a target is missed:

  one rank:        at most 1.10 (zero bubble 1.35) times the bare loop; at least 2.8 (3.8) times faster than torch
  two Gloo ranks:  at most half of torch's step
  memory:          InterleavedZeroBubble at most 0.65 of torch's peak
"""

import argparse
import importlib
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
TARGET_MEMORY = 0.65
DOORS = ("ours", "door")


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


def ours(name, modules, indices, x, y, world=None, loss=torch.nn.functional.mse_loss):
    import stagecraft.torch as sc

    stages = [sc.Stage(module, index) for module, index in zip(modules, indices)]
    pipeline = sc.Pipeline(stages, world=world, schedule=name, microbatches=MICROBATCHES, loss=loss)
    return zeroed(modules, lambda: pipeline.step(x, target=y))


def torchs(name, modules, indices, stages, x, y, package="torch.distributed.pipelining", loss=torch.nn.functional.mse_loss):
    pipelining = importlib.import_module(package)
    kind = importlib.import_module(package + ".schedules").get_schedule_class(name)
    pieces = [pipelining.PipelineStage(module, index, stages, torch.device("cpu")) for module, index in zip(modules, indices)]
    schedule = kind(pieces if len(pieces) > 1 else pieces[0], MICROBATCHES, loss_fn=loss)

    def step():
        arguments = (x,) if 0 in indices else ()
        keywords = {"target": y, "losses": []} if stages - 1 in indices else {}
        schedule.step(*arguments, **keywords)

    return zeroed(modules, step)


def door(*args, **options):
    return torchs(*args, package="stagecraft.pipelining", **options)


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
    print(f"{'one rank':<24} {'ours ms':>8} {'door ms':>8} {'bare ms':>8} {'torch ms':>9} {'ours/bare':>10} {'door/bare':>10} {'torch/ours':>11} {'torch/door':>11}")
    x, y = batch()
    for name, (most, least) in TARGETS.items():
        indices = list(range(STAGES))
        sides = {
            "bare": bare_loop(modules_of(STAGES), x, y),
            "ours": ours(name, modules_of(STAGES), indices, x, y),
            "door": door(name, modules_of(STAGES), indices, STAGES, x, y),
            "torch": torchs(name, modules_of(STAGES), indices, STAGES, x, y),
        }
        best = best_of(sides, rounds)
        over = {side: best[side] / best["bare"] for side in DOORS}
        faster = {side: best["torch"] / best[side] for side in DOORS}
        print(f"{name:<24} {1e3 * best['ours']:>8.3f} {1e3 * best['door']:>8.3f} {1e3 * best['bare']:>8.3f} {1e3 * best['torch']:>9.3f} "
              f"{over['ours']:>9.2f}x {over['door']:>9.2f}x {faster['ours']:>10.1f}x {faster['door']:>10.1f}x", flush=True)
        rows.append({"schedule": name, "ranks": 1, "over_bare": over, "faster": faster, **best})
        for side in DOORS:
            if over[side] > most:
                missed.append(f"{name}, {side}: {over[side]:.2f} times the bare loop, at most {most} wanted")
            if faster[side] < least:
                missed.append(f"{name}, {side}: {faster[side]:.1f} times faster than torch, at least {least} wanted")
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
            "door": door(name, [modules_of(count)[i] for i in indices], indices, count, x, y),
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
    print(f"\n{'two Gloo ranks':<24} {'ours ms':>8} {'door ms':>8} {'torch ms':>9} {'ours/torch':>11} {'door/torch':>11}")
    for line in out.splitlines():
        best = json.loads(line)
        ratio = {side: best[side] / best["torch"] for side in DOORS}
        print(f"{best['schedule']:<24} {1e3 * best['ours']:>8.3f} {1e3 * best['door']:>8.3f} {1e3 * best['torch']:>9.3f} "
              f"{ratio['ours']:>10.2f}x {ratio['door']:>10.2f}x", flush=True)
        rows.append({**best, "of_torch": ratio})
        for side in DOORS:
            if ratio[side] > TARGET_OF_TORCH:
                missed.append(f"{best['schedule']} on two Gloo ranks, {side}: {ratio[side]:.2f} of torch's step, at most {TARGET_OF_TORCH} wanted")
    return missed


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)])
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (part.view(rows, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, -1))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))


def next_token_loss(logits, wanted):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def resident(key):
    """VmRSS or VmHWM of this process, in bytes."""
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(key))


def memory_of(side):
    """In a process of its own: the peak of resident memory over three steps, less what was there before the model."""
    vocabulary, width, length = 256, 128, 128
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    for package in ("stagecraft.torch", "stagecraft.pipelining.schedules", "torch.distributed.pipelining.schedules"):
        importlib.import_module(package)
    # Code that torch loads on first use is not the pipeline's.
    Block(width, 4)(torch.randn(1, length, width)).sum().backward()
    before = resident("VmRSS")
    torch.manual_seed(1)
    blocks = [[Block(width, 4), Block(width, 4)] for _ in range(STAGES)]
    blocks[0].insert(0, torch.nn.Embedding(vocabulary, width))
    blocks[-1].append(torch.nn.Linear(width, vocabulary))
    modules = [torch.nn.Sequential(*layers) for layers in blocks]
    tokens, wanted = (torch.randint(vocabulary, (ROWS * MICROBATCHES, length)) for _ in range(2))
    name, indices = "InterleavedZeroBubble", list(range(STAGES))
    if side == "ours":
        run = ours(name, modules, indices, tokens, wanted, loss=next_token_loss)
    else:
        make = door if side == "door" else torchs
        run = make(name, modules, indices, STAGES, tokens, wanted, loss=next_token_loss)
    for _ in range(3):
        run()
    print(resident("VmHWM") - before)


def memory(rows):
    peak = {}
    # Freed tensors go back to the system at once, so that resident memory follows what is alive.
    environment = dict(os.environ, OMP_NUM_THREADS="1", MALLOC_MMAP_THRESHOLD_="65536", MALLOC_TRIM_THRESHOLD_="65536")
    for side in (*DOORS, "torch"):
        found = subprocess.run([sys.executable, __file__, "--memory-of", side], env=environment, stdout=subprocess.PIPE, text=True, check=True)
        peak[side] = int(found.stdout.split()[-1])
    of_torch = {side: peak[side] / peak["torch"] for side in DOORS}
    print(f"\n{'peak memory, one rank':<24} {'ours MB':>8} {'door MB':>8} {'torch MB':>9} {'ours/torch':>11} {'door/torch':>11}")
    print(f"{'InterleavedZeroBubble':<24} {peak['ours'] / 1e6:>8.1f} {peak['door'] / 1e6:>8.1f} {peak['torch'] / 1e6:>9.1f} "
          f"{of_torch['ours']:>10.2f}x {of_torch['door']:>10.2f}x", flush=True)
    rows.append({"schedule": "InterleavedZeroBubble", "ranks": 1, "peak": peak, "memory_of_torch": of_torch})
    return [
        f"InterleavedZeroBubble, {side}: {of_torch[side]:.2f} of torch's peak memory, at most {TARGET_MEMORY} wanted"
        for side in DOORS
        if of_torch[side] > TARGET_MEMORY
    ]


def imports(rows):
    """The least time of a new Python that imports stagecraft, beside one that imports nothing. torch is imported by neither."""
    best = {}
    for _ in range(20):
        for name, text in (("bare", "pass"), ("stagecraft", "import stagecraft, sys; assert 'torch' not in sys.modules")):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", text], check=True)
            best[name] = min(best.get(name, 1e9), time.perf_counter() - begin)
    added = best["stagecraft"] - best["bare"]
    print(f"\n{'import stagecraft':<24} {'bare ms':>8} {'with ms':>8} {'added ms':>9} {'with/bare':>11} {'wanted':>11}")
    print(f"{'a new Python':<24} {1e3 * best['bare']:>8.1f} {1e3 * best['stagecraft']:>8.1f} {1e3 * added:>9.1f} "
          f"{best['stagecraft'] / best['bare']:>10.2f}x {'50 ms added':>11}", flush=True)
    rows.append({"import": "stagecraft", **best, "added": added})


def main():
    parser = argparse.ArgumentParser(description="A training step of Python modules beside a bare loop and beside torch")
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=["one", "two", "memory", "import"], help="one part: one rank, two ranks, memory, import")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--rank-of-two", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.rank_of_two:
        return rank_of_two()
    if options.memory_of:
        return memory_of(options.memory_of)
    rows, missed = [], []
    if options.only in (None, "one"):
        missed += one_rank(options.rounds, rows)
    if options.only in (None, "two"):
        missed += two_ranks(options.rounds, rows)
    if options.only in (None, "memory"):
        missed += memory(rows)
    if options.only in (None, "import"):
        imports(rows)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)
    for line in missed:
        print(f"python_bench: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

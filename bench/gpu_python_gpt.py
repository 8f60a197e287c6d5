"""A GPT of Python modules on a GPU, and how a step of it is measured, for the benchmarks that compare with PyTorch."""

import importlib
import json
import sys
import time

import torch
import torch.distributed as dist
from gpt_block import Block
from torch import nn

VOCABULARY, STAGES = 8192, 4
# layers, width, microbatches, rows, length, type; times faster than torch's 1F1B, and than its zero bubble
ROWS = [((8, 256, 8, 2, 128, "float"), 5, 10), ((16, 1024, 8, 4, 512, "bfloat16"), 2.4, 4.5), ((16, 2048, 16, 4, 1024, "bfloat16"), 1, 1 / 0.76)]


def add_rows_option(parser):
    """An option for some of ROWS, told by their width: all of them take ten minutes and more."""
    widths = [setting[1] for setting, _, _ in ROWS]
    parser.add_argument("--width", type=int, action="append", choices=widths, help="of a row to measure; may be given again")


def rows_of(options):
    return [row for row in ROWS if options.width is None or row[0][1] in options.width]


def begin():
    """Lists for targets that are missed, and for results. Makes the process group that torch's package wants."""
    if not torch.cuda.is_available():
        sys.exit("this bench needs a GPU")
    # Without variables: programs that are started from here would take them for their own.
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0))
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}; milliseconds per step, and gigabytes reserved at most")
    return [], []


def end(missed, results, path):
    dist.destroy_process_group()
    if path:
        with open(path, "w") as file:
            json.dump(results, file)
    for line in missed:
        print(f"MISSED: {line}")
    sys.exit(1 if missed else 0)


def text_of(setting):
    layers, width, microbatches, rows, length, kind = setting
    return f"\n{layers} layers, width {width}, {kind}, {microbatches} microbatches of {rows} x {length}"


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


def prepared(make_step, layers, width, microbatches, rows, length, kind):
    """A training step: make_step(modules, microbatches)(tokens, target)."""
    torch.manual_seed(1)
    device = torch.device("cuda", 0)
    with device:  # a CPU takes long to draw the numbers
        parts = [part(layers, width, stage).to(getattr(torch, kind)) for stage in range(STAGES)]
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run = make_step(parts, microbatches)
    tokens = torch.randint(VOCABULARY, (microbatches * rows, length), device=device)
    target = torch.randint(VOCABULARY, tokens.shape, device=device)

    def step():
        for module in parts:
            module.zero_grad()
        run(tokens, target)

    return step


def measured(make_step, *setting):
    """Milliseconds and gigabytes of a step."""
    return best_of(prepared(make_step, *setting)), torch.cuda.max_memory_reserved() / 1e9


def kernels_of(make_step, *setting):
    """Milliseconds that the kernels of a step take, without the gaps between them. What is measured later in this process may be slower: the profiler stays."""
    step = prepared(make_step, *setting)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in seen.key_averages()) / 1000


def by_package(name, schedule):
    """For `measured`: torch.distributed.pipelining, or a package in its place."""

    def make_step(parts, microbatches):
        package = importlib.import_module(name)
        stages = [package.PipelineStage(module, index, STAGES, torch.device("cuda", 0)) for index, module in enumerate(parts)]
        run = package.schedules.get_schedule_class(schedule)(stages, microbatches, loss_fn=loss_of)
        return lambda tokens, target: run.step(tokens, target=target, losses=[])

    return make_step

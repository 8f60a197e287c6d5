"""A rank of a pipeline under torchrun, by either door: steps until it is killed, interrupted, or its module raises. Says how that went.

    torchrun --nproc-per-node 3 torchrun_program.py ours|theirs kill|interrupt|raise FOLDER
"""

import json
import os
import sys
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

WIDTH, ROWS, MICROBATCHES = 4, 6, 3


class Slow(torch.nn.Module):
    """Long enough for a signal to come in the middle of a step."""

    def __init__(self):
        super().__init__()
        self.inner, self.calls, self.fails_at = torch.nn.Linear(WIDTH, WIDTH), 0, None

    def forward(self, x):
        time.sleep(0.02)
        self.calls += 1
        if self.calls == self.fails_at:
            self.fail()
        return self.inner(x)

    def fail(self):
        raise LookupError("the module gives up")


def stepper(door, module, rank, ranks):
    x, target = torch.ones(ROWS, WIDTH), torch.zeros(ROWS, WIDTH)
    loss = torch.nn.functional.mse_loss
    if door == "ours":
        import stagecraft.torch as sc

        pipeline = sc.Pipeline([sc.Stage(module, rank)], world=sc.World(timeout=20), microbatches=MICROBATCHES, loss=loss)
        return lambda: pipeline.step(x, target=target)
    from stagecraft.pipelining import PipelineStage, Schedule1F1B

    schedule = Schedule1F1B(PipelineStage(module, rank, ranks, torch.device("cpu")), MICROBATCHES, loss_fn=loss)
    arguments = (x,) if rank == 0 else ()
    keywords = {"target": target} if rank == ranks - 1 else {}
    return lambda: schedule.step(*arguments, **keywords)


def main(door, what, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    module = Slow()
    step = stepper(door, module, rank, ranks)
    step()
    if what == "raise" and rank == 1:
        module.fails_at = module.calls + 2 * MICROBATCHES + 2
    with open(os.path.join(folder, f"ready-{rank}"), "w") as file:
        file.write(str(os.getpid()))
    caught, seconds = end_of(step)
    while True:
        try:
            note(caught, seconds, os.path.join(folder, f"outcome-{rank}"))
            break
        except KeyboardInterrupt:  # of this rank, after another one has ended the step; torchrun sends more
            pass
    raise caught


def end_of(step):
    """What ends the steps, and how long the last one took. A rank that another one has ended may still have a Ctrl-C of its own to come."""
    begin = time.monotonic()
    try:
        try:
            while True:
                begin = time.monotonic()
                step()
        except BaseException as error:
            return error, time.monotonic() - begin
    except KeyboardInterrupt as late:
        return late.__context__ or late, time.monotonic() - begin


def note(error, seconds, path):
    outcome = {
        "type": type(error).__name__,
        "text": str(error),
        "cause": type(error.__cause__).__name__,
        "traceback": "".join(traceback.format_exception(error)),
        "seconds": seconds,
    }
    with open(path + ".part", "w") as file:
        json.dump(outcome, file)
    os.rename(path + ".part", path)


if __name__ == "__main__":
    main(*sys.argv[1:])

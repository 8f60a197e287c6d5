"""A training step of a GPT in Python, four stages on one rank of a GPU: torch.distributed.pipelining, stagecraft.pipelining in its place, and
stagecraft.torch, eager and replayed as a graph; the same modules, in one process.

    PYTHONPATH=build/gpu/python python bench/gpu_python_bench.py [--width 256] [--json FILE]

Fails (exit code 1) when one of ours is slower than torch's package, or takes more than 0.65 of its memory for zero bubble
on a large model.
"""

import argparse

from gpu_python_gpt import STAGES, add_rows_option, begin, by_package, end, loss_of, measured, rows_of, text_of

import stagecraft.torch as sc

MOST_TIME = 1.02
MOST_MEMORY = 0.65  # of zero bubble
LARGE = 10  # GB: below, workspaces of libraries and lanes decide


def ours(schedule, graph):
    def make_step(parts, microbatches):
        stages = [sc.Stage(module, index) for index, module in enumerate(parts)]
        pipeline = sc.Pipeline(stages, schedule=schedule, stages_per_rank=STAGES, microbatches=microbatches, loss=loss_of, graph=graph)

        def step(tokens, target):
            pipeline.step(tokens, target=target)
            if graph and pipeline.captured.reason and pipeline.captured.eager > 1:
                raise RuntimeError(pipeline.captured.reason)

        return step

    return make_step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_rows_option(parser)
    parser.add_argument("--json")
    options = parser.parse_args()
    missed, results = begin()
    for setting, _, _ in rows_of(options):
        print(text_of(setting))
        for schedule in ("Interleaved1F1B", "InterleavedZeroBubble"):
            ways = {
                "torch": by_package("torch.distributed.pipelining", schedule),
                "stagecraft.pipelining": by_package("stagecraft.pipelining", schedule),
                "stagecraft.torch": ours(schedule, False),
                "as a graph": ours(schedule, True),
            }
            found = {name: measured(way, *setting) for name, way in ways.items()}
            results.append({"setting": setting, "schedule": schedule, "found": found})
            base_time, base_memory = found["torch"]
            print(f"  {schedule}")
            for name, (time, memory) in found.items():
                print(f"    {name:<22}{time:9.1f} ms  {base_time / time:6.2f}x {memory:8.2f} GB  {memory / base_memory:5.2f}", flush=True)
                if time > MOST_TIME * base_time:
                    missed.append(f"{setting}, {schedule}: {name} takes {time / base_time:.2f} of torch's time")
                is_counted = schedule == "InterleavedZeroBubble" and base_memory > LARGE and name != "torch"
                if is_counted and memory > MOST_MEMORY * base_memory:
                    missed.append(f"{setting}, {schedule}: {name} takes {memory / base_memory:.2f} of torch's memory, {MOST_MEMORY} wanted")
    end(missed, results, options.json)


if __name__ == "__main__":
    main()

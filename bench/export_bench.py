"""Forward and backward of exported models, ours beside eager Python, in turns; prints ratios of medians.

    python bench/export_bench.py --ours build/bin/export_bench --stagecraft build/bin/stagecraft --json build/bench/export.json
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests", "parity", "export"))
import families  # noqa: E402
import models  # noqa: E402

warnings.filterwarnings("ignore")
TURNS = 15
MOST_TO_READ = 0.05  # seconds


def tokens(*shape, vocabulary=64):
    return lambda: torch.randint(0, vocabulary, shape)


def numbers(*shape):
    return lambda: torch.randn(shape)


# name, model, its input, threads, repetitions per turn, largest ratio
CASES = [
    ("dispatch-bound GPT: 4 layers, width 32, 4 x 16 tokens",
     lambda: models.GptStyle(layers=4, width=32, heads=2, vocabulary=64, length=16), tokens(4, 16), 1, 20, 0.8),
    ("large GPT: 4 layers, width 512, 8 x 128 tokens",
     lambda: models.GptStyle(layers=4, width=512, heads=8, vocabulary=1024, length=128), tokens(8, 128, vocabulary=1024), 2, 1, 1.02),
    ("transformer of width 256: 4 layers, 4 x 16 tokens",
     lambda: models.LlamaStyle(layers=4, width=256, heads=8, groups=4, vocabulary=256), tokens(4, 16, vocabulary=256), 1, 3, 0.85),
    ("state space: 4 layers, width 16, 4 x 16 tokens", lambda: models.MambaStyle(), tokens(4, 16, vocabulary=32), 1, 3, 0.75),
    ("recurrent: LSTM of two directions, width 6, 16 x 4", lambda: families.Recurrent(torch.nn.LSTM), numbers(16, 4, 3), 1, 10, 0.75),
    ("convolutions: depthwise, batch norm, 4 x 16 x 16", lambda: families.Depthwise(), numbers(4, 3, 16, 16), 1, 10, 0.75),
    ("vision transformer: 4 layers, width 8", lambda: families.VisionTransformer(), numbers(4, 3, 8, 8), 1, 10, 0.85),
]  # fmt: skip


def measure(ours, make, make_input, threads, repetitions, folder):
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    model = make().train()
    given = make_input()
    model_path, input_path = os.path.join(folder, "model.pt2"), os.path.join(folder, "input.pt")
    torch.export.save(torch.export.export(model, (given,), strict=False), model_path)
    torch.save(given, input_path)

    def python():
        start = time.perf_counter()
        for _ in range(repetitions):
            model(given).sum().backward()
            for parameter in model.parameters():
                parameter.grad = None
        return time.perf_counter() - start

    with subprocess.Popen([ours, model_path, input_path, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:

        def native():
            process.stdin.write(f"{repetitions}\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        python(), native()
        pairs = [(native(), python()) for _ in range(TURNS)]
        process.stdin.close()
    return [statistics.median(side) / repetitions for side in zip(*pairs)]


def read(stagecraft, folder):
    """Seconds that `stagecraft model` and torch.export.load take for a file of 1 GiB."""
    path = os.path.join(folder, "big.pt2")
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, bias=False) for _ in range(16)])
    torch.export.save(torch.export.export(model, (torch.randn(2, 4096),)), path)

    def best(work):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        return min(times)

    return (best(lambda: subprocess.run([stagecraft, "model", path], check=True, stdout=subprocess.DEVNULL)),
            best(lambda: torch.export.load(path)))  # fmt: skip


def run_case(options, number):
    """In a process of its own: some libraries take their number of threads from the environment, once."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(CASES[number][3])}
    command = [sys.executable, __file__, "--ours", options.ours, "--stagecraft", options.stagecraft, "--case", str(number)]
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ours", required=True)
    parser.add_argument("--stagecraft", required=True, help="the command, to read a large file")
    parser.add_argument("--json")
    parser.add_argument("--case", type=int, help="only this one, its seconds as JSON")
    options = parser.parse_args()
    if options.case is not None:
        _, make, make_input, threads, repetitions, _ = CASES[options.case]
        with tempfile.TemporaryDirectory(prefix="stagecraft-bench-") as folder:
            print(json.dumps(measure(options.ours, make, make_input, threads, repetitions, folder)))
        return False
    results, failed = [], False
    for number, (name, *_, limit) in enumerate(CASES):
        ours, theirs = run_case(options, number)
        met = ours / theirs <= limit
        failed |= not met
        results.append({"case": name, "ours": ours, "python": theirs, "ratio": ours / theirs, "limit": limit})
        print(f"{name}: ours {1e3 * ours:.3f} ms, eager Python {1e3 * theirs:.3f} ms: {ours / theirs:.2f}x "
              f"(at most {limit}x wanted: {'met' if met else 'MISSED'})", flush=True)
    with tempfile.TemporaryDirectory(prefix="stagecraft-bench-") as folder:
        ours, theirs = read(options.stagecraft, folder)
    met = ours <= MOST_TO_READ
    failed |= not met
    results.append({"case": "reading 1 GiB", "ours": ours, "python": theirs, "limit": MOST_TO_READ})
    print(f"reading 1 GiB: `stagecraft model` {1e3 * ours:.1f} ms (at most {1e3 * MOST_TO_READ:.0f} ms wanted: {'met' if met else 'MISSED'}), "
          f"torch.export.load {1e3 * theirs:.0f} ms")  # fmt: skip
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    return failed


if __name__ == "__main__":
    sys.exit(main())

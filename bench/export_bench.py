"""Forward and backward of exported models, ours beside eager Python, in turns; prints ratios of medians.

    python bench/export_bench.py --ours build/bin/export_bench --json build/bench/export.json
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ours", required=True)
    parser.add_argument("--json")
    options = parser.parse_args()
    results, failed = [], False
    for name, make, make_input, threads, repetitions, limit in CASES:
        with tempfile.TemporaryDirectory(prefix="stagecraft-bench-") as folder:
            ours, theirs = measure(options.ours, make, make_input, threads, repetitions, folder)
        met = ours / theirs <= limit
        failed |= not met
        results.append({"case": name, "ours": ours, "python": theirs, "ratio": ours / theirs, "limit": limit})
        print(f"{name}: ours {1e3 * ours:.3f} ms, eager Python {1e3 * theirs:.3f} ms: {ours / theirs:.2f}x "
              f"(at most {limit}x wanted: {'met' if met else 'MISSED'})")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    return failed


if __name__ == "__main__":
    sys.exit(main())

"""The stagecraft command. A few processes run at a time while the caller goes on working out what PyTorch says."""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import subprocess

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("STAGECRAFT_BIN", str(REPOSITORY / "build" / "bin" / "stagecraft"))
PROCESSES = 2
TIMEOUT_SECONDS = 300

_pool = concurrent.futures.ThreadPoolExecutor(PROCESSES)


@dataclasses.dataclass
class Result:
    command: str
    code: int
    out: bytes
    err: str

    def json(self):
        """The report of a schedule that was understood: accepted (0) or refused (1)."""
        if self.code not in (0, 1):
            raise AssertionError(f"{self.command}: exit {self.code}: {self.err}")
        return json.loads(self.out)


def run(*arguments, stdin=b""):
    arguments = [str(a) for a in arguments]
    done = subprocess.run([BINARY, *arguments], input=stdin, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
    return Result("stagecraft " + " ".join(arguments), done.returncode, done.stdout, done.stderr.decode(errors="replace"))


def start(*arguments, stdin=b""):
    """As `run`, at once in the background; `.result()` waits for it."""
    return _pool.submit(run, *arguments, stdin=stdin)


def shape(name, ranks, stages_per_rank, microbatches):
    return ["schedule", name, "--ranks", ranks, "--stages-per-rank", stages_per_rank, "--microbatches", microbatches]

"""Runs a function of a test file on ranks as processes with a process group, of Gloo unless STAGECRAFT_TEST_BACKEND says otherwise.

A test calls `run("test_file:function", ranks)`; the function gets the rank and the number of ranks, in a new process where the default process
group is made. What it returns comes back by rank, as JSON. Ends all processes that are still there after the time limit.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
LIMIT = 240


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Rank:
    def __init__(self, process, result, log):
        self.process, self._result, self._log = process, result, log

    @property
    def log(self):
        return self._log.read_text()

    @property
    def result(self):
        return json.loads(self._result.read_text()) if self._result.exists() else None

    def kill(self, sent=signal.SIGKILL):
        self.process.send_signal(sent)


def start(function, ranks, folder, **arguments):
    """Starts the ranks; returns them by rank."""
    port = free_port()
    all_ranks = []
    for rank in range(ranks):
        environment = dict(
            os.environ,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            RANK=str(rank),
            WORLD_SIZE=str(ranks),
            OMP_NUM_THREADS="1",
            GLOO_SOCKET_IFNAME="lo",
        )
        result, log = pathlib.Path(folder) / f"result-{rank}", pathlib.Path(folder) / f"log-{rank}"
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "processes.py"), function, str(result), json.dumps(arguments)],
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=os.getcwd(),
            )
        all_ranks.append(Rank(process, result, log))
    return all_ranks


def wait(all_ranks, limit=LIMIT):
    """Exit codes by rank. Kills what has not ended in time, and fails."""
    until = time.monotonic() + limit
    codes = []
    try:
        for rank, one in enumerate(all_ranks):
            try:
                codes.append(one.process.wait(max(0.1, until - time.monotonic())))
            except subprocess.TimeoutExpired:
                for one in all_ranks:
                    if one.process.poll() is None:
                        one.kill(signal.SIGUSR1)  # they say where they are
                time.sleep(1)
                logs = "\n".join(f"--- rank {r}\n{other.log}" for r, other in enumerate(all_ranks))
                raise AssertionError(f"rank {rank} has not ended within {limit} s\n{logs}") from None
    finally:
        for one in all_ranks:
            if one.process.poll() is None:
                one.process.kill()
                one.process.wait()
    return codes


def run(function, ranks, limit=LIMIT, **arguments):
    """The results by rank; fails when a rank does."""
    with tempfile.TemporaryDirectory() as folder:
        all_ranks = start(function, ranks, folder, **arguments)
        codes = wait(all_ranks, limit)
        if any(codes):
            logs = "\n".join(f"--- rank {rank}, exit code {code}\n{one.log}" for rank, (code, one) in enumerate(zip(codes, all_ranks)))
            raise AssertionError(f"{function} failed\n{logs}")
        return [one.result for one in all_ranks]


def _main():
    import faulthandler
    import importlib

    import torch.distributed as dist

    faulthandler.register(signal.SIGUSR1, all_threads=True)

    file, name = sys.argv[1].split(":")
    sys.path.insert(0, os.getcwd())
    dist.init_process_group(os.environ.get("STAGECRAFT_TEST_BACKEND", "gloo"))
    result = getattr(importlib.import_module(file), name)(dist.get_rank(), dist.get_world_size(), **json.loads(sys.argv[3]))
    pathlib.Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    _main()

"""Starts a program as several ranks, as torchrun does, and waits for all of them:

    python3 tests/support/start_processes.py -n 4 build/bin/conformance_test [argument ...]

Unlike torchrun it lets the others go on when one fails, so that tests see what they say. Its exit code is that of the first
that failed; 128 and the number of the signal for one that was killed.
"""

import os
import signal
import socket
import subprocess
import sys


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def main():
    if len(sys.argv) < 4 or sys.argv[1] != "-n":
        sys.exit(__doc__)
    ranks = int(sys.argv[2])
    port = str(free_port())
    processes = []
    for rank in range(ranks):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        processes.append(subprocess.Popen(sys.argv[3:], env={**os.environ, **{name: str(value) for name, value in own.items()}}))

    def pass_on(number, _frame):
        for process in processes:
            process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    code = 0
    waiting = {process.pid: process for process in processes}
    while waiting:
        pid, status = os.wait()
        process = waiting.pop(pid, None)
        if process is None:
            continue
        process.returncode = os.waitstatus_to_exitcode(status)
        if code == 0 and process.returncode != 0:
            code = process.returncode if process.returncode > 0 else 128 - process.returncode
    return code


if __name__ == "__main__":
    sys.exit(main())

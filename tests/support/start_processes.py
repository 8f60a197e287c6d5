"""Starts a program as several ranks, as torchrun does, and waits for all of them:

    python3 tests/support/start_processes.py -n 4 build/bin/conformance_test [argument ...] [: -n 1 another_program ...]

Unlike torchrun it lets the others go on for some seconds when one fails, so that tests see what they say. Its exit code is that
of the first that failed; 128 and the number of the signal for one that was killed.
"""

import os
import signal
import socket
import subprocess
import sys
import threading

PATIENCE = float(os.environ.get("START_PATIENCE", 1.5))  # seconds that the others have after the first failure


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def commands(words):
    """One command per rank."""
    part = []
    for word in [*words, ":"]:
        if word != ":":
            part.append(word)
            continue
        if len(part) < 3 or part[0] != "-n" or not part[1].isdigit():
            sys.exit(__doc__)
        yield from [part[2:]] * int(part[1])
        part = []


def main():
    ranks = list(commands(sys.argv[1:]))
    port = str(free_port())
    processes = {}
    for rank, command in enumerate(ranks):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(ranks), "LOCAL_WORLD_SIZE": len(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        process = subprocess.Popen(command, env={**os.environ, **{name: str(value) for name, value in own.items()}})
        processes[process.pid] = process

    def pass_on(number, _frame=None):
        for process in list(processes.values()):
            process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    code = 0
    while processes:
        pid, status = os.wait()
        process = processes.pop(pid, None)
        if process is None:
            continue
        process.returncode = os.waitstatus_to_exitcode(status)
        if code == 0 and process.returncode != 0:
            code = process.returncode if process.returncode > 0 else 128 - process.returncode
            late = threading.Timer(PATIENCE, pass_on, [signal.SIGKILL])
            late.daemon = True
            late.start()
    return code


if __name__ == "__main__":
    sys.exit(main())

"""Tests that measure time. One that fails while something else had the machine is run again, five times at most, and each time all its times
are longer; a failure on a machine that was there all the time counts at once. Commands that mostly wait may run beside each other.

    python3 undisturbed.py COMMAND [ARGUMENT]... [--beside COMMAND [ARGUMENT]...]...
"""

import os
import subprocess
import sys
import threading
import time

PERIOD = 0.01
MOST_AT_ONCE = 0.15  # seconds that a sleeper may be woken late
MOST_IN_ALL = 0.03  # of the time, late or stolen
SLOWER = [1, 2, 4, 8, 8]  # times: of each attempt
LONGEST_WAIT = 30  # seconds for the machine to come back


def slowly(seconds):
    """What a test takes for so many seconds in this attempt. C++ has the same: slow_motion.h."""
    return seconds * int(os.environ.get("STAGECRAFT_TEST_TIMES_SLOWER", 1))


def stolen_ticks():
    """What the host of a virtual machine has taken from it, and all that has passed; in all processors together."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return ticks[7], sum(ticks)


class Watch:
    """How late a thread that sleeps is woken, and how much the host takes, as long as it runs."""

    def __enter__(self):
        self.worst, self.late, self.begin, self.ticks, self.ends = 0.0, 0.0, time.monotonic(), stolen_ticks(), False
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.ends:
            before = time.monotonic()
            time.sleep(PERIOD)
            late = time.monotonic() - before - PERIOD
            self.worst, self.late = max(self.worst, late), self.late + max(0.0, late - 0.001)

    def __exit__(self, *_):
        self.ends = True
        self.thread.join()
        stolen, ticks = (now - then for now, then in zip(stolen_ticks(), self.ticks))
        self.stolen = stolen / max(ticks, 1)
        self.late /= time.monotonic() - self.begin

    def was_disturbed(self):
        return self.worst > MOST_AT_ONCE or self.late > MOST_IN_ALL or self.stolen > MOST_IN_ALL

    def __str__(self):
        return f"a sleeper woke up to {1000 * self.worst:.0f} ms late, {100 * self.late:.0f} % of the time in all; {100 * self.stolen:.0f} % were stolen"


def wait_for_the_machine():
    begin = time.monotonic()
    while time.monotonic() - begin < LONGEST_WAIT:
        with Watch() as watch:
            time.sleep(3)
        if not watch.was_disturbed():
            return


class NotStarted(AssertionError):
    """The test has not begun: worth another attempt on any machine."""


def undisturbed(attempt, name):
    """What `attempt` returns, once it does not raise an AssertionError that the machine may be the reason of."""
    for number, slower in enumerate(SLOWER, 1):
        os.environ["STAGECRAFT_TEST_TIMES_SLOWER"] = str(slower)
        watch = Watch()
        try:
            with watch:
                return attempt()
        except AssertionError as error:
            if number == len(SLOWER) or not (watch.was_disturbed() or isinstance(error, NotStarted)):
                print(f"{name}, attempt {number}: {watch}", flush=True)
                raise
            print(f"{name}, once more after attempt {number}: {watch}\n{error}", flush=True)
        wait_for_the_machine()


def commands(words):
    found = [[]]
    for word in words:
        if word == "--beside":
            found.append([])
        else:
            found[-1].append(word)
    return found


def run(commands):
    started = [subprocess.Popen(command) for command in commands]
    codes = [process.wait() for process in started]
    assert not any(codes), f"exit codes {codes}"


if __name__ == "__main__":
    try:
        undisturbed(lambda: run(commands(sys.argv[1:])), sys.argv[1])
    except AssertionError:
        sys.exit(1)

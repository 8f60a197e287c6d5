"""A run that is killed at random moments, also while it saves, and started again each time, gives the losses of one that never stopped: bit
for bit where the layout stays, to 1e-6 where each start has another one (other ranks, stages, replicas, shards, threads or processes).

    RESUME_PROGRAM=build/bin/resume_program MPIEXEC=mpirun [RESUME_SEED=7] [RESUME_KILLS=20] python3 tests/faults/test_resume.py

The moments are drawn anew each time; the seed is printed, and RESUME_SEED repeats it as far as time can be repeated.
"""

import json
import os
import random
import signal
import subprocess
import tempfile
import time
import unittest
import uuid

from marked_processes import marked

PROGRAM = os.environ["RESUME_PROGRAM"]
MPIEXEC = os.environ["MPIEXEC"].split()
SEED = int(os.environ.get("RESUME_SEED", random.SystemRandom().randrange(1 << 30)))
KILLS = int(os.environ.get("RESUME_KILLS", 20 if "STAGECRAFT_TEST_ALL" in os.environ else 3))
SAVE_EVERY = 5  # updates
UPDATES = 60 + 15 * KILLS  # more than the kills leave time for
LIMIT = 120  # seconds that one start may take
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
               "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}

print(f"RESUME_SEED={SEED}")


class Layout:
    def __init__(self, ranks, replicas=1, per_rank=1, shard="none", as_processes=False):
        self.ranks, self.replicas, self.per_rank, self.shard, self.as_processes = ranks, replicas, per_rank, shard, as_processes

    def __str__(self):
        kind = "processes" if self.as_processes else "threads"
        return f"{self.ranks} x {self.replicas} {kind}, {self.per_rank} stages each, shard {self.shard}"


REFERENCE = Layout(2)
SAME = [Layout(2), Layout(2, as_processes=True)]  # how ranks are started changes no number
OTHERS = [Layout(1), Layout(2), Layout(3), Layout(2, per_rank=2), Layout(1, 2), Layout(2, 2, shard="parameters"), Layout(1, 2, shard="optimizer"),
          Layout(2, as_processes=True), Layout(1, 2, as_processes=True), Layout(1, 2, shard="gradients", as_processes=True)]


def is_launcher(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.path.basename(file.read().split(b"\0")[0]) != os.path.basename(PROGRAM).encode()
    except OSError:
        return True


def kill(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


class Start:
    """One start of the program, which ends by itself or is killed."""

    def __init__(self, folder, losses, layout):
        self.folder, self.mark = folder, f"--mark={uuid.uuid4()}"
        arguments = [PROGRAM, folder, losses, str(UPDATES), str(SAVE_EVERY), str(layout.ranks), str(layout.replicas), str(layout.per_rank), layout.shard, self.mark]
        if layout.as_processes:
            arguments = [*MPIEXEC, "-n", str(layout.ranks * layout.replicas), *arguments]
        self.output = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(arguments, stdout=self.output, stderr=subprocess.STDOUT, env=ENVIRONMENT, start_new_session=True)

    def text(self):
        return self.said if self.output.closed else os.pread(self.output.fileno(), 1 << 20, 0).decode()

    def wait_until_it_trains(self):
        begin = time.monotonic()
        while "it trains" not in self.text() and self.process.poll() is None:
            if time.monotonic() - begin > LIMIT:
                raise AssertionError(f"it does not begin:\n{self.text()}")
            time.sleep(0.01)

    def wait_until_lines(self, path, more):
        def size():
            return os.path.getsize(path) if os.path.exists(path) else 0
        before = size()
        while self.process.poll() is None and size() < before + 20 * more:  # bytes of a line, or a little less
            time.sleep(0.001)

    def wait_until_it_saves(self):
        while self.process.poll() is None:
            if any(name.startswith(".stagecraft-") for name in os.listdir(self.folder)):
                return
            time.sleep(0.0002)

    def end(self):
        """Its exit code, once none of its processes is left."""
        try:
            code = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            code = None
        begin = time.monotonic()
        while (rest := marked(self.mark)) and time.monotonic() - begin < 20:
            if code is None:
                kill([pid for pid, *_ in rest])
            time.sleep(0.02)
        self.said = self.text()
        self.output.close()
        if code is None:
            self.process.wait()
            raise AssertionError(f"it hangs:\n{self.text()}")
        if rest:
            kill(rest)
            raise AssertionError(f"processes are left behind:\n{self.text()}")
        return code


def read_losses(path):
    """(update, text of the loss) of all complete lines."""
    if not os.path.exists(path):
        return []
    with open(path) as file:
        lines = file.read().split("\n")
    return [(int(line.split()[0]), line.split()[1]) for line in lines[:-1]]


class Resume(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            losses = os.path.join(folder, "losses")
            start = Start(os.path.join(folder, "checkpoints"), losses, REFERENCE)
            code = start.end()
            assert code == 0, start.text()
            lines = read_losses(losses)
            assert [update for update, _ in lines] == list(range(UPDATES)), lines
            cls.expected = dict(lines)
        assert float(cls.expected[UPDATES - 1]) < float(cls.expected[0]), "it does not learn"

    def killed_again_and_again(self, layouts, is_right):
        drawn = random.Random(f"{SEED} {self.id()}")
        with tempfile.TemporaryDirectory() as scratch:
            folder, losses = os.path.join(scratch, "checkpoints"), os.path.join(scratch, "losses")
            os.mkdir(folder)
            story, begins, kills = [], [], 0
            for number in range(KILLS + 1):
                layout = drawn.choice(layouts)
                story.append(str(layout))
                start = Start(folder, losses, layout)
                if number < KILLS:
                    start.wait_until_it_trains()
                    while_saving = drawn.random() < 0.6
                    start.wait_until_lines(losses, drawn.randrange(12))
                    if while_saving:
                        start.wait_until_it_saves()
                        time.sleep(drawn.uniform(0, 0.004))
                    pids = [pid for pid, *_ in marked(start.mark)]
                    drawn.shuffle(pids)
                    if layout.as_processes and drawn.random() < 0.5:  # one rank alone: the others end by themselves
                        pids = [pid for pid in pids if not is_launcher(pid)][:1]
                    kills += start.process.poll() is None
                    kill(pids)
                    story.append(f"killed {'while it saved' if while_saving else 'at some moment'}")
                code = start.end()
                begins += [int(line.split()[-1]) for line in start.text().splitlines() if line.startswith("it trains from")]
                told = "\n".join([f"RESUME_SEED={SEED}", *story, f"began at {begins}", start.text()])
                if number < KILLS:
                    for name in filter(lambda name: name.startswith("step-"), os.listdir(folder)):
                        self.assert_is_whole(os.path.join(folder, name), told)
                else:
                    self.assertEqual(code, 0, told)
            lines = read_losses(losses)
            wrong = [f"update {update}: {loss}, not {self.expected[update]}" for update, loss in lines if not is_right(loss, self.expected[update])]
            self.assertEqual(wrong, [], told)
            self.assertEqual({update for update, _ in lines}, set(range(UPDATES)), told)
            self.assertGreater(kills, KILLS / 2, f"it was too fast\n{told}")
            # The two last ones are kept, and nothing unfinished is left.
            self.assertLess(begins[-1], UPDATES, f"it was too fast\n{told}")
            self.assertEqual(sorted(os.listdir(folder)), [f"step-{UPDATES - SAVE_EVERY}.safetensors", f"step-{UPDATES}.safetensors"], told)
            print(f"{self.id()}: {kills} kills, began at {begins}", flush=True)

    def assert_is_whole(self, path, told):
        with open(path, "rb") as file:
            content = file.read()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8:8 + length])
        header.pop("__metadata__")
        self.assertEqual(max(entry["data_offsets"][1] for entry in header.values()), len(content) - 8 - length, f"{path}\n{told}")

    def test_bit_for_bit_under_the_same_layout(self):
        self.killed_again_and_again(SAME, lambda loss, expected: loss == expected)

    def test_under_another_layout_each_time(self):
        self.killed_again_and_again(OTHERS, lambda loss, expected: abs(float(loss) - float(expected)) <= 1e-6)


if __name__ == "__main__":
    unittest.main(verbosity=2)

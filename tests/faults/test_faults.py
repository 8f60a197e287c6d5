"""Accidents: a rank throws, exits, is killed, is stopped, loses its link or runs another program. Every run must end in time with an exit
code, name the rank at fault, say what each survivor was waiting for, and leave no process behind.

    FAULT_PROGRAM=build/bin/fault_program MPIEXEC=mpirun [FAULT_SEED=7] python3 tests/faults/test_faults.py

Where an accident happens is drawn anew each time; the seed is printed, and FAULT_SEED repeats it. STAGECRAFT_FAULT_TRIALS is the
number of trials with random worlds and accidents, STAGECRAFT_FAULT_KINDS which kinds of accidents they have, STAGECRAFT_FAULT_TRIAL
the one trial to repeat.
"""

import array
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from undisturbed import NotStarted, slowly, undisturbed  # noqa: E402
from marked_processes import marked  # noqa: E402

PROGRAM = os.environ["FAULT_PROGRAM"]
MPIEXEC = os.environ["MPIEXEC"].split()
SEED = int(os.environ.get("FAULT_SEED", random.SystemRandom().randrange(1 << 30)))
RANKS = 3
TIMEOUT = 5.0  # of the ranks
GRACE = 4.0 if "mpi" in MPIEXEC[0] else 6.0  # starting, ending, a busy machine; a script that waits for those who are still there
STARTING = 0.0  # beyond that
if "STAGECRAFT_TEST_DEVICE" in os.environ:
    TIMEOUT = 10.0  # NCCL connects one pair of ranks after another in the first step, which takes seconds where they share a GPU
    GRACE += 6.0  # a GPU takes seconds to let go
    STARTING = 20.0  # and more to start
# MPICH's launcher answers the death of a rank with SIGKILL for the others: some do not get to say anything, and some see first
# another one die that way.
LAUNCHER_KILLS = "mpich" in MPIEXEC[0]
ALL = "STAGECRAFT_TEST_ALL" in os.environ  # each accident several times
TRIALS = int(os.environ.get("STAGECRAFT_FAULT_TRIALS", 2))
KINDS = os.environ.get("STAGECRAFT_FAULT_KINDS", "slow,stop,kill,throw,throw_number" if not LAUNCHER_KILLS else "slow,stop,throw,throw_number").split(",")
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}

print(f"FAULT_SEED={SEED}")
draw = random.Random(SEED)


class Run:
    """A command that must end by itself within `limit` seconds after the accident that it tells of, or after its begin."""

    def __init__(self, command, limit, mark=None, during=None):
        self.begin = time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=ENVIRONMENT, start_new_session=True)
            if during:
                during(output)
            give_up, has_happened = time.monotonic() + slowly(STARTING) + limit, False
            while (code := process.poll()) is None and time.monotonic() < give_up:
                time.sleep(0.01)
                if not has_happened and b"accident at" in os.pread(output.fileno(), 1 << 20, 0):  # which does not move where others write
                    self.begin, has_happened = time.monotonic(), True
                    give_up = self.begin + limit
            self.code = code
            if code is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self.seconds = time.monotonic() - self.begin
            output.seek(0)
            self.output = output.read()
        self.ended_in_time = self.code is not None
        self.orphans = []
        if mark:
            give_up = time.monotonic() + 3
            while (orphans := marked(mark)) and time.monotonic() < give_up:
                time.sleep(0.05)
            self.orphans = orphans
            for pid, *_ in orphans:
                os.kill(pid, signal.SIGKILL)


def under_mpi(fault, rank, action, ranks=RANKS, replicas=1, more=()):
    mark = f"--stagecraft-mark={uuid.uuid4()}"
    command = [*MPIEXEC, "-n", str(ranks), PROGRAM, fault, str(rank), str(action), str(int(1000 * slowly(TIMEOUT))), "1", str(replicas), *more, mark]
    return Run(command, slowly(2 * TIMEOUT + GRACE), mark)


def lost(rank):
    """What survivors say of a rank that was killed, or of another that the launcher has killed since."""
    who = "|".join(map(str, range(RANKS))) if LAUNCHER_KILLS else rank
    return rf"the process of rank ({who}) has ended in the middle of the run"


def silent(rank):
    """What survivors say of a rank that is stopped or out of reach: by MPI's heartbeat, or when it answers no question."""
    return rf"rank {rank} has been silent|rank {rank}, which does not answer|rank {rank} is out of reach"


class Accidents(unittest.TestCase):
    def check(self, run, rank, text, survivors_wait=True, may_be_silent=False, ranks=RANKS):
        if "MPI has not started" in run.output:
            raise NotStarted("MPI has not started within the timeout")
        self.assertTrue(run.ended_in_time, f"still running after {run.seconds:.0f} s:\n{run.output}")
        self.assertNotEqual(run.code, 0, run.output)
        self.assertIn("accident at", run.output)
        self.assertEqual(run.orphans, [])
        for survivor in range(ranks):
            if survivor == rank:
                continue
            said = [line for line in run.output.splitlines() if line.startswith(f"rank {survivor}: ")]
            if may_be_silent and not said:
                continue
            self.assertTrue(said, f"rank {survivor} said nothing:\n{run.output}")
            self.assertRegex(" ".join(said), text)
            if survivors_wait:
                self.assertRegex(" ".join(said), "waiting for the |not waiting|waited .* for the ", run.output)

    def places(self, count):
        return [(draw.randrange(RANKS), draw.randrange(100)) for _ in range(count if ALL else 1)]

    def trying(self, attempt, **what):
        with self.subTest(**what):
            undisturbed(attempt, f"{self.id()} {what}")

    def assert_soon(self, run):
        self.assertLess(run.seconds, slowly(TIMEOUT + GRACE))

    def test_a_rank_throws(self):
        for rank, action in self.places(3):
            def attempt(rank=rank, action=action):
                run = under_mpi("throw", rank, action)
                self.check(run, rank, "the accident that was asked for", survivors_wait=False)
                self.assert_soon(run)
            self.trying(attempt, rank=rank, action=action)

    def test_a_rank_throws_before_it_joins_the_others(self):
        if "STAGECRAFT_TEST_DEVICE" in os.environ or "mpi" not in MPIEXEC[0]:
            self.skipTest("about ranks on the CPU under mpirun")

        def attempt():
            run = under_mpi("no_device", 1, 0)
            self.check(run, 1, "the accident that was asked for", survivors_wait=False)
            self.assert_soon(run)
        self.trying(attempt)

    def test_a_rank_exits(self):
        for rank, action in self.places(3):
            def attempt(rank=rank, action=action):
                run = under_mpi("exit", rank, action)
                self.check(run, rank, f"the process of rank {rank} has ended")
                self.assert_soon(run)
            self.trying(attempt, rank=rank, action=action)

    def test_a_rank_is_killed(self):
        for rank, action in self.places(3):
            def attempt(rank=rank, action=action):
                run = under_mpi("kill", rank, action)
                self.check(run, rank, lost(rank), may_be_silent=LAUNCHER_KILLS)
                self.assert_soon(run)
            self.trying(attempt, rank=rank, action=action)

    def test_a_rank_is_killed_while_it_saves(self):
        for rank in [0, draw.randrange(1, RANKS)] if ALL else [draw.randrange(RANKS)]:
            moment = draw.randrange(300)

            def attempt(rank=rank, moment=moment):
                with tempfile.TemporaryDirectory() as folder:
                    path = os.path.join(folder, "model.safetensors")
                    run = under_mpi("kill", rank, moment, more=[path])
                    self.check(run, rank, lost(rank), survivors_wait=False, may_be_silent=LAUNCHER_KILLS)
                    self.assert_soon(run)
                    self.assert_whole(path)
            self.trying(attempt, rank=rank, moment=moment)

    def assert_whole(self, path):
        """The file is one of those that were saved: all of its numbers are its step."""
        with open(path, "rb") as file:
            content = file.read()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8:8 + length])
        step = float(header.pop("__metadata__")["stagecraft.step"])
        self.assertEqual(max(entry["data_offsets"][1] for entry in header.values()), len(content) - 8 - length)
        self.assertEqual(set(array.array("f", content[8 + length:])), {step})

    def test_a_rank_is_stopped(self):
        for rank, action in self.places(2):
            def attempt(rank=rank, action=action):
                run = under_mpi("stop", rank, action)
                self.check(run, rank, silent(rank))
                self.assert_soon(run)
            self.trying(attempt, rank=rank, action=action)

    def test_a_rank_is_another_program(self):
        self.trying(self.run_another_program)

    def run_another_program(self):
        mark = f"--stagecraft-mark={uuid.uuid4()}"
        ours = [PROGRAM, "none", "0", "0", str(int(1000 * slowly(TIMEOUT))), mark]
        run = Run([*MPIEXEC, "-n", "2", *ours, ":", "-n", "1", "sleep", str(int(slowly(60)))], slowly(TIMEOUT + GRACE), mark)
        self.assertTrue(run.ended_in_time, run.output)
        self.assertNotEqual(run.code, 0)
        self.assertIn("Do all run this program?", run.output)
        self.assertEqual(run.orphans, [])

    def test_two_pipelines_of_two_ranks(self):
        accidents = (("throw", "the accident that was asked for"), ("kill", "the process of rank {} has ended"), ("stop", None))
        for fault, text in accidents:
            rank, action = draw.randrange(4), draw.randrange(100)

            def attempt(fault=fault, text=text, rank=rank, action=action):
                run = under_mpi(fault, rank, action, ranks=4, replicas=2)
                self.check(run, rank, text.format(rank) if text else silent(rank), fault != "throw", fault == "kill" and LAUNCHER_KILLS, ranks=4)
                self.assert_soon(run)
            self.trying(attempt, fault=fault, rank=rank, action=action)

    def test_threads(self):
        for rank, action in self.places(3):
            def attempt(rank=rank, action=action):
                run = Run([PROGRAM, "throw", str(rank), str(action), str(int(1000 * slowly(TIMEOUT))), str(RANKS)], slowly(TIMEOUT + GRACE))
                self.assertEqual(run.code, 1, run.output)
                self.assertIn(f"rank {rank}, step", run.output)
                self.assertIn("the accident that was asked for", run.output)
            self.trying(attempt, rank=rank, action=action)

    def test_threads_of_two_pipelines(self):
        rank, action = draw.randrange(4), draw.randrange(100)

        def attempt():
            run = Run([PROGRAM, "throw", str(rank), str(action), str(int(1000 * slowly(TIMEOUT))), "2", "2"], slowly(TIMEOUT + GRACE))
            self.assertEqual(run.code, 1, run.output)
            self.assertIn(f"rank {rank} (rank {rank // 2} of replica {rank % 2}), step", run.output)
        self.trying(attempt, rank=rank, action=action)


class Trial:
    """A random world in which a random rank has a random accident at a random action."""

    TIMEOUT = 3.0

    def __init__(self, number):
        drawn = random.Random(f"{SEED} {number}")
        self.in_threads = drawn.random() < 0.4
        self.ranks, self.replicas = drawn.choice([(2, 1), (3, 1), (4, 1), (2, 2)])
        kinds = [kind for kind in KINDS if not self.in_threads or kind in ("slow", "throw", "throw_number")]
        self.fault = drawn.choice(kinds)
        self.rank, self.action = drawn.randrange(self.ranks * self.replicas), drawn.randrange(150)
        self.others = [rank for rank in range(self.ranks * self.replicas) if rank != self.rank]
        self.mark = f"--stagecraft-mark={uuid.uuid4()}"

    def __str__(self):
        return f"{self.fault} on rank {self.rank} at action {self.action}, {self.ranks} ranks x {self.replicas} as {'threads' if self.in_threads else 'processes'}"

    def run(self):
        arguments = [PROGRAM, self.fault, str(self.rank), str(self.action), str(int(1000 * slowly(self.TIMEOUT))), str(self.ranks), str(self.replicas), self.mark]
        if not self.in_threads:
            arguments = [*MPIEXEC, "-n", str(self.ranks * self.replicas), *arguments]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENVIRONMENT, start_new_session=True, text=True)
        self.lines = []  # with the time of their coming
        begin = time.monotonic()
        reader = threading.Thread(target=lambda: self.lines.extend((time.monotonic(), line.rstrip("\n")) for line in process.stdout))
        reader.start()
        try:
            self.code = process.wait(slowly(4 * self.TIMEOUT + 60))
        except subprocess.TimeoutExpired:
            self.code = None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pid, *_ in marked(self.mark):  # their output would not end
            os.kill(pid, signal.SIGKILL)
        reader.join()
        process.stdout.close()
        self.output = "\n".join(f"{when - begin:7.2f} s  {line}" for when, line in self.lines)

    def said(self, rank):
        return [(when, line) for when, line in self.lines if line.startswith(f"rank {rank}: ")]

    def faults(self):
        """What is wrong about how the others ended."""
        if self.code is None:
            return ["it did not end"]
        if self.code == 0:
            return ["its exit code is 0"]
        if not any(line.startswith("accident at") for _, line in self.lines):
            return ["the accident did not happen"]
        names = {"slow": rf"look at what rank {self.rank} does", "stop": rf"rank {self.rank} has been silent|rank {self.rank}, which does not answer",
                 "kill": rf"the process of rank {self.rank} has ended", "throw": rf"rank {self.rank}\b.*the accident that was asked for",
                 "throw_number": rf"rank {self.rank}\b.*unknown type"}[self.fault]
        silent = [f"rank {other} said nothing" for other in self.others if not self.said(other)]
        wrong = [f"rank {other} does not name rank {self.rank}" for other in self.others
                 if self.said(other) and not any(re.search(names, line) for _, line in self.said(other))]
        return silent + wrong

    def late(self):
        """Who ended more than a second after the timeout; empty if there are faults."""
        if self.faults():
            return []
        begin = next(when for when, line in self.lines if line.startswith("accident at"))
        after = {other: self.said(other)[0][0] - begin - slowly(self.TIMEOUT) for other in self.others}
        return [f"rank {other} ended {seconds:.2f} s after the timeout" for other, seconds in after.items() if seconds > slowly(1)]


class Trials(unittest.TestCase):
    def test_random_accidents(self):
        only = os.environ.get("STAGECRAFT_FAULT_TRIAL")
        for number in range(TRIALS) if only is None else [int(only)]:
            trial = Trial(number)
            with self.subTest(trial=number, seed=SEED, what=str(trial)):
                undisturbed(lambda trial=trial, number=number: self.attempt(trial, number), f"trial {number} of FAULT_SEED={SEED}")

    def attempt(self, trial, number):
        trial.run()
        if "MPI has not started" in trial.output:
            raise NotStarted("MPI has not started within the timeout")
        self.assertEqual(trial.faults() + trial.late(), [], f"\nFAULT_SEED={SEED} STAGECRAFT_FAULT_TRIAL={number}: {trial}\n{trial.output}")


class Host:
    """A network namespace with one address: to MPI, a machine of its own."""

    def __init__(self, name, address):
        self.name, self.address, self.link = name, address, f"{name}-0"
        ip("netns", "add", name)
        # What the launcher still sends to a lost host must not keep it for a quarter of an hour: probes of idle connections do
        # not help where something waits to be sent.
        ip("netns", "exec", name, "sh", "-c", "echo 3 > /proc/sys/net/ipv4/tcp_retries2")

    def join(self, other):
        ip("link", "add", self.link, "netns", self.name, "type", "veth", "peer", "name", other.link, "netns", other.name)
        for host in (self, other):
            ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.link)
            ip("-n", host.name, "link", "set", "lo", "up")
            ip("-n", host.name, "link", "set", host.link, "up")

    def cut(self):
        ip("-n", self.name, "link", "set", self.link, "down")

    def mend(self):
        ip("-n", self.name, "link", "set", self.link, "up")

    def remove(self):
        """The launcher's own daemon on a host that it has lost stays there."""
        pids = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True).stdout.split()
        for pid in pids:
            os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def can_make_hosts():
    if shutil.which("ip") is None:
        return False
    name = f"sc{os.getpid()}t"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return made


@unittest.skipUnless(can_make_hosts(), "this machine allows no network namespaces")
@unittest.skipIf(LAUNCHER_KILLS, "written for Open MPI's launcher, and for processes that a script starts")
class LostLink(unittest.TestCase):
    def setUp(self):
        self.near, self.far = Host(f"sc{os.getpid()}a", "10.213.7.1"), Host(f"sc{os.getpid()}b", "10.213.7.2")
        self.addCleanup(self.far.remove)
        self.addCleanup(self.near.remove)
        self.near.join(self.far)
        if "mpirun" not in MPIEXEC[0] and "mpiexec" not in MPIEXEC[0]:
            self.command = self.by_variables
            return
        self.command = self.by_mpi
        agent = tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False)
        self.addCleanup(os.unlink, agent.name)
        agent.write(f"#!/bin/sh\nshift\nexec ip netns exec {self.far.name} sh -c \"$*\"\n")  # in place of ssh
        agent.close()
        os.chmod(agent.name, 0o755)
        self.launcher = ["ip", "netns", "exec", self.near.name, *MPIEXEC, "--host", f"{self.near.address}:1,{self.far.address}:1"]
        settings = {"plm_rsh_agent": agent.name, "btl": "tcp,self", "btl_tcp_if_include": "10.213.7.0/24", "oob_tcp_if_include": "10.213.7.0/24",
                    # How soon the launcher notices by itself that a host is gone.
                    "oob_tcp_keepalive_time": "1", "oob_tcp_keepalive_intvl": "1", "oob_tcp_keepalive_probes": "3"}
        for name, value in settings.items():
            self.launcher += ["--mca", name, value]

    def by_mpi(self, program):
        return [*self.launcher, "-n", "2", *program]

    def by_variables(self, program):
        on = [["-n", "1", "ip", "netns", "exec", host.name, "env", f"MASTER_ADDR={self.near.address}", *program] for host in (self.near, self.far)]
        return ["env", f"START_PATIENCE={slowly(TIMEOUT + 1)}", *MPIEXEC, *on[0], ":", *on[1]]

    def test_in_the_middle_of_a_step(self):
        undisturbed(self.cut_a_link, self.id())

    def cut_a_link(self):
        self.far.mend()
        mark = f"--stagecraft-mark={uuid.uuid4()}"
        begin = time.monotonic()
        seconds_before = 0.0

        def cut(output):
            """A second after the first step; pread, since the processes write where the file stands."""
            nonlocal seconds_before
            while b"it trains" not in os.pread(output.fileno(), 1 << 16, 0) and time.monotonic() - begin < 60:
                time.sleep(0.05)
            time.sleep(1)
            seconds_before = time.monotonic() - begin
            self.far.cut()

        command = self.command([PROGRAM, "none", "0", "0", str(int(1000 * slowly(TIMEOUT))), mark])
        run = Run(command, slowly(2 * TIMEOUT + GRACE), mark, cut)
        self.assertTrue(run.ended_in_time, run.output)
        self.assertNotEqual(run.code, 0, run.output)
        self.assertRegex(run.output, f"rank 0: .*({silent(1)})")
        self.assertRegex(run.output, "waiting for the|waited .* for the")
        self.assertEqual(run.orphans, [])
        self.assertLess(run.seconds, seconds_before + slowly(TIMEOUT + GRACE))


def load_tests(loader, standard_tests, _pattern):
    """All of them, or a few beside the random trials, which have accidents of most kinds."""
    if ALL:
        return standard_tests
    few = ["test_a_rank_exits", "test_a_rank_is_killed_while_it_saves", "test_threads_of_two_pipelines"]
    return unittest.TestSuite([*(Accidents(name) for name in few), loader.loadTestsFromTestCase(Trials), loader.loadTestsFromTestCase(LostLink)])


if __name__ == "__main__":
    unittest.main(verbosity=2)

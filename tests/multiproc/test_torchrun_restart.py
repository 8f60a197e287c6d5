"""Two torchrun as on two hosts, which start their ranks again when one has failed: these must find each other, and nobody else."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from start_processes import free_port

PROGRAM = os.environ["LAUNCH_AGAIN"]
# Each host counts its restarts on its own. What fails once is the rank of the second host.
WORKER = """
if [ "$HOST" = second ] && mkdir {mark} 2> /dev/null; then {failing}; exit 1; fi
exec {program} 2
"""


class Restart(unittest.TestCase):
    def run_with(self, failing):
        with tempfile.TemporaryDirectory() as scratch:
            worker = pathlib.Path(scratch, "worker.sh")
            worker.write_text(WORKER.format(mark=pathlib.Path(scratch, "failed"), failing=failing, program=PROGRAM))
            where = f"127.0.0.1:{free_port()}"
            agents = [self.agent(host, where, worker) for host in ["first", "second"]]
            try:
                said = [agent.communicate(timeout=150)[0] for agent in agents]
            except subprocess.TimeoutExpired:
                self.fail("the ranks have not found each other")
            finally:
                for agent in agents:
                    if agent.poll() is None:
                        os.killpg(agent.pid, signal.SIGKILL)
        self.assertEqual([agent.returncode for agent in agents], [0, 0], "\n".join(said))
        self.assertIn("a world of 2 ranks", said[0] + said[1])

    @staticmethod
    def agent(host, where, worker):
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=3", "--monitor-interval=0.1",
                   "--rdzv-backend=c10d", f"--rdzv-endpoint={where}", "--rdzv-id=job", f"--rdzv-conf=is_host={int(host == 'first')}", "--no-python",
                   "/bin/sh", str(worker)]
        return subprocess.Popen(command, env={**os.environ, "HOST": host}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def test_a_rank_fails_before_it_looks_for_the_other(self):
        self.run_with("true")

    def test_a_rank_fails_when_the_other_has_looked_for_it_in_vain(self):
        self.run_with("sleep 3")

    def test_a_rank_fails_after_they_have_met(self):
        self.run_with(f"{PROGRAM} 1")


if __name__ == "__main__":
    unittest.main()

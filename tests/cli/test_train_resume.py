"""stagecraft train: a run that was stopped goes on with the row it had come to, on the same data, in the same files."""

import json
import signal
import subprocess
import time

import exported
from command_case import BIN, TIMEOUT, UNUSABLE
from safetensors import safe_open
from safetensors.torch import save_file
from training_case import ALL, BATCH, MPIEXEC, ROWS, STEPS, TrainCase, positions, python_language

STATE = ("--save", "state.safetensors")


class GoesOn(TrainCase):
    def metadata(self):
        with safe_open(self.folder / "state.safetensors", "pt") as file:
            return file.metadata()

    def test_with_batches_of_another_size(self):
        """Three steps of 5 rows, then five of 8 on other ranks: no row is left out and none comes twice before its time."""
        sizes = [5, 5, 5, 8, 8, 8, 8, 8]
        ends = [sum(sizes[: i + 1]) for i in range(STEPS)]
        theirs = python_language(self.text, batches=[positions(end - size, end, seed=7) for size, end in zip(sizes, ends)])
        options = (*STATE, "--seed", 7, "--resume", "--losses", "parts.csv")
        self.output(*self.arguments(*options, "--batch", 5, "--steps", 3))
        self.assertEqual(self.metadata()["train.rows_taken"], "15")
        text = self.output(*self.arguments(*options, "--batch", 2, "--replicas", 2, "--accumulate", 2, "--ranks", 2, "--microbatches", 2,
                                           "--shard", "optimizer"))
        self.assertIn("going on from step 3 of state.safetensors, after 15 rows of data", text)
        self.assert_close(self.read_losses("parts.csv"), theirs)
        self.assertEqual(self.metadata()["train.rows_taken"], str(ends[-1]))

    def test_data_and_order_are_those_of_the_run(self):
        self.output(*self.arguments(*STATE, "--seed", 7, "--steps", 3))
        before = (self.folder / "state.safetensors").read_bytes()
        other = {name: tensor.flip(0).contiguous() for name, tensor in self.text.items()}
        refused = [(["--seed", 8], None, ("shuffled by seed 7", "takes them shuffled by seed 8")), (["--seed", 7], other, ("a run on other data",)),
                   (["--in-order"], None, ("takes them in order",)), (["--seed", 7, "--eval-share", 0.5], None, ("on 24 rows", "on 12"))]
        for options, data, parts in refused if ALL else refused[:2]:
            done = self.command(*self.arguments(*STATE, "--resume", *options, data=data))
            self.assert_error(done, UNUSABLE, "state.safetensors", *parts, "--new-data")
        self.assertEqual((self.folder / "state.safetensors").read_bytes(), before)
        batches = [positions(BATCH * i, BATCH * i + BATCH, seed=7) for i in range(3)]
        both = {name: self.text[name].new_tensor([*self.text[name].tolist(), *other[name].tolist()]) for name in other}
        batches += [[ROWS + row for row in positions(BATCH * i, BATCH * i + BATCH)] for i in range(5)]
        self.output(*self.arguments(*STATE, "--resume", "--in-order", "--new-data", "--metrics", "rest.jsonl", data=other))
        rest = [json.loads(line) for line in (self.folder / "rest.jsonl").read_text().splitlines()]
        self.assertEqual([(step["step"], step["rows"]) for step in rest], [(4 + i, BATCH * (i + 1)) for i in range(5)])
        self.assert_close([step["loss"] for step in rest], python_language(both, batches=batches)[3:])

    def test_a_file_that_does_not_say_where_it_was(self):
        self.output(*self.arguments(*STATE, "--steps", 1))
        with safe_open(self.folder / "state.safetensors", "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            kept = {key: text for key, text in file.metadata().items() if "xxh64" not in key and "train." not in key}
        save_file(tensors, self.folder / "state.safetensors", kept)
        self.assert_error(self.command(*self.arguments(*STATE, "--resume")), UNUSABLE, "state.safetensors", "how far", "--new-data")

    def test_lines_of_lost_steps_are_written_again(self):
        """A run that was killed behind its last checkpoint has written more steps than it has kept."""
        options = (*STATE, "--resume", "--metrics", "run.jsonl", "--losses", "losses.csv")
        self.output(*self.arguments(*options, "--steps", 3))
        state = (self.folder / "state.safetensors").read_bytes()
        self.output(*self.arguments(*options, "--steps", 6))
        self.file("state.safetensors", state)
        for name in ("run.jsonl", "losses.csv"):
            with open(self.folder / name, "a") as file:
                file.write('{"step":7,"lo')
        self.output(*self.arguments(*options))
        through, _ = self.losses()
        self.assertEqual([step["loss"] for step in self.metrics()], through)
        self.assertEqual(self.read_losses("losses.csv"), through)
        if ALL:
            done = self.command(*self.arguments(*STATE, "--resume", "--steps", 9, "--metrics", self.file("text.md", "# Text\n")))
            self.assert_error(done, UNUSABLE, "text.md", "'# Text'", "choose another file")
            self.assertEqual((self.folder / "text.md").read_text(), "# Text\n")

    def test_a_killed_run(self):
        """Leaves whole lines and a whole checkpoint."""
        options = (*STATE, "--resume", "--metrics", "run.jsonl", "--save-every", 5)
        log = self.folder / "run.jsonl"
        with subprocess.Popen([BIN, *map(str, self.arguments(*options, "--steps", 10**6))], cwd=self.folder, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL) as running:
            end = time.monotonic() + TIMEOUT
            while (not log.exists() or log.read_bytes().count(b"\n") < 23) and time.monotonic() < end:
                self.assertIsNone(running.poll())
                time.sleep(0.01)
            running.send_signal(signal.SIGKILL)
        steps = len(self.metrics())
        self.assertGreaterEqual(steps, 23)
        text = self.output(*self.arguments(*options, "--steps", steps + 10))
        at = int(text.split("going on from step ")[1].split()[0])
        self.assertLessEqual(at, steps)
        self.assertEqual(at % 5, 0)
        ours = [step["loss"] for step in self.metrics()]
        self.assertEqual(len(ours), steps + 10)
        self.assertEqual(ours, self.losses("--steps", steps + 10)[0])

    def test_resumed_run_is_the_run_that_never_stopped(self):
        """With dropout and shuffled rows; on other ranks too."""
        dropout = self.language(0.2)
        through, _ = self.losses("--ranks", 2, "--microbatches", 2, model=dropout)
        for steps in (1, 3, 7) if ALL else (3,):
            options = ("--ranks", 2, "--microbatches", 2, "--save", "state.safetensors", "--losses", "parts.csv", "--resume")
            self.output(*self.arguments(*options, "--steps", steps, model=dropout))
            text = self.output(*self.arguments(*options, model=dropout))
            self.assertIn(f"going on from step {steps} of state.safetensors", text)
            self.assertEqual(self.read_losses("parts.csv"), through)
            (self.folder / "state.safetensors").unlink()
        alone, *others = [], ["--ranks", 2], ["--ranks", 2, "--schedule", "ZBVZeroBubble"], ["--ranks", 3]
        for options in others if ALL else others[1:2]:  # dropout is the same however the model is cut
            with self.subTest(options=options):
                self.output(*self.arguments("--microbatches", 2, "--save", "state.safetensors", "--losses", "parts.csv", "--steps", 3, *alone, model=dropout))
                self.output(*self.arguments("--microbatches", 2, "--save", "state.safetensors", "--losses", "parts.csv", "--resume", *options, model=dropout))
                self.assert_close(self.read_losses("parts.csv"), through)
                (self.folder / "state.safetensors").unlink()
        self.output(*self.arguments("--save", "state.safetensors", "--losses", "parts.csv", "--steps", 3, "--in-order"))
        self.output(*self.arguments("--save", "state.safetensors", "--losses", "parts.csv", "--resume", "--in-order", "--ranks", 2,
                                    "--microbatches", 4, "--schedule", "ZBVZeroBubble"))
        self.assert_close(self.read_losses("parts.csv"), python_language(self.text))


if MPIEXEC:

    class UnderMpirun(TrainCase):
        def test_goes_on_from_threads(self):
            options = (*STATE, "--seed", 4, "--resume", "--metrics", "run.jsonl")
            self.output(*self.arguments(*options, "--batch", 6, "--steps", 2))
            done = self.mpirun(*options, "--batch", 4, "--microbatches", 2)
            self.assertEqual(done.returncode, 0, done.stderr)
            batches = [positions(6 * i, 6 * i + 6, seed=4) for i in range(2)] + [positions(12 + 4 * i, 16 + 4 * i, seed=4) for i in range(6)]
            self.assert_close([step["loss"] for step in self.metrics()], python_language(self.text, batches=batches))

        def test_rank_0_decides_whether_there_is_something_to_resume(self):
            """The folders of two hosts: what only the other rank has does not count, and what it lacks is an error in words."""
            here, there = self.folder / "here", self.folder / "there"
            here.mkdir(), there.mkdir()
            command = [BIN, *self.arguments(*STATE, "--resume", "--steps", 2)]
            (there / "state.safetensors").write_text("of another run")
            words = lambda: ["-n", 1, "--wdir", here, *command, ":", "-n", 1, "--wdir", there, *command]
            done = self.started_by_mpi(*words())
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("going on", done.stdout)
            (there / "state.safetensors").unlink()
            done = self.started_by_mpi(*words())
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("rank 1: cannot read it", done.stderr)

        def test_resumes_what_threads_saved(self):
            dropout = self.language(0.2)
            through, _ = self.losses("--ranks", 2, "--microbatches", 2, model=dropout)
            options = ("--microbatches", 2, "--save", "state.safetensors", "--losses", "parts.csv", "--resume")
            self.output(*self.arguments(*options, "--ranks", 2, "--steps", 3, model=dropout))
            done = self.mpirun(*options, model=dropout)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.read_losses("parts.csv"), through)

        def test_bad_data_ends_all_ranks(self):
            done = self.mpirun(data={"tokens": self.text["tokens"]})
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("there is no tensor 'target'", done.stderr)


if __name__ == "__main__":
    exported.unittest.main()

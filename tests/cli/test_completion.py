"""stagecraft completion: the scripts are sourced and asked, as the shells do it."""

import os
import pty
import re
import select
import shutil
import subprocess
import time
import unittest

from command_case import OK, TIMEOUT, CommandCase

COMMANDS = ["list", "schedule", "lower", "check", "show", "costs", "profile", "simulate", "compare", "plan", "page", "model", "split",
            "train", "completion"]


class Bash(CommandCase):
    def setUp(self):
        super().setUp()
        if shutil.which("bash") is None:
            self.skipTest("bash is not installed")
        self.output("completion", "bash", "-o", "completion.bash")

    def complete(self, *words):
        """What bash would offer for the last of these words, after `stagecraft`."""
        script = ('source ./completion.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _stagecraft; '
                  'if ((${#COMPREPLY[@]})); then printf "%s\\n" "${COMPREPLY[@]}"; fi')
        done = subprocess.run(["bash", "--norc", "-c", script, "bash", "stagecraft", *words], cwd=self.folder, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=False)
        self.assertEqual((done.returncode, done.stderr), (OK, ""))
        return done.stdout.splitlines()

    def test_it_is_registered(self):
        done = subprocess.run(["bash", "--norc", "-c", "source ./completion.bash; complete -p stagecraft"], cwd=self.folder,
                              text=True, capture_output=True, timeout=TIMEOUT, check=True)
        self.assertIn("-F _stagecraft stagecraft", done.stdout)

    def test_commands_and_options_of_the_program(self):
        self.assertEqual([word for word in self.complete("") if not word.startswith("-")], COMMANDS)
        self.assertEqual(self.complete("s"), ["schedule", "show", "simulate", "split"])
        self.assertEqual(self.complete("--v"), ["--version"])

    def test_options_are_those_of_the_help(self):
        for command in COMMANDS:
            described = re.findall(r"^  (-[^ ]*)", self.output(command, "--help"), re.MULTILINE)
            expected = {name for names in described for name in names.split(",")}
            offered = set(self.complete(command, "--")) | set(self.complete(command, "-o") + self.complete(command, "-h"))
            self.assertEqual(offered, expected, command)

    def test_schedule_names(self):
        self.assertEqual(self.complete("schedule", "GP"), ["GPipe"])
        self.assertIn("DualPipeV", self.complete("schedule", ""))
        self.assertEqual(self.complete("schedule", "--ranks", "4", "Dual"), ["DualPipeV"])
        self.assertEqual(self.complete("schedule", "GPipe", ""), [])

    def test_values_of_options(self):
        self.assertEqual(self.complete("schedule", "GPipe", "--format", ""), "table csv json svg trace none".split())
        self.assertEqual(self.complete("check", "x.csv", "--format", ""), "table json none".split())
        self.assertEqual(self.complete("check", "--model", "in"), ["in_order"])
        self.assertEqual(self.complete("show", "--align", "s"), ["slots", "steps"])
        self.assertEqual(self.complete("show", "--colour", "n"), ["never"])
        self.assertEqual(self.complete("completion", ""), ["bash", "zsh"])
        self.assertEqual(self.complete("schedule", "GPipe", "--ranks", ""), [])
        self.assertEqual(self.complete("split", "x.pt2", "--format", ""), ["table", "json", "none"])
        self.assertEqual(self.complete("split", "x.pt2", "--at", ""), [])
        self.assertEqual(self.complete("train", "x.pt2", "--shard", ""), "none optimizer gradients parameters".split())
        self.assertEqual(self.complete("train", "x.pt2", "--schedule", "GP"), ["GPipe"])
        self.assertEqual(self.complete("train", "x.pt2", "--steps", ""), [])

    def test_value_after_an_equals_sign(self):
        self.assertEqual(self.complete("show", "x.csv", "--format", "=", "sv"), ["svg"])
        self.assertEqual(self.complete("show", "x.csv", "--align", "="), ["auto", "slots", "steps"])

    def test_lists_of_passes(self):
        self.assertEqual(self.complete("lower", "x.csv", "--passes", "re"), ["reduce_grad"])
        self.assertEqual(self.complete("schedule", "GPipe", "--passes", "send_recv,p"), ["send_recv,place_receives"])

    def test_files(self):
        self.file("a schedule.csv", "")
        for words in [("lower", "a"), ("check", "a"), ("show", "--format", "svg", "a"), ("schedule", "GPipe", "-o", "a"),
                      ("list", "--output", "a"), ("compare", "a"), ("compare", "x.csv", "y.csv", "a"), ("model", "a"), ("split", "--stages", "2", "a"),
                      ("split", "a.pt2", "--costs", "a"), ("train", "a"), ("train", "a.pt2", "--data", "a"), ("train", "a.pt2", "--metrics", "a")]:
            self.assertEqual(self.complete(*words), ["a schedule.csv"])


class Zsh(CommandCase):
    def setUp(self):
        super().setUp()
        if shutil.which("zsh") is None:
            self.skipTest("zsh is not installed")
        self.output("completion", "zsh", "-o", "_stagecraft")

    def test_syntax(self):
        done = subprocess.run(["zsh", "-n", "_stagecraft"], cwd=self.folder, capture_output=True, timeout=TIMEOUT,
                              check=False)
        self.assertEqual((done.returncode, done.stderr), (OK, b""))

    def typed(self, *lines, setup):
        """A zsh on a terminal: for each line, the command line after its tab keys are done."""
        environment = {**os.environ, "TERM": "dumb", "PS1": ""}
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.execvpe("zsh", ["zsh", "-f", "-i"], environment)
        try:
            return self._converse(terminal, setup, lines)
        finally:
            os.close(terminal)
            os.waitpid(pid, 0)

    def _converse(self, terminal, setup, lines):
        def until(pattern):
            text, end = "", time.monotonic() + TIMEOUT
            while not (found := re.search(pattern, text)):
                self.assertLess(time.monotonic(), end, f"no {pattern} in {text!r}")
                if select.select([terminal], [], [], 0.1)[0]:
                    text += os.read(terminal, 4096).decode(errors="replace")
            return found
        os.write(terminal, (setup + "; print-line() { print -r -- \"{{$BUFFER}}\"; BUFFER=''; }; zle -N print-line; "
                            "bindkey '^X' print-line; setopt no_beep; print rea''dy\n").encode())
        until("ready")
        answers = []
        for line in lines:
            os.write(terminal, line.encode() + b"\x18")
            answers.append(until(r"\{\{(.*?)\}\}").group(1).strip())
        os.write(terminal, b"exit\n")
        return answers

    def test_it_completes(self):
        self.file("my.csv", "")
        expected = {
            "stagecraft sche\t": "stagecraft schedule",
            "stagecraft schedule GP\t": "stagecraft schedule GPipe",
            "stagecraft schedule GPipe --micro\t": "stagecraft schedule GPipe --microbatches=",
            "stagecraft check my.csv --format js\t": "stagecraft check my.csv --format json",
            # zsh takes the comma back when a space follows
            "stagecraft lower my.csv --passes send_recv,pl\t": "stagecraft lower my.csv --passes send_recv,place_receives,",
            "stagecraft show m\t": "stagecraft show my.csv",
            "stagecraft compare my.csv m\t": "stagecraft compare my.csv my.csv",
            "stagecraft completion z\t": "stagecraft completion zsh",
        }
        for setup in ["autoload -Uz compinit; compinit -u -D; source ./_stagecraft",
                      "fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -D"]:
            with self.subTest(setup):
                self.assertEqual(self.typed(*expected, setup=setup), list(expected.values()))


if __name__ == "__main__":
    unittest.main()

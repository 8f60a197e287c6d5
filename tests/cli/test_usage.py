"""Arguments: help, version, and what is said to someone who got them wrong."""

import re
import unittest

from command_case import UNUSABLE, CommandCase

COMMANDS = ["list", "schedule", "lower", "check", "show", "costs", "profile", "simulate", "compare", "plan", "page", "model", "split",
            "train", "completion"]


class Usage(CommandCase):
    def test_version(self):
        self.assertRegex(self.output("--version"), r"\Astagecraft \d+\.\d+\.\d+\n\Z")

    def test_help_names_every_command(self):
        text = self.output("--help")
        for command in COMMANDS:
            self.assertRegex(text, rf"\n  {command} ")
        self.assertEqual(text, self.output("-h"))

    def test_each_command_has_help_with_examples(self):
        for command in COMMANDS:
            with self.subTest(command):
                text = self.output(command, "--help")
                self.assertIn("Examples:\n  ", text)
                self.assertIn(f"stagecraft {command}", text.split("Examples:")[1])

    def test_examples_in_help_use_options_that_exist(self):
        for command in COMMANDS:
            text = self.output(command, "--help")
            described, examples = text.split("Examples:")
            for line in re.findall(rf"stagecraft {command} [^|\n]*", examples):
                for option in re.findall(r" (-{1,2}[a-z][a-z-]*)", line):
                    self.assertIn(option, described, line)

    def test_wrong_arguments_are_one_line_with_a_hint(self):
        shape = ["--ranks", "4", "--microbatches", "8"]
        cases = {
            (): ["no command", "'stagecraft --help'"],
            ("nonsense",): ["'nonsense' is not a command", "schedule", "'stagecraft --help'"],
            ("--nonsense",): ["'--nonsense'", "'stagecraft --help'"],
            ("schedule",): ["name is required", "'stagecraft schedule --help'"],
            ("schedule", "GPipe", "--ranks", "4"): ["--microbatches is required", "'stagecraft schedule --help'"],
            ("schedule", "GPipe", "--microbatches", "4"): ["--ranks is required"],
            ("schedule", "GPipe", "--rank", "4", "--microbatches", "8"): ["'--rank' is not expected"],
            ("schedule", "GPipe", *shape, "--format"): ["--format takes exactly one value"],
            ("schedule", "GPipe", *shape, "--ranks", "2"): ["--ranks takes exactly one value"],
            ("schedule", "GPipe", *shape, "--format", "pdf"): ["--format", "'pdf'", "table|csv|json|svg|trace|none"],
            ("schedule", "GPipe", *shape, "--passes", "send_recv,polish"): ["--passes", "'polish'", "merge_backward"],
            ("schedule", "GPipe", *shape, "--passes", ""): ["--passes"],
            ("schedule", "GPipe", *shape, "--passes", "send_recv,"): ["--passes"],
            ("lower",): ["file is required", "'stagecraft lower --help'"],
            ("lower", "x.csv", "--passes", "polish"): ["--passes", "'polish'"],
            ("check",): ["file is required", "'stagecraft check --help'"],
            ("check", "x.csv", "--model", "smoke"): ["--model", "'smoke'", "tagged|in_order|rendezvous|all"],
            ("check", "x.csv", "--format", "svg"): ["--format", "'svg'", "table|json|none"],
            ("show",): ["file is required", "'stagecraft show --help'"],
            ("show", "x.csv", "y.csv"): ["'y.csv' is not expected"],
            ("show", "x.csv", "list"): ["'list' is not expected"],
            ("show", "x.csv", "--align", "left"): ["--align", "'left'", "auto|slots|steps"],
            ("show", "x.csv", "--colour", "red"): ["--colour", "'red'", "auto|always|never"],
            ("profile",): ["files is required", "'stagecraft profile --help'"],
            ("profile", "x.json", "--skip", "-1"): ["--skip", "'-1' is not a whole number"],
            ("list", "--format", "csv"): ["--format", "'csv'", "table|json"],
            ("model",): ["file is required", "'stagecraft model --help'"],
            ("model", "x.pt2", "--format", "svg"): ["--format", "'svg'", "table|json"],
            ("model", "x.pt2", "--depth", "0"): ["--depth", "'0' is not a whole number"],
            ("split",): ["file is required", "'stagecraft split --help'"],
            ("split", "x.pt2"): ["exactly one of --stages, --at and --marked", "'stagecraft split --help'"],
            ("split", "x.pt2", "--stages", "2", "--marked"): ["exactly one of"],
            ("split", "x.pt2", "--at", "a:b"): ["--at", "'a:b'", "beginning or end"],
            ("split", "--at", "a", "x.pt2", "y.pt2"): ["'y.pt2' is not expected"],
            ("completion",): ["shell is required"],
            ("completion", "fish"): ["'fish'", "bash|zsh"],
        }
        for args, parts in cases.items():
            with self.subTest(args):
                self.assert_error(self.command(*args), UNUSABLE, *parts)

    def test_counts_are_whole_numbers_that_fit(self):
        for option in ["--ranks", "--microbatches", "--stages-per-rank", "--memory-limit"]:
            for value in ["0", "-1", "2147483648", "99999999999999999999", "4.5", "four", "0x10", "1e3", "", " 4", "+4"]:
                with self.subTest(option=option, value=value):
                    shape = {"--ranks": "4", "--microbatches": "8", option: value}
                    args = [word for pair in shape.items() for word in pair]
                    done = self.command("schedule", "Eager1F1B", *args)
                    self.assert_error(done, UNUSABLE, f"{option}: '{value}' is not a whole number from 1 to 2147483647")

    def test_leading_zeros_are_decimal(self):
        self.assertEqual(self.output("schedule", "GPipe", "--ranks", "010", "--microbatches", "1", "--format", "csv"),
                         self.output("schedule", "GPipe", "--ranks", "10", "--microbatches", "1", "--format", "csv"))

    def test_control_characters_cannot_break_the_line(self):
        self.assert_error(self.command("no\nsuch\x1bcommand"), UNUSABLE, r"no\x0asuch\x1bcommand")
        self.assert_error(self.command("show", "no\nsuch file"), UNUSABLE, r"no\x0asuch file")
        self.assert_error(self.command("show", b"\xff".decode(errors="surrogateescape")), UNUSABLE, r"\xff: cannot read")

    def test_help_and_version_notice_a_full_disk(self):
        for option in ["--help", "--version"]:
            with open("/dev/full", "w") as full:
                self.assert_error(self.command(option, stdout=full), UNUSABLE, "No space left on device")


if __name__ == "__main__":
    unittest.main()

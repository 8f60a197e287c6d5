"""-o FILE: the whole file or none, through links and onto devices, and what happens when it cannot be written."""

import os
import resource
import signal
import stat
import subprocess
import threading
import time
import unittest

from command_case import BIN, OK, TIMEOUT, UNUSABLE, CommandCase

MAKE = ["schedule", "GPipe", "--ranks", "4", "--microbatches", "8", "--format", "csv"]
# Some megabytes, which take a while to write and do not fit under the limits below.
MAKE_MUCH = ["schedule", "GPipe", "--ranks", "8", "--microbatches", "20000", "--format", "trace"]


class Files(CommandCase):
    def setUp(self):
        super().setUp()
        self.expected = self.output(*MAKE)

    def written(self, path):
        self.assertEqual(self.output(*MAKE, "-o", path), "")
        return (self.folder / path).read_bytes().decode()

    def names(self):
        return sorted(path.name for path in self.folder.iterdir())

    def test_new_file_follows_the_umask(self):
        for mask in [0o022, 0o077]:
            name = f"mask-{mask}"
            self.output(*MAKE, "-o", name, preexec_fn=lambda mask=mask: os.umask(mask))
            self.assertEqual((self.folder / name).read_bytes().decode(), self.expected)
            self.assertEqual(stat.S_IMODE((self.folder / name).stat().st_mode), 0o666 & ~mask)

    def test_existing_file_is_replaced_and_keeps_its_mode(self):
        old = self.file("s.csv", "old and longer than nothing\n" * 1000)
        old.chmod(0o640)
        self.assertEqual(self.written("s.csv"), self.expected)
        self.assertEqual(stat.S_IMODE(old.stat().st_mode), 0o640)
        self.assertEqual(self.names(), ["s.csv"])

    def test_reading_and_writing_the_same_file(self):
        self.file("s.csv", self.expected)
        self.assertEqual(self.output("lower", "s.csv", "-o", "s.csv"), "")
        self.assertIn("0SEND_F0", (self.folder / "s.csv").read_text())

    def test_links_are_followed(self):
        (self.folder / "sub").mkdir()
        target = self.file("sub/target.csv", "old")
        (self.folder / "to-file").symlink_to("sub/target.csv")
        (self.folder / "to-link").symlink_to(self.folder / "to-file")
        (self.folder / "to-new").symlink_to("sub/new.csv")
        self.assertEqual(self.written("to-link"), self.expected)
        self.assertEqual(target.read_bytes().decode(), self.expected)
        self.assertEqual(self.written("to-new"), self.expected)
        for link in ["to-file", "to-link", "to-new"]:
            self.assertTrue((self.folder / link).is_symlink(), link)
        self.assertEqual(sorted(p.name for p in (self.folder / "sub").iterdir()), ["new.csv", "target.csv"])

    def test_names_for_standard_output(self):
        for name in ["-", "/dev/stdout"]:
            self.assertEqual(self.output(*MAKE, "-o", name), self.expected)
        with open(self.folder / "log", "w+") as log:
            log.write("before\n")
            log.flush()
            self.command(*MAKE, "-o", "/dev/stdout", stdout=log)
        self.assertEqual((self.folder / "log").read_bytes().decode(), "before\n" + self.expected)

    def test_devices_and_fifos_are_written_directly(self):
        self.output(*MAKE, "-o", "/dev/null")
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        received = []
        reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()))
        reader.start()
        self.output(*MAKE, "-o", fifo)
        reader.join(TIMEOUT)
        self.assertEqual(received[0].decode(), self.expected)
        self.assertTrue(fifo.is_fifo())


class Unwritable(CommandCase):
    def test_places_that_cannot_be(self):
        self.file("file", "")
        (self.folder / "loop").symlink_to("loop")
        cases = {"no/such/folder.csv": "No such file", ".": "Is a directory", "new/": "Is a directory",
                 "file/below": "Not a directory", "loop": "symbolic links", "": "No such file",
                 "n" * 300: "File name too long"}
        for path, reason in cases.items():
            with self.subTest(path[:20]):
                done = self.command(*MAKE, "-o", path)
                self.assert_error(done, UNUSABLE, f"{path or repr(path)}: cannot write it", reason)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["file", "loop"])

    @unittest.skipIf(os.geteuid() == 0, "root may write everything")
    def test_no_permission(self):
        kept = self.file("kept.csv", "kept")
        kept.chmod(0o444)
        self.assert_error(self.command(*MAKE, "-o", kept), UNUSABLE, "Permission denied")
        self.assertEqual(kept.read_text(), "kept")

    def test_full_device(self):
        self.generate("s.csv")
        for args in [MAKE, ["list"], ["lower", "s.csv"], ["check", "s.csv"], ["show", "s.csv"], ["completion", "bash"]]:
            with self.subTest(args):
                done = self.command(*args, "-o", "/dev/full")
                self.assert_error(done, UNUSABLE, "/dev/full: cannot write it: No space left on device")
                with open("/dev/full", "w") as full:
                    done = self.command(*args, stdout=full)
                    self.assert_error(done, UNUSABLE, "<stdout>: cannot write it: No space left on device")

    def test_closed_standard_output(self):
        done = self.command(*MAKE, stdout=None, preexec_fn=lambda: os.close(1))
        self.assert_error(done, UNUSABLE, "<stdout>: cannot write it", "standard output is closed")

    def test_closed_descriptors_do_not_end_up_in_the_file(self):
        def close_all():
            for fd in (0, 1, 2):
                os.close(fd)
        self.file("twice.csv", "0F0,0F0,0B0\n")
        done = self.command("check", "twice.csv", "-o", "report.json", stdin=None, stdout=None, stderr=None,
                            preexec_fn=close_all)
        self.assertEqual(done.returncode, 1)
        self.assertTrue((self.folder / "report.json").read_text().startswith("{"))

    def test_reader_that_went_away(self):
        process = subprocess.Popen([BIN, *MAKE_MUCH], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN), restore_signals=False)
        process.stdout.read(1)
        process.stdout.close()
        error = process.stderr.read().decode()
        process.stderr.close()
        self.assertEqual(process.wait(TIMEOUT), UNUSABLE)
        self.assertRegex(error, r"\Astagecraft: <stdout>: cannot write it: Broken pipe[^\n]*\n\Z")


class Interrupted(CommandCase):
    """Whatever ends it while it writes, the folder is as it was."""

    def test_disk_that_fills_up_while_writing(self):
        limit = 100_000  # bytes in a file: what a full disk does, without one

        def limited():
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        self.file("kept.json", "kept")
        for name in ["kept.json", "new.json"]:
            done = self.command(*MAKE_MUCH, "-o", name, preexec_fn=limited)
            self.assert_error(done, UNUSABLE, f"{name}: cannot write it: File too large", "free some space")
        self.assertEqual([p.name for p in self.folder.iterdir()], ["kept.json"])
        self.assertEqual((self.folder / "kept.json").read_text(), "kept")

    def test_picture_that_is_too_large(self):
        done = self.command("schedule", "GPipe", "--ranks", "64", "--microbatches", "4000", "-o", "big.svg")
        self.assert_error(done, UNUSABLE)
        self.assertEqual(list(self.folder.iterdir()), [])

    def end_while_writing(self, number):
        """The exit status after a signal that arrives once the temporary file is there."""
        process = subprocess.Popen([BIN, *MAKE_MUCH, "-o", "out.json"], cwd=self.folder, stdin=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        while process.poll() is None and not any(p.name != "out.json" for p in self.folder.iterdir()):
            time.sleep(0.0005)
        process.send_signal(number)
        return process.wait(TIMEOUT)

    def test_signals(self):
        for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]:
            with self.subTest(number.name):
                self.file("out.json", "kept")
                self.assertEqual(self.end_while_writing(number), -number)
                self.assertEqual([p.name for p in self.folder.iterdir()], ["out.json"])
                self.assertEqual((self.folder / "out.json").read_text(), "kept")

    def test_an_ignored_signal_stays_ignored(self):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            self.assertEqual(self.end_while_writing(signal.SIGHUP), OK)
        finally:
            signal.signal(signal.SIGHUP, before)
        self.assertTrue((self.folder / "out.json").read_text().startswith("{"))


if __name__ == "__main__":
    unittest.main()

"""What was installed of the torch-free half: a project that finds it, the command, its completion and its documents."""

import os
import re
import shutil
import subprocess
import unittest

from installed_case import BUILD, CMAKE, InstalledCase

VERSION = os.environ["STAGECRAFT_VERSION"]


class Schedule(InstalledCase):
    def test_a_project_uses_it_without_libtorch_and_mpi(self):
        build, _ = self.configure("schedule_project", "schedule", "-DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON")
        self.run_in_empty(CMAKE, "--build", build)
        said = self.run_in_empty(build / "consumer").stdout
        self.assertRegex(said, rf"\Astagecraft {re.escape(VERSION)}: 384 actions, [0-9]+ steps\n(<svg|<\?xml)")

    def test_headers_are_those_that_users_need(self):
        include = self.prefix / "include"
        installed = {str(path.relative_to(include)) for path in include.rglob("*.h")}
        self.assertIn("stagecraft/schedule.h", installed)
        self.assertIn("stagecraft/transport/channel.h", installed)
        self.assertNotIn("stagecraft/core/in_parts.h", installed)
        self.assertNotIn("stagecraft/data_parallel/averager.h", installed)
        for header in sorted(installed):
            for needed in re.findall(r'#include "(stagecraft/[^"]+)"', (include / header).read_text()):
                self.assertIn(needed, installed, f"{header} includes it")

    def test_the_command_is_there(self):
        command = self.prefix / "bin" / "stagecraft"
        self.assertIn(VERSION, self.run_in_empty(command, "--version").stdout)
        self.run_in_empty(command, "schedule", "ZB-H1", "--ranks", 3, "--microbatches", 4, "--format", "csv", "-o", "zb.csv")
        self.run_in_empty(command, "check", "zb.csv")
        linked = self.scratch / "stagecraft-by-another-name"
        linked.symlink_to(command)
        self.assertIn(VERSION, self.run_in_empty(linked, "--version").stdout)

    def test_shells_complete_it(self):
        for shell, place in [("bash", "bash-completion/completions/stagecraft"), ("zsh", "zsh/site-functions/_stagecraft")]:
            script = self.run_in_empty(self.prefix / "bin" / "stagecraft", "completion", shell).stdout
            self.assertEqual((self.prefix / "share" / place).read_text(), script)

    def test_documents_and_licence_are_there(self):
        documents = self.prefix / "share/doc/stagecraft"
        for name in ["LICENSE", "README.md", "CHANGELOG.md", "docs/guide/installing.md"]:
            self.assertTrue((documents / name).exists(), name)

    def test_it_says_what_to_do_next(self):
        self.assertIn(f"export PATH={self.prefix}/bin:$PATH", self.said)
        self.assertIn(f"-DCMAKE_PREFIX_PATH={self.prefix}", self.said)

    def test_what_was_not_built_is_left_out_and_named(self):
        for folder, program in [("apps/train", "stagecraft-train"), ("apps/stagecraft", "stagecraft")]:
            script = BUILD / folder / "cmake_install.cmake"
            if not script.exists():
                continue
            partial = self.scratch / f"without-{program}.cmake"
            partial.write_text(script.read_text().replace(f'{BUILD}/bin/{program}"', f'{BUILD}/bin/not-built"'))
            prefix = self.scratch / f"without-{program}"
            self.run_in_empty(CMAKE, f"-DCMAKE_INSTALL_PREFIX={prefix}", "-DCMAKE_INSTALL_LOCAL_ONLY=1", "-P", partial)
            self.assertFalse((prefix / "bin" / program).exists())
            said = self.run_in_empty(CMAKE, f"-DCMAKE_INSTALL_PREFIX={prefix}", "-P", BUILD / "install_summary.cmake").stderr
            self.assertRegex(said, rf"not built, so not installed:.* {program}\b")

    def test_the_command_alone_says_how_to_get_what_trains(self):
        alone = self.scratch / "alone"
        alone.mkdir()
        shutil.copy(self.prefix / "bin/stagecraft", alone)
        done = self.run_in_empty(alone / "stagecraft", "train", "model.pt2", "--data", "data.safetensors", check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("`make install` installs it", done.stderr)

    def test_a_staged_installation_is_below_its_root(self):
        self.run_in_empty(CMAKE, "--install", BUILD, "--prefix", "/opt/stagecraft", DESTDIR=str(self.scratch / "staged"))
        command = self.scratch / "staged/opt/stagecraft/bin/stagecraft"
        self.assertEqual(subprocess.run([command, "--version"], env={}, capture_output=True, check=False).returncode, 0)


if __name__ == "__main__":
    unittest.main()

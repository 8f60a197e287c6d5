"""Stagecraft, installed from the build into a scratch folder and used with an empty environment, as after `make install`."""

import os
import pathlib
import shutil
import subprocess
import unittest

BUILD = pathlib.Path(os.environ["STAGECRAFT_BUILD"])
CMAKE = os.environ.get("CMAKE", "cmake")
LAUNCHER = os.environ.get("STAGECRAFT_LAUNCHER", "")
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


class InstalledCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = BUILD / "install-tests" / cls.__name__  # always the same, so that ccache knows the consumers
        shutil.rmtree(cls.scratch, ignore_errors=True)
        cls.scratch.mkdir(parents=True)
        cls.prefix = cls.scratch / "prefix"
        cls.environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(cls.scratch)}
        if "CXX" in os.environ:
            cls.environment["CXX"] = os.environ["CXX"]
        if LAUNCHER:
            cls.environment["CCACHE_DIR"] = subprocess.check_output([LAUNCHER, "--get-config", "cache_dir"], text=True).strip()
        cls.said = cls.run_in_empty(CMAKE, "--install", BUILD, "--prefix", cls.prefix).stderr

    @classmethod
    def run_in_empty(cls, *command, check=True, **variables):
        """Runs it with nothing of this process's environment; fails the test unless it ends well."""
        done = subprocess.run([str(part) for part in command], env=cls.environment | variables, cwd=cls.scratch, capture_output=True,
                              text=True, timeout=300, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def configure(self, project, name, *arguments, prefix=None, check=True):
        build = self.scratch / name
        launcher = [f"-DCMAKE_CXX_COMPILER_LAUNCHER={LAUNCHER}"] if LAUNCHER else []
        done = self.run_in_empty(CMAKE, "-G", "Ninja", "-S", HERE / project, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix or self.prefix}",
                                 *launcher, *arguments, check=check)
        return build, done

    def assert_refused(self, done, *parts):
        self.assertNotEqual(done.returncode, 0)
        message = " ".join(done.stderr.split())  # CMake breaks lines where it likes
        for part in parts:
            self.assertIn(part, message)

"""Runs PyTorch's own pipelining tests on stagecraft.pipelining and prints one line of counts per file.

    python run.py FOLDER [file ...]

FOLDER is a checkout of PyTorch 2.13, or has its test/distributed/pipelining as pipelining/. Needs pytest, pytest-timeout,
expecttest and numpy. Exits with 1 if any test failed, 2 if there are no tests.
"""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[2]
SECONDS_PER_TEST = 900


def find_tests(folder):
    for tests in (folder / "test" / "distributed" / "pipelining", folder / "pipelining", folder):
        if list(tests.glob("test_*.py")):
            return tests
    return None


def package():
    """With the C++ runtime behind it where that is built (make test-python), otherwise Python alone."""
    built = PROJECT / "build" / "python"
    return built if list(built.glob("stagecraft/torch/_runtime*.so")) else PROJECT / "python" / "training"


def environment(tests, folder):
    """Ours first: a shim beside the tests takes precedence over the one here."""
    shim = folder / "shim" if (folder / "shim" / "sitecustomize.py").exists() else HERE / "shim"
    paths = [shim, tests, package()]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, [*paths, *filter(None, [os.environ.get("PYTHONPATH")])])),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "PIPELINING_FROM": "stagecraft.pipelining",
        "PPSHIM_ALIAS": "stagecraft.pipelining",
    }


def count(report):
    """Passed, failed and skipped tests. A subtest that failed is not a test of its own."""
    cases = {}
    for case in xml.parse(report).getroot().iter("testcase"):
        name = (case.get("classname"), case.get("name").split(" (")[0])
        outcome = "passed"
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = "failed"
        elif case.find("skipped") is not None:
            outcome = "skipped"
        cases[name] = outcome if cases.get(name) != "failed" else "failed"
    return {kind: list(cases.values()).count(kind) for kind in ("passed", "failed", "skipped")}


def run(test, settings):
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
        command += [f"--timeout={SECONDS_PER_TEST}", f"--junitxml={report}", str(test)]
        done = subprocess.run(command, cwd=scratch, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        counts = count(report) if report.exists() else {"passed": 0, "failed": 1, "skipped": 0}
    failed = counts["failed"] > 0 or done.returncode not in (0, 5)
    print(f"{test.stem}: " + ", ".join(f"{number} {kind}" for kind, number in counts.items() if number), flush=True)
    if failed:
        print(done.stdout[-6000:], flush=True)
    return not failed


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1]).resolve()
    tests = find_tests(folder)
    if tests is None:
        print(
            f"run.py: no pipelining tests in {folder}. Give a checkout of PyTorch 2.13 "
            "(git clone --depth 1 --branch v2.13.0 https://github.com/pytorch/pytorch), or a folder whose pipelining/ "
            "holds its test/distributed/pipelining.",
            file=sys.stderr,
        )
        return 2
    settings = environment(tests, folder)
    print(f"test-upstream: {tests} on {package()}", flush=True)
    wanted = set(sys.argv[2:])
    files = [test for test in sorted(tests.glob("test_*.py")) if not wanted or test.stem in wanted]
    results = [run(test, settings) for test in files]
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Runs mypy on both packages and on two programs: one without mistakes, one in which every marked line must be found.

    python check.py MYPY PYTHON    (the type checker, and the Python that has both packages)
"""

import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]


def run(mypy, folder, *arguments):
    command = [mypy, "--config-file=", "--no-error-summary", "--cache-dir", str(REPOSITORY / "build/python/types/cache"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def main(mypy, python):
    mypy, failures = str(pathlib.Path(mypy).absolute()), []
    has = ("--python-executable", str(pathlib.Path(python).absolute()))
    for name, done in {
        "stagecraft": run(mypy, REPOSITORY / "python/schedule", "stagecraft"),
        "stagecraft.torch": run(mypy, REPOSITORY / "python/training", *has, "--namespace-packages", "--explicit-package-bases", "stagecraft/torch"),
        "a program of a user": run(mypy, HERE, *has, "--strict", "program.py"),
    }.items():
        if done.returncode:
            failures.append(f"{name}:\n{done.stdout}{done.stderr}")
    wrong = HERE / "wrong.py"
    marked = {number for number, line in enumerate(wrong.read_text().splitlines(), 1) if line.endswith("# wrong")}
    done = run(mypy, HERE, *has, "--strict", wrong.name)
    found = {int(number) for number in re.findall(r"^wrong\.py:(\d+): error", done.stdout, re.MULTILINE)}
    if found != marked:
        failures.append(f"wrong.py: errors in lines {sorted(found)}, expected in {sorted(marked)}\n{done.stdout}{done.stderr}")
    print("\n".join(failures) or "types: both packages and a user's program pass, and mistakes are found")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

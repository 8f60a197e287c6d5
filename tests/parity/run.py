"""Compares the stagecraft command with the installed torch.distributed.pipelining.

    .venv/bin/python tests/parity/run.py [-v] [TEST ...]     e.g. test_generators  or  test_steps.Steps.test_random

The command is $STAGECRAFT_BIN, or build/bin/stagecraft. Exit code 0: no difference; 1: differences; 2: no command, or no
torch to compare with.
"""

import pathlib
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
UNUSABLE = 2


def main(arguments):
    sys.path.insert(0, str(HERE))
    try:
        import torch.distributed.pipelining
    except ImportError as error:
        print(f"parity: torch.distributed.pipelining cannot be imported ({error}): run `make setup`, or configure with -DSTAGECRAFT_PARITY=OFF", file=sys.stderr)
        return UNUSABLE
    import stagecraft_side

    if not pathlib.Path(stagecraft_side.BINARY).exists():
        print(f"parity: {stagecraft_side.BINARY} does not exist: run `make build` or set STAGECRAFT_BIN", file=sys.stderr)
        return UNUSABLE
    import exceptions
    import tally

    verbose = "-v" in arguments
    names = [a for a in arguments if a != "-v"] or sorted(path.stem for path in HERE.glob("test_*.py"))
    begin = time.monotonic()
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    passed = unittest.TextTestRunner(verbosity=2 if verbose else 1).run(suite).wasSuccessful()
    print(f"parity: {tally.summary()} {torch.__version__}, {time.monotonic() - begin:.0f} s")
    for name, count in sorted(exceptions.used.items()):
        print(f"parity: exception {name} applied {count} times: {exceptions.REASONS[name]}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

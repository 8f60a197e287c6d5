"""``python -m stagecraft``: the command, which comes with the package."""

import os
import sys


def main() -> None:
    """Replaces this process by the command, with the arguments of this one."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "stagecraft")
    sys.stdout.flush()
    os.execv(program, ["stagecraft", *sys.argv[1:]])


if __name__ == "__main__":
    main()

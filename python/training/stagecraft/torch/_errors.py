"""Exceptions: one class per error type of C++, with the same text.

The classes of the package ``stagecraft`` are used where it is installed, so that ``except stagecraft.Error`` catches the errors of both
packages. Those that it does not have are made here.
"""

import builtins

try:
    import stagecraft as _base
except ImportError:
    _base = None


def _known(name, bases, text):
    try:
        known = getattr(_base, name, None)
    except ImportError:
        known = None
    if isinstance(known, type) and issubclass(known, Exception):
        return known
    return type(name, bases, {"__doc__": text, "__module__": "stagecraft.torch"})


Error = _known("Error", (Exception,), "Every failure that Stagecraft reports.")
InvalidArgument = _known("InvalidArgument", (Error, ValueError), "An argument is outside what the called function accepts.")
ParseError = _known("ParseError", (Error, ValueError), "Text that is not a schedule; `row` and `column` count from 1.")
ScheduleError = _known("ScheduleError", (Error, ValueError), "A schedule that must not run: see `rank`, `step`, `action`.")
StepError = _known("StepError", (Error, RuntimeError), "An action of a step failed: see `rank` and `action`; `__cause__` is what a module raised.")
ShapeError = _known("ShapeError", (Error, ValueError), "A tensor is not what an edge or a stage expects: see `stage`.")
TransportError = _known("TransportError", (Error, RuntimeError), "A message between ranks could not be exchanged: see `peer`.")
TimeoutError = _known("TimeoutError", (TransportError, builtins.TimeoutError), "A wait exceeded its time limit; `peer` is the rank that holds things up.")
AbortedError = _known("AbortedError", (TransportError,), "Another rank failed, `peer`, so this one had to stop.")
FileError = _known("FileError", (Error, OSError), "A file cannot be read or written, or its contents are invalid: see `path`.")
InternalError = _known("InternalError", (Error,), "A broken invariant of Stagecraft itself: please report it.")

"""The classes are those of the package stagecraft where it is installed."""

import builtins

class Error(Exception): ...
class InvalidArgument(Error, ValueError): ...

class ParseError(Error, ValueError):
    row: int
    column: int

class ScheduleError(Error, ValueError):
    rank: int
    step: int
    action: str

class StepError(Error, RuntimeError):
    rank: int
    action: str

class ShapeError(Error, ValueError):
    stage: int

class FileError(Error, OSError): ...

class TransportError(Error, RuntimeError):
    peer: int

class TimeoutError(TransportError, builtins.TimeoutError): ...
class AbortedError(TransportError): ...
class InternalError(Error, RuntimeError): ...

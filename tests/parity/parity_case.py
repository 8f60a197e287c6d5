"""Runs many comparisons in one test and reports every difference with its setting and the first rank and slot."""

import unittest

import settings
import stagecraft_side
import tally

SHOWN = 10


def first_difference(expected, got):
    """Where two CSV files part: rank, slot and both cells. Empty when they are the same bytes."""
    if expected == got:
        return ""
    ours, theirs = (text.decode(errors="replace").split("\r\n") for text in (got, expected))
    for rank in range(max(len(ours), len(theirs))):
        if rank >= len(ours) or rank >= len(theirs):
            return f"PyTorch has {len(theirs) - 1} ranks, ours {len(ours) - 1}"
        a, b = theirs[rank].split(","), ours[rank].split(",")
        for slot in range(max(len(a), len(b))):
            cell_a = repr(a[slot]) if slot < len(a) else "the end of the row"
            cell_b = repr(b[slot]) if slot < len(b) else "the end of the row"
            if cell_a != cell_b:
                return f"rank {rank}, slot {slot}: PyTorch has {cell_a}, ours {cell_b}"
    return "the same cells, other bytes (line ends or quotes)"


class ParityCase(unittest.TestCase):
    def setUp(self):
        self._pending = []
        self._differences = []

    def expect(self, setting, form, ours, verdict):
        """Counts one comparison. `ours` is a started command; `verdict(result)` returns a difference, or nothing."""
        tally.count(setting)
        self._pending.append((f"{setting}, {form}" if form else setting, ours, verdict))

    def expect_csv(self, setting, form, ours, expected):
        """Our output must be these bytes."""

        def verdict(result):
            if result.code != 0:
                return f"exit {result.code}: {result.err.strip()}"
            return first_difference(expected, result.out)

        self.expect(setting, form, ours, verdict)

    def finish(self, at_least=1):
        """Waits for everything expected so far; `at_least` so many where all settings are compared."""
        done = len(self._pending)
        for label, ours, verdict in self._pending:
            result = ours.result()
            if difference := verdict(result):
                self._differences.append(f"{label}: {difference}\n    {result.command}")
        self._pending = []
        if self._differences:
            shown = "\n  ".join(self._differences[:SHOWN])
            self.fail(f"{len(self._differences)} differences in {done} comparisons\n  {shown}")
        if settings.SHARE < 1:  # the cut is drawn setting by setting: its size varies
            at_least = max(1, int(0.7 * settings.SHARE * at_least))
        self.assertGreaterEqual(done, at_least, "too few comparisons for this test to mean anything")


def check(csv):
    """Starts `stagecraft check` on these bytes."""
    return stagecraft_side.start("check", "-", "--format", "json", stdin=csv)

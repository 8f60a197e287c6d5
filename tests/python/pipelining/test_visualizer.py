"""Schedules as rows of actions, spaced by what waits for what, and drawn without knowing matplotlib until then."""

import itertools
import subprocess
import sys
import types
import unittest
from unittest import mock

from stagecraft.pipelining._schedule_visualizer import (
    OpKey,
    action_type_to_color_mapping,
    add_schedule_op_spacing,
    get_schedule_ops,
    visualize_schedule,
)
from stagecraft.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    _Action,
    _ComputationType,
)

SINGLE = ["GPipe", "1F1B"]
MULTI = ["Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]


def rows(text):
    """One rank per line; a dot is an idle slot."""
    return [[None if word == "." else _Action.from_str(word) for word in line.split()] for line in text.splitlines()]


def words(row):
    return [None if action is None else str(action) for action in row]


def compute(row):
    return [action for action in row if action is not None and action.is_compute_op]


def without_trailing_idle(row):
    row = list(row)
    while row and row[-1] is None:
        row.pop()
    return row


def only_compute(listed):
    return [[action for action in row if action is None or action.is_compute_op] for row in listed]


class _Recorder:
    """Stands for matplotlib: keeps the boxes drawn."""

    def __init__(self):
        self.boxes, self.texts, self.labels, self.saved = [], [], [], []

    def install(self, test):
        recorder = self

        class Rectangle:
            def __init__(self, corner, width, height, label=None, **style):
                self.corner, self.width, self.label = corner, width, label

        class Axes:
            def add_patch(self, box):
                recorder.boxes.append((box.corner, box.width))

            def text(self, x, y, text, **style):
                recorder.texts.append((x, y, text))

            def legend(self, handles, **style):
                recorder.labels.extend(handle.label for handle in handles)

            def __getattr__(self, name):
                return lambda *args, **kwargs: None

        def savefig(filename, **options):
            recorder.saved.append(filename)

        figure = types.SimpleNamespace(savefig=savefig)
        pyplot = types.ModuleType("matplotlib.pyplot")
        pyplot.subplots = lambda **options: (figure, Axes())
        pyplot.rcParams = {}
        pyplot.savefig = savefig
        pyplot.close = pyplot.show = lambda *args: None
        patches = types.ModuleType("matplotlib.patches")
        patches.Rectangle = Rectangle
        package = types.ModuleType("matplotlib")
        package.pyplot, package.patches = pyplot, patches
        replaced = mock.patch.dict(sys.modules, {module.__name__: module for module in (package, pyplot, patches)})
        replaced.start()
        test.addCleanup(replaced.stop)


class Visualizer(unittest.TestCase):
    def test_every_way_of_listing_has_the_same_computation(self):
        for name, (ranks, microbatches) in itertools.product(SINGLE + MULTI, [(1, 2), (2, 4), (3, 6)]):
            with self.subTest(name, ranks=ranks):
                plain = get_schedule_ops(name, ranks, microbatches)
                assert len(plain) == ranks
                for options in ({"add_spacing": True}, {"with_comms": True}, {"with_comms": True, "defer_pp_recv": True}):
                    listed = get_schedule_ops(name, ranks, microbatches, **options)
                    assert [compute(row) for row in listed] == [compute(row) for row in plain]

    def test_messages_come_in_pairs(self):
        for name in SINGLE + MULTI:
            with self.subTest(name):
                for deferred in (False, True):
                    actions = [a for row in get_schedule_ops(name, 2, 4, with_comms=True, defer_pp_recv=deferred) for a in row]
                    keys = {OpKey(a.stage_index, a.computation_type, a.microbatch_index) for a in actions}
                    kinds = _ComputationType
                    sends = {key for key in keys if key.computation_type in (kinds.SEND_F, kinds.SEND_B)}
                    assert sends
                    for stage, kind, microbatch in sends:
                        other = OpKey(stage + 1, kinds.RECV_F, microbatch) if kind is kinds.SEND_F else None
                        assert (other or OpKey(stage - 1, kinds.RECV_B, microbatch)) in keys

    def test_nothing_starts_before_what_it_needs(self):
        for name in SINGLE + MULTI:
            with self.subTest(name):
                ranks = 3
                ends: dict[OpKey, int] = {}
                spaced = get_schedule_ops(name, ranks, 6, add_spacing=True)
                stages = 1 + max(part.stage_index for row in spaced for action in compute(row) for part in action.parts)
                starts: list[tuple[int, _Action]] = []
                for row in spaced:
                    now = 0
                    for action in row:
                        if action is None or not action.is_compute_op:
                            now += 1
                            continue
                        end = now
                        for part in action.parts:
                            starts.append((now, part))
                            end += action_type_to_color_mapping[part.computation_type].width
                            ends[OpKey(part.stage_index, part.computation_type, part.microbatch_index)] = end
                        now += action_type_to_color_mapping[action.computation_type].width
                for start, (stage, kind, microbatch, _) in starts:
                    if kind is _ComputationType.FORWARD and stage > 0:
                        assert ends[OpKey(stage - 1, kind, microbatch)] <= start
                    elif kind in (_ComputationType.FULL_BACKWARD, _ComputationType.BACKWARD_INPUT) and stage < stages - 1:
                        either = [ends.get(OpKey(stage + 1, back, microbatch)) for back in "BI"]
                        assert min(end for end in either if end is not None) <= start

    def test_1f1b_is_spaced(self):
        spaced = get_schedule_ops("1F1B", 2, 2, add_spacing=True)
        assert [words(without_trailing_idle(compute_or_idle)) for compute_or_idle in only_compute(spaced)] == [
            ["0F0", "0F1", None, None, "0B0", None, "0B1"],
            [None, "1F0", "1B0", "1F1", "1B1"],
        ]

    def test_a_finished_rank_does_not_shift_the_others(self):
        # Rank 0 has one action, ranks 1 and 2 go on: upstream's rows move up once rank 0 is done.
        spaced = add_schedule_op_spacing(rows("0F0\n1F0 1F1\n0F1 2F0 2F1"))
        assert [words(without_trailing_idle(row)) for row in spaced] == [
            ["0F0"],
            [None, "1F0", "1F1"],
            ["0F1", None, "2F0", "2F1"],
        ]

    def test_a_schedule_that_cannot_run_is_an_error(self):
        with self.assertRaisesRegex(RuntimeError, "possible deadlock"):
            add_schedule_op_spacing(rows("0B0 0F0\n1F0 1B0"))
        assert add_schedule_op_spacing([]) == []

    def test_what_may_be_asked_for(self):
        assert get_schedule_ops(ScheduleGPipe, 2, 2) == get_schedule_ops("gpipe", 2, 2)
        assert words(compute(get_schedule_ops(Schedule1F1B, 2, 2)[1])) == ["1F0", "1B0", "1F1", "1B1"]
        assert len({a.stage_index for a in compute(get_schedule_ops("LoopedBFS", 2, 2, num_stages_per_rank=3)[0])}) == 3
        with self.assertRaisesRegex(ValueError, "Cannot add spacing and view comms"):
            get_schedule_ops("GPipe", 2, 2, add_spacing=True, with_comms=True)
        with self.assertRaisesRegex(AssertionError, "to be 1, got 2"):
            get_schedule_ops("GPipe", 2, 2, num_stages_per_rank=2)
        with self.assertRaisesRegex(AssertionError, ">= 2, got 1"):
            get_schedule_ops("LoopedBFS", 2, 2, num_stages_per_rank=1)
        with self.assertRaises(ValueError):
            get_schedule_ops("NoSuchSchedule", 2, 2)
        with self.assertRaisesRegex(ValueError, "Invalid schedule"):
            get_schedule_ops(dict, 2, 2)

    def test_drawing(self):
        recorder = _Recorder()
        recorder.install(self)
        visualize_schedule(rows("0F0 0B0\n. (1F0;1B0)OVERLAP_F_B"), "picture.png")
        assert recorder.boxes == [((0, 1), 1), ((1, 1), 2), ((1, 0), 3)]
        assert recorder.texts[1] == (2.0, 1.5, "0B0")
        assert recorder.labels == ["Forward", "Full Backward", "Overlap F+B"]
        assert recorder.saved == ["picture.png"]

    def test_drawing_with_messages(self):
        for name in ["GPipe", "1F1B", "InterleavedZeroBubble"]:
            with self.subTest(name):
                recorder = _Recorder()
                recorder.install(self)
                listed = get_schedule_ops(name, 2, 4, with_comms=True)
                visualize_schedule(listed)
                assert len(recorder.boxes) == sum(map(len, listed))
                assert recorder.saved == []

    def test_matplotlib_is_imported_only_to_draw(self):
        program = "import sys, stagecraft.pipelining._schedule_visualizer; sys.exit('matplotlib' in sys.modules)"
        subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


if __name__ == "__main__":
    unittest.main()

"""Whatever is given, an exception says what is wrong with it, and Python goes on."""

import itertools
import math
import random
import unittest

import stagecraft as sc
from stagecraft import _schedule

from command import CommandCase


class Raising:
    """Fails at whatever it is asked."""

    def __repr__(self):
        raise RuntimeError("no repr")

    def __index__(self):
        raise RuntimeError("no index")

    def __float__(self):
        raise RuntimeError("no float")

    def __iter__(self):
        raise RuntimeError("no items")

    def __getattr__(self, name):
        raise RuntimeError("no " + name)


SCHEDULE = sc.Schedule.named("1F1B", ranks=2, microbatches=2)
COSTS = sc.Costs.example()
VALUES = [
    None, True, False, 0, 1, -1, 3, 10**30, -(10**30), 10**5000, 2**31, 2**63, 2**64, 0.5, math.nan, math.inf, -math.inf,
    "", "1F1B", "x" * 100000, "\udc80", "a\0b", "\0", "ünï", b"", b"1F1B", b"\xff\0", bytearray(b"a"), [], [[]], [None],
    [["0F0"]], [[None]], [["\udc80"]], [["0F0", 3]], ["0F0"], [b"0F0"], (), {}, {"forward": math.nan}, {1: 2}, object(), int,
    len, Raising(), SCHEDULE, COSTS, SCHEDULE._capsule, COSTS._capsule, sc.simulate(SCHEDULE, COSTS), range(3), 1j, ...,
]  # fmt: skip
#: What is wrong with arguments is one of these; RuntimeError is Raising's own.
EXPECTED = (sc.Error, TypeError, RuntimeError)


class AnyValues(unittest.TestCase):
    def test_every_function_with_any_values(self):
        dice = random.Random(1)
        functions = [own for name, own in vars(_schedule).items() if callable(own) and name not in ("plan", "write_file")]
        self.assertGreater(len(functions), 40)
        for function in functions:
            for count in (0, 1, 2, 3, 4, 5, 6):
                for _ in range(60):
                    arguments = [dice.choice(VALUES) for _ in range(count)]
                    try:
                        function(*arguments)
                    except EXPECTED:
                        pass

    def test_each_argument_of_good_calls_in_turn(self):
        good = {
            _schedule.schedule_named: ("1F1B", 2, 2, None, None),
            _schedule.schedule_picture: (SCHEDULE, "table", "auto", False, 0),
            _schedule.simulate: (SCHEDULE, COSTS, 0.1, 2, 0),
            _schedule.compare: (["a"], [SCHEDULE], COSTS),
            _schedule.span_lower_bound: (COSTS, "linear", 2, 1, 4, None),
            _schedule.costs_slower_link: (COSTS, 2, 0, 1, 2.0),
            _schedule.plan: (2, 2, COSTS, None, "any", None, 0.01, 0.01, 0, False, 1, None, None),
        }
        for function, arguments in good.items():
            function(*arguments)
            for place, value in itertools.product(range(len(arguments)), VALUES):
                changed = list(arguments)
                changed[place] = value
                try:
                    function(*changed)
                except EXPECTED:
                    pass


class Types(unittest.TestCase):
    def test_a_wrong_type_is_named_with_its_value_and_the_right_one(self):
        cases = {
            "ranks: got 'four' (str), expected a whole number": lambda: sc.Schedule.named("1F1B", ranks="four", microbatches=1),
            "ranks: got 2.0 (float), expected a whole number": lambda: sc.Schedule.named("1F1B", ranks=2.0, microbatches=1),
            "ranks: got True (bool), expected a whole number": lambda: sc.Schedule.named("1F1B", ranks=True, microbatches=1),
            "microbatches: got None, expected a whole number": lambda: sc.Schedule.named("1F1B", ranks=1, microbatches=None),
            "name: got 3 (int), expected text": lambda: sc.Schedule.named(3, ranks=1, microbatches=1),
            "text: got 3 (int), expected text or bytes": lambda: sc.Schedule.from_csv(3),
            "rows: got '0F0' (str), expected a list": lambda: sc.Schedule("0F0"),
            "rows[0]: got '0F0' (str), expected a list": lambda: sc.Schedule(["0F0"]),
            "rows[0][1]: got 7 (int), expected text": lambda: sc.Schedule([["0F0", 7]]),
            "path: got 3 (int), expected a path": lambda: sc.Schedule.read(3),
            "passes: got None, expected text": lambda: SCHEDULE.lower(None),
            "schedule: got 'x' (str), expected a stagecraft.Schedule": lambda: sc.simulate("x", COSTS),
            "costs: got None, expected stagecraft.Costs": lambda: sc.simulate(SCHEDULE, None),
            "costs: got {} (dict), expected stagecraft.Costs": lambda: sc.plan({}, ranks=1, microbatches=1),
            "jitter: got 'x' (str), expected a number": lambda: sc.simulate(SCHEDULE, COSTS, jitter="x"),
            "colour: got 1 (int), expected True or False": lambda: SCHEDULE.to_table(colour=1),
            "forward: got <object object at": lambda: sc.Costs(forward=object(), backward_input=1, backward_weight=1),
            "text: got 7 (int), expected text": lambda: sc.Action.from_text(7),
        }
        for message, call in cases.items():
            with self.subTest(message), self.assertRaises(TypeError) as caught:
                call()
            self.assertTrue(str(caught.exception).startswith(message), str(caught.exception))

    def test_numbers_out_of_range(self):
        for number in (10**30, -(10**30), 2**31, 10**5000):
            with self.assertRaisesRegex(sc.InvalidArgument, r"\Aranks: got .*, must be from -2147483648 to 2147483647\Z"):
                sc.Schedule.named("1F1B", ranks=number, microbatches=1)
        for number in (0, -1, 2**31 - 1):
            with self.assertRaises(sc.InvalidArgument):
                sc.Schedule.named("1F1B", ranks=number, microbatches=2**31 - 1)

    def test_capsules_of_other_kinds(self):
        for wrong in (COSTS, COSTS._capsule, object(), _schedule):
            with self.assertRaises(TypeError):
                _schedule.schedule_csv(wrong)
        empty = sc.Schedule.__new__(sc.Schedule)
        with self.assertRaises(TypeError):
            empty.to_csv()
        with self.assertRaises(TypeError):
            _schedule.schedule_csv()


class Texts(CommandCase):
    def test_text_that_is_no_schedule(self):
        with self.assertRaises(sc.ParseError) as caught:
            sc.Schedule.from_csv("0F0,0B0\n1F0,1X0\n")
        error = caught.exception
        self.assertIsInstance(error, ValueError)
        self.assertEqual((error.row, error.column), (2, 2))
        self.file("bad.csv", "0F0,0B0\n1F0,1X0\n")
        self.assertEqual(f"bad.csv: {error}\n", self.error("check", "bad.csv"))
        for wrong in ("", "\n", ",", "\0", "0F0\0", '"0F0', "0F0,1F0\n0F0", "5F0", "\x00" * 1000, b"\xff\xfe0F0"):
            with self.subTest(wrong), self.assertRaises(sc.Error):
                sc.Schedule.from_csv(wrong)

    def test_surrogates_and_bytes_zero(self):
        for call in (lambda: sc.Schedule.from_csv("\udc80"), lambda: sc.Schedule.named("\udc80", ranks=1, microbatches=1),
                     lambda: sc.Schedule([["0F0"]], "\udc80"), lambda: sc.Action.from_text("\udc80"),
                     lambda: sc.Costs.from_json("\udc80"), lambda: sc.Schedule.read("a\0b"),
                     lambda: sc.model(b"\0"), lambda: SCHEDULE.write("a\0b"), lambda: sc.Schedule.read("\ud800")):
            with self.assertRaises(sc.InvalidArgument):
                call()
        self.assertEqual(sc.Schedule([["0F0"]], "a\0b").name, "a\0b")

    def test_paths_need_not_be_text(self):
        name = b"\xff.csv"
        SCHEDULE.write(bytes(self.folder) + b"/" + name)
        read = sc.Schedule.read(bytes(self.folder) + b"/" + name)
        self.assertEqual((read, read.name), (SCHEDULE, "\\xff"))

    def test_files_that_cannot_be_read_or_written(self):
        for wrong in (self.folder, self.folder / "none.csv", "/dev/null", ""):
            with self.subTest(wrong), self.assertRaises(sc.FileError):
                sc.Schedule.read(wrong)
        with self.assertRaises(sc.FileError):
            sc.Schedule.read(self.file("empty.csv", ""))
        with self.assertRaises(sc.FileError) as caught:
            SCHEDULE.write(self.folder / "no" / "such" / "folder.csv")
        self.assertIn(str(self.folder), caught.exception.path)
        with self.assertRaises(sc.InvalidArgument):
            SCHEDULE.write(self.folder / "a.csv", "gif")
        self.assertEqual(list(self.folder.iterdir()), [self.folder / "empty.csv"])

    def test_deep_and_damaged_json(self):
        for wrong in ("[" * 1000000, '{"a":' * 100000, "{", "", "nul", '{"forward": 1e999}', "\0", '{"forward": NaN}'):
            with self.subTest(wrong[:20]), self.assertRaises(sc.InvalidArgument):
                sc.Costs.from_json(wrong)
        deep = []
        for _ in range(100000):
            deep = [deep]
        with self.assertRaises(sc.InvalidArgument):
            sc.Costs(forward=deep, backward_input=1, backward_weight=1)
        with self.assertRaises(TypeError):
            sc.Costs.from_dict("forward")

    def test_random_text(self):
        dice = random.Random(2)
        for _ in range(3000):
            text = "".join(dice.choices('0123456789FBIW_SENDRCVOLAPUH,;()\r\n" \0ü', k=dice.randrange(40)))
            try:
                schedule = sc.Schedule.from_csv(text)
                schedule.verify()
                repr(schedule), schedule._repr_html_(), schedule.check()
                schedule.lower()
            except sc.Error:
                pass


if __name__ == "__main__":
    unittest.main()

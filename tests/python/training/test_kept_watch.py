"""What somebody else puts in the place of what calls of the modules have read, or where there was nothing: that it is noticed."""

import collections
import functools
import types
import unittest

import torch
from keeping import address, memory_of, number
from stagecraft.torch._memory import Memory
from torch import nn


class Named(torch.Tensor):
    pass


class OwnModule(nn.Module):
    pass


class Added(unittest.TestCase):
    def added_by(self, module, read, add):
        memory = memory_of(module)
        ticket, _ = memory.remember()
        since, *_, watches = memory.compare(ticket, [address(one) for one in read], [])
        self.assertTrue(watches)
        self.assertFalse(memory.has_added(since))
        add()
        found = memory.has_added(since)
        self.assertFalse(memory.has_added(since))
        return found

    def test_tensors_where_there_were_none(self):
        tensors = [(name, number()) for name in ("attribute", "buffer", "flag", "new")]
        texts = [(name, "text") for name in ("attribute", "flag", "new")]
        for name, value in tensors + texts:
            with self.subTest(f"{name}: {type(value).__name__}"):
                module = nn.Module()
                module.attribute, module.flag = None, False
                module.register_buffer("buffer", None)
                found = self.added_by(module, [], functools.partial(setattr, module, name, value))
                self.assertEqual(found, isinstance(value, torch.Tensor))

    def test_collections_that_are_read_and_that_others_extend(self):
        for bank, add in (([number()], lambda bank: bank.append(number())), ({"a": number()}, lambda bank: bank.update(b=number())),
                          (collections.deque([number()]), lambda bank: bank.append(number()))):  # fmt: skip
            module = nn.Module()
            module.bank = bank
            read = list(bank.values() if isinstance(bank, dict) else bank)
            self.assertTrue(self.added_by(module, read, lambda: add(bank)))
            self.assertFalse(self.added_by(module, [], lambda: add(bank)))


class Begins(unittest.TestCase):
    """A place that was empty in the calls that were captured, and is not for the next ones."""

    def each(self):
        """Yields functions that put a tensor into an attribute, a dict and a list of a module."""
        ways = [
            lambda module, own: setattr(module, "mask", own),
            lambda module, own: module.masks.__setitem__("mask", own),
            lambda module, own: module.log.append(own),
        ]
        for way, fill in enumerate(ways):
            with self.subTest(way=way):
                yield fill

    def test_what_was_made_where_there_was_nothing(self):
        for fill in self.each():
            for before in (None, 0.0, False):
                module = nn.Module()
                module.mask, module.masks, module.log = before, {}, []
                memory = memory_of(module)
                ticket, _ = memory.remember()
                own = number()
                fill(module, own)
                since, carries, changed, *_ = memory.compare(ticket, [], [address(own)])
                self.assertEqual((carries, changed), (False, True))
                self.assertTrue(memory.begins_otherwise(since))
                module.mask, module.masks = None, {}
                module.log.clear()
                self.assertFalse(memory.begins_otherwise(since))
                fill(module, number(2))
                self.assertTrue(memory.begins_otherwise(since))

    def test_what_is_put_where_there_was_nothing(self):
        """A collection may also be emptied, or replaced as a whole, and filled again."""
        for fill in self.each():
            module = nn.Module()
            module.mask, module.masks, module.log = None, {}, []
            memory = memory_of(module)
            since, *_ = memory.compare(memory.remember()[0], [], [])
            for _ in range(2):
                self.assertFalse(memory.has_added(since))
                fill(module, number())
                self.assertTrue(memory.has_added(since))
                self.assertFalse(memory.begins_otherwise(since))
                module.mask, module.masks = None, {}
                module.log.clear()

    def test_what_was_read_in_one_more_place(self):
        for fill in self.each():
            module, own = nn.Module(), number()
            module.mask, module.masks, module.log = None, {"first": own}, [own]
            memory = memory_of(module)
            since, *_ = memory.compare(memory.remember()[0], [address(own)], [])
            self.assertFalse(memory.begins_otherwise(since))
            fill(module, number())
            self.assertFalse(memory.begins_otherwise(since))
            self.assertTrue(memory.has_added(since))
            fill(module, own[1:])
            self.assertTrue(memory.begins_otherwise(since))


class Replaced(unittest.TestCase):
    def test_what_functions_lead_to_that_are_called_too(self):
        trainer = types.SimpleNamespace(weights=number())
        weights = [number(2)]

        def function(output):
            return output * weights[0]

        for others, mask, replace in [
            ([types.MethodType(lambda self, output: output * self.weights, trainer)], trainer.weights, functools.partial(setattr, trainer, "weights")),
            ([function, None], weights[0], functools.partial(weights.__setitem__, 0)),
        ]:
            memory = Memory(lambda: [nn.Module()], others)
            since, carries, *_ = memory.compare(memory.remember()[0], [address(mask)], [])
            self.assertEqual((carries, memory.has_replaced(since)), (False, False))
            replace(number(3))
            self.assertTrue(memory.has_replaced(since))

    def test_a_tensor_of_another_class(self):
        module = nn.Module()
        module.mask = number().as_subclass(Named)
        memory = memory_of(module)
        since, *_ = memory.compare(memory.remember()[0], [address(module.mask)], [])
        self.assertFalse(memory.has_replaced(since))
        module.mask = number().as_subclass(Named)
        self.assertTrue(memory.has_replaced(since))

    def test_a_number_that_becomes_a_tensor(self):
        module = OwnModule()
        module.scale = 1.0
        memory = memory_of(module)
        since, *_ = memory.compare(memory.remember()[0], [], [])
        module.scale = 2.0
        self.assertFalse(memory.has_added(since))
        module.scale = number()
        self.assertTrue(memory.has_added(since))

    def test_the_mode_of_a_hidden_module(self):
        module, teacher = nn.Module(), nn.Dropout()
        module.teacher = {"teacher": (teacher,)}
        memory = memory_of(module)
        since, *_ = memory.compare(memory.remember()[0], [], [])
        teacher.eval()
        self.assertTrue(memory.has_replaced(since))

    def test_defaults_are_not_made(self):
        module = nn.Module()
        module.counts = collections.defaultdict(number)
        module.counts["a"] = mask = number()
        memory = memory_of(module)
        since, *_ = memory.compare(memory.remember()[0], [address(mask)], [])
        del module.counts["a"]
        self.assertTrue(memory.has_replaced(since))
        self.assertEqual(len(module.counts), 0)


if __name__ == "__main__":
    unittest.main()

"""Every kind of place in which modules keep tensors: what a captured step has changed there, and what others have replaced."""

import collections
import dataclasses
import functools
import types
import unittest

import torch
from keeping import address, memory_of, number
from torch import nn


@dataclasses.dataclass(slots=True)
class Slotted:
    average: torch.Tensor
    count: int = 0


class SlottedModule(nn.Module):
    __slots__ = ("mask",)


class Private:
    __slots__ = ("__mask",)

    def __init__(self, mask):
        self.__mask = mask

    def swap(self, mask):
        self.__mask, mask = mask, self.__mask
        return mask


class Refusing(collections.OrderedDict):
    def __delitem__(self, name):
        raise TypeError("no deletion")

    def update(self, *arguments, **keywords):
        raise TypeError("no update")

    def pop(self, *arguments):
        raise TypeError("no pop")


Pair = collections.namedtuple("Pair", "cosine sine")


def places():
    """By name, modules with something in a place of some kind, and functions that get and replace it."""

    def attribute(mask):
        module = nn.Module()
        module.mask = mask
        return module, lambda: module.mask, functools.partial(setattr, module, "mask")

    def buffer(mask):
        module = nn.Module()
        module.register_buffer("mask", mask)
        return module, lambda: module.mask, functools.partial(setattr, module, "mask")

    def item(mask):
        module = nn.Module()
        module.masks = [number(7), mask]
        return module, lambda: module.masks[1], functools.partial(module.masks.__setitem__, 1)

    def whole_list(mask):
        module = nn.Module()
        module.masks = [mask]

        def replace(other):
            module.masks = [other]

        return module, lambda: module.masks[0], replace

    def whole_dict(mask):
        module = nn.Module()
        module.state = {"inner": {"mask": mask}}

        def replace(other):
            module.state = {"inner": {"mask": other}}

        return module, lambda: module.state["inner"]["mask"], replace

    def named_tuple(mask):
        module = nn.Module()
        module.table = (Pair(mask, number(3)), 5)

        def replace(other):
            module.table = (Pair(other, number(3)), 5)

        return module, lambda: module.table[0].cosine, replace

    def attribute_of_an_object(mask):
        module = nn.Module()
        module.context = types.SimpleNamespace(mask=mask)

        def replace(other):
            module.context.mask = other

        return module, lambda: module.context.mask, replace

    def whole_object(mask):
        module = nn.Module()
        module.contexts = [types.SimpleNamespace(mask=mask)]

        def replace(other):
            module.contexts[0] = types.SimpleNamespace(mask=other)

        return module, lambda: module.contexts[0].mask, replace

    def object_in_a_tuple(mask):
        module = nn.Module()
        module.contexts = (types.SimpleNamespace(mask=mask),)

        def replace(other):
            module.contexts[0].mask = other

        return module, lambda: module.contexts[0].mask, replace

    def slots(mask):
        module = nn.Module()
        module.state = Slotted(mask)

        def replace(other):
            module.state.average = other

        return module, lambda: module.state.average, replace

    def slots_of_the_module(mask):
        module = SlottedModule()
        module.mask = mask
        return module, lambda: module.mask, functools.partial(setattr, module, "mask")

    def private_slots(mask):
        module = nn.Module()
        module.state = Private(mask)

        def get():
            mask = module.state.swap(None)
            module.state.swap(mask)
            return mask

        return module, get, module.state.swap

    def closure(mask):
        module = nn.Module()

        def replace(other):
            nonlocal mask
            mask = other

        module.function = lambda: mask
        return module, module.function, replace

    def bound_method(mask):
        module = nn.Module()
        owner = types.SimpleNamespace(mask=mask)
        module.function = types.MethodType(lambda self: self.mask, owner)
        return module, module.function, functools.partial(setattr, owner, "mask")

    def partial(mask):
        module = nn.Module()
        module.function = functools.partial(lambda context, mask: context["mask"] + mask, {"mask": mask}, mask=number())

        def replace(other):
            module.function.args[0]["mask"] = other

        return module, lambda: module.function.args[0]["mask"], replace

    def hidden_module(mask):
        module, teacher = nn.Module(), nn.Sequential(nn.Linear(2, 2))
        teacher[0].mask = mask
        module.teacher = [teacher]
        return module, lambda: teacher[0].mask, functools.partial(setattr, teacher[0], "mask")

    def alias(mask):
        module = nn.Module()
        module.first = module.second = {"mask": mask}

        def replace(other):
            module.second = {"mask": other}

        return module, lambda: module.second["mask"], replace

    def refusing_dict(mask):
        module = nn.Module()
        module.output = Refusing(mask=mask)
        return module, lambda: module.output["mask"], functools.partial(collections.OrderedDict.__setitem__, module.output, "mask")

    def of_many_modules(mask):
        module = nn.Sequential(*(nn.Linear(1, 1) for _ in range(500)))
        module[499].masks = {"mask": mask}
        return module, lambda: module[499].masks["mask"], functools.partial(module[499].masks.__setitem__, "mask")

    return {name: make for name, make in locals().items() if callable(make)}


class Places(unittest.TestCase):
    def each(self):
        for name, make in places().items():
            with self.subTest(name):
                yield make(number())

    def test_what_the_caller_replaces_is_seen(self):
        for module, get, replace in self.each():
            memory, mask = memory_of(module), get()
            ticket, tensors = memory.remember()
            self.assertTrue(any(mask is tensor for tensor in tensors))
            since, carries, changed, watches, _ = memory.compare(ticket, [address(mask)], [])
            self.assertEqual((carries, changed, watches), (False, False, True))
            self.assertFalse(memory.has_replaced(since))
            replace(number())
            self.assertTrue(memory.has_replaced(since))
            self.assertFalse(memory.has_replaced(since))

    def test_what_a_step_goes_on_from_is_carried_and_given_back(self):
        for module, get, replace in self.each():
            memory, mask = memory_of(module), get()
            ticket, _ = memory.remember()
            other = mask + 1
            replace(other)
            _, carries, _, _, _ = memory.compare(ticket, [address(mask)], [address(other)])
            self.assertTrue(carries)
            memory.give_back(ticket, [address(mask), address(other)])
            self.assertIs(get(), mask)

    def test_what_a_step_leaves_is_put_again(self):
        for module, get, replace in self.each():
            memory, last = memory_of(module), get()
            ticket, _ = memory.remember()
            made = number(2)
            replace(made)
            since, carries, changed, _, _ = memory.compare(ticket, [], [address(made)])
            self.assertEqual((carries, changed), (False, True))
            replace(last)
            memory.put_again(since)
            self.assertIs(get(), made)

    def test_what_is_made_again_does_not_matter(self):
        for module, get, replace in self.each():
            memory, mask = memory_of(module), get()
            ticket, _ = memory.remember()
            since, *_ = memory.compare(ticket, [address(mask)], [])
            for value in (1, 2):
                other = number(9)
                replace(other)  # by an evaluation
                self.assertTrue(memory.has_replaced(since))
                replace(number(value))  # by the next step
                self.assertEqual(memory.has_made_again(since), value == 1)
                if value == 1:
                    self.assertIs(get(), mask)
                    self.assertFalse(memory.has_replaced(since))


if __name__ == "__main__":
    unittest.main()

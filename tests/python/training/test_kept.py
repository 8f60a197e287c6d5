"""What modules keep, as steps that are replayed as graphs see it: what a captured step has changed, what others have replaced."""

import collections
import dataclasses
import functools
import types
import unittest

import torch
from torch import nn

import stagecraft.torch as sc  # noqa: F401: finds the package's own folder
from stagecraft.torch._memory import Memory


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def number(value=1.0):
    return torch.full((2,), float(value))


def memory_of(*modules):
    return Memory(lambda: list(modules))


@dataclasses.dataclass(slots=True)
class Slotted:
    average: torch.Tensor
    count: int = 0


class SlottedModule(nn.Module):
    __slots__ = ("mask",)


class Named(torch.Tensor):
    pass


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


class Collections(unittest.TestCase):
    def test_a_list_that_grows_is_carried_if_it_is_read(self):
        for reads in (True, False):
            module = nn.Module()
            module.bank = [number()]
            memory = memory_of(module)
            ticket, _ = memory.remember()
            module.bank.append(number())
            read = [address(module.bank[0])] if reads else []
            since, carries, changed, _, _ = memory.compare(ticket, read, [address(module.bank[1])])
            self.assertEqual((carries, changed), (reads, True))
            memory.put_again(since)
            self.assertEqual(len(module.bank), 3)

    def test_what_is_taken_away_is_carried_if_it_is_read(self):
        for kind in (list, collections.deque):
            module = nn.Module()
            module.masks = kind([number(1), number(2)])
            memory = memory_of(module)
            ticket, _ = memory.remember()
            mask = module.masks.pop()
            self.assertTrue(memory.compare(ticket, [address(mask)], [])[1])
            memory.give_back(ticket, [address(mask)])
            self.assertIs(module.masks[1], mask)
        module.masks = {"a": number(1), "b": number(2)}
        ticket, _ = memory.remember()
        mask = module.masks.pop("a")
        self.assertTrue(memory.compare(ticket, [address(mask)], [])[1])
        memory.give_back(ticket, [address(mask)])
        self.assertEqual(list(module.masks), ["a", "b"])

    def test_what_moves_on_by_one_place_is_carried(self):
        module = nn.Module()
        module.older, module.newer = number(1), number(2)
        memory = memory_of(module)
        ticket, _ = memory.remember()
        module.older, module.newer = module.newer, number(3)
        self.assertTrue(memory.compare(ticket, [], [address(module.newer)])[1])

    def test_a_list_that_the_caller_replaces_is_filled(self):
        module = nn.Module()
        module.losses, module.context = [], types.SimpleNamespace()
        memory = memory_of(module)
        ticket, _ = memory.remember()
        loss = number()
        module.losses.append(loss)
        module.context.loss = loss
        since, *_ = memory.compare(ticket, [], [address(loss)])
        for _ in range(2):
            module.losses, module.context = [], types.SimpleNamespace()
            memory.put_again(since)
            self.assertEqual(module.losses, [loss])
            self.assertIs(module.context.loss, loss)

    def test_shared_lists_are_filled_once(self):
        first, second = nn.Module(), nn.Module()
        first.all = second.all = []
        memory = memory_of(first, second)
        ticket, _ = memory.remember()
        first.all.append(number())
        since, *_ = memory.compare(ticket, [], [address(first.all[0])])
        memory.put_again(since)
        self.assertEqual(len(first.all), 2)

    def test_a_list_that_is_filled_anew(self):
        module = nn.Module()
        module.outputs = [number(1), number(2), number(3)]  # by an evaluation
        memory = memory_of(module)
        ticket, _ = memory.remember()
        made = number(4)
        module.outputs[:] = [made]
        since, carries, *_ = memory.compare(ticket, [], [address(made)])
        self.assertFalse(carries)
        module.outputs[:] = [number(5), number(6)]
        memory.put_again(since)
        self.assertEqual(len(module.outputs), 1)
        self.assertIs(module.outputs[0], made)


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


class Others(unittest.TestCase):
    """What other threads change in the meantime is theirs."""

    def test_a_queue_that_a_thread_fills(self):
        module = nn.Module()
        module.trainer = types.SimpleNamespace(queue=collections.deque([number(1), number(2)]))
        memory = memory_of(module)
        ticket, _ = memory.remember()
        module.trainer.queue.append(number(3))
        module.trainer.queue.popleft()
        since, carries, changed, *_ = memory.compare(ticket, [], [])
        self.assertEqual((carries, changed), (False, False))
        memory.give_back(ticket, [])
        self.assertEqual([one[0].item() for one in module.trainer.queue], [2, 3])

    def test_a_dict_of_several_ranks(self):
        module, metrics = nn.Module(), {"rank 0": number(1), "rank 1": number(1)}
        module.metrics = metrics
        memory = memory_of(module)
        ticket, _ = memory.remember()
        metrics["rank 0"], metrics["rank 1"] = number(2), number(3)
        own = metrics["rank 0"]
        since, carries, changed, *_ = memory.compare(ticket, [], [address(own)])
        self.assertEqual((carries, changed), (False, True))
        metrics["rank 0"], metrics["rank 1"] = number(4), number(5)
        memory.put_again(since)
        self.assertIs(metrics["rank 0"], own)
        self.assertEqual(metrics["rank 1"][0].item(), 5)
        memory.give_back(ticket, [address(own)])
        self.assertEqual([metrics["rank 0"][0].item(), metrics["rank 1"][0].item()], [1, 5])

    def test_the_module_that_it_is_in(self):
        inner = nn.Linear(2, 2)
        outer = nn.Sequential(inner, nn.Linear(2, 2))
        inner.outer = [outer]
        memory = memory_of(inner)
        _, tensors = memory.remember()
        since, *_ = memory.compare(memory.remember()[0], [address(inner.weight)], [])
        outer.eval()
        self.assertFalse(memory.has_replaced(since))

    def test_notes_about_it_are_no_state_of_a_module_that_leads_there(self):
        for leads_there in [lambda memory: memory, lambda memory: memory.compare, lambda memory: (memory,)]:
            module = nn.Module()
            module.mask = number()
            memory = memory_of(module)
            module.trainer = types.SimpleNamespace(memory=leads_there(memory))
            tickets = []
            for _ in range(4):
                ticket, tensors = memory.remember()
                self.assertEqual(len(tensors), 1)
                since, carries, changed, *_ = memory.compare(ticket, [address(module.mask)], [])
                self.assertEqual((carries, changed), (False, False))
                tickets += [ticket, since]

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

    def test_what_was_made_where_there_was_nothing(self):
        def attribute(module, own):
            module.mask = own

        def entry(module, own):
            module.masks["mask"] = own

        def appended(module, own):
            module.log.append(own)

        def take_away(module):
            module.mask, module.masks = None, {}
            module.log.clear()

        for fill in (attribute, entry, appended):
            for before in (None, 0.0, False):
                with self.subTest(fill.__name__, before=before):
                    module = nn.Module()
                    module.mask, module.masks, module.log = before, {}, []
                    memory = memory_of(module)
                    ticket, _ = memory.remember()
                    own = number()
                    fill(module, own)
                    since, carries, changed, *_ = memory.compare(ticket, [], [address(own)])
                    self.assertEqual((carries, changed), (False, True))
                    self.assertTrue(memory.begins_otherwise(since))
                    take_away(module)
                    self.assertFalse(memory.begins_otherwise(since))
                    fill(module, number(2))
                    self.assertTrue(memory.begins_otherwise(since))

    def test_what_was_read_in_one_more_place(self):
        def attribute(module, own):
            module.mask = own

        def entry(module, own):
            module.masks["another"] = own

        def appended(module, own):
            module.log.append(own[1:])

        for fill in (attribute, entry, appended):
            with self.subTest(fill.__name__):
                module, own = nn.Module(), number()
                module.mask, module.masks, module.log = None, {"first": own}, [own]
                memory = memory_of(module)
                since, *_ = memory.compare(memory.remember()[0], [address(own)], [])
                self.assertFalse(memory.begins_otherwise(since))
                fill(module, number())
                self.assertFalse(memory.begins_otherwise(since))
                self.assertTrue(memory.has_added(since))
                fill(module, own)
                self.assertTrue(memory.begins_otherwise(since))

    def test_a_tensor_of_another_class(self):
        module = nn.Module()
        module.mask = number().as_subclass(Named)
        memory = memory_of(module)
        since, *_ = memory.compare(memory.remember()[0], [address(module.mask)], [])
        self.assertFalse(memory.has_replaced(since))
        module.mask = number().as_subclass(Named)
        self.assertTrue(memory.has_replaced(since))

    def test_a_number_that_becomes_a_tensor(self):
        module = SlottedModule()
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


class Steps(unittest.TestCase):
    def test_what_a_capture_has_changed_is_given_back(self):
        """A step that is captured as a graph, and not replayed, has run the modules' code without a result."""
        module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        layer = module[1]
        layer.masks, layer.last, layer.calls = {2: number()}, None, 0
        layer.state, layer.cache = (number(), [number()]), types.SimpleNamespace(key=number())
        before = {**vars(layer), "masks": dict(layer.masks), "_buffers": dict(layer._buffers)}
        memory = memory_of(module)
        ticket, tensors = memory.remember()
        for tensor in (layer.masks[2], layer.state[0], layer.state[1][0], layer.cache.key, layer.running_mean, module[0].weight):
            self.assertTrue(any(tensor is other for other in tensors))
        layer.masks[3], layer.masks[2] = made = number(3), number(0)
        layer.last = number()
        layer.running_mean = number()
        layer.made = number()
        layer.calls = 1
        memory.give_back(ticket, [address(one) for one in (*made, layer.last, layer.running_mean, layer.made)])
        self.assertEqual(vars(layer).keys(), before.keys())
        self.assertEqual((layer.last, layer.calls), (None, 0))
        for name in ("masks", "_buffers"):
            self.assertEqual(vars(layer)[name].keys(), before[name].keys())
            self.assertTrue(all(value is before[name][key] for key, value in vars(layer)[name].items()))

    def test_what_calls_have_changed_is_done_again(self):
        """A step that is replayed as a graph runs no code, and leaves in modules what that code would have left."""
        module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        layer = module[1]
        layer.load, layer.history, layer.last, layer.calls, layer.mask = number(), [number()], [None, None], 0, number()
        memory = memory_of(module)
        ticket, _ = memory.remember()
        load, more, last = number(0), number(0), number(0)
        layer.load, layer.last[1], layer.calls, layer.made = load, last, 1, {"deep": (load,)}
        layer.history.append(more)
        since, carries, changed, watches, _ = memory.compare(
            ticket, [address(layer.mask), address(layer.running_mean)], [address(one) for one in (load, more, last)])
        self.assertEqual((carries, changed, watches), (False, True, True))
        layer.load, layer.last[1], layer.calls, layer.made = None, None, 7, None
        memory.put_again(since)
        self.assertIs(layer.load, load)
        self.assertIs(layer.last[1], last)
        self.assertIs(layer.made["deep"][0], load)
        self.assertEqual(layer.calls, 7)
        self.assertEqual(len(layer.history), 3)
        self.assertIs(layer.history[2], more)
        self.assertFalse(memory.has_replaced(since))
        layer.running_mean = number()
        self.assertTrue(memory.has_replaced(since))
        del ticket, since
        self.assertEqual((len(memory._kept), len(memory._changes), len(memory._watches)), (0, 0, 0))


if __name__ == "__main__":
    unittest.main()

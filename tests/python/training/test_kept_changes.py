"""What calls of the modules change of what these keep: whether the next calls go on from it, how it is undone, and how it is done again."""

import collections
import types
import unittest

from keeping import address, memory_of, number
from torch import nn


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


class Others(unittest.TestCase):
    """What other threads change in the meantime is theirs, and notes about a module are no state of it."""

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

"""What a pipeline offers: options, results, schedules of all forms, parameters, timelines, checkpoints, and the low-level entry."""

import collections
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import torch

import models
import stagecraft.torch as sc
from stagecraft.torch import _door, _worlds


Answer = collections.namedtuple("Answer", "value best config cache")
OtherAnswer = collections.namedtuple("OtherAnswer", "value best config cache")


def make(schedule="Interleaved1F1B", count=2, microbatches=4, loss=models.mean_loss, **options):
    stages = [sc.Stage(models.block(index), index, prefix=str(index)) for index in range(count)]
    return sc.Pipeline(stages, schedule=schedule, microbatches=microbatches, loss=loss, **options)


class Pipelines(unittest.TestCase):
    def test_trains_like_one_device(self):
        pipeline = make(count=3)
        reference = torch.nn.Sequential(*models.blocks(3))
        mine = torch.optim.AdamW(pipeline.parameters(), lr=1e-2)
        other = torch.optim.AdamW(reference.parameters(), lr=1e-2)
        for step in range(5):
            inputs, target = models.batch(seed=step)
            result = pipeline.step(inputs, target=target)
            losses, _ = models.one_device(list(reference), inputs, target, 4)
            mine.step(), other.step()
            mine.zero_grad(), other.zero_grad()
            self.assertAlmostEqual(result.loss, sum(loss.item() for loss in losses) / 4, places=6)
        for (name, parameter), wanted in zip(pipeline.named_parameters(), reference.parameters()):
            self.assertTrue(torch.equal(parameter, wanted), name)
        self.assertEqual(pipeline.steps, 5)
        pipeline.steps = 2
        self.assertEqual(pipeline.steps, 2)

    def test_schedules_of_all_forms(self):
        inputs, target = models.batch(rows=2)
        rows = [["0F0", "1F0", "1B0", "0B0", "0F1", "1F1", "1B1", "0B1"]]
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            file.write("\n".join(",".join(row) for row in rows) + "\n")
            file.flush()
            losses = [make(schedule, microbatches=0).step(inputs, target=target).loss for schedule in (rows, file.name, {0: rows[0]})]
        self.assertEqual(len(set(losses)), 1)
        self.assertEqual(make(rows, microbatches=0).microbatches, 2)
        lowered = make(rows, microbatches=0).schedule_rows[0]
        self.assertEqual([cell for cell in lowered if cell in rows[0]], rows[0])

    def test_auto(self):
        pipeline = make("auto", microbatches=4, automatic=sc.Automatic(profile_steps=1, time_budget=0.2))
        inputs, target = models.batch()
        for _ in range(12):
            pipeline.step(inputs, target=target)
        self.assertIn("auto", pipeline.auto_report() + "auto")

    def test_microbatches_cut_by_hand(self):
        pipeline = make()
        inputs, target = models.batch()
        parts, wanted = inputs.tensor_split(4), target.tensor_split(4)
        by_hand = pipeline.step_microbatches([(part,) for part in parts], wanted, return_outputs=True)
        whole = pipeline.step(inputs, target=target, return_outputs=True)
        self.assertEqual([one.item() for one in by_hand.losses], [one.item() for one in whole.losses])
        self.assertTrue(torch.equal(by_hand.output, whole.output))
        seen = pipeline.eval_microbatches([(part,) for part in parts], wanted)
        self.assertEqual(len(seen.losses), 4)

    def test_options(self):
        inputs, target = models.batch()
        kept = make(merge_outputs=lambda outputs: [one.shape[0] for one in outputs])
        self.assertEqual(kept.step(inputs, target=target, return_outputs=True).output, [3, 3, 3, 3])
        sizes = make(argument_splits=[sc.Split.into([6, 2, 2, 2])], target_split=sc.Split.into([6, 2, 2, 2]))
        self.assertEqual(sizes.step(inputs, target=target).weights, [0.5, 1 / 6, 1 / 6, 1 / 6])
        weighed = make(loss_weight=lambda target: 1 if target.shape[0] else 0)
        self.assertEqual(weighed.step(inputs, target=target).weights, [0.25] * 4)
        summed = make(loss_scale="sum")
        self.assertEqual(summed.step(inputs, target=target).weights, [1.0] * 4)
        extra = make(loss=lambda output, target, scale: models.mean_loss(output, target) * scale)
        self.assertAlmostEqual(extra.step(inputs, target=target, loss_keywords={"scale": 2.0}).loss, 2 * kept.step(inputs, target=target).loss, places=5)
        frozen = make(freeze=["0.*"])
        frozen.step(inputs, target=target)
        self.assertEqual([parameter.grad is None for _, parameter in frozen.named_parameters()], [True] * 4 + [False] * 4)
        with self.assertRaisesRegex(sc.InvalidArgument, "loss_scale is one of 'mean', 'sum'"):
            make(loss_scale="max")

    def test_outputs_of_any_class_are_put_together(self):
        class Cache:
            pass

        class Last(torch.nn.Module):
            def __init__(self, types=(Answer,)):
                super().__init__()
                self.inner, self.config, self.types, self.calls = models.block(1), Cache(), types, 0

            def forward(self, value):
                value = self.inner(value)
                self.calls += 1
                return self.types[self.calls % len(self.types)](value, value.max(1), self.config, Cache())

        def of(last):
            stages = [sc.Stage(models.block(0), 0), sc.Stage(last, 1)]
            loss = lambda output, target: models.mean_loss(output.value, target)  # noqa: E731
            return sc.Pipeline(stages, schedule="Interleaved1F1B", microbatches=2, loss=loss)

        inputs, target = models.batch()
        last = Last()
        pipeline = of(last)
        expected = pipeline.stages[1].submod.inner(pipeline.stages[0].submod(inputs))
        for result in (pipeline.eval(inputs), pipeline.step(inputs, target=target, return_outputs=True)):
            self.assertIs(type(result.output), Answer)
            torch.testing.assert_close(result.output.value, expected)
            self.assertIs(type(result.output.best), torch.return_types.max)
            self.assertEqual(result.output.best.indices.tolist(), expected.max(1).indices.tolist())
            self.assertIs(result.output.config, last.config)
            self.assertIs(type(result.output.cache), Cache)
        with self.assertRaisesRegex(sc.InvalidArgument, "one is a tuple of type '.*', another a tuple of type '.*': give a reducer"):
            of(Last((Answer, OtherAnswer))).eval(inputs)

    def test_ties_and_norms(self):
        def train(world):
            torch.manual_seed(0)
            module = torch.nn.Linear(16, 16)
            pipeline = sc.Pipeline(
                [sc.Stage(module, world.rank, prefix="shared")],
                world=world,
                microbatches=2,
                loss=models.mean_loss,
                ties=[sc.Tie("shared.weight", [0, 1])],
            )
            inputs, target = models.batch()
            pipeline.step(inputs, target=target)
            norm = pipeline.clip_gradient_norm(0.01).item()
            return module.weight.grad.tolist(), norm, pipeline.gradient_norm().item()

        first, second = sc.run_ranks(train, 2)
        self.assertEqual(first[0], second[0])
        self.assertEqual(first[1], second[1])
        self.assertAlmostEqual(first[2], 0.01, places=4)

    def test_precision_and_shards(self):
        def train(world, **options):
            stages = models.stages_here(world, "1F1B")
            pipeline = sc.Pipeline(stages, world=world, microbatches=2, loss=models.mean_loss, **options)
            optimizer = torch.optim.AdamW(pipeline.parameters(), lr=1e-3)
            pipeline.attach(optimizer)
            inputs, target = models.batch(rows=16)
            for _ in range(3):
                pipeline.step(world.share_of(inputs), target=world.share_of(target))
                optimizer.step()
                optimizer.zero_grad()
            pipeline.refresh_modules()
            return [parameter.float().tolist() for stage in stages for parameter in stage.submod.parameters()]

        whole = sc.run_ranks(train, 2, replicas=2)
        sharded = sc.run_ranks(lambda world: train(world, shard="parameters"), 2, replicas=2)
        for mine, other in zip(whole, sharded):
            for a, b in zip(mine, other):
                torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=1e-4, atol=1e-5)
        sc.run_ranks(lambda world: train(world, precision=sc.Precision(compute=torch.bfloat16)), 2)

        def refused(world):
            pipeline = sc.Pipeline(models.stages_here(world, "1F1B"), world=world, microbatches=2, loss=models.mean_loss, shard="optimizer")
            with self.assertRaisesRegex(sc.InvalidArgument, "element by element"):
                pipeline.attach(torch.optim.LBFGS(list(pipeline.parameters())))

        sc.run_ranks(refused, 1, replicas=2)

    def test_timelines(self):
        def train(world):
            pipeline = sc.Pipeline(models.stages_here(world, "1F1B"), world=world, microbatches=3, loss=models.mean_loss)
            pipeline.record_timeline()
            inputs, target = models.batch()
            pipeline.step(inputs, target=target)
            own = pipeline.timeline
            everyone = pipeline.collect_timelines()
            return [span.action for span in own], len(everyone), all(span.end >= span.start for span in own)

        first, second = sc.run_ranks(train, 2)
        self.assertIn("0F2", first[0])
        self.assertEqual((first[1], second[1]), (2, 0))
        self.assertTrue(first[2] and second[2])

    def test_handlers(self):
        pipeline = make()
        seen = []

        def handler(stage, action, run):
            seen.append((stage, action))
            run()

        pipeline.on("B", handler)
        inputs, target = models.batch()
        pipeline.step(inputs, target=target)
        self.assertEqual(len(seen), 8)
        self.assertIn((1, "1B0"), seen)

    def test_graphs_need_a_gpu(self):  # tests/python/gpu has the others
        with self.assertRaisesRegex(sc.InvalidArgument, "only steps on a CUDA device can be captured"):
            make(graph=True)
        with self.assertRaisesRegex(sc.InvalidArgument, 'write true, false or "auto"'):
            make(graph="sometimes")
        with self.assertRaisesRegex(sc.InvalidArgument, "lanes is at least 1"):
            make(lanes=-1)
        pipeline = make(graph="auto")
        inputs, target = models.batch()
        pipeline.step(inputs, target=target)
        self.assertEqual((pipeline.captured.replayed, pipeline.captured.graphs), (0, 0))

    def test_modes_that_a_graph_depends_on(self):
        stage = sc.Stage(torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(2, 2)), 0)
        mode = stage.as_dict()["mode"]
        training = mode()
        self.assertEqual(mode(), training)
        stage.submod[0].eval()
        self.assertNotEqual(mode(), training)
        stage.submod[0].train()
        self.assertEqual(mode(), training)
        stage.submod = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(2, 2))
        self.assertNotEqual(mode(), training)

    def test_shapes(self):
        shapes = make().infer_shapes(torch.empty(8, 16))
        self.assertEqual(shapes[0], (0, 0, [([2, 16], torch.float32)]))
        stages = [sc.Stage(models.block(0), 0, outputs=[((2, 16), torch.float32)]), sc.Stage(models.block(1), 1, inputs=[((2, 4), torch.float32)])]
        with self.assertRaisesRegex(sc.InvalidArgument, "stage 1 on rank 0 takes"):
            sc.Pipeline(stages, schedule="Interleaved1F1B", microbatches=2, loss=models.mean_loss)

    def test_forwards_alone(self):
        pipeline = make(loss=None)
        inputs, _ = models.batch()
        result = pipeline.step(inputs)
        self.assertEqual(result.output.shape, inputs.shape)
        self.assertFalse(result.has_loss)
        with self.assertRaisesRegex(sc.InvalidArgument, "has no loss"):
            result.loss

    def test_checkpoints(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.safetensors")
            first = make()
            first.save(path, step=7)
            with torch.no_grad():
                for parameter in first.parameters():
                    parameter.zero_()

            def load(world):
                stages = models.stages_here(world, "1F1B")
                with torch.no_grad():
                    for stage in stages:
                        for parameter in stage.submod.parameters():
                            parameter.zero_()
                pipeline = sc.Pipeline(stages, world=world, microbatches=2, loss=models.mean_loss)
                step = pipeline.load(path)
                return step, [parameter.tolist() for parameter in pipeline.parameters()]

            results = sc.run_ranks(load, 2)
            self.assertEqual([step for step, _ in results], [7, 7])
            expected = [[parameter.tolist() for parameter in models.block(index).parameters()] for index in range(2)]
            self.assertEqual([values for _, values in results], expected)
            with self.assertRaises(sc.FileError):
                first.load(os.path.join(folder, "none.safetensors"))

    def test_low_level_entry(self):
        class Owner:
            def __init__(self, index):
                self.submod = models.block(index)

        inputs, target = models.batch(rows=4)
        rows = [["0F0", "1F0", "1B0", "0B0", "0F1", "1F1", "1I1", "0I1", "1W1", "0W1"]]
        owners = [Owner(0), Owner(1)]
        run = _door.ScheduleRun(None, [(owner, index) for index, owner in enumerate(owners)], rows, microbatches=2, loss=models.mean_loss)
        parts, wanted = inputs.split([1, 3]), target.split([1, 3])
        losses, outputs = run.step([(part,) for part in parts], [{}, {}], wanted, return_outputs=True)
        reference = models.blocks(2)
        for part, one, loss, output in zip(parts, wanted, losses, outputs):
            expected = reference[1](reference[0](part))
            plain = models.mean_loss(expected, one)
            plain.backward()
            self.assertEqual(loss.item(), plain.item())
            self.assertTrue(torch.equal(output, expected))
        for owner, module in zip(owners, reference):
            for mine, other in zip(owner.submod.parameters(), module.parameters()):
                self.assertTrue(torch.equal(mine.grad, other.grad))
        owners[0].submod.train()
        self.assertEqual(len(run.eval([(part,) for part in parts])[1]), 2)
        run.close()
        with self.assertRaises(sc.InvalidArgument):
            run.step([(part,) for part in parts], [], wanted)

    def test_cuda_is_asked_for_enough_queues(self):
        program = "import os, stagecraft.torch; print(os.environ['CUDA_DEVICE_MAX_CONNECTIONS'])"
        for given, expected in ((None, "32"), ("24", "24")):
            environment = {name: value for name, value in os.environ.items() if name != "CUDA_DEVICE_MAX_CONNECTIONS"}
            if given is not None:
                environment["CUDA_DEVICE_MAX_CONNECTIONS"] = given
            self.assertEqual(subprocess.check_output([sys.executable, "-c", program], env=environment, text=True).strip(), expected)

    def test_ranks_load_all_kernels_at_once(self):
        program = "import os, stagecraft.torch; print(os.environ.get('CUDA_MODULE_LOADING'))"
        for given, expected in (({}, "None"), ({"WORLD_SIZE": "1"}, "None"), ({"WORLD_SIZE": "2"}, "EAGER"), ({"PMI_SIZE": "4", "CUDA_MODULE_LOADING": "LAZY"}, "LAZY")):
            with self.subTest(given):
                unset = ("CUDA_MODULE_LOADING", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
                environment = {name: value for name, value in os.environ.items() if name not in unset}
                self.assertEqual(subprocess.check_output([sys.executable, "-c", program], env={**environment, **given}, text=True).strip(), expected)

    def test_few_queues_are_told(self):
        for given, words in ((None, "before stagecraft.torch was imported"), ("1", "CUDA_DEVICE_MAX_CONNECTIONS is 1")):
            with self.subTest(given), mock.patch.dict(os.environ), self.assertWarnsRegex(UserWarning, words):
                os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
                if given is not None:
                    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = given
                _worlds._warn_of_few_queues()

    def test_kernels_that_are_loaded_late_are_told(self):
        for given, words in ((None, "set CUDA_MODULE_LOADING to EAGER"), ("LAZY", "EAGER before CUDA is used, not LAZY")):
            with self.subTest(given), mock.patch.dict(os.environ), self.assertWarnsRegex(UserWarning, words):
                os.environ.pop("CUDA_MODULE_LOADING", None)
                if given is not None:
                    os.environ["CUDA_MODULE_LOADING"] = given
                _worlds._warn_of_late_kernels()


if __name__ == "__main__":
    unittest.main()

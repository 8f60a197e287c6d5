"""A step that fails: what is raised, and that the next step is as if nothing had happened."""

import logging
import unittest

import torch

from small_models import SCHEDULES, Layer, batch, layers, mean_loss, on_one_device, stages_per_rank
from test_gradients_one_rank import build
from worlds import gloo_ranks, one_rank

from stagecraft.pipelining import PipelineStage, ScheduleGPipe, ScheduleInterleaved1F1B
from stagecraft.pipelining._utils import PipeliningMetadataError
from stagecraft.pipelining.schedules import (
    PipelineScheduleMulti,
    _Action,
    _PipelineScheduleRuntime,
    _validate_schedule,
    get_schedule_class,
)


def parsed(text):
    return [_Action.from_str(one) for one in text.split()]


class AfterAFailure(unittest.TestCase):
    def setUp(self):
        logging.disable(logging.ERROR)
        self.addCleanup(logging.disable, logging.NOTSET)

    def test_the_next_step_works(self):
        """Forward, loss and backward fail, each at some microbatch in the middle."""
        for kind in SCHEDULES:
            model = layers(stages_per_rank(kind))
            x, target = batch(8)
            output, _, grads = on_one_device(model, x, target)
            for where in ("forward", "loss", "backward"):
                with self.subTest(kind=kind.__name__, where=where), one_rank():
                    countdown = [1000]

                    def count(here, where=where, countdown=countdown):
                        if here == where:
                            countdown[0] -= 1
                            if countdown[0] == 0:
                                raise ArithmeticError(f"in the {where}")

                    def loss_fn(result, wanted, count=count):
                        count("loss")
                        return mean_loss(result, wanted)

                    schedule = build(kind, model, 4, loss_fn=loss_fn)
                    schedule.step(x, target=target)
                    model.zero_grad()
                    countdown[0] = 3
                    hooks = [
                        model[0].register_forward_hook(lambda *_, count=count: count("forward")),
                        model[0].inner.weight.register_hook(lambda grad, count=count: count("backward")),
                    ]
                    with self.assertRaises((ArithmeticError, RuntimeError)) as caught:
                        schedule.step(x, target=target)
                    causes, error = [], caught.exception
                    while error is not None:
                        causes.append(str(error))
                        error = error.__cause__
                    self.assertTrue(any(f"in the {where}" in cause for cause in causes), causes)
                    for hook in hooks:
                        hook.remove()
                    countdown[0] = 1000
                    model.zero_grad()
                    torch.testing.assert_close(schedule.step(x, target=target), output)
                    for parameter, expected in zip(model.parameters(), grads, strict=True):
                        torch.testing.assert_close(parameter.grad, expected)
                    model.zero_grad()

    def test_gradients_of_earlier_steps_survive(self):
        model = layers(2)
        x, target = batch(8)
        with one_rank():
            schedule = build(ScheduleInterleaved1F1B, model, 4, loss_fn=mean_loss)
            schedule.step(x, target=target)
            before = [parameter.grad.clone() for parameter in model.parameters()]
            hook = model[1].inner.bias.register_hook(lambda grad: 1 / 0)
            with self.assertRaises(RuntimeError):
                schedule.step(x, target=target)
            hook.remove()
            for parameter, expected in zip(model.parameters(), before, strict=True):
                torch.testing.assert_close(parameter.grad, expected)

    def test_the_log_shows_the_table_and_the_step(self):
        logging.disable(logging.NOTSET)
        model = layers(2)
        with one_rank(), self.assertLogs("stagecraft.pipelining.schedules", "ERROR") as logs:
            schedule = build(ScheduleInterleaved1F1B, model, 2, loss_fn=lambda output, target: 1 / 0)
            with self.assertRaises(ZeroDivisionError):
                schedule.step(batch(4)[0], target=batch(4)[1])
        self.assertRegex(logs.output[0], "1F0 +<-- ERROR HERE")


def wrong_shape(rank, ranks):
    """The rank of the first stage gets other rows than it said; the other does not run that step."""
    logging.disable(logging.ERROR)
    model = layers(2)
    stage = PipelineStage(model[rank], rank, ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2)
    schedule.step(*([batch(4)[0]] if rank == 0 else []))
    try:
        if rank == 0:
            schedule.step(batch(6)[0])
    except PipeliningMetadataError as error:
        return str(error)
    return None


class Refusals(unittest.TestCase):
    def test_a_message_of_another_shape(self):
        message, _ = gloo_ranks(2, wrong_shape)
        self.assertIn("Stage 0 chunk 0 output 0 to stage 1: shape mismatch", message)

    def test_debug_mode_checks_every_value(self):
        with one_rank():
            model = layers(2)
            schedule = build(ScheduleInterleaved1F1B, model, 2)
            schedule.step(batch(4)[0])
            schedule._stages[0]._runtime_validate = True
            with self.assertRaisesRegex(PipeliningMetadataError, "Stage 0 forward inputs.*dtype mismatch"):
                schedule.step(batch(4)[0].float())

    def test_given_metadata_that_is_wrong(self):
        with one_rank():
            stage = PipelineStage(layers(1)[0], 0, 1, torch.device("cpu"), input_args=torch.zeros(3, 3))
            with self.assertRaisesRegex(PipeliningMetadataError, "Stage 0 input.*shape mismatch"):
                ScheduleGPipe(stage, 2).step(batch(4)[0])

    def test_tables(self):
        good = {0: parsed("0F0 0B0"), 1: parsed("1F0 1I0 1W0")}
        self.assertEqual(_validate_schedule(good, 2, 2, 1), {0: 0, 1: 1})
        bad = {
            "incorrect number of ranks": {0: good[0]},
            "missing actions for rank 1": {0: good[0], 2: good[1]},
            "without first running Forward": {0: parsed("0B0 0F0"), 1: good[1]},
            "without first running Backward Input": {0: parsed("0F0 0W0 0I0"), 1: good[1]},
            "a second time": {0: parsed("0F0 0F0 0B0"), 1: good[1]},
            "microbatches go from 0 to 0": {0: parsed("0F0 0B0 0F1 0B1"), 1: good[1]},
            "assigned to both": {0: parsed("0F0 0B0 1RECV_F0"), 1: good[1]},
            "expected 1 total backwards": {0: parsed("0F0"), 1: good[1]},
            "does not exist": {0: parsed("0F0 0B0 7F0"), 1: good[1]},
        }
        for words, table in bad.items():
            with self.subTest(words=words), self.assertRaisesRegex(AssertionError, words):
                _validate_schedule(table, 2, 2, 1)

    def test_actions(self):
        for text in ("1F0junk", "F0", "1X0", "(0F0;1B0)", "(0F0)NOTHING"):
            with self.subTest(text=text), self.assertRaises(RuntimeError):
                _Action.from_str(text)
        overlapped = _Action.from_str("(0F5;7B2)OVERLAP_F_B")
        self.assertEqual(str(overlapped), "(0F5;7B2)OVERLAP_F_B")
        self.assertIsNone(_Action.from_str("  "))

    def test_running_a_table_out_of_order(self):
        logging.disable(logging.ERROR)
        self.addCleanup(logging.disable, logging.NOTSET)
        with one_rank():
            schedule = build(_PipelineScheduleRuntime, layers(1), 1, loss_fn=mean_loss)
            x, target = batch(2)
            with self.assertRaisesRegex(AssertionError, "Must call _prepare_schedule_with_comms"):
                schedule.step(x, target=target)
            for rows, words in (
                ("0F0 0W0", "without first calling `backward_one_chunk"),
                ("0F0 0I0 0W0 0W0", "without first calling `backward_one_chunk"),
            ):
                schedule.pipeline_order_with_comms = {0: parsed(rows)}
                with self.assertRaisesRegex(AssertionError, words):
                    schedule.step(x, target=target)
            schedule.pipeline_order_with_comms = {0: [_Action(0, "X", 0)]}
            with self.assertRaisesRegex(ValueError, "unknown or unsupported"):
                schedule.step(x, target=target)
            with self.assertRaisesRegex(ValueError, "Expected compute-only schedule"):
                schedule._prepare_schedule_with_comms({0: parsed("0F0 0B0 0SEND_F0")})

    def test_names(self):
        self.assertIs(get_schedule_class("pipelineschedulemulti"), PipelineScheduleMulti)
        with self.assertRaisesRegex(ValueError, "Unknown schedule name 'zigzag'. The valid options are"):
            get_schedule_class("zigzag")

    def test_more_ranks_than_stages(self):
        def build_stage(rank, ranks):
            try:
                PipelineStage(Layer(), 0, 1, torch.device("cpu"))
            except RuntimeError as error:
                return str(error)

        self.assertIn("cannot be larger than number of stages 1", gloo_ranks(2, build_stage)[0])



if __name__ == "__main__":
    unittest.main()

"""Files travel both ways: ours into PyTorch's runtime, PyTorch's into ours."""

import pathlib
import tempfile

import parity_case
import settings
import stagecraft_side
import tally
import torch_side

LOWERED = torch_side.DEFAULT_LOWERING


class Exchange(parity_case.ParityCase):
    def setUp(self):
        super().setUp()
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)

    def file(self, name="schedule.csv"):
        return pathlib.Path(self._folder.name) / name

    def runtime_after_loading(self, setting, arguments, file_format):
        """PyTorch's runtime with a file that our command wrote."""
        done = stagecraft_side.run(*stagecraft_side.shape(*setting), *arguments, "--format", "csv", "-o", self.file())
        self.assertEqual(done.code, 0, f"{done.command}: {done.err}")
        runtime = torch_side.runtime(setting.ranks, setting.ranks * setting.stages_per_rank, setting.microbatches)
        runtime._load_csv(str(self.file()), format=file_format)
        tally.count(setting)
        return runtime

    def test_pytorch_loads_our_lowered_file(self):
        for setting, rows in settings.sample(0.06):
            for passes in (LOWERED, f"{LOWERED},defer_receives"):
                runtime = self.runtime_after_loading(setting, ["--passes", passes], "compute_comms")
                loaded = torch_side.rows_of(runtime.pipeline_order_with_comms)
                self.assertEqual(loaded, torch_side.run_passes(rows, passes), f"{setting}, {passes}")

    def test_pytorch_loads_our_placed_receives(self):
        """A form PyTorch does not have is still a file it loads, with the same compute in the same order."""
        for setting, rows in settings.sample(0.04):
            runtime = self.runtime_after_loading(setting, ["--passes", "send_recv,place_receives"], "compute_comms")
            loaded = torch_side.rows_of(runtime.pipeline_order_with_comms)
            compute = [[a for a in row if a.is_compute_op] for row in loaded]
            self.assertEqual(compute, [[a for a in row if a is not None] for row in rows], str(setting))
            lowered = torch_side.run_passes(rows, "send_recv")
            self.assertEqual([sorted(map(str, row)) for row in loaded], [sorted(map(str, row)) for row in lowered])

    def test_pytorch_loads_our_compute_file(self):
        for setting, rows in settings.sample(0.06):
            runtime = self.runtime_after_loading(setting, [], "compute_only")
            self.assertEqual(torch_side.rows_of(runtime.pipeline_order), rows, str(setting))

    def test_ours_reads_what_pytorch_dumps(self):
        for i, (setting, rows) in enumerate(settings.sample(0.1)):
            runtime = torch_side.runtime(setting.ranks, setting.ranks * setting.stages_per_rank, setting.microbatches)
            runtime.pipeline_order = torch_side.order_of(rows)
            runtime._prepare_schedule_with_comms(runtime.pipeline_order)
            for file_format in ("compute_only", "compute_comms"):
                path = self.file(f"{i}_{file_format}.csv")
                runtime._dump_csv(str(path), format=file_format)
                shown = stagecraft_side.start("show", path, "--format", "csv", "--align", "slots")
                self.expect_csv(setting, f"show of {file_format}", shown, path.read_bytes())
                checked = stagecraft_side.start("check", path, "--format", "json")
                self.expect(setting, f"check of {file_format}", checked, report_verdict(setting))
        self.finish(400)


def report_verdict(setting):
    """What a report on a good file of this setting must say."""
    expected = {
        "ok": True,
        "ranks": setting.ranks,
        "stages": setting.ranks * setting.stages_per_rank,
        "microbatches": setting.microbatches,
    }

    def verdict(result):
        report = result.json()
        wrong = [f"{key} is {report[key]}, not {value}" for key, value in expected.items() if report[key] != value]
        return "; ".join(wrong)

    return verdict

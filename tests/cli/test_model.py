"""stagecraft model: what a model is made of; and every way in which a file is no model."""

import json
import os
import re
import time
import unittest
import zipfile

import exported
import torch
from command_case import UNUSABLE, CommandCase

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"


class Model(exported.ExportCase, CommandCase):
    def report(self, *more):
        return json.loads(self.output("model", self.tied(), "--format", "json", *more))

    def test_summary(self):
        text = self.output("model", self.tied())
        self.assertRegex(text, r"\ntorch +" + re.escape(torch.__version__.split("+")[0]))
        self.assertRegex(text, r"\ninputs +tokens: int64 \[s\d+, 6\]\n +extra\.scale: float32 \[s\d+, 6, 8\]\n")
        self.assertRegex(text, r"\noutputs +logits: float32 \[s\d+, 6, 16\]\n +last: float32 \[s\d+, 6, 8\]\n")
        self.assertRegex(text, r"\nsizes +s\d+: 2 to 64, 4 at export\n")
        self.assertRegex(text, r"\nparameters +25: 2\.\d+k numbers, ")
        self.assertRegex(text, r"\ntraining +gradients \d.*, state of Adam \d.*, activations of a microbatch about \d")
        self.assertRegex(text, r"\ntied +\S+\.weight = \S+\.weight\n")
        self.assertRegex(text, r"\nbuffers +1: 1 numbers, 4 B\n")
        self.assertRegex(text, r"\naten::linear +9 ")
        self.assertRegex(text, r"\n  blocks .*\n    0 .* Block\n      norm .* LayerNorm\n")
        self.assertRegex(text, r"\nCAN BE CUT BEFORE +ACROSS\n")
        self.assertRegex(text, r"\nblocks\.3 +768 B\n")
        self.assertNotIn("PARAMETER ", text.replace("PARAMETERS", ""))

    def test_options(self):
        text = self.output("model", self.tied(), "--depth", 1, "--parameters")
        self.assertNotRegex(text, r"\n    0 ")
        self.assertRegex(text, r"\nblocks\.2\.up\.weight +1\.0 KiB  float32 \[32, 8\]\n")

    def test_json(self):
        report = self.report()
        self.assertEqual(report["torch_version"].split("+")[0], torch.__version__.split("+")[0])
        symbol = report["sizes"][0]["symbol"]
        self.assertEqual(report["sizes"], [{"symbol": symbol, "exported": 4, "least": 2, "most": 64}])
        self.assertEqual(report["inputs"][1], {"name": "extra.scale", "kind": "tensor", "type": "float32",
                                               "sizes": [symbol, 6, 8], "bytes": 768})
        self.assertEqual([port["name"] for port in report["outputs"]], ["logits", "last"])
        model = exported.Tied()
        numbers = sum(p.numel() for p in model.parameters())
        self.assertEqual(report["totals"]["parameters"], {"count": len(list(model.parameters())), "numbers": numbers,
                                                          "bytes": 4 * numbers})
        training = report["training"]
        self.assertEqual((training["parameter_memory"], training["gradient_memory"], training["optimizer_memory"]),
                         (4 * numbers, 4 * numbers, 8 * numbers))
        self.assertGreater(training["activation_memory"], training["input_memory"])
        sizes = {p["name"]: p["sizes"] for p in report["parameters"]}
        for name, parameter in model.named_parameters():
            if name in sizes:  # of two names of one weight, one is enough
                self.assertEqual(sizes[name], list(parameter.shape))
        self.assertEqual(len(sizes), len(list(model.parameters())))
        self.assertEqual([b["name"] for b in report["buffers"]], ["steps"])
        self.assertEqual(sum(op["count"] for op in report["operators"]), report["nodes"])
        modules = {m["path"]: m for m in report["modules"]}
        self.assertEqual(modules[""]["parameters"], numbers)
        self.assertEqual(modules["blocks"]["parameters"], 4 * modules["blocks.0"]["parameters"])
        self.assertEqual(modules["blocks.0.up"]["parameters"], 32 * 8 + 32)
        self.assertAlmostEqual(modules[""]["work"], report["work"])
        cuts = {cut["module"]: cut["bytes"] for cut in report["cuts"]}
        self.assertEqual(cuts["blocks.1"], 4 * 6 * 8 * 4)

    def test_fixed_inputs_and_frozen_parameters(self):
        class Fixed(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 4)
                self.layer.bias.requires_grad_(False)

            def forward(self, x, flag=True, times=2, nothing=None):
                return self.layer(x) * times if flag else x

        path = self.saved("fixed.pt2", lambda: exported.export(Fixed(), (torch.randn(2, 4), True, 3, None)))
        text = self.output("model", path, "--parameters")
        self.assertIn("flag: always true", text)
        self.assertIn("times: always 3", text)
        self.assertIn("nothing: always None", text)
        self.assertRegex(text, r"\nlayer\.bias .*, frozen\n")
        self.assertEqual(json.loads(self.output("model", path, "--format", "json"))["inputs"][1],
                         {"name": "flag", "kind": "fixed", "value": "true"})

    def test_several_models_in_one_file(self):
        path = self.models / "two.pt2"
        program = exported.export(torch.nn.Linear(4, 4), (torch.randn(2, 4),))
        torch.export.pt2_archive._package.package_pt2(str(path), exported_programs={"encoder": program, "decoder": program})
        self.assert_error(self.command("model", path), UNUSABLE, "two.pt2: ", "the models 'decoder', 'encoder'", "name the one")
        self.assertIn("aten::linear", self.output("model", path, "--model", "encoder"))
        self.assert_error(self.command("model", path, "--model", "other"), UNUSABLE, "no model 'other'", "'encoder'")

    def test_names_cannot_drive_the_terminal(self):
        def change(records):
            records[MODEL] = records[MODEL].replace(b"blocks.1", b"blocks.\\u001b[31m")
            records[WEIGHTS] = records[WEIGHTS].replace(b"blocks.1", b"blocks.\\u001b[31m")
        self.assertIn(r"\x1b[31m", self.output("model", self.rewritten("escape.pt2", change)))

    def test_large_graphs_are_read_in_linear_time(self):
        def change(records):
            with self.json_of(records, MODEL) as model:
                values = model["graph_module"]["graph"]["tensor_values"]
                one = next(iter(values.values()))
                values.update({f"more_{i}": one for i in range(60_000)})
        path = self.rewritten("large.pt2", change)
        start = time.monotonic()
        self.output("model", path)
        self.assertLess(time.monotonic() - start, 20)  # a second; minutes, with the square

    # --- what is no model ---

    def refuse(self, path, *parts):
        for command in (["model"], ["split", "--stages", "2"]):
            done = self.command(command[0], path, *command[1:])
            self.assert_error(done, UNUSABLE, f"{path}: ", *parts)
            self.assertLess(len(done.stderr), 4000)

    def refuse_changed(self, change, *parts, **options):
        self.refuse(self.rewritten("changed.pt2", change, **options), *parts)

    def test_no_such_file(self):
        self.refuse("missing.pt2", "No such file", "check the path")
        self.refuse(self.folder, "ordinary file")
        self.refuse("/dev/null", "ordinary file")
        os.mkfifo(self.folder / "fifo")
        self.refuse(self.folder / "fifo", "ordinary file")
        self.assert_error(self.command("model", ""), UNUSABLE, "'': ", "No such file")

    def test_not_an_archive(self):
        self.refuse(self.file("text.pt2", "hello" * 100), "not a zip archive", "something else")
        self.refuse(self.file("empty.pt2", ""), "not a zip archive", "0 bytes")

    def test_truncated(self):
        whole = self.tied().read_bytes()
        for part in range(0, 100, 7):
            self.refuse(self.file("short.pt2", whole[:len(whole) * part // 100]), "not a zip archive")
        for missing in (1, 2, 21, 22, 23, 40):
            self.refuse(self.file("short.pt2", whole[:-missing]), "not a zip archive")

    def test_another_archive(self):
        path = self.folder / "other.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a/readme", "hello")
        self.refuse(path, "no archive_format", "torch.export.save")
        torch.save({"a": torch.ones(2)}, self.folder / "state.pt")
        self.refuse(self.folder / "state.pt", "no exported program", "torch.export.save")

    def test_compressed(self):
        self.refuse_changed(lambda records: None, "is compressed", "without compression", compression=zipfile.ZIP_DEFLATED)

    def test_versions(self):
        def version(key, value):
            def change(records):
                with self.json_of(records, MODEL) as model:
                    if key == "torch_version":
                        model[key] = value
                    else:
                        model["schema_version"]["major"] = value
            return change
        self.refuse_changed(version("schema", 9), "schema version 9", "only 8 is known", "newer Stagecraft")
        self.refuse_changed(version("schema", 7), "older than 2.9", "export again")
        self.refuse_changed(version("torch_version", "2.8.0"), "torch 2.8.0", "export again")
        path = self.folder / "old.pt2"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("serialized_exported_program.json", "{}")
        self.refuse(path, "older than 2.9", "export again")

    def test_broken_text(self):
        def cut_off(records):
            records[MODEL] = records[MODEL][:1000]
        self.refuse_changed(cut_off, "model.json': line 1: this is not JSON")

        def not_graph(records):
            records[MODEL] = b"[1, 2]"
        self.refuse_changed(not_graph, "model.json must be an object")

        def no_model(records):
            del records[MODEL]
        self.refuse_changed(no_model, "it holds no model")

        def deep(records):
            records[MODEL] = b"[" * 1_000_000
        self.refuse_changed(deep, "model.json': line 1: ", "nested more than 256 deep", "save the model again")

        def deep_and_closed(records):
            records[MODEL] = b"[" * 1_000_000 + b"]" * 1_000_000
        self.refuse_changed(deep_and_closed, "nested more than 256 deep")

        def deep_weights(records):
            records[WEIGHTS] = b'{"a":' * 1_000_000 + b"1" + b"}" * 1_000_000
        self.refuse_changed(deep_weights, WEIGHTS.rsplit("/", 1)[1], "nested more than 256 deep")

        def endless_number(records):
            records[MODEL] = b'{"schema_version": 1e999}'
        self.refuse_changed(endless_number, "number overflow parsing '1e999'")

    def test_graph_that_does_not_fit(self):
        def unknown_value(records):
            with self.json_of(records, MODEL) as model:
                for node in model["graph_module"]["graph"]["nodes"]:
                    for given in node["inputs"]:
                        if "as_tensor" in given["arg"] and node["target"].endswith("relu.default"):
                            given["arg"]["as_tensor"]["name"] = "nobody"
        self.refuse_changed(unknown_value, "uses the value 'nobody', which nothing before it makes", "'relu'", "'relu_3'")

        def argument_kind(records):
            with self.json_of(records, MODEL) as model:
                model["graph_module"]["graph"]["nodes"][0]["inputs"][0]["arg"] = {"as_custom_obj": {"name": "x"}}
        self.refuse_changed(argument_kind, "kind as_custom_obj, which is not supported")

        def input_kind(records):
            with self.json_of(records, MODEL) as model:
                specs = model["graph_module"]["signature"]["input_specs"]
                specs[0] = {"token": {"arg": {"name": "x"}}}
        self.refuse_changed(input_kind, "input of the kind token is not supported")

        def forgotten_input(records):
            with self.json_of(records, MODEL) as model:
                model["graph_module"]["signature"]["input_specs"].pop(0)
        self.refuse_changed(forgotten_input, "does not say what the graph's input")

        def huge(records):
            with self.json_of(records, MODEL) as model:
                values = model["graph_module"]["graph"]["tensor_values"]
                for value in values.values():
                    value["sizes"] = [{"as_int": 2**62}, {"as_int": 2**62}]
        self.refuse_changed(huge, "too large")

    def test_missing_weights_are_all_named(self):
        def change(records):
            with self.json_of(records, WEIGHTS) as weights:
                paths = [weights["config"][f"blocks.{i}.up.weight"]["path_name"] for i in (0, 2)]
                del weights["config"]["blocks.3.down.bias"]
            for path in paths:
                del records["data/weights/" + path]
        self.refuse_changed(change, "'blocks.0.up.weight' is missing", "'blocks.2.up.weight' is missing",
                            "'blocks.3.down.bias' is missing", "save the model again")

    def test_weights_beyond_their_record(self):
        def change(records):
            with self.json_of(records, WEIGHTS) as weights:
                weights["config"]["blocks.1.up.weight"]["tensor_meta"]["sizes"][0]["as_int"] = 1000
                weights["config"]["blocks.1.up.bias"]["tensor_meta"]["storage_offset"]["as_int"] = 2**60
                weights["config"]["blocks.2.up.bias"]["tensor_meta"]["strides"][0]["as_int"] = 2**62
                weights["config"]["blocks.3.up.bias"]["tensor_meta"]["sizes"][0]["as_int"] = -1
        self.refuse_changed(change, "'blocks.1.up.weight' needs 8000 elements of float32", "has only 1024 bytes",
                            "'blocks.1.up.bias' needs", "'blocks.2.up.bias' needs more than 2^63",
                            "'blocks.3.up.bias' has a negative size")

    def test_weights_of_another_type(self):
        def change(records):
            with self.json_of(records, WEIGHTS) as weights:
                weights["config"]["blocks.1.up.bias"]["tensor_meta"]["dtype"] = 6
        self.refuse_changed(change, "'blocks.1.up.bias' is float16 [32], but the graph wants float32 [32]")

    def test_pickled_weights(self):
        def change(records):
            with self.json_of(records, WEIGHTS) as weights:
                weights["config"]["blocks.1.up.weight"]["use_pickle"] = True
                weights["config"]["steps"]["use_pickle"] = True
        self.refuse_changed(change, "'blocks.1.up.weight' is pickled", "'steps' is pickled")

    def branches(self):
        return self.saved("branches.pt2", lambda: exported.export(exported.Branches(), (torch.randn(3, 4),)))

    def test_higher_order_operators_are_all_named(self):
        def change(records):
            records[MODEL] = records[MODEL].replace(b"higher_order.cond", b"higher_order.strict_mode")
        path = self.rewritten("strict.pt2", change, source=self.branches())
        done = self.command("model", path)
        self.assert_error(done, UNUSABLE, "node 'cond'", "'cond_1'", "operator 'strict_mode' is not supported", "write the model without it")
        self.assertEqual(done.stderr.count("'strict_mode'"), 2)

    def test_control_flow(self):
        """One node each, with the work of the dearer branch; a branch that is wrong is named."""
        report = json.loads(self.output("model", self.branches(), "--format", "json"))
        work = {one["name"]: one["work"] for one in report["operators"]}
        self.assertEqual(work["higher_order::cond"], 2 * 3 * 4 * 4 + 10 * 3 * 4)  # a product, and a sine
        self.assertEqual(report["missing_operators"], [])

    def test_faults_in_control_flow(self):
        def graphs(records):
            with self.json_of(records, MODEL) as model:
                nodes = model["graph_module"]["graph"]["nodes"]
                yield next(node for node in nodes if node["name"] == "cond")

        def unknown_value(records):
            for node in graphs(records):
                node["inputs"][1]["arg"]["as_graph"]["graph"]["nodes"][0]["inputs"][0]["arg"]["as_tensor"]["name"] = "other"
        self.refuse_changed(unknown_value, "node 'linear' (aten::linear", "'other', which nothing before it makes", source=self.branches())

        def operands(records):
            for node in graphs(records):
                node["inputs"][3]["arg"]["as_tensors"].pop()
        self.refuse_changed(operands, "node 'cond'", "a graph with 5 inputs, but 4 operands", source=self.branches())

        def outputs(records):
            for node in graphs(records):
                node["inputs"][1]["arg"]["as_graph"]["graph"]["outputs"] *= 2
        self.refuse_changed(outputs, "has a body with 2 outputs, but 1 results", source=self.branches())

        def inputs(records):
            for node in graphs(records):
                node["inputs"].append({"name": "more", "arg": {"as_bool": True}, "kind": 2})
        self.refuse_changed(inputs, "node 'cond'", "has more entries than higher_order::cond takes", source=self.branches())

        def marked(records):
            for node in graphs(records):
                inner = node["inputs"][1]["arg"]["as_graph"]["graph"]["nodes"]
                inner.append({"target": "torch.ops.pippy._pipe_split.default", "name": "mark", "inputs": [], "outputs": [], "metadata": {}})
        self.refuse_changed(marked, "node 'mark': pipe_split() is called inside control flow", source=self.branches())


if __name__ == "__main__":
    unittest.main()

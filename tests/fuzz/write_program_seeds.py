"""Writes corpus_program: tiny exported models, as whole archives and as the JSON of their graphs.

    .venv/bin/python tests/fuzz/write_program_seeds.py tests/fuzz/corpus_program

Weights have the names and sizes that fuzz_program.cpp knows. What the reader skips is left out, so that a change hits
something.
"""

import io
import json
import pathlib
import sys
import zipfile

import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.register_buffer("count", torch.zeros(2))


class Plain(Base):
    def forward(self, x):
        return self.b(torch.relu(self.a(x)) + self.count)


class Sizes(Base):
    """Sizes that are computed with, constants made of them."""

    def forward(self, x):
        n = x.shape[0]
        y = self.a(x) * torch.arange(n * 2, dtype=x.dtype)[:n].unsqueeze(1)
        return {"out": (self.b(y), y.sum(0) * n), "count": self.count + 1}


class Changes(Base):
    """Memory that is changed through views, a buffer too, and a region without gradients."""

    def forward(self, x, *, flag):
        y = self.a(x)
        with torch.no_grad():
            scale = y.abs().sum()
        z = y * 2
        z[:, :1].mul_(3)
        self.count.add_(1)
        left, right = self.b(z / scale).chunk(2, dim=1)
        return left + right + self.count.sum()


class Bodies(Base):
    """Control flow, nested, over weights and a buffer."""

    def forward(self, x):
        def step(state, row):
            state = torch.cond(self.count.sum() > 0, lambda s: self.a(s), lambda s: s * 2, (state + row,))
            return state, state.sin()

        def body(i, y):
            return i + 1, self.b(y)

        last, rows = scan(step, x[0], x)
        return while_loop(lambda i, y: i < 2, body, (torch.zeros((), dtype=torch.long), rows))[1] + last


def plain(value):
    """Without traces and what else nobody reads."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()
                if key not in ("stack_trace", "torch_fn", "source_fn_stack", "requires_grad_info", "guards_code",
                               "from_node", "opset_version", "verifiers", "is_hop_single_tensor_return")}
    return [plain(item) for item in value] if isinstance(value, list) else value


def stripped(data):
    text = plain(json.loads(data))
    calls = text["graph_module"]["module_call_graph"]
    text["graph_module"]["module_call_graph"] = [call for call in calls if call["fqn"] == ""]
    return json.dumps(text, separators=(",", ":")).encode()


def main(folder):
    folder.mkdir(exist_ok=True)
    batch = torch.export.Dim("batch", min=2, max=8)
    cases = {"plain": (Plain(), {}, None), "sizes": (Sizes(), {}, {"x": {0: batch}}), "changes": (Changes(), {"flag": True}, None),
             "bodies": (Bodies(), {}, None)}
    for name, (model, keywords, shapes) in cases.items():
        program = torch.export.export(model, (torch.randn(3, 2),), keywords, dynamic_shapes=shapes, strict=False)
        whole = io.BytesIO()
        torch.export.save(program, whole)
        small = io.BytesIO()
        with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(small, "w") as out:
            for entry in archive.namelist():
                record = entry.split("/", 1)[1]
                if record.startswith(("archive_format", "byteorder", "models/", "data/weights/", "data/constants/")):
                    data = archive.read(entry)
                    data = stripped(data) if record.startswith("models/") else data
                    data = json.dumps(json.loads(data), separators=(",", ":")).encode() if record.endswith("config.json") else data
                    out.writestr("m/" + record, data)
                if record.startswith("models/"):
                    (folder / f"{name}.graph").write_bytes(b"\1" + stripped(archive.read(entry)))
        (folder / f"{name}.archive").write_bytes(b"\0" + small.getvalue())


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))

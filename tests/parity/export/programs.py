"""Exported programs as Python runs them: what the runner compares with."""

import jobs
import torch
from jobs import cast

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
PIPELINES = [[stages, schedule, stages // 2 if schedule == "ZBVZeroBubble" else stages]
             for stages in (2, 4) for schedule in ("1F1B", "ZB-H1", "ZBVZeroBubble")]  # fmt: skip


def batch_dimension(tree, dimension=0):
    batch = torch.export.Dim("batch", min=1, max=8192)
    return torch.utils._pytree.tree_map(lambda leaf: {dimension: batch} if isinstance(leaf, torch.Tensor) else None, tree)


def export(model, arguments, keywords, path, *, shapes=None, decompose=lambda program: program):
    """Saves the program. `shapes`: dynamic dimensions by input; by default the first of each is the batch."""
    names = list(model.forward.__code__.co_varnames[1:1 + len(arguments)])
    shapes = shapes or {name: batch_dimension(leaf) for name, leaf in {**dict(zip(names, arguments)), **keywords}.items()}
    program = torch.export.export(model, tuple(arguments), keywords, dynamic_shapes=shapes, strict=False)
    torch.export.save(decompose(program), path)


def python_side(path, arguments, keywords):
    """Outputs, gradients and buffers after one step of the program in the file, on the whole batch."""
    module = torch.export.load(path).module()
    result = module(*arguments, **keywords)
    outputs = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    losses = [leaf.sin().sum() for leaf in outputs if leaf.is_floating_point() and leaf.requires_grad]
    sum(losses).backward()
    return {"arguments": list(arguments), "keywords": dict(keywords), "outputs": [leaf.detach() for leaf in outputs],
            "gradients": {n: p.grad for n, p in module.named_parameters() if p.grad is not None},
            "buffers": dict(module.named_buffers())}  # fmt: skip


class ProgramsCase(jobs.JobsCase):
    def job(self, name, model, arguments, keywords=None, *, dtype, microbatches=(1, 2), pipelines=PIPELINES, cuts=6, stride=8,
            **how):  # fmt: skip
        model = model.to(dtype).train()
        arguments, keywords = cast(list(arguments), dtype), cast(keywords or {}, dtype)
        path = self.path(f"{name}_{str(dtype)[-2:]}")
        export(model, arguments, keywords, path + ".pt2", **how)
        torch.save(python_side(path + ".pt2", arguments, keywords), path + ".data")
        return {"name": path.split("/")[-1], "model": path + ".pt2", "data": path + ".data", "tolerance": TOLERANCE[dtype],
                "microbatches": list(microbatches), "pipelines": pipelines, "cuts": cuts, "stride": stride}  # fmt: skip

    def compare(self, all_jobs):
        return self.run_jobs(all_jobs, lambda done: f"{done['runs']} runs, {done['legal']} places of {done['nodes']} nodes, "
                                                    f"worst {done['worst']:.1e}")

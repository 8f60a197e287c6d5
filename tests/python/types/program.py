"""What a user writes, with types: checked, never run. The check is strict, so anything without a type that it touches is an error."""

from __future__ import annotations

import stagecraft as sc
import stagecraft.torch as st
import torch


def searched(costs: sc.Costs, limit: float | str | None) -> tuple[sc.Plan, float]:
    plan = sc.plan(costs, ranks=4, microbatches=8, memory_limit=limit, exact=True, progress=lambda progress: print(progress.span))
    simulation: sc.Simulation = sc.simulate(plan.schedule, costs)
    rows: list[list[sc.Action | None]] = plan.schedule.lower().rows
    assert rows and plan.schedule.verify().ok("in_order")
    return plan, simulation.span


def trained(world: st.World, model: torch.nn.Sequential, plan: sc.Plan) -> list[float]:
    pipeline = st.Pipeline(model, world=world, schedule=plan.schedule, microbatches=8, loss=torch.nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(pipeline.parameters())
    losses: list[float] = []
    try:
        result: st.StepResult = pipeline.step(torch.ones(8, 4), target=torch.ones(8, 4))
        losses += [result.loss] if result.has_loss else []
    except st.StepError as error:
        print(error.rank, error.action)
    except st.AbortedError as error:
        print(error.peer)
    optimizer.step()
    return losses


def by_hand(world: st.World) -> st.Pipeline:
    stage = st.Stage(torch.nn.Linear(4, 4), world.rank, prefix="layer")
    return st.Pipeline([stage], world=world, recompute=st.Recompute.stage())


try:
    found, span = searched(sc.Costs(forward=1, backward_input=1, backward_weight=1), "80GiB")
except sc.InfeasibleLimit as refused:
    print(refused.smallest)

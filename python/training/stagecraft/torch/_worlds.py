"""Worlds: the ranks that run a pipeline together."""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from typing import Any, Callable, Sequence

import torch

from stagecraft.torch import _runtime
from stagecraft.torch._errors import InvalidArgument

# The other ranks learn that this one has ended, and is not lost, while its process can still tell them.
atexit.register(_runtime.close_all_worlds)

_here = threading.local()  # the world of the rank that this thread runs


class World:
    """One rank's view of its pipeline, and of the other replicas of that pipeline.

    `World(group)` is a world of the ranks of a torch.distributed process group (None: the default group), `World(mesh)` or
    `World(mesh["pp"])` of a dimension of a device mesh; all ranks of the group make it. Its messages do not disturb the group's own
    send, recv and collectives. `run_ranks` makes worlds of threads. Rank p of replica r is rank p * replicas + r of the group.

    `device`: where this rank computes; by default the current GPU if the group is one of NCCL alone, otherwise the CPU.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        replicas: int = 1,
        timeout: float = 300.0,
        device: torch.device | str | None = None,
        _box: Any = None,
    ):
        if _box is None:
            group = _process_group(group)
            device = _with_index(device or _device_of(group))
            if device.type == "cuda" and group.size() > 1:
                _warn_of_few_queues()
                _warn_of_late_kernels()
            _box = _runtime.process_group_world(group, replicas, timeout, device)
        self._box = _box

    @staticmethod
    def alone(device: torch.device | str = "cpu", timeout: float = 300.0) -> "World":
        """A world of one rank, in the calling thread."""
        return World(_box=_runtime.local_world(_with_index(device), timeout))

    @property
    def rank(self) -> int:
        """This rank in the pipeline."""
        return self._box.rank

    @property
    def size(self) -> int:
        """Ranks of the pipeline."""
        return self._box.size

    @property
    def replica(self) -> int:
        return self._box.replica

    @property
    def replicas(self) -> int:
        return self._box.replicas

    @property
    def world_rank(self) -> int:
        """This rank among the ranks of all replicas."""
        return self._box.world_rank

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank + 1 == self.size

    @property
    def timeout(self) -> float:
        """The longest that a rank waits for another, in seconds."""
        return self._box.timeout

    @property
    def device(self) -> torch.device:
        return self._box.device

    def maximum(self, number: int) -> int:
        """The largest number that a rank of the world gives; all of them call it."""
        return self._box.maximum(number)

    def barrier(self) -> None:
        """Returns when all ranks have called it; raises if one of them fails or is lost."""
        self._box.barrier()

    def share_of(self, batch: torch.Tensor) -> torch.Tensor:
        """This replica's rows of a batch."""
        return self._box.share_of(batch)

    def close(self) -> None:
        """Ends the pipelines of this world, and tells the other ranks. Also done when the object goes, and at exit."""
        self._box.close()

    def __enter__(self) -> "World":
        return self

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        """Ends the world as `close` does. The other ranks learn of an error that has ended the block."""
        self._box.close(self._failure(error))

    def _failure(self, error: BaseException | None) -> str | None:
        if error is None or not self._box.is_open or (isinstance(error, SystemExit) and not error.code):
            return None
        try:
            words = str(error)
        except Exception:  # the world has to end all the same
            words = ""
        return f"rank {self.world_rank} has ended its program with {type(error).__name__}" + (f": {words}" if words else "")

    def __repr__(self) -> str:
        if not self._box.is_open:
            return "<World, ended>"
        replicas = f", replica {self.replica} of {self.replicas}" if self.replicas > 1 else ""
        return f"<World, rank {self.rank} of {self.size}{replicas}>"


def current_world() -> World | None:
    """The world of the rank that this thread runs in `run_ranks`; None outside."""
    return getattr(_here, "world", None)


def run_ranks(
    program: Callable[[World], Any],
    ranks: int = 2,
    *,
    replicas: int = 1,
    threads_per_rank: int = 0,
    timeout: float = 300.0,
    device: Any = None,
) -> list:
    """Runs `program(world)` once per rank of every replica, each in a thread, and returns their results by rank.

    The first failure of a rank ends the waits of the others, and is raised when all have ended. `device`: one for all ranks, or one for each.
    `threads_per_rank`: threads inside one operation; 0: the cores divided by the ranks.
    """

    def run(box: Any) -> Any:
        _here.world = World(_box=box)
        try:
            return program(_here.world)
        finally:
            del _here.world

    if device is None:
        devices = []
    elif isinstance(device, Sequence) and not isinstance(device, str):
        devices = [_with_index(one) for one in device]
    else:
        devices = [_with_index(device)]
    return _runtime.run_ranks(run, ranks, replicas, threads_per_rank, timeout, devices)


_shared: dict[tuple[int, torch.device], tuple[Any, World]] = {}  # (id of a process group, device) -> (group, its world)


def shared_world(group: Any = None, device: torch.device | str = "cpu", *, timeout: float = 300.0) -> World:
    """The one world of a process group and a kind of device, which front ends share.

    Made at the first call: then all ranks of the group must call it.
    """
    known = known_world(group, device)
    if known is None:
        group = _process_group(group)
        known = World(group, timeout=timeout, device=device)
        _shared[id(group), _with_index(device)] = (group, known)
    return known


def known_world(group: Any = None, device: torch.device | str = "cpu") -> World | None:
    """The shared world of a process group if it has been made and is open. Worlds of groups that were destroyed are closed."""
    import torch.distributed as dist

    group = _process_group(group)
    for key, (other, world) in list(_shared.items()):
        try:
            dist.get_backend(other)
        except (ValueError, RuntimeError):  # destroyed
            del _shared[key]
            world.close()
    _, known = _shared.get((id(group), _with_index(device)), (None, None))
    return known if known is not None and known._box.is_open else None


def as_world(given: Any, device: torch.device | str | None = None) -> World:
    """A World as it is; the shared world of a process group or a mesh dimension; for None that of the current rank, or a single rank.

    `device`: where the stages are; None if they do not say.
    """
    if isinstance(given, World):
        return given
    if given is None:
        return current_world() or World.alone(device or "cpu")
    return shared_world(given, device or _device_of(_process_group(given)))


def _with_index(device: torch.device | str) -> torch.device:
    """The current one of its kind, unless it says which."""
    device = torch.device(device)
    return torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" and device.index is None else device


def _warn_of_few_queues() -> None:
    asked = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")
    if asked is not None and asked.isdigit() and int(asked) >= 16:
        return
    why = "CUDA began before stagecraft.torch was imported" if asked is None else f"CUDA_DEVICE_MAX_CONNECTIONS is {asked}"
    warnings.warn(
        f"{why}: streams that wait for other ranks may hold up others, until the timeout: import stagecraft.torch before CUDA is used, "
        "or set CUDA_DEVICE_MAX_CONNECTIONS to 32",
        stacklevel=3,
    )


def _warn_of_late_kernels() -> None:
    asked = os.environ.get("CUDA_MODULE_LOADING")
    if asked == "EAGER":
        return
    warnings.warn(
        "CUDA loads kernels when they are used for the first time, and may then wait for other ranks, until the timeout: set CUDA_MODULE_LOADING to EAGER "
        "before CUDA is used" + (f", not {asked}" if asked else ", as importing stagecraft.torch does where variables such as WORLD_SIZE say that there are several ranks"),
        stacklevel=3,
    )


def _device_of(group: Any) -> torch.device:
    """Where the ranks of a process group compute, as far as the group tells."""
    import torch.distributed as dist

    return torch.device("cuda" if dist.get_backend_config(group) == "cuda:nccl" else "cpu")


def _process_group(group: Any) -> Any:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise InvalidArgument("there is no process group: call torch.distributed.init_process_group, or use run_ranks")
    if group is None:
        return dist.group.WORLD
    if hasattr(group, "get_group") and hasattr(group, "mesh"):
        if group.ndim != 1:
            names = ", ".join(repr(name) for name in group.mesh_dim_names or ()) or "without names"
            raise InvalidArgument(f"a world is one dimension of a device mesh, this one has {group.ndim} ({names}): choose one, as in mesh['pp']")
        return group.get_group()
    return group

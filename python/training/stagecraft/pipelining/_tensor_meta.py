"""What one stage tells its neighbour about the tensors it will send: shape, stride, dtype, and for a DTensor its distribution."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement

MeshCacheKey: TypeAlias = tuple[tuple[str, ...], Any]


class PipeliningMetadataError(RuntimeError):
    """A tensor, or what a stage was told about it, is not what its neighbour expects."""


def _differences(ours: Any, theirs: Any, names: tuple[str, ...]) -> list[str]:
    return [
        f"{name} mismatch: {getattr(ours, name)} vs {getattr(theirs, name)}"
        for name in names
        if getattr(ours, name) != getattr(theirs, name)
    ]


@dataclass(frozen=True, slots=True)
class _TensorMeta:
    """Describes a plain tensor, or the local part of a DTensor."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @staticmethod
    def from_tensor(tensor: torch.Tensor) -> _TensorMeta:
        if isinstance(tensor, DTensor):
            raise PipeliningMetadataError("Expected plain tensor, got DTensor. Use _DTensorMeta.from_dtensor instead.")
        return _TensorMeta(tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad)

    def to_tensor(self, device: torch.device | str) -> torch.Tensor:
        """An uninitialised tensor of this description."""
        tensor = _make_tensor_from_meta(self, device)
        return tensor.requires_grad_(self.requires_grad) if tensor.is_floating_point() else tensor

    def get_diff(self, other: _TensorMeta) -> list[str]:
        """One line per field that differs. requires_grad depends on the mode of the step, so it is not compared."""
        return _differences(self, other, ("shape", "stride", "dtype"))


@dataclass(frozen=True, slots=True)
class _DTensorMeta(_TensorMeta):
    """Describes a DTensor. The inherited fields are those of the local part.

    A mesh cannot travel in a message, so its names and layout stand for it; the receiver looks them up in its _MeshCache.
    """

    global_shape: torch.Size = field(default_factory=lambda: torch.Size([]))
    global_stride: tuple[int, ...] = ()
    placements: tuple[Placement, ...] = ()
    mesh_dim_names: tuple[str, ...] = ()
    mesh_layout: Any = None

    @staticmethod
    def from_dtensor(dtensor: DTensor) -> _DTensorMeta:
        local = dtensor._local_tensor
        names, layout = _mesh_key(dtensor.device_mesh)
        return _DTensorMeta(
            local.shape,
            local.stride(),
            dtensor.dtype,
            dtensor.requires_grad,
            dtensor.shape,
            dtensor.stride(),
            tuple(dtensor.placements),
            names,
            layout,
        )

    @property
    def mesh_cache_key(self) -> MeshCacheKey:
        return (self.mesh_dim_names, self.mesh_layout)

    def wrap(self, local: torch.Tensor, mesh: DeviceMesh) -> DTensor:
        """A DTensor of this description around a local tensor; records nothing for autograd if local needs no gradient."""
        return DTensor.from_local(
            local, mesh, self.placements, run_check=False, shape=self.global_shape, stride=self.global_stride
        )

    def to_dtensor(self, device: torch.device | str, mesh: DeviceMesh) -> DTensor:
        dtensor = self.wrap(_make_tensor_from_meta(self, device), mesh)
        # Set afterwards, so that the DTensor is a leaf.
        return dtensor.requires_grad_(True) if self.requires_grad and dtensor.is_floating_point() else dtensor

    def get_diff(self, other: _TensorMeta) -> list[str]:
        local = _differences(self, other, ("shape", "stride", "dtype"))
        if not isinstance(other, _DTensorMeta):
            return [*local, "type: _DTensorMeta vs _TensorMeta"]
        return local + _differences(
            self, other, ("global_shape", "global_stride", "placements", "mesh_dim_names", "mesh_layout")
        )


TensorMeta: TypeAlias = _TensorMeta | _DTensorMeta


@dataclass(slots=True)
class _StageMeta:
    """The values that enter and leave a stage in one microbatch; None where not known yet."""

    inputs: tuple[TensorMeta, ...] | None = None
    outputs: tuple[TensorMeta, ...] | None = None
    input_grads: tuple[TensorMeta | None, ...] | None = None
    output_grads: tuple[TensorMeta | None, ...] | None = None

    def has_any(self) -> bool:
        return any(part is not None for part in (self.inputs, self.outputs, self.input_grads, self.output_grads))

    def has_dtensors(self) -> bool:
        return any(isinstance(meta, _DTensorMeta) for part in (self.inputs, self.outputs) for meta in part or ())

    def is_complete_for_forward(self) -> bool:
        return self.inputs is not None and self.outputs is not None


@dataclass(frozen=True, slots=True)
class _StageForwardMeta:
    """What a stage tells the next one: its outputs, once per distinct size of microbatch.

    variant_of names, for every microbatch, its entry of variants. Empty when all microbatches are alike.
    """

    forward_metas: tuple[TensorMeta, ...]
    variants: tuple[tuple[TensorMeta, ...], ...] = ()
    variant_of: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _StageBackwardMeta:
    """What a stage tells the previous one: the gradients it will send back, once per distinct size of microbatch."""

    backward_metas: tuple[TensorMeta | None, ...]
    variants: tuple[tuple[TensorMeta | None, ...], ...] = ()


class InferenceMode(Enum):
    """How the stages of a pipeline learn what they will receive. All ranks have to agree, or some would wait for ever."""

    STATIC = "static"
    DYNAMIC = "dynamic"

    @classmethod
    def needs_dynamic(cls, meta: _StageMeta, stage_has_backward: bool) -> bool:
        """Whether what the user gave is too little. A DTensor's gradient can be placed differently from the DTensor."""
        if not meta.is_complete_for_forward():
            return True
        needs_gradients = stage_has_backward and meta.has_dtensors()
        return needs_gradients and (meta.input_grads is None or meta.output_grads is None)


class GetMeshCallback(Protocol):
    """Finds the mesh of given dimension names and layout."""

    def __call__(self, mesh_dim_names: tuple[str, ...], mesh_layout: Any) -> DeviceMesh: ...


def _mesh_key(mesh: DeviceMesh) -> MeshCacheKey:
    return (tuple(mesh.mesh_dim_names or ()), mesh._layout)


class _MeshCache:
    """Meshes by names and layout: those seen on the user's tensors, then those that the callback finds."""

    def __init__(self, get_mesh_cb: GetMeshCallback | None = None) -> None:
        self._meshes: dict[MeshCacheKey, DeviceMesh] = {}
        self._get_mesh_cb = get_mesh_cb

    def get_mesh(self, key: MeshCacheKey) -> DeviceMesh:
        if key not in self._meshes:
            names, layout = key
            wanted = f"mesh_dim_names={names}, mesh_layout={layout}"
            if self._get_mesh_cb is None:
                raise PipeliningMetadataError(
                    f"Mesh not found in cache for {wanted}, and no get_mesh callback provided. "
                    "Give PipelineStage a get_mesh callback, or example DTensors for all its inputs and outputs."
                )
            mesh = self._get_mesh_cb(names, layout)
            if mesh is None:
                raise PipeliningMetadataError(
                    f"Mesh lookup failed: callback returned None for {wanted}. All stages must use meshes over the same ranks."
                )
            self._meshes[key] = mesh
        return self._meshes[key]

    def put(self, key: MeshCacheKey, mesh: DeviceMesh) -> None:
        self._meshes[key] = mesh

    def update_from_tensors(self, tensors: tuple[torch.Tensor | None, ...]) -> None:
        for tensor in tensors:
            if isinstance(tensor, DTensor):
                self._meshes.setdefault(_mesh_key(tensor.device_mesh), tensor.device_mesh)

    def __contains__(self, key: MeshCacheKey) -> bool:
        return key in self._meshes

    def __len__(self) -> int:
        return len(self._meshes)


def _make_tensor_from_meta(meta: _TensorMeta, device: torch.device | str) -> torch.Tensor:
    """An uninitialised plain tensor; for a DTensor's meta, its local part."""
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=device)


def _derive_grad_metas(tensor_metas: tuple[TensorMeta, ...]) -> tuple[TensorMeta | None, ...]:
    """Gradients of plain tensors look like the tensors. None where no gradient comes, or where only running tells (DTensor)."""
    return tuple(
        _TensorMeta(meta.shape, meta.stride, meta.dtype, False)
        if meta.requires_grad and not isinstance(meta, _DTensorMeta)
        else None
        for meta in tensor_metas
    )


def extract_tensor_meta(tensor: torch.Tensor) -> TensorMeta:
    return _DTensorMeta.from_dtensor(tensor) if isinstance(tensor, DTensor) else _TensorMeta.from_tensor(tensor)


def extract_tensor_metas(
    tensors: tuple[torch.Tensor | None, ...] | None, *, allow_none: bool = False
) -> tuple[TensorMeta | None, ...] | None:
    """One description per tensor. Anything but a tensor is described by None, which must be allowed."""
    if tensors is None:
        return None
    metas = tuple(extract_tensor_meta(value) if isinstance(value, torch.Tensor) else None for value in tensors)
    if None in metas and not allow_none:
        raise PipeliningMetadataError(
            "None values are not allowed in tensor metadata tuples. Use allow_none=True for optional values."
        )
    return metas


def to_local_if_dtensor(tensor: torch.Tensor, detach: bool = False) -> torch.Tensor:
    """The local part of a DTensor; any other tensor itself. Detached first if asked, so that no redistribution is recorded."""
    if detach:
        tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor

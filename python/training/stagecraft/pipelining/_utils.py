"""The names of torch.distributed.pipelining._utils, from the files that hold one idea each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from ._metadata_checks import (
    validate_and_normalize_to_tuple,
    validate_metadata,
    validate_static_arg_grad_correspondence,
    validate_tensors_metadata,
)
from ._placement import generate_rank_to_stage_mapping, generate_stage_to_rank_mapping
from ._tensor_meta import (
    GetMeshCallback,
    InferenceMode,
    MeshCacheKey,
    PipeliningMetadataError,
    TensorMeta,
    _derive_grad_metas,
    _DTensorMeta,
    _make_tensor_from_meta,
    _MeshCache,
    _StageBackwardMeta,
    _StageForwardMeta,
    _StageMeta,
    _TensorMeta,
    extract_tensor_meta,
    extract_tensor_metas,
    to_local_if_dtensor,
)

__all__ = [
    "GetMeshCallback",
    "InferenceMode",
    "MeshCacheKey",
    "PipeInfo",
    "PipeliningMetadataError",
    "TensorMeta",
    "_DTensorMeta",
    "_MeshCache",
    "_StageBackwardMeta",
    "_StageForwardMeta",
    "_StageMeta",
    "_TensorMeta",
    "_derive_grad_metas",
    "_make_tensor_from_meta",
    "extract_tensor_meta",
    "extract_tensor_metas",
    "flatten_args",
    "flatten_args_detach",
    "generate_rank_to_stage_mapping",
    "generate_stage_to_rank_mapping",
    "to_local_if_dtensor",
    "validate_and_normalize_to_tuple",
    "validate_metadata",
    "validate_static_arg_grad_correspondence",
    "validate_tensors_metadata",
]


@dataclass(slots=True)
class PipeInfo:
    """What a stage needs to know of a split model. Holds no module, so that other ranks' stages can be freed."""

    graph: fx.Graph
    num_stages: int
    has_loss_and_backward: bool


def flatten_args(args: Any, *, detach: bool = False) -> Any:
    """All leaves of a structure as a list; with detach, also the structure rebuilt from detached tensors (first)."""
    leaves, spec = tree_flatten(args)
    if not detach:
        return leaves
    fresh = [
        leaf.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
    ]
    return tree_unflatten(fresh, spec), fresh


def flatten_args_detach(args: Any) -> Any:
    return flatten_args(args, detach=True)

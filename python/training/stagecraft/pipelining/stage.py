"""Stages: made by hand (PipelineStage) or from a split model (build_stage). And the names that come with them in the original."""

from ._backward import stage_backward, stage_backward_input, stage_backward_weight
from ._debug import map_debug_info
from ._manual_stage import PipelineStage
from ._recv_info import _RecvInfo
from ._stage_base import _PipelineStageBase
from ._stage_base import as_tuple as _normalize_model_output_as_tuple
from ._traced_stage import _PipelineStage, build_stage
from ._utils import (
    GetMeshCallback,
    InferenceMode,
    PipeInfo,
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
    flatten_args,
    to_local_if_dtensor,
    validate_and_normalize_to_tuple,
    validate_static_arg_grad_correspondence,
    validate_tensors_metadata,
)

__all__ = ["PipelineStage", "build_stage"]

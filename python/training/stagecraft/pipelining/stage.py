"""Stages: made by hand (PipelineStage) or from a split model (build_stage)."""

from ._manual_stage import PipelineStage
from ._recv_info import _RecvInfo
from ._stage_base import _PipelineStageBase
from ._traced_stage import _PipelineStage, build_stage

__all__ = ["PipelineStage", "_PipelineStage", "_PipelineStageBase", "_RecvInfo", "build_stage"]

"""Schedules, their actions and tables, and the passes that lower them."""

import torch.distributed as dist

from ._actions import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
    OVERLAP_F_B,
    RECV_B,
    RECV_F,
    REDUCE_GRAD,
    RESHARD,
    SEND_B,
    SEND_F,
    UNSHARD,
    B,
    F,
    I,
    W,
    _Action,
    _ComputationType,
)
from ._kinds import (
    ScheduleDualPipeV,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
    _check_torch_compile_compatibility,
    get_schedule_class,
)
from ._multi import PipelineScheduleMulti, _CustomFunctionProtocol, _PipelineScheduleRuntime
from ._order_text import _dump_chrometrace, _format_pipeline_order
from ._p2p import _batch_p2p, _sorted_batch_p2p, _wait_batch_p2p
from ._passes import _add_reduce_grad, _add_send_recv, _add_unshard_reshard, _defer_recv_ops, _merge_bw
from ._placement import generate_rank_to_stage_mapping, generate_stage_to_rank_mapping
from ._program import _PipelineContext
from ._schedule_base import _TARGET_CHUNK_SPEC, _PipelineSchedule, logger
from ._simulation import _simulate_comms_compute
from ._single import PipelineScheduleSingle, Schedule1F1B, ScheduleGPipe, _ScheduleForwardOnly
from ._utils import InferenceMode
from ._validation import _validate_schedule
from .microbatch import TensorChunkSpec, _split_tensor, merge_chunks, split_args_kwargs_into_chunks
from .stage import PipelineStage, _PipelineStageBase, _RecvInfo

__all__ = [
    "PipelineScheduleMulti",
    "PipelineScheduleSingle",
    "Schedule1F1B",
    "ScheduleDualPipeV",
    "ScheduleGPipe",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
    "ScheduleLoopedBFS",
    "ScheduleZBVZeroBubble",
    "get_schedule_class",
]

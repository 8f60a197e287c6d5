"""Which rank holds which stage: loops (0 1 2 0 1 2) and Vs (0 1 2 2 1 0)."""


def generate_stage_to_rank_mapping(pp_size: int, num_stages: int, style: str = "loop") -> dict[int, int]:
    if style == "loop":
        return {stage: stage % pp_size for stage in range(num_stages)}
    if style != "v":
        raise ValueError(f"Style {style} is not supported.")
    if num_stages % pp_size != 0:
        raise ValueError(f"num_stages {num_stages} must be evenly divisible by pp_size {pp_size} for V schedules")
    mapping = {}
    for stage in range(num_stages):
        leg, offset = divmod(stage, pp_size)
        mapping[stage] = offset if leg % 2 == 0 else pp_size - 1 - offset
    return mapping


def generate_rank_to_stage_mapping(pp_size: int, num_stages: int, style: str = "loop") -> dict[int, list[int]]:
    """The same map from the ranks' side, each rank's stages ascending."""
    stages_of: dict[int, list[int]] = {}
    for stage, rank in generate_stage_to_rank_mapping(pp_size, num_stages, style).items():
        stages_of.setdefault(rank, []).append(stage)
    return stages_of

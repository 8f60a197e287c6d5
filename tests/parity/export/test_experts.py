"""Published mixtures of experts in their default settings: results are those of the exported program in Python."""

import os
import unittest

import programs
import torch

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
import transformers  # noqa: E402

SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "intermediate_size": 48,
         "vocab_size": 64, "use_cache": False, "num_experts_per_tok": 2}  # fmt: skip
CASES = {
    "mixtral": lambda: transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, num_local_experts=4)),
    "olmoe": lambda: transformers.OlmoeForCausalLM(transformers.OlmoeConfig(**SIZES, num_experts=4)),
    "qwen2_moe": lambda: transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(
        **SIZES, num_experts=4, moe_intermediate_size=24, shared_expert_intermediate_size=24)),
    "gpt_oss": lambda: transformers.GptOssForCausalLM(transformers.GptOssConfig(**SIZES, num_local_experts=4, head_dim=8)),
}  # fmt: skip


class Experts(programs.ProgramsCase):
    def test_training(self):
        all_jobs = []
        for dtype in (torch.float64, torch.float32):
            for name, make in CASES.items():
                torch.manual_seed(9)
                model, keywords = make(), {"input_ids": torch.randint(0, 64, (4, 12))}
                shapes = {"input_ids": programs.batch_dimension(keywords["input_ids"])}
                all_jobs.append(self.job(name, model, [], keywords, dtype=dtype, shapes=shapes, cuts=2, stride=64))
        self.compare(all_jobs)


if __name__ == "__main__":
    unittest.main(verbosity=2)

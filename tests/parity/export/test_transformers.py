"""Published architectures, small and with random weights, trained 20 steps in C++: the losses are Python's."""

import copy
import os
import unittest

import jobs
import torch
from jobs import cast

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
import transformers  # noqa: E402

STEPS, RATE = 20, 1e-3
DEVICE = os.environ.get("STAGECRAFT_TEST_DEVICE", "cpu")  # where the runner computes
SIZES = {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 48}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def tokens():
    return torch.randint(0, 64, (8, 12))


def causal(config, make):
    def batch():
        ids = tokens()
        return {"input_ids": ids}, ids.roll(-1, 1)

    return make(config), batch


def gpt2():
    return causal(transformers.GPT2Config(n_layer=3, n_head=4, n_embd=32, vocab_size=64, n_positions=32, use_cache=False,
                                          resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0), transformers.GPT2LMHeadModel)


def llama():
    return causal(transformers.LlamaConfig(**SIZES, num_key_value_heads=2, vocab_size=64, use_cache=False),
                  transformers.LlamaForCausalLM)


def qwen2():
    return causal(transformers.Qwen2Config(**SIZES, num_key_value_heads=2, vocab_size=64, use_cache=False,
                                           tie_word_embeddings=True), transformers.Qwen2ForCausalLM)


def bert():
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **NO_DROPOUT, vocab_size=64))

    def batch():
        ids = tokens()
        mask = (torch.arange(12) < torch.randint(4, 13, (8, 1))).long()
        return {"input_ids": ids, "attention_mask": mask}, ids

    return model, batch


def t5():
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(
        num_layers=2, num_heads=4, d_model=32, d_kv=8, d_ff=48, vocab_size=64, use_cache=False, dropout_rate=0.0,
        decoder_start_token_id=0))

    def batch():
        ids = tokens()
        return {"input_ids": tokens(), "decoder_input_ids": ids}, ids.roll(-1, 1)

    return model, batch


def vit():
    model = transformers.ViTForImageClassification(transformers.ViTConfig(
        **SIZES, **NO_DROPOUT, image_size=16, patch_size=4, num_labels=10))
    return model, lambda: ({"pixel_values": torch.randn(8, 3, 16, 16)}, torch.randint(0, 10, (8,)))


CASES = {  # the schedule, its ranks and stages
    "gpt2": (gpt2, "1F1B", 2, 2), "llama": (llama, "InterleavedZeroBubble", 2, 4), "qwen2": (qwen2, "ZBVZeroBubble", 2, 4),
    "bert": (bert, "Interleaved1F1B", 2, 4), "t5": (t5, "GPipe", 3, 3), "vit": (vit, "DualPipeV", 1, 2)}  # fmt: skip


class Transformers(jobs.JobsCase):
    def job(self, name, dtype):
        make, schedule, ranks, stages = CASES[name]
        torch.manual_seed(0)
        model, batch = make()
        model = model.to(dtype).train()
        batches = [batch() for _ in range(4)]
        batches = [{"keywords": cast(keywords, dtype), "target": target} for keywords, target in batches]
        rows = torch.export.Dim("rows", min=1, max=64)
        keywords = batches[0]["keywords"]
        program = torch.export.export(model, (), keywords, dynamic_shapes={k: {0: rows} for k in keywords}, strict=False)
        path = self.path(f"{name}_{str(dtype)[-2:]}")
        torch.export.save(program, path + ".pt2")
        torch.save({"batches": batches, "losses": self.losses(copy.deepcopy(model).to(DEVICE), batches)}, path + ".data")
        return {"name": os.path.basename(path), "model": path + ".pt2", "data": path + ".data", "microbatches": [4],
                "tolerance": 1e-9 if dtype == torch.float64 else 2e-4,
                "train": {"steps": STEPS, "rate": RATE, "output": "logits", "stages": stages, "schedule": schedule,
                          "ranks": ranks}}  # fmt: skip

    def losses(self, model, batches):
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
        losses = []
        for step in range(STEPS):
            batch = torch.utils._pytree.tree_map(lambda tensor: tensor.to(DEVICE), batches[step % len(batches)])
            scores = model(**batch["keywords"]).logits
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, -2), batch["target"].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        self.assertLess(losses[-1], losses[0])
        return losses

    def test_twenty_steps(self):
        all_jobs = [self.job(name, torch.float64) for name in CASES]
        all_jobs += [self.job(name, torch.float32) for name in ("gpt2", "llama")]
        self.run_jobs(all_jobs, lambda done: f"loss {done['first']:.4f} to {done['last']:.4f}, worst difference "
                                             f"{done['worst']:.1e}, {done['ties']} tied")


if __name__ == "__main__":
    unittest.main(verbosity=2)

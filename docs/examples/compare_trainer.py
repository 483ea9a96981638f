"""Which activation for a tiny GPT-2, trained by the Trainer of transformers?"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import iglu
from iglu_lab import compare
from iglu_lab.data.embedded import python_reference


def train(activation: str, seed: int, steps: int = 100) -> dict[str, float]:
    """Train on bytes of the Python reference; return the loss on the last of them."""
    text = torch.tensor(list(python_reference().encode()[:200_000]))
    blocks = [{"input_ids": block, "labels": block} for block in text[: len(text) // 64 * 64].view(-1, 64)]
    set_seed(seed)
    config = GPT2Config(
        vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    config.loss_type = "ForCausalLM"
    model = GPT2LMHeadModel(config)
    iglu.swap(model, activation)  # before the optimizer is built
    arguments = TrainingArguments(
        f"trainer/{activation}-{seed}".replace(":", "-"), max_steps=steps, per_device_train_batch_size=16,
        learning_rate=2e-3, seed=seed, save_strategy="no", report_to=[], disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=blocks[:-100], eval_dataset=blocks[-100:])
    trainer.train()
    return {"loss": trainer.evaluate()["eval_loss"]}


if __name__ == "__main__":
    print(compare(train, ["gelu", "relu", "iglu:5"], metric="loss", seeds=3, margin=0.05, jobs=2))

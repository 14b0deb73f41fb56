"""Fine-tune a language model with LoRA, fairly: a transformer of Hugging Face with adapters of `peft`.

Six clients write texts that count up, one counts in twos, one counts down. The transformer is small and its weights are
random; only the adapters are trained and travel. One model for all serves the six; FedTilt gives every client a
personal adapter as well (pip install peft transformers).
"""

import peft
import torch
import transformers
from torch import Tensor

import fedtilt as ft

TOKENS, LENGTH, PADDING = 20, 12, -100  # the vocabulary; of a text; where there is nothing to predict
STEPS = {**{f"up {n}": 1 for n in range(6)}, "twos": 2, "down": -1}  # by client


def texts(step: int, rng: torch.Generator, samples: int = 40) -> tuple[dict[str, Tensor], Tensor]:
    """Texts of one client, which jump now and then, and their next tokens; half of every other text is padding."""
    shape = samples, LENGTH + 1
    jumps = torch.randint(TOKENS, shape, generator=rng) * (torch.rand(shape, generator=rng) < 0.25)
    jumps[:, 0] = torch.randint(TOKENS, (samples,), generator=rng)  # where it begins
    tokens = (step * torch.arange(LENGTH + 1) + jumps.cumsum(1)) % TOKENS
    nexts = tokens[:, 1:].clone()
    nexts[::2, LENGTH // 2 :] = PADDING
    return {"input_ids": tokens[:, :-1]}, nexts


def adapted_transformer() -> torch.nn.Module:
    """A random transformer, frozen, with adapters in all its linear layers."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=TOKENS, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=LENGTH, use_cache=False,
    )  # fmt: skip
    adapters = peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")
    return peft.get_peft_model(transformers.LlamaForCausalLM(config), adapters)


def main() -> None:
    """Train; print the perplexity of every client."""
    rng = torch.Generator().manual_seed(0)
    clients = {name: texts(step, rng) for name, step in STEPS.items()}
    federation = ft.Federation.from_clients(clients, task="language")
    methods = [ft.fedavg(), ft.fedtilt(tau=0, lam=1, mu=0.1)]
    result = ft.run(
        methods, federation, adapted_transformer(), rounds=4, participation=1.0, epochs=2, batch_size=10,
        optimizer="adamw", lr=0.01,
    )  # fmt: skip
    print(result.to_pandas().pivot(index="client_name", columns="method", values="perplexity").round(2))
    for name, found in result.items():
        print(f"{name}: {found.certificate()}")


if __name__ == "__main__":
    main()

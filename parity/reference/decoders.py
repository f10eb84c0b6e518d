"""Writes the reference values of the decoders beside this file, by PyTorch and transformers on a CPU.

Run: python decoders.py. Weights are filled from their names by splitmix64-v1, so the files have none.
"""

import json
import math
import pathlib

import torch
import transformers

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def fnv1a(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 & MASK
    return value


def unit(name, count, seed=0):
    start = (fnv1a(name) + seed * GOLDEN) & MASK
    values = []
    for index in range(count):
        z = (start + (index + 1) * GOLDEN) & MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        values.append(((z ^ z >> 31) >> 40) / (1 << 24))
    return torch.tensor(values, dtype=torch.float64)


def fill(name, shape):
    shape = tuple(shape)
    count = math.prod(shape)
    if len(shape) >= 2:
        fan = shape[-1] if "embedding" in name else count // shape[0]
        values = (2 * unit(name, count) - 1) * math.sqrt(3 / fan)
    else:
        values = (2 * unit(name, count) - 1) * 0.1
        if name.endswith("weight"):
            values = 1 + values
    return values.reshape(shape).float()


SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
CASES = {
    "llama": dict(model_type="llama", rope_theta=10000.0, tie_word_embeddings=False),
    "llama3": dict(
        model_type="llama",
        tie_word_embeddings=False,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
    "llama-linear": dict(
        model_type="llama",
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    ),
    "llama-dynamic": dict(
        model_type="llama",
        tie_word_embeddings=True,
        max_position_embeddings=16,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    ),
    "qwen2": dict(
        model_type="qwen2",
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    ),
    "qwen3-yarn": dict(
        model_type="qwen3",
        tie_word_embeddings=True,
        head_dim=12,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
}
CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}


def summary(tensor):
    flat = tensor.detach().flatten()
    return {
        "shape": list(tensor.shape),
        "head": [float(f"{v:.9g}") for v in flat[:12].tolist()],
        "l2": float(f"{flat.double().norm().item():.9g}"),
    }


def reference(settings):
    config_class, model_class = CLASSES[settings["model_type"]]
    settings = {**SIZES, **settings}
    config = config_class(**{k: v for k, v in settings.items() if k != "model_type"})
    config._attn_implementation = "eager"
    model = model_class(config).float()
    tied = {"lm_head.weight": "model.embed_tokens.weight"} if settings["tie_word_embeddings"] else {}
    names = {name: list(p.shape) for name, p in model.named_parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(fill(name, parameter.shape))
    ids = (unit("ids", 3 * 20) * settings["vocab_size"]).long().reshape(3, 20)
    result = {
        "fill": "splitmix64-v1",
        "seed": 0,
        "model": f"{model_class.__name__} (transformers)",
        "config": settings,
        "inputs": {"values": ids.tolist()},
        "names": names,
        "tied": tied,
        "param_count": sum(p.numel() for p in model.parameters()),
    }
    model.eval()
    logits = model(ids).logits
    result["logits"] = summary(logits)
    prompt = [row[:5].tolist() for row in ids]
    gap = math.inf
    for _ in range(8):
        scores = model(torch.tensor(prompt)).logits[:, -1]
        top = scores.topk(2).values
        gap = min(gap, (top[:, 0] - top[:, 1]).min().item())
        for row, token in zip(prompt, scores.argmax(1).tolist()):
            row.append(token)
    result["greedy"] = {"ids": [row[5:] for row in prompt], "smallest_top2_gap": gap}
    result["optimizer"] = dict(kind="adamw", lr=1e-3, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.01)
    options = result["optimizer"]
    adam = torch.optim.AdamW(
        model.parameters(), options["lr"], tuple(options["betas"]), options["eps"], options["weight_decay"]
    )
    steps = []
    model.train()
    for step in range(3):
        logits = model(ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
        adam.zero_grad()
        loss.backward()
        entry = {"loss": loss.item()}
        if step == 0:
            norms = {name: p.grad.double().norm().item() for name, p in model.named_parameters()}
            entry["grad_l2"] = norms
        adam.step()
        steps.append(entry)
    largest = max(steps[0]["grad_l2"].values())
    # A bias of keys adds the same to all scores of a query, except for its rotation.
    result["zero_gradients"] = [n for n, v in steps[0]["grad_l2"].items() if v < 1e-6 * largest]
    result["train_steps"] = steps
    model.eval()
    result["logits_after"] = summary(model(ids).logits)
    result["versions"] = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    return result


if __name__ == "__main__":
    torch.manual_seed(0)
    folder = pathlib.Path(__file__).parent
    for name, settings in CASES.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(reference(settings), indent=1) + "\n")
        print(path.name, path.stat().st_size)

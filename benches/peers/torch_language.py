"""Training steps of transformers' language models for torch_peer.py, in the faster of eager and compiled code."""

import sys

SIZES = {
    "gpt2": dict(n_layer=12, n_embd=768, n_head=12),
    "gpt-small": dict(n_layer=6, n_embd=384, n_head=6),
}
MODELS = [*SIZES, "llama-20m"]


def network(work):
    import transformers

    tokens = work["tokens"]
    if work["model"] == "llama-20m":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=20480, hidden_size=384, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=6,
            num_key_value_heads=2, max_position_embeddings=tokens, rms_norm_eps=1e-5, tie_word_embeddings=True))
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_positions=max(1024, tokens), resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **SIZES[work["model"]]))


def language(torch, on, work, fastest):
    try:
        model = network(work)
    except ImportError as error:
        print(f"no {work['model']} to compare with: {error}; pip install transformers", file=sys.stderr)
        return None
    model = model.to(on.device).train()
    model.config.use_cache = False
    ids = torch.randint(0, model.config.vocab_size, (work["batch"], work["tokens"] + 1))
    x, y = on.put(ids[:, :-1].contiguous()), on.put(ids[:, 1:].reshape(-1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def with_forward(forward):
        def once():
            optimizer.zero_grad(set_to_none=True)
            with on.autocast():
                logits = forward(input_ids=x).logits
                loss = torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), y)
            loss.backward()
            optimizer.step()

        return once

    return fastest([with_forward(model), with_forward(torch.compile(model))])

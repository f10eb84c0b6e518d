"""Training steps of transformers' language models for torch_peer.py, in the faster of eager and compiled code."""

import sys

SIZES = {
    "gpt2": dict(n_layer=12, n_embd=768, n_head=12),
    "gpt-small": dict(n_layer=6, n_embd=384, n_head=6),
    "gpt-wide": dict(n_layer=4, n_embd=1024, n_head=16),
}
MODELS = [*SIZES, "llama-20m", "bert", "translation"]


def network(work):
    import transformers

    tokens = work["tokens"]
    if work["model"] == "llama-20m":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=20480, hidden_size=384, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=6,
            num_key_value_heads=2, max_position_embeddings=tokens, rms_norm_eps=1e-5, tie_word_embeddings=True))
    if work["model"] == "bert":
        return transformers.BertForMaskedLM(transformers.BertConfig(
            max_position_embeddings=max(512, tokens), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    if work["model"] == "translation":
        return transformers.MarianMTModel(transformers.MarianConfig(
            vocab_size=32000, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
            decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, activation_function="swish",
            max_position_embeddings=max(512, tokens), pad_token_id=31999, eos_token_id=0, decoder_start_token_id=31999,
            dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, scale_embedding=True))
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_positions=max(1024, tokens), resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **SIZES[work["model"]]))


def forwards(torch, model, work):
    """The model in eager and in compiled code; of BERT the part without its head, which sees the masked tokens only."""
    part = model.bert if work["model"] == "bert" else model
    return [part, torch.compile(part)]


def losses(torch, on, work, model):
    """The loss of a forward pass, as a function of it."""
    batch, tokens = work["batch"], work["tokens"]
    cross_entropy = torch.nn.functional.cross_entropy
    draw = lambda length: torch.randint(0, model.config.vocab_size - 1, (batch, length))
    if work["model"] == "bert":
        x, masked = draw(tokens), max(1, tokens * 15 // 100)
        places = (torch.arange(batch)[:, None] * tokens + torch.arange(masked) * tokens // masked).reshape(-1)
        x, y, places = on.put(x), on.put(x.reshape(-1)[places]), on.put(places)

        def of_bert(forward):
            states = forward(input_ids=x).last_hidden_state
            return cross_entropy(model.cls(states.reshape(-1, states.shape[-1])[places]), y)

        return of_bert
    if work["model"] == "translation":
        x, seen, y = on.put(draw(tokens)), on.put(draw(tokens)), on.put(draw(tokens).reshape(-1))

        def of_translation(forward):
            logits = forward(input_ids=x, decoder_input_ids=seen).logits
            return cross_entropy(logits.view(-1, logits.shape[-1]), y, label_smoothing=0.1)

        return of_translation
    ids = draw(tokens + 1)
    x, y = on.put(ids[:, :-1].contiguous()), on.put(ids[:, 1:].reshape(-1))

    def of_next_tokens(forward):
        logits = forward(input_ids=x).logits
        return cross_entropy(logits.view(-1, logits.shape[-1]), y)

    return of_next_tokens


def language(torch, on, work, fastest):
    try:
        model = network(work)
    except ImportError as error:
        print(f"no {work['model']} to compare with: {error}; pip install transformers", file=sys.stderr)
        return None
    model = model.to(on.device).train()
    model.config.use_cache = False
    loss_of = losses(torch, on, work, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def with_forward(forward):
        def once():
            optimizer.zero_grad(set_to_none=True)
            with on.autocast():
                loss = loss_of(forward)
            loss.backward()
            optimizer.step()

        return once

    return fastest([with_forward(forward) for forward in forwards(torch, model, work)])

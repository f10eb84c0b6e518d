//! Language models: packed texts, and the configurations of published decoders.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_models::{
    BertConfig, Decoder, DecoderConfig, ExpertsConfig, FeedForwardActivation, Gpt2, Gpt2Config,
    LanguageModel, RotaryConfig, RotaryScaling, TokenInput, TranslationConfig, YarnScaling,
};
use phalanx_tensor::{BuildOptions, Context, Result, Scope, Session, StoreBuilder, Tape, Value};

fn built<M>(make: impl FnOnce(&Scope) -> Result<M>) -> M {
    let builder = StoreBuilder::new(BuildOptions::default());
    let model = make(&builder.root()).expect("sound");
    builder.build().expect("small");
    model
}

/// The models, with a vocabulary of 11 and a context of 12.
pub(crate) fn models() -> [Arc<dyn LanguageModel>; 3] {
    let gpt2 = Gpt2Config {
        vocab: 11,
        context: 12,
        width: 16,
        layers: 2,
        heads: 2,
        inner: 32,
        ..Gpt2Config::default()
    };
    let decoder = DecoderConfig {
        vocab: 11,
        context: 12,
        width: 16,
        layers: 2,
        heads: 4,
        key_heads: 2,
        head_dim: 6,
        inner: 32,
        head_norms: true,
        ..DecoderConfig::default()
    };
    let experts = DecoderConfig {
        head_norms: false,
        experts: Some(ExpertsConfig { count: 3, chosen: 2 }),
        ..decoder.clone()
    };
    [
        Arc::new(built(|scope| Gpt2::new(scope, &gpt2))),
        Arc::new(built(|scope| Decoder::new(scope, &decoder))),
        Arc::new(built(|scope| Decoder::new(scope, &experts))),
    ]
}

pub(crate) fn logits(model: &dyn LanguageModel, input: &TokenInput) -> Vec<Vec<f32>> {
    let tape = Tape::forward_only(Session::evaluation(Arc::new(Context::new(2))));
    let hidden = model.hidden(&tape, input).expect("fits");
    let logits = model.logits(&tape, &hidden).and_then(|logits| logits.tensor()).expect("on the host");
    logits.flatten_to(1).and_then(|rows| rows.to_dtype(DType::F32)?.to_vec2()).expect("numbers")
}

pub(crate) fn row(values: &[u32]) -> Tensor {
    Tensor::from_slice(values, (1, values.len()), &Device::Cpu).expect("a row")
}

#[test]
fn texts_packed_in_a_row_have_the_logits_of_texts_apart() {
    let texts: [&[u32]; 3] = [&[1, 2, 3, 4], &[5], &[6, 7, 8, 9, 10, 1, 2]];
    let tokens = texts.concat();
    let positions: Vec<u32> = texts.iter().flat_map(|text| 0..text.len() as u32).collect();
    let starts: Vec<u32> = texts
        .iter()
        .scan(0, |at, text| {
            let first = *at;
            *at += text.len() as u32;
            Some(vec![first; text.len()])
        })
        .flatten()
        .collect();
    for model in models() {
        let apart: Vec<Vec<f32>> = texts
            .iter()
            .flat_map(|text| logits(&*model, &TokenInput::new(&row(text)).expect("a row")))
            .collect();
        let packed = TokenInput {
            tokens: Value::constant(row(&tokens)),
            positions: Value::constant(row(&positions)),
            starts: Some(Value::constant(row(&starts))),
        };
        let far = |a: &[Vec<f32>], b: &[Vec<f32>]| {
            let pairs = a.iter().flatten().zip(b.iter().flatten());
            pairs.fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()))
        };
        let found = logits(&*model, &packed);
        assert!(far(&found, &apart) < 1e-5, "{model:?}");
        // Without starts the texts see each other, so that the test can fail.
        let seen = logits(&*model, &TokenInput { starts: None, ..packed });
        assert!(far(&seen, &apart) > 1e-3, "{model:?}");
    }
}

#[test]
fn inputs_that_do_not_fit_are_named() {
    for model in models() {
        let refused = |input: TokenInput| {
            let tape = Tape::forward_only(Session::evaluation(Arc::new(Context::new(1))));
            model.hidden(&tape, &input).expect_err("refused").to_string()
        };
        let long = TokenInput::new(&row(&[1; 13])).expect("a row");
        assert!(refused(long).contains("13 tokens; the context is 12"));
        let fits = TokenInput::new(&row(&[1; 4])).expect("a row");
        let starts = Some(Value::constant(row(&[0; 3])));
        assert!(refused(TokenInput { starts, ..fits }).contains("all should be [N, T]"));
        let beyond = TokenInput::new(&row(&[1, 11])).expect("a row");
        assert!(refused(beyond).contains("11"), "a token beyond the table");
    }
}

/// The configuration of Llama 3.1 8B, with other lines after it.
fn llama(more: &str) -> String {
    format!(
        r#"{{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {{"factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}},
        "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
        "transformers_version": "4.42.3", "vocab_size": 128256{more}}}"#
    )
}

#[test]
fn published_configurations_are_read() {
    let config = DecoderConfig::from_json(&llama("")).expect("known");
    assert_eq!((config.width, config.key_heads, config.head_dim, config.inner), (4096, 8, 128, 14_336));
    let scaling = RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192 };
    assert_eq!((config.rotary.theta, config.rotary.scaling), (500_000.0, scaling));
    // Of Qwen3 0.6B and Qwen2 0.5B: keys of windows that are not used, and a head width that is not width / heads.
    let qwen = |more: &str| {
        format!(
            r#"{{"model_type": "qwen3", "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
            "max_position_embeddings": 40960, "max_window_layers": 28, "num_attention_heads": 16,
            "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
            "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false,
            "vocab_size": 151936, "head_dim": 128{more}}}"#
        )
    };
    let config = DecoderConfig::from_json(&qwen("")).expect("known");
    assert!(config.head_norms && config.tied && !config.projection_bias && config.head_dim == 128);
    let older =
        qwen("").replace("qwen3", "qwen2").replace(r#""head_dim": 128"#, r#""sliding_window": 32768"#);
    let config = DecoderConfig::from_json(&older.replace(r#""sliding_window": null, "#, "")).expect("known");
    assert!(config.projection_bias && !config.head_norms && config.head_dim == 64);
}

/// The configuration of Llama 3.1 as one of Mixtral, with other lines after it.
fn mixtral(more: &str) -> String {
    let text = llama(more).replace("\"llama\"", "\"mixtral\"").replace("\"mlp_bias\": false, ", "");
    text.replace("\"attention_bias\": false, ", "\"num_local_experts\": 8, \"num_experts_per_tok\": 2, ")
}

#[test]
fn keys_that_would_change_the_arithmetic_are_refused_by_name() {
    let replaced = |from: &str, to: &str| llama("").replace(from, to);
    for (text, words) in [
        ("[]".to_owned(), &["no JSON object"][..]),
        ("{".to_owned(), &["no JSON object"]),
        (replaced("\"llama\"", "\"gemma\""), &["model_type", "gemma", "qwen3"]),
        (replaced("\"vocab_size\"", "\"vocabulary\""), &["`vocab_size` is missing"]),
        (replaced("32, \"num_hidden", "\"many\", \"num_hidden"), &["num_attention_heads", "many"]),
        (replaced("\"silu\"", "\"gelu\""), &["hidden_act", "gelu", "silu"]),
        (replaced("\"mlp_bias\": false", "\"mlp_bias\": true"), &["mlp_bias"]),
        (replaced("\"attention_bias\": false", "\"attention_bias\": true"), &["attention_bias"]),
        (replaced("\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1"), &["attention_dropout", "0.1"]),
        (replaced("\"llama3\"", "\"longrope\""), &["rope_type", "longrope"]),
        (replaced("\"factor\": 8.0", "\"factor\": 0.5"), &["factor", "at least 1"]),
        (replaced("\"factor\": 8.0, ", ""), &["`factor` is missing"]),
        (replaced("\"low_freq_factor\": 1.0", "\"low_freq_factor\": 1.0, \"ntk\": 2"), &["ntk"]),
        (llama(", \"logits_scaling\": 8"), &["logits_scaling", "not known"]),
        (llama(", \"num_local_experts\": 8"), &["num_local_experts"]),
        (mixtral(", \"router_jitter_noise\": 0.1"), &["router_jitter_noise", "0.1"]),
        (llama(", \"sliding_window\": 4096"), &["sliding_window"]),
        (llama(", \"layer_types\": [\"sliding_attention\"]"), &["layer_types"]),
    ] {
        let error = DecoderConfig::from_json(&text).expect_err(&text).to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    let scope = StoreBuilder::new(BuildOptions::default()).root();
    let config = DecoderConfig { heads: 4, key_heads: 3, ..DecoderConfig::default() };
    assert!(Decoder::new(&scope, &config).expect_err("heads").to_string().contains("3 heads of keys"));
    let experts = Some(ExpertsConfig { count: 2, chosen: 3 });
    let config = DecoderConfig { experts, ..DecoderConfig::default() };
    assert!(Decoder::new(&scope, &config).expect_err("three").to_string().contains("3 of 2 experts"));
    let config = DecoderConfig { head_dim: 5, ..DecoderConfig::default() };
    assert!(Decoder::new(&scope, &config).expect_err("odd").to_string().contains("turn pairs"));
}

#[test]
fn configurations_come_back_from_their_json() {
    let scalings = [
        RotaryScaling::Default,
        RotaryScaling::Linear { factor: 2.0 },
        RotaryScaling::Dynamic { factor: 2.0, original: 64 },
        RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64 },
        RotaryScaling::Yarn(YarnScaling {
            factor: 4.0,
            original: 64,
            fast: 32.0,
            slow: 1.0,
            attention: 1.1,
            truncate: false,
        }),
    ];
    for scaling in scalings {
        let rotary = RotaryConfig { theta: 5e5, scaling };
        let config = DecoderConfig { rotary, tied: false, ..DecoderConfig::default() };
        assert_eq!(DecoderConfig::from_json(&config.to_json().to_string()).expect("its own"), config);
    }
    for (head_norms, projection_bias) in [(true, false), (false, true)] {
        let config = DecoderConfig { head_norms, projection_bias, head_dim: 32, ..DecoderConfig::default() };
        assert_eq!(DecoderConfig::from_json(&config.to_json().to_string()).expect("its own"), config);
    }
    for activation in [FeedForwardActivation::GeluTanh, FeedForwardActivation::ReluSquared] {
        let gpt2 =
            Gpt2Config { vocab: 99, inner: 100, activation, residual_dropout: 0.3, ..Gpt2Config::default() };
        assert_eq!(Gpt2Config::from_json(&gpt2.to_json().to_string()).expect("its own"), gpt2);
        let bert = BertConfig { activation, ..BertConfig::default() };
        assert_eq!(BertConfig::from_json(&bert.to_json().to_string()).expect("its own"), bert);
        let translation = TranslationConfig { activation, ..TranslationConfig::default() };
        assert_eq!(
            TranslationConfig::from_json(&translation.to_json().to_string()).expect("its own"),
            translation
        );
    }
}

#[test]
fn the_published_gpt2_is_read() {
    // That of the smallest model on the hub.
    let text = r#"{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
        "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
        "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257}"#;
    assert_eq!(Gpt2Config::from_json(text).expect("known"), Gpt2Config::default());
    let other = text.replace("gelu_new", "mish");
    let problem = Gpt2Config::from_json(&other).expect_err("not known").to_string();
    assert!(
        ["activation_function", "mish", "gelu_new, "].iter().all(|part| problem.contains(part)),
        "{problem}"
    );
    let unknown = text.replace("\"n_ctx\"", "\"n_extra\"");
    assert!(Gpt2Config::from_json(&unknown).expect_err("unknown").to_string().contains("n_extra"));
    for (there, here) in [
        ("h.3.ln_1.weight", Some("transformer.h.3.ln_1.weight")),
        ("transformer.wte.weight", Some("transformer.wte.weight")),
        ("h.3.attn.c_attn.bias", Some("transformer.h.3.attn.c_attn.bias")),
        ("h.3.attn.bias", None),
        ("lm_head.weight", None),
    ] {
        assert_eq!(Gpt2Config::published_name(there).as_deref(), here, "{there}");
    }
}

//! Comparisons with the reference files, if they exist.

use std::path::{Path, PathBuf};

use phalanx_parity::{Quantity, check};

/// Returns a reference file next to the repository, or prints that it is missing.
fn golden(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/golden").join(name);
    if path.is_file() {
        return Some(path);
    }
    println!("skipped: {} is not there", path.display());
    None
}

#[test]
fn computed_values_are_those_of_the_reference() {
    for name in [
        "losses.json",
        "codecs.json",
        "optimizers.json",
        "resnet18.json",
        "clip_text.json",
        "stackgan.json",
        "gpt2.json",
        "bert.json",
        "translation.json",
        "transformer.json",
        "vit_b.json",
        "unet.json",
        "unet_pixel.json",
        "autoencoder_kl.json",
        "diffusion_schedules.json",
        "samplers.json",
        "synchrony.json",
    ] {
        let Some(path) = golden(name) else { continue };
        let quantities = check(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!quantities.is_empty());
        let failed: Vec<_> = quantities.iter().filter(|quantity| !quantity.passes()).collect();
        assert!(failed.is_empty(), "{name}: {failed:#?}");
    }
}

#[test]
fn decoders_are_those_of_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference");
    for name in ["llama", "llama3", "llama-linear", "llama-dynamic", "qwen2", "qwen3-yarn"] {
        let quantities =
            check(&folder.join(format!("{name}.json"))).unwrap_or_else(|error| panic!("{name}: {error}"));
        let failed: Vec<_> = quantities.iter().filter(|quantity| !quantity.passes()).collect();
        assert!(quantities.len() > 6 && failed.is_empty(), "{name}: {failed:#?}");
    }
}

#[test]
fn a_changed_number_fails_and_a_strange_file_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |text: &str| {
        let path = folder.path().join("file.json");
        std::fs::write(&path, text).expect("writes");
        path
    };
    // The reference values, with the third digit of the first changed.
    let losses = r#"{"fill": "splitmix64-v1", "seed": 0, "l1_mean": 0.6595606932640076,
        "kld_sum_over_latent_mean_over_batch": 3.5769078731536865, "kld_mean": 0.2235567569732666,
        "bce_sigmoid_mean": 0.7258942127227783}"#;
    let passes: Vec<bool> = check(&write(losses)).expect("computes").iter().map(Quantity::passes).collect();
    assert_eq!(passes, [false, true, true, true]);
    for (text, words) in [
        ("{", "file.json: EOF"),
        ("{}", "it names no `fill`"),
        (r#"{"fill": "other", "seed": 0}"#, "the fill `other` is not known"),
        (r#"{"fill": "splitmix64-v1", "seed": 0}"#, "it is about nothing"),
        (
            r#"{"fill": "splitmix64-v1", "seed": 0, "runs": {"lion": {}}}"#,
            "the optimizer `lion` is not known",
        ),
        (
            r#"{"fill": "splitmix64-v1", "seed": 0, "l1_mean": "x"}"#,
            "`l1_mean` is missing or of a wrong type",
        ),
    ] {
        let error = check(&write(text)).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
}

//! Files with what reference implementations have computed.

use phalanx_trainer::parity;
use serde_json::{Value, json};

use super::files::folder;
use super::{Target, of_json};

/// A file that is about this, as bytes.
fn file(mut about: Value) -> Vec<u8> {
    about["fill"] = json!("splitmix64-v1");
    about["seed"] = json!(1);
    about.to_string().into_bytes()
}

/// Small files about losses, optimizers, codecs of gradients, noise schedules and samplers; what they say was computed is wrong.
fn parity_files() -> Vec<Vec<u8>> {
    let step = json!({"indices": [0, 1], "values": [0.5, -0.5], "error_l2": 1.0, "u_l2": 1.0, "v_l2": 1.0});
    let levels = json!({"betas": [0.1, 0.2], "alphas_cumprod": [0.9, 0.1]});
    let head = json!({"head": [0.5, 0.25], "l2": 1.0});
    let config = json!({
        "beta_schedule": "scaled_linear", "prediction_type": "epsilon", "timestep_spacing": "leading",
        "steps_offset": 1, "clip_sample": false, "set_alpha_to_one": false, "use_karras_sigmas": false
    });
    let run = |scheduler: &str| {
        json!({
            "scheduler": scheduler, "steps": 3, "eta": 0.5, "config": config, "guidance": 2.0,
            "timesteps": [667, 334, 1], "norm_after_each": [1.0, 2.0, 3.0], "final": [0.5], "final_l2": 1.0,
            "init_noise_sigma": 1.0, "sigmas": [1.0, 0.5, 0.25, 0.0]
        })
    };
    let mut schedules = json!({"at": [0, 999]});
    for kind in ["linear", "cosine", "scaled_linear"] {
        schedules[kind] = levels.clone();
        schedules[format!("{kind}_zero_terminal_snr")] = levels.clone();
    }
    vec![
        file(json!({
            "l1_mean": 0.5, "kld_sum_over_latent_mean_over_batch": 1.0, "kld_mean": 0.1,
            "bce_sigmoid_mean": 0.7
        })),
        file(json!({"runs": {"adamw": {"losses": [1.0, 0.5], "w": [0.1, 0.2]}}})),
        file(json!({
            "topk_error_feedback": {"n": 8, "k": 2, "steps": [step], "error_after": [0.0, 0.5]},
            "dgc": {"n": 8, "k": 2, "momentum": 0.9, "steps": [step], "u_after": [0.0], "v_after": [0.0]},
            "powersgd": {
                "rows": 4, "columns": 2, "rank": 1, "workers": 2,
                "steps": [{"Q": [[1.0], [0.5]], "decompressed": head, "error_l2": [0.5, 0.5]}]
            },
            "int8": {
                "n": 16, "chunk": 8,
                "chunks": [{
                    "scale": 0.01, "q_sum": 1, "q_sum_of_squares": 2, "q_first32": [1, 2],
                    "decoded_l2": 1.0, "decoded_head": [0.5]
                }]
            },
            "qsgd": {"n": 16, "levels": {"4": {"q": [1, 0], "decoded_head": [0.5], "norm": 1.0, "decoded_l2": 1.0}}}
        })),
        file(json!({
            "linear_alphas_cumprod": [0.9, 0.1], "cosine_alphas_cumprod": [0.9, 0.1], "at": [0, 999],
            "add_noise": {"t": [3, 700], "x_t": [0.5, 0.25]},
            "ddim50_eta0": {"timesteps": [980, 0], "norm_after_each_50th": [1.0], "final": [0.5]}
        })),
        file(json!({
            "schedules": schedules,
            "add_noise": {"t": [3, 700], "x_t": head, "velocity": head},
            "guidance": {"scale": 2.0, "result": head, "rescale": {"phi": 0.7, "result": head}},
            "runs": {"one": run("ddim"), "two": run("dpmsolver"), "three": run("euler")}
        })),
    ]
}

/// Compares a file with what is computed here.
fn compare(bytes: &[u8]) {
    let place = folder();
    let path = place.path().join("a.json");
    if std::fs::write(&path, bytes).is_err() {
        return;
    }
    for quantity in parity::check(&path).into_iter().flatten() {
        assert!(!quantity.error.is_nan() && quantity.error >= 0.0, "{quantity:?}");
        let _ = quantity.passes();
    }
}

pub(super) const PARITY_FILES: Target = Target {
    name: "parity_files",
    about: "files with what reference implementations have computed",
    seeds: parity_files,
    words: &["1e308", "null", "999", "1000", "\"steps\":", "\"n\":", "\"at\":"],
    change: of_json,
    read: compare,
    cases: 120,
    memory: 48 << 20,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_about_something() {
        let place = folder();
        let path = place.path().join("a.json");
        for bytes in parity_files() {
            std::fs::write(&path, &bytes).expect("writes");
            let compared = parity::check(&path).map(|found| found.len());
            assert!(compared.as_ref().is_ok_and(|count| *count > 0), "{compared:?}");
        }
    }
}

//! Each family of networks, small, on GPUs as on CPUs: one rank, and several under strategies that replicate and that
//! shard.

use super::place::{Place, agree, agree_on};

/// Text-conditioned diffusion in pixels, its U-Net with attention, dropout and texts left out.
const UNET: &str = "tiny --steps 5 --set data.images=24 --set data.test_images=8 --set eval.batch=4 \
                    --set model.kind=diffusion --set model.image_size=16 --set model.widths=[8,16] \
                    --set model.attention=[false,true] --set model.groups=4 --set model.heads=2 \
                    --set model.text_width=16 --set model.text_layers=1 --set model.text_heads=2 \
                    --set model.text_context=12 --set model.sample_steps=2 --set model.drop_text=0.3 \
                    --set model.dropout=0.1 --set train.global_batch=4 --set sample.rows=1 --set sample.columns=1";

/// CLIP, whose loss looks at the samples of all ranks.
const CLIP: &str = "shapes-clip --steps 5 --set data.images=24 --set data.test_images=8 --set eval.batch=4 \
                    --set model.image_size=8 --set model.widths=[4] --set model.embed=8 --set model.text_width=8 \
                    --set model.text_heads=2 --set model.text_layers=1 --set train.global_batch=8";

/// StackGAN, of whose five steps the first two train its first stage.
const STACKGAN: &str = "tiny --steps 5 --set model.kind=stackgan --set model.image_size=32 --set model.upscale=2 \
                        --set model.condition=8 --set model.noise=4 --set model.gf_dim=4 --set model.df_dim=4 \
                        --set model.residual_blocks=1 --set model.embed=16 --set model.text_part=0.2 \
                        --set model.stage1_part=0.4 --set train.steps=5 --set train.global_batch=12 \
                        --set data.images=24 --set data.test_images=9 --set eval.batch=2 --set sample.rows=2 \
                        --set sample.columns=1 --set optim.kind=adam --set optim.lr=2e-5 \
                        --set optim.betas=[0.5,0.999] --set optim.eps=1e-4 --set schedule.kind=constant";

/// Classifiers of small pictures.
const CLASSIFIER: &str = "--steps 5 --set data.kind=shapes --set data.images=64 --set data.test_images=8 \
                          --set model.image_size=16 --set train.accumulate=1";

/// Classifiers on one GPU, each in f32 and in bf16, which lies channels-last.
fn classifiers_agree(presets: &[&str]) {
    let Some(place) = Place::anywhere() else { return };
    for preset in presets {
        let small = format!("{preset} {CLASSIFIER} --set train.global_batch=4");
        // Roundings grow at every ReLU of a deep network with batch norm.
        agree(&place, &small, 3e-2);
        agree(&place, &format!("{small} --set train.precision=bf16"), 0.1);
    }
}

/// A network on 2 and on 4 GPUs, replicated and sharded, in f32 and in bf16. Tolerances are of f32 and of bf16.
fn agrees_on_ranks(network: &str, whole: f64, half: f64) {
    let Some(place) = Place::anywhere() else { return };
    for ranks in [2, 4] {
        for strategy in ["ddp", "fsdp"] {
            agree_on(&place, ranks, &format!("{network} --strategy {strategy}"), whole);
            agree_on(
                &place,
                ranks,
                &format!("{network} --strategy {strategy} --set train.precision=bf16"),
                half,
            );
        }
    }
}

#[test]
fn classifiers_train_as_on_the_processor() {
    let small = "cifar10-vit --set model.width=24 --set model.layers=2 --set model.dropout=0.1";
    classifiers_agree(&["cifar10-resnet18 --set model.width=16", small]);
}

#[test]
#[ignore = "whole networks take minutes in fibres: cargo xtask test --full"]
fn whole_classifiers_train_as_on_the_processor() {
    // Batch norms of a whole network see four values of a channel at its end: at the preset's rate a rounding becomes a tenth of the loss
    // within three steps.
    classifiers_agree(&["cifar10-resnet18 --set optim.lr=0.01", "cifar10-mobilenetv2 --set optim.lr=0.002"]);
}

#[test]
#[ignore = "further trainings take minutes in fibres: cargo xtask test --full"]
fn what_learns_pictures_with_texts_trains_as_on_the_processor() {
    let Some(place) = Place::anywhere() else { return };
    agree(&place, CLIP, 1e-4);
    agree(&place, UNET, 1e-4);
    agree(&place, &format!("{UNET} --set train.precision=bf16"), 3e-2);
}

#[test]
fn networks_against_each_other_train_as_on_the_processor() {
    let Some(place) = Place::anywhere() else { return };
    agree(&place, STACKGAN, 1e-4);
}

#[test]
fn networks_of_each_family_train_on_two_gpus_as_by_two_cpu_ranks() {
    let Some(place) = Place::anywhere() else { return };
    agree_on(&place, 2, &format!("{UNET} --strategy fsdp"), 1e-4);
    agree_on(&place, 2, &format!("{CLIP} --strategy ddp"), 1e-4);
    agree_on(&place, 2, &format!("{STACKGAN} --strategy ddp"), 1e-4);
}

#[test]
fn layers_cut_over_gpus_train_as_over_as_many_cpu_ranks() {
    let Some(place) = Place::anywhere() else { return };
    let gpt = "tiny-gpt --steps 5 --set model.layers=1 --set model.width=16 --set model.heads=2 --set model.context=12 \
               --set train.global_batch=4 --set model.texts=40 --set eval.limit=5 --set sample.tokens=4";
    agree_on(&place, 2, &format!("{gpt} --set model.dropout=0.1 --set parallel.tensor=2"), 1e-4);
    agree_on(&place, 2, &format!("{UNET} --set model.dropout=0 --set parallel.tensor=2"), 1e-4);
}

/// Values go from the memory of one GPU to that of another; evaluations and samples go through the stages, too.
#[test]
fn stages_on_gpus_train_as_on_as_many_cpu_ranks() {
    let Some(place) = Place::anywhere() else { return };
    let gpt = "tiny-gpt --steps 5 --set model.layers=2 --set model.width=16 --set model.heads=2 --set model.context=12 \
               --set train.global_batch=8 --set model.texts=40 --set eval.limit=5 --set sample.tokens=4";
    let interleaved =
        "--set pipeline.schedule=interleaved --set pipeline.chunks=2 --set train.precision=bf16";
    agree_on(
        &place,
        2,
        &format!("{gpt} --set parallel.pipeline=2 --set pipeline.schedule=zero-bubble"),
        1e-4,
    );
    agree_on(&place, 2, &format!("{gpt} --set parallel.pipeline=2 {interleaved}"), 2e-3);
    agree_on(&place, 2, &format!("{UNET} --set parallel.pipeline=2"), 1e-4);
}

#[test]
#[ignore = "four GPUs in fibres take minutes: cargo xtask test --full"]
fn autoencoders_train_on_gpus_as_by_as_many_cpu_ranks() {
    agrees_on_ranks("tiny --steps 5", 1e-4, 2e-2);
}

#[test]
#[ignore = "four GPUs in fibres take minutes: cargo xtask test --full"]
// At the preset's rate roundings grow: by 1e-2 in five steps.
fn residual_networks_train_on_gpus_as_by_as_many_cpu_ranks() {
    agrees_on_ranks(
        &format!(
            "cifar10-resnet18 {CLASSIFIER} --set model.width=16 --set train.global_batch=8 --set optim.lr=0.01"
        ),
        1e-4,
        2e-2,
    );
}

#[test]
#[ignore = "four GPUs in fibres take minutes: cargo xtask test --full"]
fn unets_and_clip_train_on_gpus_as_by_as_many_cpu_ranks() {
    agrees_on_ranks(UNET, 1e-4, 1e-3);
    agrees_on_ranks(CLIP, 1e-4, 3e-2);
}

#[test]
#[ignore = "four GPUs in fibres take minutes: cargo xtask test --full"]
fn networks_against_each_other_train_on_gpus_as_by_as_many_cpu_ranks() {
    agrees_on_ranks(STACKGAN, 1e-4, 2e-2);
}

/// Presets as they stand, but for a few embedded pictures and a batch of two.
#[test]
#[ignore = "whole networks take minutes in fibres: cargo xtask test --full"]
fn every_preset_takes_a_step_on_two_gpus() {
    let Some(place) = Place::anywhere() else { return };
    if !place.has(2) {
        return;
    }
    let small = ["data.kind=shapes", "data.images=8", "data.test_images=4", "eval.enabled=false"];
    let batch =
        ["train.steps=1", "train.ranks=2", "train.threads=1", "train.device=cuda", "train.global_batch=2"];
    let all = small.iter().chain(&batch).chain(&["train.accumulate=1"]).copied();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/presets");
    let files = std::fs::read_dir(folder).expect("presets").map(|entry| entry.expect("lists").path());
    let mut presets: Vec<String> =
        files.map(|file| file.file_stem().expect("a name").to_string_lossy().into_owned()).collect();
    presets.sort();
    assert!(presets.len() > 15);
    for preset in presets {
        for strategy in ["ddp", "fsdp"] {
            let set: String = all.clone().map(|setting| format!(" --set {setting}")).collect();
            let few = "--set sample.rows=1 --set sample.columns=1";
            let first = match preset.ends_with("diffusion") {
                true => format!(" --set model.first_stage_set={:?}", all.clone().collect::<Vec<_>>())
                    .replace(", ", ","),
                false => String::new(),
            };
            let line =
                format!("train {preset} --strategy {strategy}{set} {few}{first} --out {preset}-{strategy}");
            assert!(place.succeed(&line).contains("GPU 0, "), "{line}");
        }
    }
}

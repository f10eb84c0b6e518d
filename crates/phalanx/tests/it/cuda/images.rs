//! The transfer of images to a GPU.

use std::path::Path;

use super::place::{Place, agree, agree_on, column, json, losses};

/// Bytes that each step but the first copied to the GPU.
fn uploaded(run: &Path) -> Vec<f64> {
    column(run, "gpu_uploaded_bytes").windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn images_travel_as_bytes_and_small_sets_stay() {
    let Some(place) = Place::anywhere() else { return };
    // Two steps an epoch of 4 images of 16 × 16, cut out of a black border and mirrored; read when they are asked for.
    let common = "train cifar10-resnet18 --steps 6 --set train.ranks=1 --set train.device=cuda --set log.every=1 \
                  --set data.kind=shapes --set data.images=8 --set data.test_images=8 --set data.workers=0 \
                  --set data.crop_padding=2 --set data.flip=true --set model.image_size=16 --set model.width=8 \
                  --set train.global_batch=4 --set train.accumulate=1 --set train.threads=1 --set eval.every=3";
    place.succeed(&format!("{common} --set data.device_cache_mib=0 --out read"));
    place.succeed(&format!("{common} --out kept"));
    place.succeed(&format!("{common} --set train.graphs=true --out graphs"));
    let parts = common.replace("--steps 6", "--steps 3");
    place.succeed(&format!("{parts} --out parts"));
    place.succeed(&format!("{common} --out parts --resume"));
    let bytes = 4.0 * 16.0 * 16.0 * 3.0;
    // Labels and places besides. The third and the last step are followed by an evaluation of two batches.
    let few = bytes / 6.0;
    let [read, kept] = ["read", "kept"].map(|run| uploaded(&place.path(run)));
    assert_eq!(read.len(), 5);
    for (step, batches) in [(0, 1.0), (1, 3.0), (2, 1.0), (3, 1.0), (4, 3.0)] {
        let sent = read[step];
        let whole = bytes * batches;
        assert!((whole..whole + few).contains(&sent), "step {}: {sent} of {} bytes", step + 2, 4.0 * whole);
    }
    // The first epoch brings all training images, and the first evaluation those for testing.
    assert!(kept[0] >= bytes && (2.0 * bytes..2.0 * bytes + few).contains(&kept[1]), "{kept:?}");
    assert!(kept[2..].iter().all(|sent| *sent < few), "{kept:?}");
    let all = losses(&place.path("read"));
    assert_eq!(all.len(), 8, "six steps and two evaluations: {all:?}");
    for run in ["kept", "graphs", "parts"] {
        assert_eq!(losses(&place.path(run)), all, "{run}");
    }
    let held = |run: &str| {
        let summary = json(&place.path(run).join("summary.json"));
        summary["metrics"]["gpu_peak_data_bytes"].as_u64().expect("a number")
    };
    assert_eq!((held("read"), held("kept")), (0, 16 * 16 * 16 * 3));
}

#[test]
fn images_prepared_on_a_gpu_are_those_of_the_processor() {
    let Some(place) = Place::anywhere() else { return };
    // Cut out of what is larger, and of what has a border.
    let cut = "--set data.resize=20 --set data.flip=true";
    let border = "--set data.crop_padding=3 --set data.flip=true --set data.images=48";
    agree(&place, &format!("tiny --steps 5 {cut}"), 1e-4);
    agree(&place, &format!("tiny --steps 7 {border}"), 1e-4);
    agree(&place, &format!("tiny --steps 5 {border} --set train.precision=bf16"), 2e-2);
    for strategy in ["ddp", "dp"] {
        agree_on(&place, 2, &format!("tiny --steps 7 {border} --strategy {strategy}"), 1e-4);
    }
}

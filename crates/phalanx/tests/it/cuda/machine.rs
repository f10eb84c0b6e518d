//! Which device is taken, and what the doctor says of it.

use super::place::{DEVICES, Place};

#[test]
fn a_gpu_is_taken_where_there_is_one_for_each_rank() {
    let Some(place) = Place::new() else { return };
    let text = place.succeed("train tiny --steps 1 --set train.ranks=1 --out auto");
    assert!(text.contains("GPU 0, software GPU 0"), "{text}");
    let error = place.fail("train tiny --steps 1 --ranks 2 --set train.device=cuda --out two");
    assert!(error.contains("this host has 1 GPU, and rank 1"), "{error}");
    let output =
        place.command("train tiny --steps 1 --ranks 2 --out auto-two").output().expect("phalanx runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("device  CPU (fewer GPUs than ranks)"), "{text}");
    // Settings that NCCL does not support fall to the CPU under `auto`, or are refused.
    for (setting, why) in [
        (
            "codec.kind=lossless",
            "codec.kind = \"lossless\" encodes gradients on the CPU; on GPUs there is bf16, int8",
        ),
        ("comm.algorithm=ring", "comm.algorithm = \"ring\", and NCCL chooses the algorithm itself"),
    ] {
        let line = format!("train tiny --steps 1 --set train.ranks=2 --set {setting}");
        let text = place.succeed(&format!("{line} --out {setting}"));
        assert!(text.contains(&format!("CPU ({why}")), "{text}");
        let error = place.fail(&format!("{line} --set train.device=cuda --out {setting}-cuda"));
        assert!(error.contains(why), "{error}");
    }
    // A launcher that shows each rank a GPU of its own, and one that shows all the same.
    let shared = "train tiny --steps 1 --ranks 2 --out shared";
    let output = place.command(shared).env("CUDA_VISIBLE_DEVICES", "0").output().expect("phalanx runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("CPU (ranks 0 and 1 would share a GPU)"), "{text}");
}

#[test]
fn without_a_driver_the_processor_trains_and_a_gpu_is_an_error_with_names() {
    if phalanx_cuda::libraries::Library::Driver.find().is_ok() {
        println!("skipped: this machine has a driver");
        return;
    }
    let place = crate::harness::Place::new();
    let error = place.fail("train tiny --steps 1 --set train.ranks=1 --set train.device=cuda --out gpu");
    assert!(error.contains("the CUDA driver") && error.contains("libcuda.so.1"), "{error}");
    let text = place.succeed_with_errors("train tiny --steps 1 --set train.ranks=1 --out auto");
    assert!(text.contains("CPU (no NVIDIA driver found)") && !text.contains("libcuda"), "{text}");
    let log = crate::harness::results::log(&place.path("auto"), 0);
    assert!(log.contains("no GPU is used: ") && log.contains("libcuda.so.1"), "{log}");
}

#[test]
fn the_doctor_examines_gpus_and_libraries() {
    let Some(place) = Place::new() else { return };
    let text = place.command("doctor --verbose").env(DEVICES, "2").output().expect("phalanx runs");
    assert!(text.status.success(), "{text:?}");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    for expected in [
        "cuDNN      9.10.2 (libcudnn.so)",
        "software GPU 0",
        "compute capability 9.0",
        "self-test passed",
        "NCCL       2.",
        "link       ",
        "to hosts   ",
    ] {
        assert!(text.contains(expected), "no `{expected}` in:\n{text}");
    }
}

//! The modules with unsafe code.

use std::fs;

use crate::sources::{all_sources, report, root};

/// Crates that must not contain `unsafe` at all.
const SAFE: &[&str] = &[
    "batches",
    "checkpoint",
    "cli",
    "codecs",
    "config",
    "data",
    "datasets",
    "launch",
    "models",
    "phalanx",
    "quality",
    "report",
    "run",
    "sharding",
    "tensor",
    "trace",
    "trainer",
    "usage",
    "weights",
];

/// The modules that may contain `unsafe`.
const UNSAFE_MODULES: &[&str] = &[
    "crates/allocator/src/mimalloc.rs",
    "crates/collectives/src/flight/stacks/signal.rs",
    "crates/collectives/src/mpi/collective.rs",
    "crates/collectives/src/mpi/raw.rs",
    "crates/collectives/src/nccl/library.rs",
    "crates/collectives/src/nccl/raw.rs",
    "crates/collectives/src/shared/cross_memory/access.rs",
    "crates/collectives/src/shared/memory.rs",
    "crates/cuda/src/blas/raw.rs",
    "crates/cuda/src/compile/nvrtc.rs",
    "crates/cuda/src/dnn/raw/algorithms.rs",
    "crates/cuda/src/dnn/raw/descriptors.rs",
    "crates/cuda/src/dnn/raw/mod.rs",
    "crates/cuda/src/driver/borrowed.rs",
    "crates/cuda/src/driver/graph.rs",
    "crates/cuda/src/driver/memory.rs",
    "crates/cuda/src/driver/mod.rs",
    "crates/cuda/src/driver/module.rs",
    "crates/cuda/src/driver/transfer.rs",
    "crates/cuda/src/libraries/probe.rs",
    "crates/environment/src/pmi.rs",
    "crates/kernels/src/products/tile.rs",
    "crates/kernels/src/columns.rs",
    "crates/kernels/src/fork_join.rs",
    "crates/kernels/src/gemm_call.rs",
    "crates/array/src/storage/unwritten.rs",
];

#[test]
fn unsafe_lives_in_named_modules() {
    let mut breaches = Vec::new();
    for name in SAFE {
        let text = fs::read_to_string(root().join("crates").join(name).join("src/lib.rs")).expect("lib.rs");
        if !text.contains("#![forbid(unsafe_code)]") {
            breaches.push(format!("crates/{name}/src/lib.rs: lacks #![forbid(unsafe_code)]"));
        }
    }
    for name in [
        "crates/allocator",
        "crates/array",
        "crates/collectives",
        "crates/cuda",
        "crates/environment",
        "crates/kernels",
    ] {
        let text = fs::read_to_string(root().join(name).join("src/lib.rs")).expect("lib.rs");
        if !text.contains("#![deny(unsafe_code)]") {
            breaches.push(format!("{name}/src/lib.rs: lacks #![deny(unsafe_code)]"));
        }
    }
    for (name, text) in all_sources() {
        let allows = text.lines().any(|line| line.starts_with("#![allow(unsafe_code)]"));
        if allows && !UNSAFE_MODULES.contains(&name.as_str()) {
            breaches.push(format!("{name}: allows unsafe code; only {UNSAFE_MODULES:?} may"));
        }
    }
    report("unsafe code lives in few named modules", &breaches);
}

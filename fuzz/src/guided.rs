//! The entry points of libFuzzer.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use phalanx_fuzz::targets::{PRIVATE, PUBLIC, Target};
use phalanx_fuzz_harness::{Random, kept, within_limits};

/// The reader of this run.
static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("PHALANX_FUZZ_READER").unwrap_or_default();
    let mut all = PUBLIC.iter().chain(PRIVATE);
    all.find(|target| target.name == name).unwrap_or_else(|| {
        if !name.is_empty() {
            eprintln!("error: no reader `{name}`");
        }
        for target in PUBLIC.iter().chain(PRIVATE) {
            println!("{:<18} {}", target.name, target.about);
        }
        std::process::exit(if name.is_empty() { 0 } else { 2 })
    })
});

/// Writes each input of the reader to a file, and the dictionary of its words.
fn prepare(folder: &Path) -> std::io::Result<()> {
    let inputs = folder.join("inputs");
    fs::create_dir_all(&inputs)?;
    for (number, input) in kept(TARGET.name).into_iter().chain((TARGET.seeds)()).enumerate() {
        fs::write(inputs.join(format!("{number:04}")), input)?;
    }
    let escaped = |word: &&str| word.bytes().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
    let words: String = TARGET.words.iter().map(|word| format!("\"{}\"\n", escaped(word))).collect();
    fs::write(folder.join("words.dict"), words)
}

fuzz_target!(
    init: {
        let reader = LazyLock::force(&TARGET).name;
        if let Ok(folder) = std::env::var("PHALANX_FUZZ_INPUTS")
            && let Err(error) = prepare(Path::new(&folder))
        {
            eprintln!("error: cannot write the inputs of {reader} to {folder}: {error}");
            std::process::exit(2);
        }
    },
    |input: &[u8]| {
        within_limits(&TARGET.reader(), input);
    }
);

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let mut random = Random::new(u64::from(seed));
    let mut input = data[..size].to_vec();
    // Half of the inputs are changed in their form. libFuzzer changes the others, and inputs without a valid form.
    if random.once_in(2) && (TARGET.change)(&mut input, &mut random) && input.len() <= max_size {
        data[..input.len()].copy_from_slice(&input);
        input.len()
    } else {
        fuzzer_mutate(data, size, max_size)
    }
});

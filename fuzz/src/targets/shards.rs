//! Tar shards, their stored indices, and the patterns that name them.

use image::ImageFormat;
use phalanx_data::archives::expand;
use phalanx_data::{ArchivesConfig, ArchivesDataset, Dataset};
use phalanx_fuzz_harness::files::folder;
use phalanx_fuzz_harness::{Random, damage};

use super::pictures::picture;
use super::{Target, no_form};

pub(super) fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, contents) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        header.set_mode(0o644);
        let _ = archive.append_data(&mut header, name, *contents);
    }
    archive.into_inner().unwrap_or_default()
}

fn shards() -> Vec<Vec<u8>> {
    let image = picture(ImageFormat::Png);
    let long = format!("{}.png", "x".repeat(150));
    vec![
        tar(&[
            ("a.png", &image),
            ("a.txt", b"a picture"),
            ("a.cls", b"3"),
            ("b.png", &image),
            ("b.json", b"{\"caption\": \"two\"}"),
            ("b.cls", b"1"),
        ]),
        tar(&[("a.png", &image), ("a.json", b"{\"caption\": \"one\"}"), ("b.png", &image), ("b.cls", b"1")]),
        tar(&[(&long, &image), (&long.replace("png", "txt"), b"long")]),
        tar(&[]),
    ]
}

/// Changes the header of a member, and updates its checksum.
#[allow(clippy::ptr_arg, reason = "changes of other forms make inputs longer")]
fn member(input: &mut Vec<u8>, random: &mut Random) -> bool {
    const BLOCK: usize = 512;
    let blocks = input.len() / BLOCK;
    if blocks == 0 {
        return false;
    }
    let at = random.below(blocks) * BLOCK;
    let mut header = input[at..at + BLOCK].to_vec();
    damage::bytes(&mut header, b"77777777777", random);
    header.resize(BLOCK, 0);
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    input[at..at + BLOCK].copy_from_slice(&header);
    true
}

fn read_shards(bytes: &[u8]) {
    let place = folder();
    let path = place.path().join("s.tar");
    if std::fs::write(&path, bytes).is_err() {
        return;
    }
    // The index in memory, the stored one, and the one read back.
    for index in [None, Some(place.path().join("index")), Some(place.path().join("index"))] {
        let shards = vec![path.clone()];
        let config =
            ArchivesConfig { name: "s".into(), archives: shards, index, classes: None, caption_seed: 0 };
        let Ok(shards) = ArchivesDataset::open(&config) else { return };
        for sample in 0..shards.len().min(3) {
            let _ = shards.get(sample, 0);
            let _ = shards.source(sample);
        }
    }
}

pub(super) const SHARDS: Target = Target {
    name: "shards",
    about: "tar shards and what is in them",
    seeds: shards,
    words: &["ustar", ".png", ".json", "77777777777", "././@LongLink"],
    change: member,
    read: read_shards,
    cases: 200,
    memory: 48 << 20,
};

pub(super) const PATTERNS: Target = Target {
    name: "patterns",
    about: "paths of shards with braces",
    seeds: || {
        ["s-{000..012}.tar", "{a,b}-{0..3}.tar::x.tar", "{0..9}{0..9}"]
            .map(|text| text.as_bytes().to_vec())
            .to_vec()
    },
    words: &["{", "}", "..", ",", "::", "{0..1}", "000000000000", "99"],
    change: no_form,
    read: |bytes| drop(expand(&String::from_utf8_lossy(bytes).replace('/', "-"))),
    cases: 300,
    // A million names are allowed.
    memory: 1 << 30,
};

/// The key of a stored index: its format, and the length and modification time of the shard.
const OF_SHARD: usize = 24;

/// Returns a shard with a stored index, given the index after its key.
fn with_index<T>(use_it: impl FnOnce(&ArchivesConfig, &std::path::Path) -> T) -> Option<T> {
    let place = folder();
    let (path, index) = (place.path().join("s.tar"), place.path().join("index"));
    std::fs::write(&path, shards().swap_remove(0)).ok()?;
    let shards = vec![path];
    let config = ArchivesConfig {
        name: "s".into(),
        archives: shards,
        index: Some(index.clone()),
        classes: None,
        caption_seed: 0,
    };
    ArchivesDataset::open(&config).ok()?;
    let stored = std::fs::read_dir(index).ok()?.next()?.ok()?.path();
    Some(use_it(&config, &stored))
}

fn stored() -> Vec<Vec<u8>> {
    let rest = with_index(|_, stored| std::fs::read(stored).unwrap_or_default().split_off(OF_SHARD));
    assert!(rest.is_some(), "a shard is indexed");
    rest.into_iter().collect()
}

fn read_stored(bytes: &[u8]) {
    with_index(|config, stored| {
        let head = std::fs::read(stored).unwrap_or_default();
        let Some(head) = head.get(..OF_SHARD) else { return };
        if std::fs::write(stored, [head, bytes].concat()).is_err() {
            return;
        }
        let Ok(shards) = ArchivesDataset::open(config) else { return };
        for sample in 0..shards.len().min(4) {
            let _ = shards.get(sample, 0);
            let _ = shards.source(sample);
        }
    });
}

pub(super) const SHARD_INDEX: Target = Target {
    name: "shard_index",
    about: "stored indices of tar shards",
    seeds: stored,
    words: &["\0\0\0\0", "\u{1}\0\0\0\0\0\0\0"],
    change: no_form,
    read: read_stored,
    cases: 150,
    memory: 48 << 20,
};

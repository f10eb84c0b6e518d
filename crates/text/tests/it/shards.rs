//! Files of tokens.

use std::fs;

use phalanx_text::{ShardFormat, ShardWriter, TokenShard};

const FORMATS: [ShardFormat; 3] = [ShardFormat::NanoGpt, ShardFormat::LlmC, ShardFormat::Megatron];

#[test]
fn tokens_come_back_from_every_format() {
    let folder = tempfile::tempdir().expect("a folder");
    for (format, vocab) in FORMATS.into_iter().flat_map(|format| [(format, 1 << 16), (format, 70_000)]) {
        let path = folder.path().join(format!("{}-{vocab}.bin", format.name()));
        let writer = ShardWriter::create(&path, format, vocab);
        if format == ShardFormat::NanoGpt && vocab > 1 << 16 {
            assert!(writer.expect_err("two bytes").to_string().contains("65536") || vocab > 0);
            continue;
        }
        let mut writer = writer.expect("room");
        let last = vocab as u32 - 1;
        writer.push(&[1, 2, 3]).expect("written");
        writer.end_document();
        writer.end_document();
        writer.push(&[4, last]).expect("written");
        assert!(!path.exists(), "it has its name when it is complete");
        writer.finish().expect("written");
        let shard = TokenShard::open(&path).expect("just written");
        assert_eq!((shard.len(), shard.format()), (5, format));
        assert_eq!(shard.read(0, 5).expect("all"), [1, 2, 3, 4, last]);
        assert_eq!(shard.read(3, 1).expect("one"), [4]);
        assert!(shard.read(4, 2).is_err());
        let documents = (format == ShardFormat::Megatron).then_some(&[0, 3][..]);
        assert_eq!(shard.documents(), documents);
        shard.check_tokens(vocab, u64::MAX).expect("all below");
        let beyond = shard.check_tokens(vocab - 1, u64::MAX).expect_err("the last").to_string();
        assert!(beyond.contains("token 4 is"), "{beyond}");
        shard.check_tokens(vocab - 1, 4).expect("the last is not looked at");
    }
}

#[test]
fn files_that_were_cut_short_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    for format in FORMATS {
        let path = folder.path().join(format!("{}.bin", format.name()));
        let mut writer = ShardWriter::create(&path, format, 300).expect("room");
        writer.push(&(0..300).collect::<Vec<u32>>()).expect("written");
        writer.finish().expect("written");
        let whole = fs::read(&path).expect("there");
        fs::write(&path, &whole[..whole.len() - 1]).expect("written");
        let error = TokenShard::open(&path).expect_err("odd").to_string();
        assert!(error.contains("cut short"), "{error}");
        fs::write(&path, &whole[..whole.len() - 2]).expect("written");
        // Only tokens without any header lose one unnoticed.
        assert_eq!(TokenShard::open(&path).is_ok(), format == ShardFormat::NanoGpt);
    }
}

#[test]
fn damaged_indices_and_headers_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data.bin");
    let mut writer = ShardWriter::create(&path, ShardFormat::Megatron, 300).expect("room");
    for document in [[1, 2], [3, 4]] {
        writer.push(&document).expect("written");
        writer.end_document();
    }
    writer.finish().expect("written");
    let index = path.with_extension("idx");
    let whole = fs::read(&index).expect("there");
    // The magic, the version, the type, the number of sequences, a length, an offset and a border.
    for (at, byte) in [(0, b'X'), (9, 2), (17, 5), (18, 9), (34, 7), (42, 1), (58, 77)] {
        let mut damaged = whole.clone();
        damaged[at] = byte;
        fs::write(&index, &damaged).expect("written");
        assert!(TokenShard::open(&path).is_err(), "byte {at}");
    }
    for cut in 0..whole.len() {
        fs::write(&index, &whole[..cut]).expect("written");
        assert!(TokenShard::open(&path).is_err(), "cut to {cut}");
    }
    let other = folder.path().join("other.bin");
    let mut header = vec![0_u8; 1024];
    header[..4].copy_from_slice(&20_240_520_i32.to_le_bytes());
    header[4..8].copy_from_slice(&3_i32.to_le_bytes());
    fs::write(&other, &header).expect("written");
    assert!(TokenShard::open(&other).expect_err("version 3").to_string().contains("version 3"));
    fs::write(&other, b"").expect("written");
    assert!(TokenShard::open(&other).is_err());
}

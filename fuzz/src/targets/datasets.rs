//! Datasets: tables and lists.

use std::sync::Arc;

use image::ImageFormat;
use parquet::basic::{Compression, Encoding, GzipLevel, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use phalanx_data::{
    ClipTokenizer, CocoCaptions, CocoConfig, CubConfig, CubDataset, Dataset, Exclusions, Split, open_cifar10,
};
use phalanx_fuzz_harness::files::{self, folder};
use phalanx_fuzz_harness::{Random, damage};

use super::pictures::{self, picture};
use super::{Target, no_form};

fn coco() -> Vec<Vec<u8>> {
    let json = r#"{"images":[{"id":1,"file_name":"a.png"},{"id":2,"file_name":"b.png"}],"annotations":[{"image_id":1,"caption":"one"},{"image_id":2,"caption":"two words"},{"image_id":1,"caption":"x"}]}"#;
    let image = picture(ImageFormat::Png);
    vec![files::join([
        ("annotations/captions_train2014.json", json.as_bytes()),
        ("train2014/a.png", &image),
        ("exclusions", b"b.png\n"),
    ])]
}

fn read_coco(bytes: &[u8]) {
    let place = folder();
    files::write(bytes, place.path());
    let excluded = Exclusions::read(place.path().join("exclusions")).unwrap_or_default();
    let config = CocoConfig { path: place.path().to_owned(), split: Split::Train, caption_seed: 1, excluded };
    let Ok(coco) = CocoCaptions::open(&config) else { return };
    for sample in 0..coco.len().min(3) {
        let _ = coco.get(sample, 0);
    }
}

pub(super) const COCO: Target = Target {
    name: "coco",
    about: "captions of MS-COCO, and lists of exclusions",
    seeds: coco,
    words: &["\"id\":", "\"image_id\":", "../", "\n"],
    change: files::change,
    read: read_coco,
    cases: 200,
    memory: 48 << 20,
};

fn cub() -> Vec<Vec<u8>> {
    let image = picture(ImageFormat::Jpeg);
    vec![files::join([
        ("classes.txt", b"1 001.Gull\n2 002.Wren\n".as_slice()),
        ("images.txt", b"1 001.Gull/a.jpg\n2 002.Wren/b.jpg\n"),
        ("image_class_labels.txt", b"1 1\n2 2\n"),
        ("train_test_split.txt", b"1 1\n2 1\n"),
        ("bounding_boxes.txt", b"1 1.0 1.0 4.0 4.0\n2 0.0 0.0 8.0 7.0\n"),
        ("images/001.Gull/a.jpg", &image),
        ("images/002.Wren/b.jpg", &image),
        ("text/001.Gull/a.txt", b"a gull\na bird\n"),
        ("text/002.Wren/b.txt", b"a wren\n"),
    ])]
}

fn read_cub(bytes: &[u8]) {
    let place = folder();
    files::write(bytes, place.path());
    let Ok(cub) = CubDataset::open(&CubConfig::new(place.path(), Split::Train)) else { return };
    for sample in 0..cub.len().min(2) {
        let _ = cub.get(sample, 0);
    }
}

pub(super) const CUB: Target = Target {
    name: "cub",
    about: "tables of CUB-200-2011",
    seeds: cub,
    words: &["\n", " ", "1e30", "-1", "NaN", "inf", "18446744073709551615"],
    change: files::change,
    read: read_cub,
    cases: 150,
    memory: 48 << 20,
};

fn record(label: u8) -> Vec<u8> {
    std::iter::once(label).chain((0..3072_u32).map(|at| at as u8)).collect()
}

pub(super) const CIFAR_BINARY: Target = Target {
    name: "cifar_binary",
    about: "CIFAR-10's binary files",
    seeds: || {
        let two = [record(1), record(9)].concat();
        let names = b"airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n";
        vec![files::join([("data_batch_1.bin", two.as_slice()), ("batches.meta.txt", names)])]
    },
    words: &["\n"],
    change: files::change,
    read: pictures::open_images,
    cases: 150,
    memory: 48 << 20,
};

/// Returns tables for every code path of the reader: compressed or not, pages of both versions, with and without
/// dictionaries.
fn parquet() -> Vec<Vec<u8>> {
    let forms = [
        (Compression::UNCOMPRESSED, WriterVersion::PARQUET_1_0, true),
        (Compression::SNAPPY, WriterVersion::PARQUET_1_0, false),
        (Compression::ZSTD(ZstdLevel::default()), WriterVersion::PARQUET_2_0, true),
        (Compression::GZIP(GzipLevel::default()), WriterVersion::PARQUET_2_0, false),
        (Compression::LZ4, WriterVersion::PARQUET_1_0, true),
        (Compression::LZ4_RAW, WriterVersion::PARQUET_2_0, true),
    ];
    let write = |(compression, version, dictionary)| -> parquet::errors::Result<Vec<u8>> {
        let schema = "message schema { optional group img { optional binary bytes; optional binary path (UTF8); } optional int64 label; }";
        let schema = Arc::new(parse_message_type(schema)?);
        let mut bytes = Vec::new();
        let properties = WriterProperties::builder().set_compression(compression).set_writer_version(version);
        let properties = properties.set_dictionary_enabled(dictionary);
        let images = ColumnPath::from(vec!["img".to_owned(), "bytes".to_owned()]);
        let properties = Arc::new(properties.set_column_encoding(images, Encoding::PLAIN).build());
        let mut writer = SerializedFileWriter::new(&mut bytes, schema, properties)?;
        let image = ByteArray::from(picture(ImageFormat::Png));
        for _ in 0..2 {
            let mut group = writer.next_row_group()?;
            if let Some(mut column) = group.next_column()? {
                column.typed::<ByteArrayType>().write_batch(
                    &[image.clone(), image.clone()],
                    Some(&[2, 2]),
                    None,
                )?;
                column.close()?;
            }
            if let Some(mut column) = group.next_column()? {
                column.typed::<ByteArrayType>().write_batch(&[], Some(&[1, 1]), None)?;
                column.close()?;
            }
            if let Some(mut column) = group.next_column()? {
                column.typed::<Int64Type>().write_batch(&[1, 2], Some(&[1, 1]), None)?;
                column.close()?;
            }
            group.close()?;
        }
        writer.close()?;
        Ok(bytes)
    };
    let tables: Vec<_> = forms.into_iter().filter_map(|form| write(form).ok()).collect();
    assert_eq!(tables.len(), forms.len(), "tables are written");
    tables
}

fn read_parquet(bytes: &[u8]) {
    let place = folder();
    if std::fs::write(place.path().join("train-00000.parquet"), bytes).is_ok() {
        let Ok(images) = open_cifar10(place.path(), Split::Train) else { return };
        for sample in 0..images.len().min(3) {
            let _ = images.get(sample, 0);
        }
    }
}

/// Changes the metadata at the end, and updates its length.
fn footer(input: &mut Vec<u8>, random: &mut Random) -> bool {
    let Some((_, tail)) = input.split_last_chunk::<8>() else { return false };
    let length = u32::from_le_bytes(std::array::from_fn(|at| tail[at])) as usize;
    let Some(start) = (input.len() - 8).checked_sub(length) else { return false };
    let mut metadata = input[start..input.len() - 8].to_vec();
    damage::bytes(&mut metadata, b"\x15\x02\x19\x1c", random);
    input.truncate(start);
    input.extend_from_slice(&metadata);
    input.extend_from_slice(&(metadata.len() as u32).to_le_bytes());
    input.extend_from_slice(b"PAR1");
    true
}

pub(super) const PARQUET: Target = Target {
    name: "parquet",
    about: "images in parquet",
    seeds: parquet,
    words: &["PAR1", "huggingface", "label"],
    change: footer,
    read: read_parquet,
    cases: 200,
    memory: 48 << 20,
};

fn merges() -> Vec<Vec<u8>> {
    let mut text = String::from("#version: 0.2\n");
    for (at, first) in ('a'..='z').enumerate() {
        let second = char::from(b'a' + ((at * 7) % 26) as u8);
        text += &format!("{first} {second}\n{first}{second} e</w>\n");
    }
    vec![text.clone().into_bytes(), compressed(text.as_bytes())]
}

fn compressed(text: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    let _ = encoder.write_all(text);
    encoder.finish().unwrap_or_default()
}

fn read_merges(bytes: &[u8]) {
    let place = folder();
    let path = place.path().join("merges.txt");
    if std::fs::write(&path, bytes).is_err() {
        return;
    }
    let _ = ClipTokenizer::from_merges_file(&path);
    let Ok(tokenizer) = ClipTokenizer::from_merges_text(&path, 514 + 40) else { return };
    for text in ["a bird", "ééé 12 <|endoftext|>", ""] {
        let ids = tokenizer.tokenize(text);
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab()));
        let _ = tokenizer.decode(&ids);
    }
}

pub(super) const MERGES: Target = Target {
    name: "merges",
    about: "a tokenizer's merges, plain and compressed",
    seeds: merges,
    words: &["</w>", " ", "\n", "é", "\u{10ffff}"],
    change: no_form,
    read: read_merges,
    cases: 200,
    memory: 48 << 20,
};

fn read_text(bytes: &[u8]) {
    // Texts to tokenise are external input, too.
    static CLIP: std::sync::OnceLock<Option<ClipTokenizer>> = std::sync::OnceLock::new();
    if let Some(tokenizer) = CLIP.get_or_init(|| ClipTokenizer::new().ok()) {
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]);
        assert_eq!(tokenizer.encode_truncated(&text, 77).len(), 77);
    }
}

pub(super) const TEXT_LINES: Target = Target {
    name: "text_lines",
    about: "texts as captions for the tokenizer",
    seeds: || {
        ["one line\nand another\n\nthe end\n", "A &amp;lt; photo of “five” 3½ cats’ ĳ\r\n<|endoftext|>"]
            .map(|text| text.as_bytes().to_vec())
            .to_vec()
    },
    words: &["&amp;", "&#x110000;", "<|startoftext|>", "\u{feff}", "\u{200d}", "\r\n", "ﬃ"],
    change: no_form,
    read: read_text,
    cases: 200,
    // The first text builds the table of CLIP's tokenizer.
    memory: 256 << 20,
};

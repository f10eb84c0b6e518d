//! The three forms of CIFAR-10, valid and damaged, and the real images if available.

use image::{DynamicImage, ImageFormat, Rgb, RgbImage};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::metadata::{KeyValue, ParquetMetaDataWriter};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use phalanx_data::{DataError, Dataset, ImageFolder, LabelledDataset, Split, open_cifar10};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

const RECORD: usize = 3073;

fn error_of<T>(result: Result<T, DataError>) -> DataError {
    result.err().expect("an error")
}

/// Makes an image that encodes its number.
fn picture(number: u8) -> RgbImage {
    RgbImage::from_fn(32, 32, |x, y| Rgb([number, x as u8, y as u8]))
}

fn encoded(image: &RgbImage, format: ImageFormat) -> Vec<u8> {
    crate::files::encoded(&DynamicImage::ImageRgb8(image.clone()), format)
}

fn record(label: u8, number: u8) -> Vec<u8> {
    let image = picture(number);
    let mut bytes = vec![label];
    for channel in 0..3 {
        bytes.extend(image.pixels().map(|pixel| pixel.0[channel]));
    }
    assert_eq!(bytes.len(), RECORD);
    bytes
}

fn write_binary(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("data_batch_2.bin"), [record(3, 12), record(9, 13)].concat()).unwrap();
    fs::write(folder.join("data_batch_1.bin"), [record(0, 10), record(5, 11)].concat()).unwrap();
    fs::write(folder.join("test_batch.bin"), record(7, 20)).unwrap();
}

#[test]
fn binary_batches_in_order_with_their_pixels() {
    for folder in ["", "cifar-10-batches-bin"] {
        let dir = TempDir::new().unwrap();
        write_binary(&dir.path().join(folder));
        let train = open_cifar10(dir.path(), Split::Train).unwrap();
        assert_eq!((train.name(), train.len()), ("cifar10/train", 4));
        for (index, (label, number)) in [(0, 10), (5, 11), (3, 12), (9, 13)].into_iter().enumerate() {
            let sample = train.get(index, 0).unwrap();
            assert_eq!(sample.image, picture(number));
            assert_eq!((sample.label, train.label(index).unwrap()), (label, label));
        }
        assert_eq!(train.class_names()[9], "truck");
        assert!(train.get(0, 0).unwrap().caption.contains("an airplane"));
        assert!(train.get(4, 0).is_err());
        assert_eq!(open_cifar10(dir.path(), Split::Test).unwrap().get(0, 0).unwrap().image, picture(20));
    }
}

#[test]
fn binary_class_names_are_read_from_their_file() {
    let dir = TempDir::new().unwrap();
    write_binary(dir.path());
    let names: Vec<String> = (0..10).map(|n| format!("thing_{n}")).collect();
    fs::write(dir.path().join("batches.meta.txt"), names.join("\n") + "\n\n").unwrap();
    let train = open_cifar10(dir.path(), Split::Train).unwrap();
    assert_eq!(train.class_names(), names);
    assert!(train.get(0, 0).unwrap().caption.contains("a thing 0"));
}

#[test]
fn binary_faults_name_file_and_row() {
    let dir = TempDir::new().unwrap();
    write_binary(dir.path());
    let file = dir.path().join("data_batch_2.bin");
    let good = fs::read(&file).unwrap();
    fs::write(&file, &good[..RECORD + 100]).unwrap();
    let error = error_of(open_cifar10(dir.path(), Split::Train));
    assert!(
        matches!(&error, DataError::Truncated { file: f, row: 1, expected: RECORD, found: 100 } if *f == file),
        "{error}"
    );
    fs::write(&file, [record(3, 12), record(10, 13)].concat()).unwrap();
    let error = error_of(open_cifar10(dir.path(), Split::Train));
    assert!(
        matches!(&error, DataError::LabelOutOfRange { file: f, row: 1, label: 10, num_classes: 10 } if *f == file)
    );
    fs::write(&file, []).unwrap();
    assert!(matches!(error_of(open_cifar10(dir.path(), Split::Train)), DataError::Truncated { row: 0, .. }));
}

/// A row: the compressed image, if any, and the label.
type Row = (Option<Vec<u8>>, i64);

/// Writes a parquet file like the `datasets` library, in row groups of two.
fn write_parquet(path: &Path, rows: &[Row], names: Option<&[&str]>) {
    write_parquet_groups(path, rows, 2, names);
}

fn write_parquet_groups(path: &Path, rows: &[Row], in_group: usize, names: Option<&[&str]>) {
    let schema = "message schema { optional group img { optional binary bytes; optional binary path (UTF8); } optional int64 label; }";
    let metadata = names.map(|names| {
        let json =
            serde_json::json!({"info": {"features": {"img": {"_type": "Image"}, "label": {"names": names}}}});
        vec![KeyValue::new("huggingface".to_string(), json.to_string())]
    });
    let properties = WriterProperties::builder().set_key_value_metadata(metadata).build();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = fs::File::create(path).unwrap();
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    for rows in rows.chunks(in_group) {
        let mut group = writer.next_row_group().unwrap();
        let images: Vec<ByteArray> = rows.iter().filter_map(|r| r.0.clone().map(ByteArray::from)).collect();
        let levels: Vec<i16> = rows.iter().map(|row| if row.0.is_some() { 2 } else { 1 }).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&images, Some(&levels), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&[], Some(&vec![1; rows.len()]), None).unwrap();
        column.close().unwrap();
        let labels: Vec<i64> = rows.iter().map(|row| row.1).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&labels, Some(&vec![1; rows.len()]), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

fn rows(numbers: &[u8]) -> Vec<Row> {
    numbers.iter().map(|&n| (Some(encoded(&picture(n), ImageFormat::Png)), i64::from(n) % 3)).collect()
}

fn part(dir: &TempDir, folder: &str, part: usize) -> PathBuf {
    dir.path().join(folder).join(format!("train-0000{part}-of-00002.parquet"))
}

fn only_part(dir: &TempDir) -> PathBuf {
    dir.path().join("train-00000-of-00001.parquet")
}

#[test]
fn parquet_parts_in_order_with_their_names() {
    for folder in ["", "data", "plain_text"] {
        let dir = TempDir::new().unwrap();
        let names = ["red_fox", "owl", "hare"];
        write_parquet(&part(&dir, folder, 0), &rows(&[1, 2, 3]), Some(&names));
        write_parquet(&part(&dir, folder, 1), &rows(&[4, 5]), Some(&names));
        let train = open_cifar10(dir.path(), Split::Train).unwrap();
        assert_eq!((train.len(), train.class_names()), (5, &names.map(String::from)[..]));
        for index in 0..5 {
            let sample = train.get(index, 0).unwrap();
            assert_eq!(sample.image, picture(index as u8 + 1));
            assert_eq!(sample.label, (index as u32 + 1) % 3);
        }
        assert!(train.get(2, 0).unwrap().caption.contains("a red fox"));
        assert!(train.get(1, 0).unwrap().caption.contains("a hare"));
        assert!(matches!(error_of(open_cifar10(dir.path(), Split::Test)), DataError::NoTestSplit { .. }));
    }
}

#[test]
fn a_missing_part_is_named() {
    let dir = TempDir::new().unwrap();
    write_parquet(&part(&dir, "data", 1), &rows(&[4, 5]), None);
    let error = error_of(open_cifar10(dir.path(), Split::Train)).to_string();
    assert!(error.contains("data/train-00000-of-00002.parquet: the file is missing"), "{error}");
    let dir = TempDir::new().unwrap();
    write_binary(dir.path());
    fs::rename(dir.path().join("data_batch_2.bin"), dir.path().join("data_batch_3.bin")).unwrap();
    let error = error_of(open_cifar10(dir.path(), Split::Train)).to_string();
    assert!(error.contains("data_batch_2.bin: the file is missing, but data_batch_3.bin exists"), "{error}");
}

#[test]
fn the_test_split_may_be_called_validation() {
    let dir = TempDir::new().unwrap();
    write_parquet(&only_part(&dir), &rows(&[1, 2, 3]), None);
    write_parquet(&dir.path().join("validation-00000-of-00001.parquet"), &rows(&[4]), None);
    assert_eq!(open_cifar10(dir.path(), Split::Test).unwrap().get(0, 0).unwrap().image, picture(4));
}

#[test]
fn samples_have_the_path_of_their_file_and_row() {
    let dir = TempDir::new().unwrap();
    write_parquet(&part(&dir, "", 0), &rows(&[1, 2, 3]), None);
    write_parquet(&part(&dir, "", 1), &rows(&[4, 5]), None);
    let train = open_cifar10(dir.path(), Split::Train).unwrap();
    assert_eq!(train.sample_path(4).unwrap(), part(&dir, "", 1).join("1"));
    assert_eq!(train.files(), [part(&dir, "", 0), part(&dir, "", 1)]);
    let dir = TempDir::new().unwrap();
    write_binary(dir.path());
    let train = open_cifar10(dir.path(), Split::Train).unwrap();
    assert_eq!(train.sample_path(2).unwrap(), dir.path().join("data_batch_2.bin/0"));
    assert!(train.sample_path(4).is_err());
}

#[test]
fn parquet_without_names_has_cifars_class_names() {
    let dir = TempDir::new().unwrap();
    write_parquet(&only_part(&dir), &rows(&[1]), None);
    assert_eq!(open_cifar10(dir.path(), Split::Train).unwrap().class_names()[1], "automobile");
}

#[test]
fn parquet_faults_name_file_and_row() {
    let dir = TempDir::new().unwrap();
    let file = part(&dir, "data", 1);
    write_parquet(&part(&dir, "data", 0), &rows(&[1, 2, 3]), None);

    // A corrupt image is an error when it is read.
    let mut damaged = rows(&[4, 5, 6]);
    damaged[2].0 = Some(b"not an image".to_vec());
    write_parquet(&file, &damaged, None);
    let train = open_cifar10(dir.path(), Split::Train).unwrap();
    assert!(train.get(4, 0).is_ok());
    let error = error_of(train.get(5, 0));
    assert!(matches!(&error, DataError::CorruptImage { file: f, row: 2, .. } if *f == file), "{error}");

    // So is a truncated one.
    let mut damaged = rows(&[4, 5, 6]);
    let whole = damaged[1].0.take().unwrap();
    damaged[1].0 = Some(whole[..whole.len() / 2].to_vec());
    write_parquet(&file, &damaged, None);
    let train = open_cifar10(dir.path(), Split::Train).unwrap();
    assert!(matches!(error_of(train.get(4, 0)), DataError::CorruptImage { row: 1, .. }));

    let mut damaged = rows(&[4, 5, 6]);
    damaged[2].0 = None;
    write_parquet(&file, &damaged, None);
    let error = error_of(open_cifar10(dir.path(), Split::Train));
    assert!(
        matches!(&error, DataError::NullValue { file: f, row: 2, column } if *f == file && column == "img.bytes"),
        "{error}"
    );

    for label in [-1, 10, 1 << 40] {
        let mut damaged = rows(&[4, 5, 6]);
        damaged[2].1 = label;
        write_parquet(&file, &damaged, None);
        let error = error_of(open_cifar10(dir.path(), Split::Train));
        assert!(
            matches!(&error, DataError::LabelOutOfRange { file: f, row: 2, label: l, .. } if *f == file && *l == label),
            "{error}"
        );
    }

    write_parquet(&file, &rows(&[4, 5, 6]), Some(&["only"]));
    assert!(matches!(
        error_of(open_cifar10(dir.path(), Split::Train)),
        DataError::LabelOutOfRange { row: 0, .. }
    ));

    let whole = fs::read(&file).unwrap();
    for length in [0, 3, whole.len() / 2, whole.len() - 1] {
        fs::write(&file, &whole[..length]).unwrap();
        let error = error_of(open_cifar10(dir.path(), Split::Train));
        assert!(matches!(&error, DataError::Parquet { file: f, .. } if *f == file), "{error}");
    }
}

#[test]
fn parquet_that_expands_too_much_is_refused() {
    let dir = TempDir::new().unwrap();
    let file = only_part(&dir);
    // Identical rows take nearly no bytes.
    for (row, count, expected) in [
        ((Some(vec![7; 2000]), 1), 10_000, "its images have 20000000 bytes by row 0"),
        ((Some(vec![7]), 1), 200_000, "200000 rows by row group 0 are more than"),
    ] {
        write_parquet_groups(&file, &vec![row; count], count, None);
        let error = error_of(open_cifar10(dir.path(), Split::Train));
        assert!(matches!(&error, DataError::Parquet { file: f, .. } if *f == file), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn parquet_whose_row_groups_are_the_same_bytes_is_refused() {
    let dir = TempDir::new().unwrap();
    let file = only_part(&dir);
    write_parquet(&file, &rows(&[1, 2]), None);
    let whole = fs::read(&file).unwrap();
    let metadata = SerializedFileReader::new(fs::File::open(&file).unwrap()).unwrap().metadata().clone();
    let length = u32::from_le_bytes(whole[whole.len() - 8..whole.len() - 4].try_into().unwrap());
    // The data once, with a footer that lists it as a hundred row groups.
    let group = metadata.row_group(0).clone();
    let groups = (0..100).map(|number| group.clone().into_builder().set_ordinal(number).build().unwrap());
    let metadata = metadata.into_builder().set_row_groups(groups.collect()).build();
    let mut bytes = whole[..whole.len() - 8 - length as usize].to_vec();
    ParquetMetaDataWriter::new(&mut bytes, &metadata).finish().unwrap();
    fs::write(&file, &bytes).unwrap();
    let error = error_of(open_cifar10(dir.path(), Split::Train));
    assert!(matches!(&error, DataError::Parquet { file: f, .. } if *f == file), "{error}");
    assert!(error.to_string().contains(&format!("more than the {} of their file", bytes.len())), "{error}");
}

#[test]
fn parquet_parts_that_disagree_on_names_are_refused() {
    let dir = TempDir::new().unwrap();
    write_parquet(&part(&dir, "", 0), &rows(&[1]), Some(&["a", "b", "c"]));
    write_parquet(&part(&dir, "", 1), &rows(&[1]), Some(&["a", "c", "b"]));
    assert!(matches!(error_of(open_cifar10(dir.path(), Split::Train)), DataError::ClassNames { .. }));
}

fn write_image(root: &Path, place: &str, number: u8, format: ImageFormat) {
    let path = root.join(place);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, encoded(&picture(number), format)).unwrap();
}

#[test]
fn class_folders_have_the_same_labels_in_both_splits() {
    let dir = TempDir::new().unwrap();
    write_image(dir.path(), "train/dog/2.png", 2, ImageFormat::Png);
    write_image(dir.path(), "train/dog/1.bmp", 1, ImageFormat::Bmp);
    write_image(dir.path(), "train/cat/9.PNG", 9, ImageFormat::Png);
    write_image(dir.path(), "test/dog/3.png", 3, ImageFormat::Png);
    fs::write(dir.path().join("train/cat/notes.txt"), "no image").unwrap();
    fs::create_dir(dir.path().join("train/.cache")).unwrap();
    let train = open_cifar10(dir.path(), Split::Train).unwrap();
    assert_eq!(train.class_names(), ["cat", "dog"]);
    let all: Vec<_> = (0..train.len()).map(|index| train.get(index, 0).unwrap()).collect();
    assert_eq!(all.iter().map(|s| s.label).collect::<Vec<_>>(), [0, 1, 1]);
    assert_eq!(all.iter().map(|s| s.image.get_pixel(0, 0).0[0]).collect::<Vec<_>>(), [9, 1, 2]);
    let test = ImageFolder::open(dir.path(), Split::Test).unwrap();
    assert_eq!((test.len(), test.label(0).unwrap()), (1, 1));

    fs::write(dir.path().join("test/dog/3.png"), b"\x89PNG torn").unwrap();
    let error = error_of(test.get(0, 0));
    assert!(matches!(&error, DataError::ImageFile { file, .. } if file.ends_with("test/dog/3.png")));
    fs::remove_file(dir.path().join("test/dog/3.png")).unwrap();
    assert!(matches!(error_of(test.get(0, 0)), DataError::Io { .. }));
    assert!(matches!(error_of(ImageFolder::open(dir.path(), Split::Test)), DataError::Unrecognised { .. }));
    write_image(dir.path(), "test/bird/1.png", 1, ImageFormat::Png);
    assert!(matches!(error_of(ImageFolder::open(dir.path(), Split::Test)), DataError::ClassNames { .. }));
}

#[test]
fn a_folder_of_unknown_form_lists_the_known_forms() {
    let dir = TempDir::new().unwrap();
    let message = error_of(open_cifar10(dir.path(), Split::Train)).to_string();
    for form in ["data_batch_*.bin", "train-*.parquet", "train/<class>"] {
        assert!(message.contains(form), "{message}");
    }
    let absent = dir.path().join("absent");
    assert!(
        matches!(error_of(open_cifar10(&absent, Split::Train)), DataError::NoFolder(path) if path == absent)
    );
}

#[test]
fn the_real_images() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/cifar10");
    if !path.is_dir() {
        eprintln!("skipped: no CIFAR-10 in ../shared/data/cifar10");
        return;
    }
    for (split, len) in [(Split::Train, 50_000), (Split::Test, 10_000)] {
        let dataset = open_cifar10(&path, split).unwrap();
        assert_eq!(dataset.len(), len);
        assert_eq!(dataset.class_names(), phalanx_data::cifar10::CLASS_NAMES);
        let mut counts = [0; 10];
        for index in 0..len {
            counts[dataset.label(index).unwrap() as usize] += 1;
        }
        assert_eq!(counts, [len / 10; 10]);
        for index in (0..len).step_by(997) {
            assert_eq!(dataset.get(index, 0).unwrap().image.dimensions(), (32, 32));
        }
    }
}

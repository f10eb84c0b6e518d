//! Memory of a dataset of 12,000 photographs of CUB's size while its batches are prefetched.
//!
//! Each test runs in a process of its own, so that resident memory is that of the dataset and its loader alone.

use crate::files::{encoded, write};
use image::{DynamicImage, ImageFormat, Rgb, RgbImage};
use phalanx_data::{
    CollatedDataset, CubConfig, CubDataset, Dataset, DistributedSampler, Filter, ImageCollation, Loader,
    LoaderConfig, Order, RandomCrop, Resize, SamplerConfig, Split, Tail, Transform, TransformConfig,
};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

const IMAGES: usize = 12_000;
const SPECIES: usize = 200;

/// A field of `/proc/self/status`, in MiB.
fn status(field: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

/// The CPU time of this process in seconds, to a hundredth.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    // After the program's name in parentheses, user and system time are fields 12 and 13.
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// Writes photographs like the dataset's, of 500x375 pixels and some 100 KB, in the published form. The images are a
/// few files under 12,000 names.
fn cub(root: &Path) {
    let photos: Vec<_> = (0..8_u32)
        .map(|number| {
            // Smooth shades with independent noise in each channel, which gives a realistic file size.
            let image = RgbImage::from_fn(500, 375, |x, y| {
                let noise = (x.wrapping_mul(2_654_435_761) ^ y.wrapping_mul(40_503 + number))
                    .wrapping_mul(2_246_822_519);
                let channel = |shade: u32, shift: u32| (shade + (noise >> shift & 63)) as u8;
                Rgb([channel(x / 3, 8), channel(y / 2, 15), channel((x + y) / 5, 22)])
            });
            let file = root.join(format!("photo-{number}.jpg"));
            write(&file, encoded(&DynamicImage::ImageRgb8(image), ImageFormat::Jpeg));
            file
        })
        .collect();
    let (mut tables, mut classes) = ([const { String::new() }; 4], String::new());
    for species in 0..SPECIES {
        let class = format!("{:03}.Species_of_a_Long_Name_{species}", species + 1);
        classes.push_str(&format!("{} {class}\n", species + 1));
        fs::create_dir_all(root.join("images").join(&class)).unwrap();
        fs::create_dir_all(root.join("text_c10").join(&class)).unwrap();
        for at in (species..IMAGES).step_by(SPECIES) {
            let path = format!("{class}/Species_of_a_Long_Name_{at:05}_{species:06}");
            fs::hard_link(&photos[at % photos.len()], root.join(format!("images/{path}.jpg"))).unwrap();
            let caption = |number| {
                format!("this bird {at} has a short beak and wing bars, as is told the {number} time.\n")
            };
            let captions: String = (0..10).map(caption).collect();
            fs::write(root.join(format!("text_c10/{path}.txt")), captions).unwrap();
            for (table, rest) in tables.iter_mut().zip([
                format!("{path}.jpg"),
                (species + 1).to_string(),
                "1".to_owned(),
                "100.0 60.0 250.0 200.0".to_owned(),
            ]) {
                table.push_str(&format!("{} {rest}\n", at + 1));
            }
        }
    }
    let names = ["images.txt", "image_class_labels.txt", "train_test_split.txt", "bounding_boxes.txt"];
    names.iter().zip(tables).for_each(|(name, table)| write(&root.join(name), table));
    write(&root.join("classes.txt"), classes);
}

/// Reads `steps` batches of `batch` images cropped to `side`. Returns images per second and images per CPU second;
/// other programs change the latter less.
fn read(dataset: &Arc<CubDataset>, side: u32, batch: usize, steps: usize) -> [f64; 2] {
    let transform = Transform::new(TransformConfig {
        resize: Some(Resize::square(side * 76 / 64, Filter::Bilinear)),
        random_crop: Some(RandomCrop { size: side, padding: 0 }),
        flip: 0.5,
        ..TransformConfig::default()
    });
    let source = Arc::new(CollatedDataset::new(dataset.clone(), ImageCollation::new(transform.unwrap())));
    let sampler = DistributedSampler::new(SamplerConfig {
        len: dataset.len(),
        world_size: 1,
        rank: 0,
        global_batch: batch,
        micro_batches: 1,
        seed: 1,
        order: Order::Shuffled,
        tail: Tail::Drop,
    });
    let loader = Loader::new(
        source,
        sampler.unwrap(),
        LoaderConfig { workers: 2, prefetch: 4, ..LoaderConfig::default() },
        (0, 0),
    )
    .unwrap();
    let (began, taken) = (Instant::now(), cpu_seconds());
    for read in loader.take(steps) {
        let read = read.unwrap();
        assert_eq!(read.batch.array("images").unwrap().shape(), [batch, 3, side as usize, side as usize]);
    }
    [began.elapsed().as_secs_f64(), cpu_seconds() - taken].map(|seconds| (batch * steps) as f64 / seconds)
}

/// Opens 12,000 images, reads some of them in batches and checks the resident memory.
fn measure(side: u32, batch: usize, steps: usize) {
    let place = tempfile::tempdir().unwrap();
    cub(place.path());
    let before = status("VmRSS:");
    let began = Instant::now();
    let dataset = Arc::new(CubDataset::open(&CubConfig::new(place.path(), Split::Train)).unwrap());
    let (seconds, index) = (began.elapsed().as_secs_f64(), status("VmRSS:") - before);
    assert_eq!(dataset.len(), IMAGES);
    let [speed, of_one] = read(&dataset, side, batch, steps);
    let most = status("VmHWM:");
    // Four prefetched batches, and one in use.
    let batches = (5 * batch * 3 * 4 * (side * side) as usize) >> 20;
    let kilobytes = fs::metadata(place.path().join("photo-0.jpg")).unwrap().len() / 1000;
    println!(
        "{IMAGES} images of {kilobytes} KB with 10 captions each, opened in {seconds:.2} s; index {index:.1} MiB; {side}x{side}: \
         {speed:.0} images/s with 2 workers, {of_one:.0} per CPU second, over {steps} steps of {batch}; at most {most:.0} MiB resident, of which \
         up to {batches} are batches made ahead"
    );
    assert!(index < 64.0, "the index takes {index} MiB");
    assert!(most < 1024.0, "{most} MiB were resident");
}

/// Set in a process that runs one of these tests alone.
const ALONE: &str = "PHALANX_TEST_ALONE";

/// Runs `test` of this module in a process of its own: there it calls `run`, here it starts that process.
fn alone(test: &str, run: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return run();
    }
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", &format!("memory::{test}"), "--include-ignored", "--nocapture"];
    let output = Command::new(program).args(arguments).env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
fn twelve_thousand_images_take_less_than_a_gigabyte() {
    alone("twelve_thousand_images_take_less_than_a_gigabyte", || measure(64, 64, 6));
}

#[test]
#[ignore = "an epoch of 12,000 photographs takes a minute; run with --release --ignored"]
fn a_whole_epoch_takes_no_more() {
    alone("a_whole_epoch_takes_no_more", || measure(64, 64, IMAGES / 64));
}

#[test]
#[ignore = "320 images of 512x512 pixels; run with --release --ignored"]
fn large_images_take_less_than_a_gigabyte_too() {
    alone("large_images_take_less_than_a_gigabyte_too", || measure(512, 16, 20));
}

//! Event files for TensorBoard: metrics, samples, hyper-parameters, and the configuration as text.
//!
//! A file `events.out.tfevents.SECONDS.HOST` is a sequence of records (TensorFlow's `TFRecord`). Each holds an `Event`
//! message of Protocol Buffers (`tensorflow/core/util/event.proto`, `framework/summary.proto`).

mod hparams;
mod record;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use phalanx_data::Links;
use serde_json::Value;

use super::protobuf::Message;
use super::{Line, RunError, open_to_append};
use record::framed;

/// A writer of an event file.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Creates a new file in a run's folder. TensorBoard discards events of earlier files from `step` on: a resumed run
    /// repeats those steps. `config` is the configuration, in TOML.
    ///
    /// # Errors
    /// [`RunError::Io`] if the file cannot be written.
    pub fn create(folder: &Path, host: &str, step: u64, config: &str) -> Result<Self, RunError> {
        let seconds = now() as u64;
        // The name separates its parts by dots, so the host name must not contain dots or slashes.
        let host: String =
            host.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
        // A run may be resumed within the same second.
        let names = (0..).map(|n| match n {
            0 => format!("events.out.tfevents.{seconds}.{host}"),
            n => format!("events.out.tfevents.{seconds}.{host}.{n}"),
        });
        let mut paths = names.map(|name| folder.join(name));
        let path = paths.find(|path| !path.exists()).unwrap_or_else(|| folder.join("events.out.tfevents"));
        let file = open_to_append(&path).map_err(RunError::io("create", &path))?;
        let mut events = Self { path, file };
        events.write(Message::new().double(1, now()).bytes(3, b"brain.Event:2"))?;
        // `SessionLog { status: START }` makes TensorBoard discard earlier events of this step and later ones.
        let begun = Message::new().varint(1, 1);
        events.write(Message::new().double(1, now()).varint(2, step).message(7, &begun))?;
        events.text(step, "configuration", &format!("```toml\n{config}\n```"))?;
        Ok(events)
    }

    /// Adds the numbers of a metrics line as scalars.
    ///
    /// # Errors
    /// [`RunError::Io`] if the file cannot be written.
    pub fn scalars(&mut self, line: &Line) -> Result<(), RunError> {
        let value =
            |name: &str, value: f64| Message::new().bytes(1, tag(name).as_bytes()).float(2, value as f32);
        let summary = line
            .numbers()
            .fold(Message::new(), |summary, (name, number)| summary.message(1, &value(name, number)));
        self.summary(line.step(), &summary)
    }

    /// Adds an image from a PNG file.
    ///
    /// # Errors
    /// [`RunError::Io`] if reading or writing fails, [`RunError::Malformed`] if the file is no PNG.
    pub fn image(&mut self, step: u64, name: &str, picture: &Path) -> Result<(), RunError> {
        let bytes = Links::Refuse.read(picture).map_err(RunError::io("read", picture))?;
        let reader = image::ImageReader::with_format(std::io::Cursor::new(&bytes), image::ImageFormat::Png);
        let malformed = |error: image::ImageError| RunError::Malformed {
            path: picture.to_owned(),
            problem: error.to_string(),
        };
        let (width, height) = reader.into_dimensions().map_err(malformed)?;
        // Colourspace 3 is RGB.
        let image =
            Message::new().varint(1, height.into()).varint(2, width.into()).varint(3, 3).bytes(4, &bytes);
        let value = Message::new().bytes(1, name.as_bytes()).message(4, &image);
        self.summary(step, &Message::new().message(1, &value))
    }

    /// Adds the settings of the run to TensorBoard's HParams page.
    ///
    /// # Errors
    /// [`RunError::Io`] if the file cannot be written.
    pub fn hyperparameters(&mut self, step: u64, settings: &[(String, Value)]) -> Result<(), RunError> {
        self.summary(step, &Message::new().message(1, &hparams::session_start(settings, now())))
    }

    /// Marks the run as finished on TensorBoard's HParams page.
    ///
    /// # Errors
    /// [`RunError::Io`] if the file cannot be written.
    pub fn finished(&mut self, step: u64) -> Result<(), RunError> {
        self.summary(step, &Message::new().message(1, &hparams::session_end(now())))
    }

    /// Adds a text in Markdown.
    fn text(&mut self, step: u64, name: &str, text: &str) -> Result<(), RunError> {
        let plugin = Message::new().message(1, &Message::new().bytes(1, b"text"));
        let shape = Message::new().message(2, &Message::new().varint(1, 1));
        // Type 7 is a string.
        let tensor = Message::new().varint(1, 7).message(2, &shape).bytes(8, text.as_bytes());
        let value = Message::new().bytes(1, name.as_bytes()).message(8, &tensor).message(9, &plugin);
        self.summary(step, &Message::new().message(1, &value))
    }

    fn summary(&mut self, step: u64, summary: &Message) -> Result<(), RunError> {
        self.write(Message::new().double(1, now()).varint(2, step).message(5, summary))
    }

    fn write(&mut self, event: Message) -> Result<(), RunError> {
        self.file.write_all(&framed(&event.into_bytes())).map_err(RunError::io("write", &self.path))
    }
}

/// Returns the seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Returns TensorBoard's tag of a measurement. TensorBoard groups by the part before the slash.
fn tag(name: &str) -> String {
    let group = match name {
        _ if name.starts_with("test_") => return format!("test/{}", &name["test_".len()..]),
        _ if name.starts_with("gpu_") => return format!("gpu/{}", &name["gpu_".len()..]),
        _ if name.ends_with("_per_s") => "speed",
        "memory_bytes" | "data_share" | "communication_share" | "seconds" => "speed",
        "waited_seconds" | "meetings" | "staleness_mean" | "staleness_max" | "clock_spread"
        | "consensus_distance" | "workers" | "recovery_seconds" => "synchrony",
        _ if ["lr", "grad_norm", "loss_scale", "left_out"].iter().any(|ending| name.ends_with(ending)) => {
            "optimisation"
        }
        _ => "training",
    };
    format!("{group}/{name}")
}

#[cfg(test)]
mod tests {
    use super::record::records;
    use super::*;
    use crate::protobuf::fields;

    /// The values of the summaries in a file: step, tag, and the bytes of the field that holds the value with its number.
    fn values(bytes: &[u8]) -> Vec<(u64, String, u64, Vec<u8>)> {
        let mut found = Vec::new();
        for event in records(bytes).expect("sound records") {
            let event = fields(&event).expect("an event");
            let step = event.iter().find(|field| field.number == 2).map_or(0, |field| field.varint);
            for summary in event.iter().filter(|field| field.number == 5) {
                for value in fields(&summary.bytes).expect("a summary") {
                    let value = fields(&value.bytes).expect("a value");
                    let tag = String::from_utf8(value[0].bytes.clone()).expect("a tag");
                    found.push((step, tag, value[1].number, value[1].bytes.clone()));
                }
            }
        }
        found
    }

    #[test]
    fn what_is_written_is_read_back_by_the_specification() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut events = EventFile::create(folder.path(), "a.b", 1, "[train]\nranks = 2").expect("creates");
        let line = Line::new(300)
            .with("loss", 0.25)
            .with("test_l1", 2.0)
            .with("lr", f64::NAN)
            .with("warnings", vec!["x"]);
        events.scalars(&line).expect("writes");
        let picture = folder.path().join("p.png");
        image::RgbImage::new(7, 5).save(&picture).expect("saves");
        events.image(300, "samples", &picture).expect("writes");
        let bytes = std::fs::read(&events.path).expect("reads");
        let all = records(&bytes).expect("sound records");
        let version = &fields(&all[0]).expect("an event")[1];
        assert_eq!((version.number, version.bytes.as_slice()), (3, b"brain.Event:2".as_slice()));
        let start = fields(&all[1]).expect("an event");
        assert_eq!((start[1].varint, start[2].number), (1, 7));
        assert_eq!(fields(&start[2].bytes).expect("a log")[0].varint, 1, "START");
        let values = values(&bytes);
        let float = |value: f32| value.to_le_bytes().to_vec();
        assert_eq!((values[0].0, values[0].1.as_str(), values[0].2), (1, "configuration", 8));
        assert!(values[0].3.windows(9).any(|part| part == b"ranks = 2"));
        assert_eq!(values[1], (300, "training/loss".into(), 2, float(0.25)));
        assert_eq!(values[2], (300, "test/l1".into(), 2, float(2.0)));
        assert_eq!((values[3].1.as_str(), values[3].2), ("samples", 4));
        let image = fields(&values[3].3).expect("an image");
        assert_eq!((image[0].varint, image[1].varint), (5, 7));
        assert_eq!(image[3].bytes, std::fs::read(&picture).expect("reads"));
        assert_eq!(values.len(), 4, "what is not finite is no number");
        let name = events.path.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(name.starts_with("events.out.tfevents.") && name.ends_with(".a_b"), "{name}");
        let other = EventFile::create(folder.path(), "a.b", 2, "").expect("creates");
        assert_ne!(other.path, events.path);
    }
}

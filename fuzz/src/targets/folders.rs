//! Folders and files of other programs: diffusers pipelines and host lists. Also records of failed ranks.

use std::path::Path;
use std::sync::Arc;

use phalanx::diffusers::DiffusersPipeline;
use phalanx_fuzz_harness::files::{self, folder};
use phalanx_launch::Hosts;
use phalanx_report::diagnose::Diagnosis;
use phalanx_tensor::{Context, Precision};

use super::{Target, elf, no_form};

fn read_diffusers(bytes: &[u8]) {
    let place = folder();
    files::write(bytes, place.path());
    let _ = DiffusersPipeline::open(place.path(), Arc::new(Context::new(1)), Precision::F32);
}

pub(super) const DIFFUSERS: Target = Target {
    name: "diffusers",
    about: "pipelines in the folders of diffusers",
    seeds: || vec![include_bytes!("seeds/diffusers").to_vec()],
    words: &[
        "1000000000000000000",
        "\"CrossAttnDownBlock2D\"",
        "\"DownBlock2D\"",
        "\"block_out_channels\":",
        "\"shape\":[",
        "null",
    ],
    change: files::change,
    read: read_diffusers,
    cases: 150,
    memory: 48 << 20,
};

/// The placeholders in records for their folder and for the length of the program there.
const PLACE: &str = "/PLACE";
const LENGTH: &str = "4242424242";

/// Returns records of hung ranks, and of a rank whose stack is in a program in the record's folder.
fn flight() -> Vec<Vec<u8>> {
    let plain = include_str!("seeds/flight");
    let with_program = plain.replace("/nonexistent/phalanx", &format!("{PLACE}/program"));
    let with_program = with_program.replace("\"bytes\": 10}", &format!("\"bytes\": {LENGTH}}}"));
    let with_program =
        with_program.replace("[[0, 4096], [0, 8192]]", "[[0, 4096], [0, 4225], [0, 8192], [0, 4100]]");
    let program = files::join([("program", elf::program().as_slice())]);
    vec![plain.as_bytes().to_vec(), [program.as_slice(), with_program.as_bytes()].concat()]
}

/// Fills the placeholders of the records in a folder: its path, and the length of its program.
fn place_program(folder: &Path) {
    let length = std::fs::metadata(folder.join("program")).map_or(0, |found| found.len()).to_string();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if let Ok(text) = std::fs::read_to_string(entry.path())
            && text.contains(PLACE)
        {
            let text = text.replace(PLACE, &folder.display().to_string()).replace(LENGTH, &length);
            let _ = std::fs::write(entry.path(), text);
        }
    }
}

fn read_flight(bytes: &[u8]) {
    let place = folder();
    files::write(bytes, place.path());
    place_program(place.path());
    if let Ok(found) = Diagnosis::of(place.path()) {
        let _ = (found.text(true), serde_json::to_string(&found));
    }
}

pub(super) const FLIGHT: Target = Target {
    name: "flight",
    about: "what ranks that failed have left of their last operations",
    seeds: flight,
    words: &["18446744073709551615", "null", "\"rank\":", "\"sequence\":", "rank-9.flight.json"],
    change: files::change,
    read: read_flight,
    cases: 150,
    memory: 48 << 20,
};

fn read_hosts(bytes: &[u8]) {
    let place = folder();
    let path = place.path().join("hosts");
    if std::fs::write(&path, bytes).is_ok()
        && let Ok(hosts) = Hosts::read(&path.display().to_string())
    {
        let _ = hosts.ranks();
    }
    // An option is not a file name.
    let text = String::from_utf8_lossy(bytes).replace('/', "|");
    let _ = Hosts::read(&text).map(|hosts| hosts.ranks());
}

pub(super) const HOSTS: Target = Target {
    name: "hosts",
    about: "host files",
    seeds: || {
        vec![
            b"a:4\n# a comment\nnode1 slots=4\n[fe80::1]:2\nb\n".to_vec(),
            b"a:4,b:18446744073709551615".to_vec(),
        ]
    },
    words: &["slots=", ":", "[", "]", "#", "18446744073709551615", "-o", ","],
    change: no_form,
    read: read_hosts,
    cases: 300,
    memory: 48 << 20,
};

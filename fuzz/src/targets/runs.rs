//! Folders of runs, configurations, and browser requests to the live page.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::OnceLock;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use image::ImageFormat;
use phalanx::Program;
use phalanx::STUDIES;
use phalanx::sweep::{SweepFile, Trials};
use phalanx_checkpoint::{Checkpoint, ExportOptions, MODEL, NewFile, NewPiece, Region, StagingFolder};
use phalanx_fuzz_harness::files::{self, folder};
use phalanx_report::live::Server;
use phalanx_report::{Options, Report};
use phalanx_run::{RunState, Summary, read_metrics};
use phalanx_trace::{StepLanes, TraceFile, TraceSummary};

use super::pictures::picture;
use super::{Target, no_form, of_json, sealed};

const STEP: &str = "step-00000003";

/// A checkpoint of two tensors, one of them in two pieces.
fn checkpoint() -> Vec<Vec<u8>> {
    let place = folder();
    let write = || -> Option<Vec<u8>> {
        let staging = StagingFolder::create(place.path(), 3, 1).ok()?;
        let piece = |name: &str, shape: &[usize], region: Region| {
            let values = Tensor::zeros(region.len(), DType::F32, &Device::Cpu).ok()?;
            let (kind, name) = (MODEL.to_owned(), name.to_owned());
            Some(NewPiece {
                kind,
                key: format!("{name}.{region}"),
                name,
                shape: shape.to_vec(),
                region,
                values,
            })
        };
        let first =
            vec![piece("a", &[2, 3], Region::from(0..4))?, piece("b", &[2, 2], Region::whole(&[2, 2]))?];
        let second = vec![piece("a", &[2, 3], Region::of_dims(&[1..2, 1..3]))?];
        let file = |name: &str, pieces| NewFile { name: name.to_owned(), pieces };
        let files = vec![file("one.safetensors", first), file("two.safetensors", second)];
        staging.write(0, files).ok()?;
        staging.commit(1, serde_json::Map::new(), 3).ok()?;
        let read = |name: &str| std::fs::read(place.path().join(STEP).join(name)).ok();
        let (index, one, two) =
            (read("checkpoint.json")?, read("one.safetensors")?, read("two.safetensors")?);
        Some(files::join([
            ("checkpoint.json", index.as_slice()),
            ("one.safetensors", &one),
            ("two.safetensors", &two),
        ]))
    };
    let written = write();
    assert!(written.is_some(), "a checkpoint is written");
    written.into_iter().collect()
}

fn read_checkpoint(bytes: &[u8]) {
    let place = folder();
    files::write(&sealed::with_sealed_index(bytes), &place.path().join(STEP));
    let (Some(checkpoint), _) = Checkpoint::newest(place.path()) else { return };
    let reader = checkpoint.reader();
    let kinds: Vec<String> = reader.kinds().map(str::to_owned).collect();
    for kind in kinds {
        let names: Vec<String> = reader.tensors(&kind).map(|(name, _)| name.to_owned()).collect();
        for name in names {
            let _ = reader.read(&kind, &name);
        }
    }
    let _ = (checkpoint.hashes(), checkpoint.computed_hashes());
    let options = ExportOptions { averages: true, ..ExportOptions::default() };
    let _ = checkpoint.export(&place.path().join("out.safetensors"), &options);
}

pub(super) const CHECKPOINT: Target = Target {
    name: "checkpoint",
    about: "checkpoints: the index and the files it names",
    seeds: checkpoint,
    words: &["\"region\":", "[0,0]", "../", "one.safetensors"],
    change: sealed::change,
    read: read_checkpoint,
    cases: 150,
    memory: 48 << 20,
};

fn read_trace(bytes: &[u8]) {
    if let Ok(file) = TraceFile::parse(&String::from_utf8_lossy(bytes)) {
        let _ = TraceSummary::of(&file);
        for ranks in [0, 1, 8] {
            let shown = StepLanes::of(&file, ranks);
            assert!(shown.iter().all(|steps| steps.ranks.len() <= ranks), "more ranks than are to be shown");
        }
    }
}

pub(super) const TRACE: Target = Target {
    name: "trace",
    about: "traces in Chrome's format",
    seeds: || vec![include_bytes!("seeds/trace.json").to_vec()],
    words: &["\"ph\":\"X\"", "\"ts\":1e308", "\"dur\":", "\"args\":{}"],
    change: of_json,
    read: read_trace,
    cases: 150,
    memory: 48 << 20,
};

/// The program's own catalogue.
fn phalanx() -> &'static Program {
    static PROGRAM: OnceLock<Program> = OnceLock::new();
    PROGRAM.get_or_init(phalanx::program)
}

fn configs() -> Vec<Vec<u8>> {
    let presets = &phalanx().catalogue().presets;
    presets.iter().map(|(_, text)| text.as_bytes().to_vec()).collect()
}

fn read_config(bytes: &[u8]) {
    let place = folder();
    let path = place.path().join("config.toml");
    if std::fs::write(&path, bytes).is_err() {
        return;
    }
    if let Ok(resolved) = phalanx().resolve(&path.display().to_string(), &[]) {
        let _ = resolved.validate();
    }
    let _ = phalanx().catalogue().resolve_run(&path);
}

pub(super) const CONFIG: Target = Target {
    name: "config",
    about: "configurations and presets",
    seeds: configs,
    words: &[
        "[model]",
        "extends = ",
        "train.ranks = ",
        "[[",
        "]]",
        "\"\"\"",
        "9223372036854775807",
        "nan",
        "1e400",
    ],
    change: no_form,
    read: read_config,
    cases: 200,
    memory: 48 << 20,
};

fn read_sweep(bytes: &[u8]) {
    let Ok(file) = SweepFile::parse("a.toml", &String::from_utf8_lossy(bytes)) else { return };
    let _ = Trials::of(&file, &[], true);
}

pub(super) const SWEEP: Target = Target {
    name: "sweep",
    about: "files of sweeps and studies",
    seeds: || STUDIES.iter().map(|(_, text)| text.as_bytes().to_vec()).collect(),
    words: &[
        "[[axis]]",
        "values = [",
        "times = ",
        "[search]",
        "keys.\"optim.lr\" = { from = ",
        ", log = true }",
        "trials = ",
        "seeds = ",
        "9223372036854775807",
    ],
    change: no_form,
    read: read_sweep,
    cases: 200,
    memory: 48 << 20,
};

/// Returns the folder of a run, and one with rarer files: metrics by rank, a second failed rank, a picture, and results
/// of a sweep.
fn run_folders() -> Vec<Vec<u8>> {
    let plain = include_bytes!("seeds/run_folder");
    let by_rank = b"{\"step\":1,\"rank\":0,\"seconds\":0.1,\"loss\":0.5}\n{\"step\":1,\"rank\":1,\"seconds\":0.2,\"loss\":0.25}\n{\"step\":2,\"rank\":1,\"seconds\":0.3,\"loss\":0.125}\n";
    let usage = |second: u64| {
        format!(
            "{{\"time\":{},\"seconds\":{second},\"step\":{},\"rank\":1,\"host\":\"b\",\"cpu_percent\":98.5,\"resident_bytes\":104857600,\"parameter_bytes\":10485760,\"network_sent_bytes\":{},\"cpu_joules\":{second},\"data_seconds\":0.01,\"communication_exposed_seconds\":0.1,\"communication_hidden_seconds\":0.2,\"step_seconds\":{second},\"gpu_watts\":null,\"cpu_watts\":21.5,\"energy\":\"estimated\"}}\n",
            1_795_434_339 + second,
            10 * second,
            second << 20
        )
    };
    let usage = [usage(0), usage(1), usage(2)].concat();
    let failure = br#"{"rank":1,"time_ms":1795434339249,"message":"no such image","consequence":false}"#;
    let sweep = br#"{"study":"a study","about":"what it asks","measured":"on a host","meanings":{"loss":"the loss"},"target":{"loss":"loss","below":0.5},"tables":[{"title":"a table","axes":["ranks"],"columns":["loss","speed"],"notes":["a note"],"rows":[{"choices":{"ranks":"2"},"numbers":{"loss":{"mean":0.5,"deviation":0.1},"speed":{"mean":10.0}},"published":{"loss":0.4},"predicted":false,"energy":{"kind":"estimated"},"runs":["a"],"errors":["no"]}],"speedups":[{"title":"speed","series":[{"name":"dp","points":[[1,1.0],[2,1.9]]}]}]}]}"#;
    let more = files::join([
        ("metrics-by-rank.jsonl", by_rank.as_slice()),
        ("results.json", sweep),
        (
            "logs/rank-1.log",
            b"2026-11-23T11:45:39.224779Z  WARN phalanx_trainer: the link is slow\n\tand so on\n",
        ),
        ("logs/rank-1.usage.jsonl", usage.as_bytes()),
        ("logs/rank-1.error.json", failure),
        ("samples/step-00000001.png", &picture(ImageFormat::Png)),
    ]);
    vec![plain.to_vec(), [plain.as_slice(), &more].concat()]
}

fn read_run(bytes: &[u8]) {
    let place = folder();
    files::write(bytes, place.path());
    let _ = Summary::read(&place.path().join("summary.json"));
    let _ = RunState::read(&place.path().join("state.json"));
    let _ = read_metrics(&place.path().join("metrics.jsonl"));
    let _ = read_metrics(&place.path().join("metrics-by-rank.jsonl"));
    #[cfg(fuzzing)]
    phalanx_report::fuzzing::dashboard(place.path());
    if let Ok(report) = Report::collect(&[place.path().to_owned()], &Options::default()) {
        let _ = report.html();
    }
}

pub(super) const RUN_FOLDER: Target = Target {
    name: "run_folder",
    about: "what a run leaves, as reports read it",
    seeds: run_folders,
    words: &["1e308", "-1e308", "null", "\"step\":", "\u{2028}", "</script>"],
    change: files::change,
    read: read_run,
    cases: 100,
    memory: 48 << 20,
};

/// Starts a server of a folder with a run, for all cases. Returns its port.
fn server() -> &'static Server {
    static SERVER: OnceLock<(Server, tempfile::TempDir)> = OnceLock::new();
    let (server, _) = SERVER.get_or_init(|| {
        let place = folder();
        files::write(include_bytes!("seeds/run_folder"), &place.path().join("runs/a"));
        let _ = std::fs::write(place.path().join("outside"), "a secret outside of the folder");
        let server = Server::start(&place.path().join("runs"), 0);
        (server.unwrap_or_else(|error| panic!("a server: {error}")), place)
    });
    server
}

fn requests() -> Vec<Vec<u8>> {
    let get = |path: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").into_bytes()
    };
    [
        "/",
        "/api/runs",
        "/run/a",
        "/compare?run=a&run=a",
        "/files/a/samples/prompts.txt",
        "/files/a/../../outside",
        "/files/a/%2e%2e/%2e%2e/outside",
    ]
    .map(get)
    .to_vec()
}

fn ask(bytes: &[u8]) {
    // A stream that follows a run never ends.
    if bytes.windows(7).any(|window| window == b"/events") {
        return;
    }
    let Ok(mut stream) = TcpStream::connect(server().address()) else { panic!("the server is gone") };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    let mut answer = Vec::new();
    let _ = stream.take(4 << 20).read_to_end(&mut answer);
    let secret = b"a secret outside of the folder";
    assert!(
        !answer.windows(secret.len()).any(|window| window == secret),
        "a file outside of the folder was served"
    );
}

pub(super) const HTTP: Target = Target {
    name: "http",
    about: "requests to the live page",
    seeds: requests,
    words: &[
        "../",
        "%2e%2e/",
        "%00",
        "GET ",
        "HTTP/1.1\r\n",
        "Host: 127.0.0.1\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Range: bytes=0-\r\n",
        "?run=",
        "&run=",
    ],
    change: no_form,
    read: ask,
    cases: 100,
    memory: 48 << 20,
};

//! The live page over real connections: what it shows, what it refuses, and how points come.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use phalanx_report::Options;
use phalanx_report::live::{ServeError, ServeLimits, Server};
use serde_json::Value;

fn make_run(folder: &Path) {
    for part in ["logs", "samples", "evaluation"] {
        fs::create_dir_all(folder.join(part)).expect("a folder");
    }
    fs::write(folder.join("config.toml"), "[train]\nranks = 2\n[optim]\nlr = 0.25\n").expect("writes");
    fs::write(folder.join("metrics.jsonl"), "{\"step\":1,\"loss\":3.5}\n{\"step\":2,\"loss\":2.5}\n")
        .expect("writes");
}

/// Sends a request as it is; the status, the head and the body of the answer.
fn ask(address: SocketAddr, request: &str) -> (u16, String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
    stream.write_all(request.as_bytes()).expect("sends");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let end = answer.windows(4).position(|part| part == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, head.to_lowercase(), answer[end..].to_vec())
}

/// Gets a path; the status and the body.
fn get(address: SocketAddr, path: &str) -> (u16, String) {
    // HTTP/1.0 has bodies in one piece.
    let (status, _, body) = ask(address, &format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n"));
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[test]
fn the_list_and_reports_are_there() {
    let place = tempfile::tempdir().expect("a folder");
    make_run(&place.path().join("a b/run é"));
    make_run(&place.path().join("c"));
    let server = Server::start(place.path(), 0).expect("serves");
    let address = server.address();
    assert!(address.ip().is_loopback());
    let (status, list) = get(address, "/");
    assert!(
        status == 200 && list.contains("Content-Security-Policy") && list.contains("/api/runs"),
        "{list}"
    );
    let (_, runs) = get(address, "/api/runs");
    let listing: Value = serde_json::from_str(&runs).expect("JSON");
    let runs = &listing["runs"];
    assert_eq!((&runs[0]["path"], &runs[1]["path"]), (&"a b/run é".into(), &"c".into()));
    assert_eq!(
        (&runs[1]["keys"]["config.optim.lr"], &runs[1]["keys"]["metrics.loss"]),
        (&0.25.into(), &2.5.into())
    );
    let (status, page) = get(address, "/run/a%20b/run%20%C3%A9");
    assert!(status == 200 && page.contains("under way"), "{status}");
    assert!(
        page.contains("\"events\":\"/events/a%20b/run%20%C3%A9?from=metrics.2_ranks.0\""),
        "points are told of"
    );
    let (status, page) = get(address, "/compare?run=c&run=a%20b%2Frun%20%C3%A9");
    assert!(status == 200 && page.contains("The runs have the same settings."), "{status}");
    let (status, text) = get(address, "/files/c/config.toml");
    assert!(status == 200 && text.contains("lr = 0.25"), "{text}");
    let (_, head, _) = ask(address, "HEAD /files/c/config.toml HTTP/1.0\r\nHost: localhost\r\n\r\n");
    for header in ["content-type: text/plain", "nosniff", "no-store", "sandbox", "same-origin"] {
        assert!(head.contains(header), "{header}: {head}");
    }
}

#[test]
fn a_sweep_is_one_row_with_its_tables_and_a_report() {
    let place = tempfile::tempdir().expect("a folder");
    let sweep = place.path().join("rates");
    for run in ["a", "b"] {
        make_run(&sweep.join("runs").join(run));
    }
    fs::write(sweep.join("runs/a/notes.md"), "try <b>again</b>\n").expect("writes");
    let results = r#"{"study": "rates", "about": "Which rate?", "tables": [{"title": "losses", "axes": ["optim.lr"],
        "columns": ["loss"], "rows": [{"choices": {"optim.lr": "0.1"}, "numbers": {"loss": {"mean": 2.5}}, "runs": ["a"]}]}]}"#;
    fs::write(sweep.join("results.json"), results).expect("writes");
    let server = Server::start(place.path(), 0).expect("serves");
    let address = server.address();
    let (_, listing) = get(address, "/api/runs");
    let listing: Value = serde_json::from_str(&listing).expect("JSON");
    let paths: Vec<_> = listing["runs"].as_array().expect("runs").iter().map(|run| &run["sweep"]).collect();
    assert_eq!(paths, ["rates", "rates"]);
    let entry = &listing["sweeps"][0];
    assert_eq!((&entry["path"], &entry["about"]), (&"rates".into(), &"Which rate?".into()));
    assert_eq!(entry["tables"][0]["rows"][0], serde_json::json!(["0.1", "2.500"]));
    assert_eq!(listing["runs"][0]["notes"], "try <b>again</b>");
    let (status, page) = get(address, "/sweep/rates");
    assert!(
        status == 200 && page.contains("Tables of the sweep") && page.contains("Which rate?"),
        "{status}"
    );
    assert!(page.contains("try &lt;b&gt;again&lt;&#x2F;b&gt;"), "notes are text");
    assert_eq!(get(address, "/sweep/rates/runs/a").0, 404, "a run is no sweep");
    assert_eq!(get(address, "/run/rates").0, 404, "a sweep is no run");
    #[cfg(unix)]
    {
        let outside = tempfile::tempdir().expect("a folder");
        make_run(outside.path());
        std::os::unix::fs::symlink(outside.path(), sweep.join("runs/c")).expect("links");
        assert_eq!(get(address, "/sweep/rates").0, 404, "a run outside of the folder");
    }
}

#[test]
fn nothing_outside_of_the_folder_is_read() {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().join("runs");
    make_run(&root.join("run"));
    make_run(&place.path().join("other"));
    let secret = "a secret outside of the folder";
    fs::write(place.path().join("secret.txt"), secret).expect("writes");
    fs::write(place.path().join("other/config.toml"), format!("[train]\nranks = \"{secret}\"\n"))
        .expect("writes");
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        symlink(place.path().join("secret.txt"), root.join("link.txt")).expect("links");
        symlink(place.path().join("other"), root.join("other")).expect("links");
        make_run(&root.join("sly"));
        fs::remove_file(root.join("sly/config.toml")).expect("removes");
        symlink(place.path().join("other/config.toml"), root.join("sly/config.toml")).expect("links");
    }
    let server = Server::start(&root, 0).expect("serves");
    let address = server.address();
    let absolute = place.path().join("secret.txt").display().to_string();
    let ways = ["/files/", "/run/", "/events/", "/sweep/", "/compare?run="];
    let paths = [
        "../secret.txt",
        "..%2fsecret.txt",
        "%2e%2e/secret.txt",
        "%2e%2e%2fsecret.txt",
        "..%252fsecret.txt",
        "run/../../secret.txt",
        "run/%2e%2e/%2e%2e/secret.txt",
        "..%5csecret.txt",
        absolute.as_str(),
        "link.txt",
        "link.txt%00.png",
        "secret.txt%00",
        "%00",
        "../other",
        "..%2fother",
        "other",
        "other/config.toml",
        "other/",
        "sly",
        "sly/config.toml",
        "....//secret.txt",
        "%c0%ae%c0%ae/secret.txt",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "file:///etc/passwd",
        "run/./../../secret.txt",
        "",
    ];
    for way in ways {
        for path in paths {
            // A run whose configuration leads out may be followed no further than its next look.
            if way == "/events/" && path == "sly" {
                continue;
            }
            let (status, body) = get(address, &format!("{way}{path}"));
            assert!(status != 200, "{way}{path}: {status} {body}");
            assert!(!body.contains(secret) && !body.contains("root:"), "{way}{path}: {body}");
        }
    }
    let (_, body) = get(address, "/events/sly");
    assert!(body.contains("event: changed\ndata: all\n") && !body.contains("points"), "{body}");
    let (_, runs) = get(address, "/api/runs");
    assert!(runs.contains("\"run\"") && !runs.contains(secret) && !runs.contains("sly"), "{runs}");
}

#[test]
fn strangers_and_changes_are_refused() {
    let place = tempfile::tempdir().expect("a folder");
    make_run(&place.path().join("run"));
    let server = Server::start(place.path(), 0).expect("serves");
    let address = server.address();
    for host in ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", ""] {
        let (status, _, body) = ask(address, &format!("GET /api/runs HTTP/1.0\r\nHost: {host}\r\n\r\n"));
        assert_eq!(status, 421, "{host}: {}", String::from_utf8_lossy(&body));
    }
    assert_eq!(ask(address, "GET /api/runs HTTP/1.0\r\n\r\n").0, 421, "whom does it ask?");
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"] {
        for path in ["/", "/api/runs", "/files/run/config.toml"] {
            let request = format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
            assert_eq!(ask(address, &request).0, 405, "{method} {path}");
        }
    }
    let (status, _, _) = ask(address, "GET /run/run HTTP/1.0\r\nHost: 127.0.0.1:99\r\n\r\n");
    assert_eq!(status, 200, "a tunnel has another port");
    assert!(
        matches!(Server::start(place.path(), address.port()), Err(ServeError::PortTaken(port)) if port == address.port())
    );
    assert!(matches!(Server::start(&place.path().join("gone"), 0), Err(ServeError::Folder { .. })));
    let before: Vec<_> = fs::read_dir(place.path().join("run"))
        .expect("lists")
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(before.len(), 5, "nothing was written: {before:?}");
}

#[test]
fn the_progress_of_a_run_is_shown_and_sent() {
    let place = tempfile::tempdir().expect("a folder");
    let run = place.path().join("run");
    make_run(&run);
    let lines: String =
        (1..=9).map(|step| format!("{{\"step\":{step},\"loss\":1.0,\"seconds\":{}}}\n", 2 * step)).collect();
    fs::write(run.join("metrics.jsonl"), lines).expect("writes");
    fs::write(run.join("state.json"), state(10)).expect("writes");
    let server = Server::start(place.path(), 0).expect("serves");
    let (_, page) = get(server.address(), "/run/run");
    assert!(page.contains("step 10 of 40, 1 min 00 s left") && page.contains("value=\"0.2500\""), "a bar");
    let (_, listing) = get(server.address(), "/api/runs");
    let listing: Value = serde_json::from_str(&listing).expect("JSON");
    let progress = serde_json::json!({"step": 10, "total": 40, "left": 60.0, "paused": false});
    assert_eq!(listing["runs"][0]["progress"], progress);
    let mut stream = TcpStream::connect(server.address()).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
    stream.write_all(b"GET /events/run?from=metrics.9 HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sends");
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("reads"));
    let mut next =
        || lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned)).expect("an event");
    assert!(next().starts_with("{\"step\":10,\"total\":40,"));
    fs::write(run.join("state.json"), state(11)).expect("writes");
    assert!(next().starts_with("{\"step\":11,\"total\":40,"));
}

/// Returns the text of `state.json` at a step of 40.
fn state(step: u64) -> String {
    let state = phalanx_run::RunState { step, total: 40, ..phalanx_run::RunState::default() };
    serde_json::to_string(&state).expect("JSON")
}

#[test]
fn points_come_as_they_are_written_and_the_server_ends_at_once() {
    let place = tempfile::tempdir().expect("a folder");
    let run = place.path().join("run");
    make_run(&run);
    let server = Server::start(place.path(), 0).expect("serves");
    let mut stream = TcpStream::connect(server.address()).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
    let request =
        "GET /events/run?from=metrics.1 HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("sends");
    let mut lines = BufReader::new(stream).lines();
    let mut next = |start: &str| loop {
        let line = lines.next().expect("a line").expect("reads");
        if let Some(rest) = line.strip_prefix(start) {
            return rest.to_owned();
        }
    };
    assert_eq!(next("content-type: "), "text/event-stream");
    assert_eq!(next("id: "), "metrics.2_ranks.0");
    assert_eq!(next("data: "), "[[\"metrics/loss\",2.0,null,2.5]]");
    let mut file = fs::File::options().append(true).open(run.join("metrics.jsonl")).expect("opens");
    file.write_all(b"{\"step\":3,\"seconds\":1.5,\"loss\":1.5}\n").expect("writes");
    assert_eq!(next("data: "), "[[\"metrics/loss\",3.0,1.5,1.5]]");
    fs::write(run.join("logs/rank-1.usage.jsonl"), "{\"time\":5.0,\"step\":3,\"cpu_percent\":50.0}\n")
        .expect("writes");
    assert_eq!(next("data: "), "[[\"usage/1/cpu_percent\",3.0,0.0,50.0]]");
    // A follower does not hold the server up.
    let begun = Instant::now();
    drop(server);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    fs::write(run.join("summary.json"), "{}").expect("writes");
    let end = lines.find(|line| line.as_ref().map_or(true, |line| line.contains("changed")));
    assert!(end.is_none_or(|line| line.is_err()), "the server sends nothing more");
}

#[test]
fn connections_are_limited_and_idle_ones_are_closed() {
    let place = tempfile::tempdir().expect("a folder");
    make_run(&place.path().join("run"));
    let serve = |idle: Duration| {
        let limits = ServeLimits { connections: 2, idle };
        Server::start_with(place.path(), 0, limits, Options::default()).expect("serves")
    };
    // Strangers that send nothing, and half a request, are closed and make room.
    let server = serve(Duration::from_millis(300));
    let strangers = ["", "GET / HTTP/1.1\r\nHost:"].map(|half| {
        let mut stream = TcpStream::connect(server.address()).expect("connects");
        stream.write_all(half.as_bytes()).expect("sends");
        stream
    });
    assert_eq!(get(server.address(), "/").0, 200);
    for mut stranger in strangers {
        stranger.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
        let mut rest = Vec::new();
        // It is closed, by an end or a reset.
        let closed = stranger.read_to_end(&mut rest);
        assert!(closed.map_or_else(|error| error.kind() == std::io::ErrorKind::ConnectionReset, |_| true));
    }
    // While all places are taken, a caller waits for one.
    let server = serve(Duration::from_secs(300));
    let address = server.address();
    let mut strangers: Vec<_> = (0..2).map(|_| TcpStream::connect(address).expect("connects")).collect();
    let mut waiting = TcpStream::connect(address).expect("connects");
    waiting.write_all(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("sends");
    waiting.set_read_timeout(Some(Duration::from_millis(200))).expect("a limit");
    let mut answer = [0; 12];
    waiting.read_exact(&mut answer).expect_err("there is no place");
    drop(strangers.pop());
    waiting.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
    waiting.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.0 200");
}

/// FIFOs and links in place of a run's files keep no page waiting, and show nothing of other folders.
#[cfg(unix)]
#[test]
fn fifos_and_links_in_a_run_hang_nothing() {
    let place = tempfile::tempdir().expect("a folder");
    let run = place.path().join("runs/run");
    make_run(&run);
    let fifo = |path: &Path| {
        let _ = fs::remove_file(path);
        assert!(std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo runs").success());
    };
    fs::write(place.path().join("private"), "{\"status\":\"private\"}").expect("writes");
    for name in [
        "summary.json",
        "state.json",
        "metrics-by-rank.jsonl",
        "trace.json",
        "job.json",
        "prompts.txt",
        "samples/step-00000001.png",
        "samples/prompts.txt",
        "evaluation/confusion.png",
        "evaluation/confusion.svg",
        "notes.md",
        "logs/rank-0.log",
        "logs/rank-0.usage.jsonl",
        "logs/rank-1.error.json",
    ] {
        fifo(&run.join(name));
    }
    let server = Server::start(&place.path().join("runs"), 0).expect("serves");
    let address = server.address();
    let (status, page) = get(address, "/run/run");
    assert!(status == 200 && page.contains("metrics"), "{status}");
    assert_eq!(get(address, "/api/runs").0, 200);
    assert_eq!(get(address, "/files/run/summary.json").0, 404, "it is no file");
    fifo(&run.join("metrics.jsonl"));
    assert_eq!(get(address, "/run/run").0, 200);
    // A link in place of a file is not followed, also to a file of the same folder.
    for target in [run.join("config.toml"), place.path().join("private")] {
        fs::remove_file(run.join("summary.json")).expect("removes");
        std::os::unix::fs::symlink(&target, run.join("summary.json")).expect("links");
        let (_, page) = get(address, "/run/run");
        assert!(!page.contains("private"), "{}", target.display());
    }
}

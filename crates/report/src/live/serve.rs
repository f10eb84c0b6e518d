//! The HTTP server of the live page.

use std::convert::Infallible;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path as Segments, Query, Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use futures_util::stream::{self, Stream};
use phalanx_run::Links;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::follow::{EVERY, Follower, RunUpdate};
use super::limits::{LimitedListener, ServeLimits};
use super::list::List;
use super::pages;
use super::served_folder::ServedFolder;
use crate::{Options, is_run};

/// The parameters of a query string.
type Parts = Vec<(String, String)>;

/// The chunk size of file responses in bytes.
const PIECE: usize = 1 << 16;

/// The time that shutdown waits for running file accesses.
const ENDING: Duration = Duration::from_secs(1);

/// The error of starting the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The folder cannot be opened.
    #[error("cannot open {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Another process listens on the port.
    #[error("port {0} is taken; choose another with --port, or 0 for any that is free")]
    PortTaken(u16),
    /// Listening on the port failed.
    #[error("cannot listen on port {port}: {source}")]
    Listen {
        /// The port.
        port: u16,
        /// Why not.
        source: std::io::Error,
    },
    /// The runtime cannot start.
    #[error("cannot start the server: {0}")]
    Start(std::io::Error),
}

/// The state shared by all requests.
#[derive(Debug)]
struct Shared {
    served: ServedFolder,
    options: Options,
    list: Mutex<List>,
}

/// A server on the loopback interface. It stops when dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Server {
    /// Serves the runs in a folder on a port of 127.0.0.1; 0 selects a free port.
    ///
    /// # Errors
    /// [`ServeError`] if the folder cannot be opened or the port is taken.
    pub fn start(folder: &Path, port: u16) -> Result<Self, ServeError> {
        Self::start_with(folder, port, ServeLimits::default(), Options::default())
    }

    /// Serves as [`Server::start`] does, with other limits and options of reports.
    ///
    /// # Errors
    /// Errors of [`Server::start`].
    pub fn start_with(
        folder: &Path,
        port: u16,
        limits: ServeLimits,
        options: Options,
    ) -> Result<Self, ServeError> {
        let open = |source| ServeError::Folder { path: folder.to_owned(), source };
        let served = ServedFolder::new(folder).map_err(open)?;
        if !served.root().is_dir() {
            return Err(open(std::io::Error::from(std::io::ErrorKind::NotADirectory)));
        }
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).thread_name("phalanx-serve").enable_all().build();
        let runtime = runtime.map_err(ServeError::Start)?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
        let listener = listener.map_err(|source| match source.kind() {
            std::io::ErrorKind::AddrInUse => ServeError::PortTaken(port),
            _ => ServeError::Listen { port, source },
        })?;
        let address = listener.local_addr().map_err(|source| ServeError::Listen { port, source })?;
        let shared = Arc::new(Shared { served, options, list: Mutex::default() });
        let listener = LimitedListener::new(listener, limits);
        // Serves until the runtime stops. A failed connection affects only its client.
        runtime.spawn(async move { axum::serve(listener, routes(shared)).await });
        Ok(Self { address, runtime: Some(runtime) })
    }

    /// Returns the address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Event streams never end by themselves. Running file accesses are awaited, unless a disk hangs.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(ENDING);
        }
    }
}

fn routes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/", get(list))
        .route("/api/runs", get(runs))
        .route("/run/{*path}", get(run))
        .route("/sweep/{*path}", get(sweep))
        .route("/compare", get(compare))
        .route("/events/{*path}", get(events))
        .route("/files/{*path}", get(file))
        .fallback(|| async { missing() })
        .with_state(shared)
        .layer(middleware::from_fn(guard))
}

/// Accepts only requests addressed to this machine, and adds security headers to responses.
async fn guard(request: Request, next: Next) -> Response {
    // Protects against DNS rebinding: a page of another site sends its own host name.
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let mut response = if !host.is_some_and(is_loopback) {
        (StatusCode::MISDIRECTED_REQUEST, "this server answers as 127.0.0.1, localhost or [::1] only\n")
            .into_response()
    } else if ![Method::GET, Method::HEAD].contains(request.method()) {
        (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, HEAD")], "only GET and HEAD are allowed\n")
            .into_response()
    } else {
        next.run(request).await
    };
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Returns true if the host header names this machine, on any port, because of tunnels.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map(|(name, _)| name),
        None => host.split(':').next(),
    };
    name.is_some_and(|name| {
        ["127.0.0.1", "localhost", "::1"].iter().any(|own| name.eq_ignore_ascii_case(own))
    })
}

fn missing() -> Response {
    (StatusCode::NOT_FOUND, "there is no such run or file in this folder\n").into_response()
}

/// Runs blocking file access on a separate thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Response> {
    let failed = |_| (StatusCode::INTERNAL_SERVER_ERROR, "cannot create the page\n").into_response();
    tokio::task::spawn_blocking(work).await.map_err(failed)
}

async fn list(State(shared): State<Arc<Shared>>) -> Html<String> {
    Html(pages::list(&shared.served))
}

async fn runs(State(shared): State<Arc<Shared>>) -> Result<Response, Response> {
    let json = blocking(move || {
        let mut list = shared.list.lock().unwrap_or_else(PoisonError::into_inner);
        serde_json::to_string(&list.refresh(&shared.served)).unwrap_or_default()
    });
    Ok(([(header::CONTENT_TYPE, "application/json")], json.await?).into_response())
}

async fn report(shared: Arc<Shared>, paths: Vec<String>) -> Result<Response, Response> {
    let page = blocking(move || pages::report(&shared.served, &paths, &shared.options)).await?;
    Ok(page.map_or_else(missing, |page| Html(page).into_response()))
}

async fn run(
    State(shared): State<Arc<Shared>>,
    Segments(path): Segments<String>,
) -> Result<Response, Response> {
    report(shared, vec![path]).await
}

async fn sweep(
    State(shared): State<Arc<Shared>>,
    Segments(path): Segments<String>,
) -> Result<Response, Response> {
    let page = blocking(move || pages::sweep(&shared.served, &path, &shared.options)).await?;
    Ok(page.map_or_else(missing, |page| Html(page).into_response()))
}

async fn compare(
    State(shared): State<Arc<Shared>>,
    Query(asked): Query<Parts>,
) -> Result<Response, Response> {
    report(shared, asked.into_iter().filter(|(name, _)| name == "run").map(|(_, path)| path).collect()).await
}

/// Streams new points of a run until another change requires a reload.
async fn events(
    State(shared): State<Arc<Shared>>,
    Segments(path): Segments<String>,
    Query(asked): Query<Parts>,
    headers: HeaderMap,
) -> Response {
    let Some(folder) = shared.served.find(&path).filter(|folder| is_run(folder)) else {
        return missing();
    };
    // After a reconnect, the browser sends the id of the last event.
    let last_id = headers.get("last-event-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let asked = asked.into_iter().find(|(name, _)| name == "from").map(|(_, from)| from);
    let from = last_id.or(asked).unwrap_or_default();
    let follower = Follower::new(shared.served.clone(), folder, &from);
    Sse::new(event_stream(follower)).keep_alive(KeepAlive::default()).into_response()
}

/// Returns the changes of a followed run as events.
fn event_stream(follower: Follower) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(Some(follower), |follower| async move {
        let mut follower = follower?;
        loop {
            let (polled, update) = tokio::task::spawn_blocking(move || {
                let update = follower.poll();
                (follower, update)
            })
            .await
            .ok()?;
            follower = polled;
            match update {
                RunUpdate::Points(points, position) => {
                    let event = Event::default().event("points").id(position).data(points);
                    // Limit the rate of events.
                    tokio::time::sleep(EVERY).await;
                    return Some((Ok(event), Some(follower)));
                }
                RunUpdate::Progress(progress) => {
                    let event = Event::default().event("progress").data(progress);
                    tokio::time::sleep(EVERY).await;
                    return Some((Ok(event), Some(follower)));
                }
                // Browsers ignore events without data.
                RunUpdate::Changed => return Some((Ok(Event::default().event("changed").data("all")), None)),
                RunUpdate::Nothing => tokio::time::sleep(EVERY).await,
            }
        }
    })
}

/// Sends a file in chunks. Types that a browser would execute are downloaded instead.
async fn file(
    State(shared): State<Arc<Shared>>,
    Segments(path): Segments<String>,
) -> Result<Response, Response> {
    let open = move || {
        let path = shared.served.find(&path).filter(|path| path.is_file())?;
        let kind = match path.extension().and_then(std::ffi::OsStr::to_str).unwrap_or_default() {
            "png" => "image/png",
            "json" => "application/json",
            "toml" | "jsonl" | "log" | "txt" | "csv" | "md" => "text/plain; charset=utf-8",
            _ => "application/octet-stream",
        };
        Some((Links::Refuse.open(&path).ok()?, kind))
    };
    let Some((file, kind)) = blocking(open).await? else { return Ok(missing()) };
    let pieces = stream::unfold(file, |mut file| async move {
        let read = move || {
            let mut piece = vec![0; PIECE];
            let read = file.read(&mut piece).map(|length| {
                piece.truncate(length);
                Bytes::from(piece)
            });
            (read, file)
        };
        let (piece, file) = tokio::task::spawn_blocking(read).await.ok()?;
        match piece {
            Ok(piece) if piece.is_empty() => None,
            piece => Some((piece, file)),
        }
    });
    let policy = HeaderValue::from_static("sandbox; default-src 'none'");
    let headers =
        [(header::CONTENT_TYPE, HeaderValue::from_static(kind)), (header::CONTENT_SECURITY_POLICY, policy)];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_are_refused() {
        for host in ["127.0.0.1", "localhost:80", "LOCALHOST", "[::1]:7", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "example.org",
            "127.0.0.1.example.org",
            "localhost.example.org:80",
            "[::2]",
            "[::1",
            "10.0.0.1",
            "localhost@x",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}

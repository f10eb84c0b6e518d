//! A connection in between that can be cut.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long what is called may take to be there.
const PATIENCE: Duration = Duration::from_secs(30);

/// Passes on what comes to its port to another port of this machine, until it is cut.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) port: u16,
    ends: Arc<Mutex<Ends>>,
}

#[derive(Debug, Default)]
struct Ends {
    is_cut: bool,
    open: Vec<TcpStream>,
}

impl Relay {
    /// In front of a port.
    pub(crate) fn to(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let own = listener.local_addr()?.port();
        let ends: Arc<Mutex<Ends>> = Arc::default();
        let known = ends.clone();
        std::thread::spawn(move || {
            for caller in listener.incoming().map_while(Result::ok) {
                let known = known.clone();
                std::thread::spawn(move || {
                    // What fails ends the connection, as a network does.
                    let _ = pass_on(&caller, port, &known);
                });
            }
        });
        Ok(Self { port: own, ends })
    }

    /// Cuts all connections, and lets no new ones through.
    pub(crate) fn cut(&self) {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.is_cut = true;
        for end in ends.open.drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

fn pass_on(caller: &TcpStream, port: u16, known: &Mutex<Ends>) -> io::Result<()> {
    let begun = Instant::now();
    let called = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(called) => break called,
            Err(error) if begun.elapsed() > PATIENCE => return Err(error),
            // Rank 0 may begin later.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    {
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_cut {
            return Ok(());
        }
        known.open.extend([caller.try_clone()?, called.try_clone()?]);
    }
    let back = (called.try_clone()?, caller.try_clone()?);
    std::thread::spawn(move || copy(back.0, back.1));
    copy(caller.try_clone()?, called);
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

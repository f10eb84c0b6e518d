//! The live page: shows the runs in a folder in a browser, with updates. It writes nothing and reads nothing outside of
//! the folder.
//!
//! | address | content |
//! |---|---|
//! | `/` | the list of runs; filters and sorts by any key |
//! | `/api/runs` | the runs and sweeps, as JSON |
//! | `/run/PATH` | the report of a run, with live curves |
//! | `/sweep/PATH` | the report of a sweep, with its tables |
//! | `/compare?run=PATH&run=PATH` | the report of several runs |
//! | `/events/PATH?from=POSITION` | new points of a run, as server-sent events |
//! | `/files/PATH` | a file of a run |

mod served_folder;

mod list;
mod sweeps;

mod follow;

mod pages;

mod limits;

mod serve;

pub use limits::ServeLimits;
pub use serve::{ServeError, Server};

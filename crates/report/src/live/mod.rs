//! The live page: runs in a folder in a browser, while they go on. Nothing is written, and nothing outside of the folder is read.
//!
//! | address | is |
//! |---|---|
//! | `/` | the list of runs, which can be filtered and sorted by any key |
//! | `/api/runs` | what that list is made of, as JSON |
//! | `/run/PATH` | the report of a run, whose curves grow |
//! | `/compare?run=PATH&run=PATH` | the report of several runs |
//! | `/events/PATH?from=POSITION` | new points of a run, as server-sent events |
//! | `/files/PATH` | a file of a run |

mod inside;
mod list;

mod follow;

mod pages;

mod serve;

pub use serve::{ServeError, Server};

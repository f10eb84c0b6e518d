//! Time limits of connections that introduce themselves.

use std::time::Duration;

/// The limit of a registration and of a connection for data. Strangers are not awaited for longer.
pub(super) const INTRODUCTION: Duration = Duration::from_secs(5);

/// The limit of a connection for messages, from opening to the end of its handshake.
pub(crate) const MAIL_INTRODUCTION: Duration = Duration::from_secs(10);

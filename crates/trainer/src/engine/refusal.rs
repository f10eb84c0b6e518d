//! Requests that a strategy cannot serve.

use phalanx_run::Request;
use phalanx_sharding::Strategy;

/// Says why a run by the strategy of this name cannot do a request: ranks that may be any number of steps apart have no step
/// before which all of them pause or save.
pub fn refusal(request: Request, strategy: &str) -> Option<String> {
    let apart = Strategy::named(strategy).is_ok_and(|strategy| !strategy.bounds_leads());
    (apart && request.needs_same_step()).then(|| {
        format!(
            "`{}` is done by all ranks before the same step, and those of {strategy} may be any number of steps apart; \
             `stop` saves, and --resume goes on",
            request.name()
        )
    })
}

//! Rules: the requests that meet a fault.

use std::time::Duration;

/// The fault that a request meets.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Answers at once with this status; the request does not reach the server.
    Status(u16),
    /// As `Status`, with `Retry-After` in seconds.
    StatusRetryAfter(u16, u64),
    /// As `Status`, after this time.
    StatusAfter(u16, Duration),
    /// Resets the connection before any answer.
    ResetBeforeHead,
    /// Resets the connection after this many bytes of the body.
    ResetMidBody(usize),
    /// Closes the connection normally after this many bytes, although `Content-Length` promised more.
    ShortBody(usize),
    /// Sends this many bytes and a matching `Content-Length`, although `Content-Range` promised more.
    ShortLength(usize),
    /// Sends nothing for this time, then forwards the request.
    StallBeforeHead(Duration),
    /// Sends nothing for this time after this many bytes of the body, then the rest.
    StallMidBody(usize, Duration),
    /// Delays the answer by this time.
    Latency(Duration),
    /// After this many bytes of the body, sends the rest at this rate in bytes/s, at least 1, in steps of 50 ms or
    /// one byte.
    TrickleMidBody(usize, u64),
    /// Sends bodies at this rate in bytes/s, at least 1, in total: all such answers in progress share it.
    SharedLine(u64),
    /// Replaces the ETag in the answer, as for another version of the object.
    OtherEtag(String),
    /// Removes this header from the answer.
    WithoutHeader(&'static str),
    /// Answers with this status and `Location`; the request does not reach the server.
    Redirect(u16, String),
}

#[derive(Debug, Clone, Copy)]
enum Due {
    Always,
    Times(u64),
    Every(u64),
}

/// The requests that meet a fault, and how often they do.
#[derive(Debug, Clone)]
pub struct Rule {
    fault: Fault,
    due: Due,
    skip: u64,
    method: Option<String>,
    path_part: Option<String>,
    over_concurrency: Option<usize>,
    seen: u64,
}

impl Rule {
    /// Applies `fault` to every request.
    pub fn always(fault: Fault) -> Self {
        let (due, skip) = (Due::Always, 0);
        Self { fault, due, skip, method: None, path_part: None, over_concurrency: None, seen: 0 }
    }

    /// Applies `fault` to the next `n` requests that match.
    pub fn times(n: u64, fault: Fault) -> Self {
        Self { due: Due::Times(n), ..Self::always(fault) }
    }

    /// Applies `fault` to every `k`-th request that matches, beginning with the `k`-th.
    pub fn every(k: u64, fault: Fault) -> Self {
        Self { due: Due::Every(k.max(1)), ..Self::always(fault) }
    }

    /// Lets `n` matching requests pass first.
    #[must_use]
    pub fn after(self, n: u64) -> Self {
        Self { skip: n, ..self }
    }

    /// Matches only requests with this method.
    #[must_use]
    pub fn on(self, method: &str) -> Self {
        Self { method: Some(method.to_owned()), ..self }
    }

    /// Matches only requests whose path and query contain `part`.
    #[must_use]
    pub fn at(self, part: &str) -> Self {
        Self { path_part: Some(part.to_owned()), ..self }
    }

    /// Applies only while more than `n` requests are in the proxy, as real stores throttle.
    #[must_use]
    pub fn over_concurrency(self, n: usize) -> Self {
        Self { over_concurrency: Some(n), ..self }
    }

    pub(super) fn take(&mut self, method: &str, path: &str, in_flight: usize) -> Option<Fault> {
        let fits = self.method.as_deref().is_none_or(|m| m == method)
            && self.path_part.as_deref().is_none_or(|part| path.contains(part))
            && self.over_concurrency.is_none_or(|n| in_flight > n);
        if !fits {
            return None;
        }
        self.seen += 1;
        let number = self.seen.checked_sub(self.skip).filter(|n| *n > 0)?;
        let due = match self.due {
            Due::Always => true,
            Due::Times(n) => number <= n,
            Due::Every(k) => number % k == 0,
        };
        due.then(|| self.fault.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_apply_after_and_as_often_as_configured() {
        let due = |mut rule: Rule| (0..8).map(|_| rule.take("GET", "/b/k", 3).is_some()).collect::<Vec<_>>();
        let t = true;
        let f = false;
        assert_eq!(due(Rule::times(2, Fault::Status(503))), [t, t, f, f, f, f, f, f]);
        assert_eq!(due(Rule::every(3, Fault::Status(503))), [f, f, t, f, f, t, f, f]);
        assert_eq!(due(Rule::times(1, Fault::Status(503)).after(2)), [f, f, t, f, f, f, f, f]);
        assert_eq!(due(Rule::always(Fault::Status(503)).on("PUT")), [f; 8]);
        assert_eq!(due(Rule::always(Fault::Status(503)).at("/k")), [t; 8]);
        assert_eq!(due(Rule::always(Fault::Status(503)).over_concurrency(3)), [f; 8]);
    }
}

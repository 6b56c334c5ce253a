//! How long an answer requests to wait: `Retry-After`, else the rate limit that it states.
//!
//! | header | meaning |
//! |---|---|
//! | `Retry-After: 7` | 7 s |
//! | `Retry-After: Thu, 26 Nov 2026 06:43:20 GMT` | until then, by the clock of the server (`Date`) if it sends its time |
//! | `RateLimit: "burst";r=0;t=7, "day";r=9;t=80` | 7 s: the longest of the limits of which nothing remains |
//! | `RateLimit: limit=5, remaining=0, reset=7` | 7 s (an earlier draft) |
//! | `RateLimit-Remaining: 0`, `RateLimit-Reset: 7` | 7 s (an earlier draft) |
//!
//! A rate limit counts only with 429 and 503. Sources: RFC 9110 §10.2.3, draft-ietf-httpapi-ratelimit-headers-10 and -06.

use reqwest::header::HeaderMap;
use std::time::{Duration, SystemTime};

/// Returns the wait that an answer with this status and these headers requests.
pub(super) fn requested_wait(status: u16, headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let date = |name: &str| httpdate::parse_http_date(text(name)?).ok();
    let is_refusal = matches!(status, 429 | 503);
    let retry_after = text("retry-after").and_then(|value| match value.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => {
            let at = date("retry-after")?;
            Some(at.duration_since(date("date").unwrap_or(now)).unwrap_or_default())
        }
    });
    retry_after.or_else(|| text("ratelimit").filter(|_| is_refusal).and_then(reset)).or_else(|| {
        let of = |name: &str| text(name)?.parse::<u64>().ok();
        let is_used_up = is_refusal && of("ratelimit-remaining") == Some(0);
        of("ratelimit-reset").filter(|_| is_used_up).map(Duration::from_secs)
    })
}

/// Returns the time until the limits of a `RateLimit` header that are used up are reset.
fn reset(header: &str) -> Option<Duration> {
    let value = |text: &str, name: &str| -> Option<u64> {
        let mut pairs = text.split(';').filter_map(|part| part.trim().split_once('='));
        pairs.find(|(key, _)| *key == name)?.1.trim().parse().ok()
    };
    let used_up = |limit: &&str| value(limit, "r") == Some(0);
    let longest = header.split(',').filter(used_up).filter_map(|limit| value(limit, "t")).max();
    let of_whole = |name| header.split(',').find_map(|part| value(part, name));
    let earlier = || of_whole("reset").filter(|_| of_whole("remaining") == Some(0));
    longest.or_else(earlier).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::header::{HeaderName, HeaderValue};

    fn wait(status: u16, headers: &[(&'static str, &'static str)]) -> Option<u64> {
        let headers = headers
            .iter()
            .map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        requested_wait(status, &headers, SystemTime::UNIX_EPOCH).map(|wait| wait.as_secs())
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(wait(503, &[("retry-after", " 3600 ")]), Some(3600));
        let date = ("retry-after", "Thu, 01 Jan 1970 00:01:05 GMT");
        assert_eq!(wait(503, &[date]), Some(65));
        assert_eq!(wait(503, &[date, ("date", "Thu, 01 Jan 1970 00:01:00 GMT")]), Some(5));
        assert_eq!(wait(503, &[date, ("date", "Fri, 02 Jan 1970 00:00:00 GMT")]), Some(0), "it is past");
        for odd in ["-1", "1.5", "soon", "", "99999999999999999999"] {
            assert_eq!(wait(503, &[("retry-after", odd)]), None, "{odd}");
        }
    }

    #[test]
    fn a_rate_limit_that_is_used_up_requests_a_wait() {
        let new = [("ratelimit", "\"burst\";r=0;t=7, \"day\";r=9;t=80, \"hour\";t=9;r=0")];
        assert_eq!(wait(429, &new), Some(9));
        assert_eq!(wait(200, &new), None, "the request was served");
        assert_eq!(wait(429, &[("ratelimit", "limit=5, remaining=0, reset=7")]), Some(7));
        assert_eq!(wait(503, &[("ratelimit-remaining", "0"), ("ratelimit-reset", "7")]), Some(7));
        assert_eq!(wait(503, &[("ratelimit-remaining", "3"), ("ratelimit-reset", "7")]), None);
        assert_eq!(wait(429, &[("ratelimit", "\"day\";r=9;t=80")]), None, "another limit");
        assert_eq!(wait(429, &[("ratelimit", "r=0;;t=x,=,")]), None);
        assert_eq!(wait(429, &[("retry-after", "2"), new[0]]), Some(2), "Retry-After comes first");
    }
}

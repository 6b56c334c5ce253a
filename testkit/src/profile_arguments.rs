//! The options of the servers' programs that choose a [`Profile`].

use feedstock_base::StoreProfile as Profile;
use std::io;
use std::iter::Peekable;

/// The seed of programs that are given none.
const SEED: u64 = 1;

/// A profile and its seed, from a program's arguments.
///
/// ```
/// use feedstock_testkit::{Profile, ProfileArguments};
///
/// let mut arguments = ["--profile", "far", "--seed", "3", "folder"].map(str::to_owned).into_iter().peekable();
/// let far = ProfileArguments::take(&mut arguments).unwrap().unwrap();
/// assert_eq!((far.profile, far.seed), (Profile::FAR, 3));
/// assert_eq!(arguments.next().unwrap(), "folder");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileArguments {
    /// What `--profile` names, with the rate limit of `--requests-per-s`.
    pub profile: Profile,
    /// `--seed`, 1 by default.
    pub seed: u64,
}

impl ProfileArguments {
    /// Takes the options at the beginning of `arguments`; returns `None` if there are none.
    ///
    /// # Errors
    /// An option that is unknown or has no valid value, or one that changes a profile without `--profile`.
    pub fn take(arguments: &mut Peekable<impl Iterator<Item = String>>) -> io::Result<Option<Self>> {
        let (mut profile, mut seed, mut requests_per_s) = (None, None, None);
        while let Some(name) = arguments.next_if(|argument| argument.starts_with("--")) {
            let value = arguments.next().unwrap_or_default();
            let set = match name.as_str() {
                "--profile" => Profile::named(&value).map(|named| profile = Some(named)),
                "--seed" => value.parse().ok().map(|number| seed = Some(number)),
                "--requests-per-s" => value
                    .parse()
                    .ok()
                    .filter(|number: &f64| *number >= 1.0)
                    .map(|number| requests_per_s = Some(number)),
                _ => None,
            };
            set.ok_or_else(|| io::Error::other(format!("{name} {value}: unknown, or not a valid value")))?;
        }
        let Some(mut profile) = profile else {
            return match (seed, requests_per_s) {
                (None, None) => Ok(None),
                _ => Err(io::Error::other("--seed and --requests-per-s need --profile")),
            };
        };
        profile.requests_per_s = requests_per_s.unwrap_or(profile.requests_per_s);
        Ok(Some(Self { profile, seed: seed.unwrap_or(SEED) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(arguments: &str) -> io::Result<Option<ProfileArguments>> {
        ProfileArguments::take(&mut arguments.split_whitespace().map(str::to_owned).peekable())
    }

    #[test]
    fn options_are_checked() {
        assert_eq!(take("folder").unwrap(), None);
        let limited = take("--profile s3 --requests-per-s 200 folder").unwrap().unwrap();
        assert_eq!((limited.profile.requests_per_s, limited.seed), (200.0, SEED));
        let wrong = [
            "--profile",
            "--profile S3 x",
            "--profile s3 --seed x",
            "--profile s3 --requests-per-s 0 x",
            "--seed 1 x",
            "--port 1 x",
        ];
        for wrong in wrong {
            assert!(take(wrong).is_err(), "{wrong}");
        }
    }
}

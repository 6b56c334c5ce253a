//! Where a bucket is, if its URI does not name the endpoint: this distinguishes two buckets of the same name.

use super::options::StorageOptions;
use super::uri::without_credentials;
use std::collections::BTreeSet;
use std::ffi::OsString;

/// Returns endpoints and accounts from the storage's options and the environment; none for a URI that names its endpoint.
pub(crate) fn endpoints(
    uri: &str,
    storage: &StorageOptions,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> BTreeSet<String> {
    let prefix = match uri.split("://").next().unwrap_or_default() {
        "s3" | "s3a" => "aws_",
        "gs" | "gcs" => "google_",
        "az" | "azure" | "abfs" | "abfss" | "adl" => "azure_",
        _ => return BTreeSet::new(),
    };
    let tells = |key: &str| {
        let is_endpoint = key.contains("endpoint") && !key.contains("metadata") && !key.contains("virtual");
        is_endpoint || key.contains("base_url") || key.ends_with("account_name")
    };
    let set = environment.filter_map(|(key, value)| {
        let key = key.to_str()?.to_ascii_lowercase();
        (key.starts_with(prefix) && tells(&key)).then(|| value.to_str().map(str::to_owned))?
    });
    let given = storage.config.iter().filter(|(key, _)| tells(&key.to_ascii_lowercase()));
    let given: BTreeSet<String> = given.map(|(_, value)| value.expose().to_owned()).collect();
    match given.is_empty() {
        true => set.collect(),
        false => given, // options override the environment
    }
}

/// The endpoints of URIs in one process's storage, by scheme, for keys of what the process shares or caches.
pub(super) struct Places {
    s3: String,
    gcs: String,
    azure: String,
}

impl Places {
    /// Reads the endpoints from `options` and `environment`.
    pub(super) fn new(options: &StorageOptions, environment: &[(OsString, OsString)]) -> Self {
        let of = |scheme: &str| {
            let found = endpoints(scheme, options, environment.iter().cloned());
            found.iter().map(|endpoint| without_credentials(endpoint) + "\n").collect()
        };
        Self { s3: of("s3://"), gcs: of("gs://"), azure: of("az://") }
    }

    /// Returns a key of the place of `uri`: the endpoint, if the URI does not contain it, and the URI without its credentials
    /// and its signature.
    pub(super) fn key(&self, uri: &str) -> String {
        let endpoint = match uri.split("://").next().unwrap_or_default() {
            "s3" | "s3a" => self.s3.as_str(),
            "gs" | "gcs" => &self.gcs,
            "az" | "azure" | "abfs" | "abfss" | "adl" => &self.azure,
            _ => "",
        };
        format!("{endpoint}{}", without_credentials(uri))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_endpoint_and_no_signature() {
        let at = |endpoint: &str, uri: &str| {
            Places::new(&StorageOptions::default().with("aws_endpoint", endpoint), &[]).key(uri)
        };
        assert_ne!(at("http://one", "s3://b/x"), at("http://two", "s3://b/x"));
        assert_eq!(at("http://u:pw@one", "s3://b/x"), at("http://one", "s3://b/x"));
        assert_eq!(at("http://one", "/b/x"), "/b/x");
        let signed = |signature: &str| at("x", &format!("https://h/x?part=2&X-Amz-Signature={signature}"));
        assert_eq!(signed("1f"), signed("2e"));
        assert_ne!(at("x", "https://h/x?part=1"), at("x", "https://h/x?part=2"));
        assert_eq!(Places::new(&StorageOptions::default(), &[]).key("s3://b/x"), "s3://b/x");
    }

    #[test]
    fn options_and_the_environment_tell_it() {
        let environment = |pairs: &[(&str, &str)]| {
            let pairs: Vec<(OsString, OsString)> =
                pairs.iter().map(|(key, value)| (key.into(), value.into())).collect();
            pairs.into_iter()
        };
        let at = |uri: &str, options: &StorageOptions, pairs: &[(&str, &str)]| {
            endpoints(uri, options, environment(pairs)).into_iter().collect::<Vec<_>>()
        };
        let (none, pairs) = (
            StorageOptions::default(),
            [("AWS_ENDPOINT_URL", "http://one"), ("AZURE_ENDPOINT", "x"), ("HOME", "/")],
        );
        assert_eq!(at("s3://b/x", &none, &pairs), ["http://one"]);
        assert_eq!(at("az://b/x", &none, &pairs), ["x"]);
        assert!(at("https://h/x", &none, &pairs).is_empty() && at("/data/x", &none, &pairs).is_empty());
        let given = none.with("aws_endpoint", "http://two");
        assert_eq!(at("s3://b/x", &given, &pairs), ["http://two"], "options override the environment");
    }
}

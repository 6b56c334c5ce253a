//! Where a bucket is, as far as its URI does not tell: what tells two buckets of one name apart.

use super::StorageOptions;
use std::collections::BTreeSet;
use std::ffi::OsString;

/// Endpoints and accounts of the storage's options and of the environment; none for a URI that tells its place itself.
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

#[cfg(test)]
mod tests {
    use super::*;

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

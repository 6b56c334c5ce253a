//! Decides which parameters of an http query are credentials.
//!
//! Names decide, in lower case. No rule knows all services, so the words that they have in common are matched too. Other
//! parameters stay: they may choose the object, and two objects must not become one.

/// Words that make a parameter whose name contains one a credential, whatever else the query has.
const WORDS: [&str; 5] = ["signature", "credential", "token", "password", "secret"];
/// Whole names that are credentials: Azure's and Akamai's signatures, and those of gateways.
const NAMES: [&str; 11] = [
    "sas",
    "jwt",
    "hdnts",
    "hdnea",
    "hdntl",
    "api_key",
    "apikey",
    "api-key",
    "access_key",
    "auth",
    "authorization",
];
/// Ends of names that are signatures: Azure's `sig`, Swift's `temp_url_sig`.
const SIGNATURE_END: &str = "sig";
/// Beginnings of the names that belong to a signature: S3's, Google's, Alibaba's, Tencent's, Volcengine's, Huawei's, Swift's.
const SIGNED_WITH_PREFIX: [&str; 7] = ["x-amz-", "x-goog-", "x-oss-", "q-", "x-tos-", "x-obs-", "temp_url_"];
/// Whole names that belong to a signature: CloudFront's, S3's and Alibaba's older forms, and Azure's shared access
/// signatures.
const SIGNED_WITH: [&str; 21] = [
    "expires",
    "awsaccesskeyid",
    "googleaccessid",
    "ossaccesskeyid",
    "key-pair-id",
    "policy",
    "se",
    "sp",
    "spr",
    "sr",
    "st",
    "sv",
    "ss",
    "srt",
    "sip",
    "skoid",
    "sktid",
    "skt",
    "ske",
    "sks",
    "skv",
];

fn name(parameter: &str) -> String {
    parameter.split('=').next().unwrap_or(parameter).to_ascii_lowercase()
}

fn is_credential(name: &str) -> bool {
    WORDS.iter().any(|word| name.contains(word)) || NAMES.contains(&name) || name.ends_with(SIGNATURE_END)
}

/// Whether a query, without its `?`, has a signature or another credential.
pub(super) fn is_signed(query: &str) -> bool {
    query.split('&').any(|parameter| is_credential(&name(parameter)))
}

/// Returns the query without its credentials and the parameters that belong to them.
pub(super) fn unsigned(query: &str) -> String {
    let is_signed = is_signed(query);
    let belongs = |name: &str| {
        SIGNED_WITH.contains(&name) || SIGNED_WITH_PREFIX.iter().any(|prefix| name.starts_with(prefix))
    };
    let is_kept = |parameter: &&str| {
        let name = name(parameter);
        !(parameter.is_empty() || is_credential(&name) || is_signed && belongs(&name))
    };
    query.split('&').filter(is_kept).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signatures_of_many_services_are_known() {
        for signed in [
            "X-Amz-Algorithm=A&X-Amz-Credential=B&X-Amz-Date=C&X-Amz-Expires=1&X-Amz-SignedHeaders=host&X-Amz-Signature=D",
            "AWSAccessKeyId=A&Signature=B&Expires=1",
            "X-Goog-Algorithm=A&X-Goog-Credential=B&X-Goog-Signature=C",
            "sv=1&ss=b&srt=o&sp=r&se=2&st=3&spr=https&sig=A",
            "Expires=1&Signature=A&Key-Pair-Id=B",
            "x-oss-signature-version=OSS4&x-oss-expires=1&x-oss-signature=A&x-oss-credential=B",
            "OSSAccessKeyId=A&Expires=1&Signature=B",
            "q-sign-algorithm=sha1&q-ak=A&q-sign-time=1&q-key-time=1&q-header-list=host&q-signature=B",
            "temp_url_sig=A&temp_url_expires=1",
            "hdnts=exp=1~acl=/*~hmac=A",
            "jwt=A",
            "sas=A",
            "access_token=A",
            "X-Amz-Security-Token=A",
            "cdn_signature_v2=A",
            "mysig=A",
        ] {
            assert!(is_signed(signed), "{signed}");
            assert_eq!(unsigned(signed), "", "{signed}");
            assert_eq!(unsigned(&format!("id=7&{signed}")), "id=7");
        }
    }

    #[test]
    fn what_chooses_an_object_stays() {
        for plain in [
            "id=1&se=2",
            "versionId=x&part=3",
            "q-size=1",
            "download=true",
            "design=a&config=b",
            "x-oss-process=image",
        ] {
            assert!(!is_signed(plain), "{plain}");
            assert_eq!(unsigned(plain), plain);
        }
    }
}

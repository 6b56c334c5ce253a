//! Class names out of the features that Hugging Face's `datasets` writes into files.

use serde_json::Value;
use std::collections::HashMap;

/// Column → names, out of `{"info": {"features": {"label": {"names": […], "_type": "ClassLabel"}}}}` or the
/// features object itself. Text of another form has no names.
pub(super) fn class_names_of(json: &str) -> HashMap<String, Vec<String>> {
    let Ok(value) = serde_json::from_str::<Value>(json) else { return HashMap::new() };
    let features = value.pointer("/info/features").or_else(|| value.get("features")).unwrap_or(&value);
    let Some(features) = features.as_object() else { return HashMap::new() };
    features.iter().filter_map(|(column, feature)| Some((column.clone(), names(feature)?))).collect()
}

fn names(feature: &Value) -> Option<Vec<String>> {
    if feature.get("_type")?.as_str()? != "ClassLabel" {
        return None;
    }
    feature.get("names")?.as_array()?.iter().map(|name| name.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_labels_are_found_and_nothing_else() {
        let json = r#"{"info":{"features":{"image":{"_type":"Image"},
            "label":{"names":["cat","dog"],"_type":"ClassLabel"}}}}"#;
        let found = class_names_of(json);
        assert_eq!(found.len(), 1);
        assert_eq!(found["label"], ["cat", "dog"]);
        assert!(class_names_of("not json").is_empty());
        assert!(class_names_of(r#"{"features": 3}"#).is_empty());
    }
}

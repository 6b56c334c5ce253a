//! Reads class names and audio columns from the features that Hugging Face's `datasets` writes into files.

use super::kinds::is_audio;
use serde_json::Value;
use std::collections::HashMap;

/// What the features state.
#[derive(Debug, Default, Clone)]
pub(super) struct Features {
    /// Column → names of its integers.
    pub(super) class_names: HashMap<String, Vec<String>>,
    /// Columns of the type `Audio`.
    pub(super) audio: Vec<String>,
}

impl Features {
    /// Reads `{"info": {"features": {"label": {"names": […], "_type": "ClassLabel"}}}}`, or the features object itself.
    /// Text of another form yields nothing.
    pub(super) fn of(json: &str) -> Self {
        let Ok(value) = serde_json::from_str::<Value>(json) else { return Self::default() };
        let features = value.pointer("/info/features").or_else(|| value.get("features")).unwrap_or(&value);
        let Some(features) = features.as_object() else { return Self::default() };
        let is_audio = |feature: &Value| feature.get("_type").and_then(Value::as_str) == Some("Audio");
        Self {
            class_names: features.iter().filter_map(|(c, f)| Some((c.clone(), names(f)?))).collect(),
            audio: features.iter().filter(|(_, f)| is_audio(f)).map(|(c, _)| c.clone()).collect(),
        }
    }
}

/// Returns the payload columns that hold audio, by the features or by their names.
pub(super) fn audio_of(payload: &[String], told: &[String]) -> Vec<String> {
    let holds = |name: &&String| told.contains(name) || *name == "audio" || is_audio(name);
    payload.iter().filter(holds).cloned().collect()
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
        let found = Features::of(json);
        assert_eq!(found.class_names.len(), 1);
        assert_eq!(found.class_names["label"], ["cat", "dog"]);
        assert!(found.audio.is_empty());
        assert!(Features::of("not json").class_names.is_empty());
        assert!(Features::of(r#"{"features": 3}"#).class_names.is_empty());
        let found = Features::of(r#"{"speech": {"sampling_rate": 16000, "_type": "Audio"}}"#);
        let payload = ["image", "mp3", "speech"].map(str::to_owned);
        assert_eq!(audio_of(&payload, &found.audio), ["mp3", "speech"]);
    }
}

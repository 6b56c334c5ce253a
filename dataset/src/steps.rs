//! The steps by which users select samples and make columns, in the sequence of their calls.

use feedstock_plan::{Cursor, PackedSet};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum length of a selection in words, which cursors hold.
const SHOWN_BYTES: usize = 200;

/// One step of a selection: it keeps some of the samples that the steps before it keep, or changes their columns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SelectionStep {
    /// The samples for which an SQL expression is true.
    Filter(String),
    /// The first samples, by catalog order.
    Take(u64),
    /// All but the first samples, by catalog order.
    Skip(u64),
    /// These samples.
    Select(PackedSet),
    /// All samples, each drawn as often as its weight states. It is the last step.
    Weights {
        /// The weight, as an SQL expression.
        weight: String,
        /// Draws of an epoch; `None` for the number of selected samples.
        samples: Option<u64>,
    },
    /// All samples, those of each class drawn as often as the largest class has samples. The class is an SQL expression. It
    /// is the last step.
    Balanced(String),
    /// A column is added, whose values are those of an SQL expression.
    WithColumn {
        /// The name of the column.
        name: String,
        /// The expression, over the columns that there are before this step.
        sql: String,
    },
    /// Columns get other names: from old to new.
    Rename(BTreeMap<String, String>),
    /// Columns of another data set are added, where its keys are equal to keys of this one. The description has that data set
    /// in [`DatasetSpec::joined`](crate::DatasetSpec::joined), in the sequence of these steps.
    Join {
        /// The columns of keys: here, and in the other data set.
        on: Vec<(String, String)>,
        /// A hash of the other data set's keys and of its values that are added.
        digest: String,
    },
}

impl SelectionStep {
    fn value(&self) -> Value {
        match self {
            Self::Filter(sql) => json!({ "filter": sql }),
            Self::Take(samples) => json!({ "take": samples }),
            Self::Skip(samples) => json!({ "skip": samples }),
            Self::Select(set) => json!({ "select": set.digest() }),
            Self::Weights { weight, samples } => json!({ "weights": weight, "samples": samples }),
            Self::Balanced(class) => json!({ "balanced": class }),
            Self::WithColumn { name, sql } => json!({ "with_column": name, "sql": sql }),
            Self::Rename(names) => json!({ "rename": names }),
            Self::Join { on, digest } => json!({ "join": on, "digest": digest }),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Filter(_) => "filter".to_owned(),
            Self::Take(samples) => format!("take({samples})"),
            Self::Skip(samples) => format!("skip({samples})"),
            Self::Select(set) => format!("select({})", set.digest()),
            Self::Weights { weight, samples: None } => format!("weights({weight})"),
            Self::Weights { weight, samples: Some(samples) } => format!("weights({weight}, {samples})"),
            Self::Balanced(class) => format!("balanced({class})"),
            Self::WithColumn { name, sql } => format!("with_column({name}, {sql})"),
            Self::Rename(names) => {
                let names: Vec<String> = names.iter().map(|(old, new)| format!("{old}: {new}")).collect();
                format!("rename({})", names.join(", "))
            }
            Self::Join { on, digest } => {
                let keys: Vec<&str> = on.iter().map(|(left, _)| left.as_str()).collect();
                format!("join({}, {digest})", keys.join(", "))
            }
        }
    }
}

/// Adds a step. Filters in sequence become one.
pub(crate) fn with_step(steps: &[SelectionStep], step: SelectionStep) -> Arc<[SelectionStep]> {
    let mut steps = steps.to_vec();
    match (steps.last_mut(), step) {
        (Some(SelectionStep::Filter(first)), SelectionStep::Filter(second)) => *first = and(first, &second),
        (_, step) => steps.push(step),
    }
    steps.into()
}

/// Returns the filter, if there are no other steps.
pub(crate) fn only_filter(steps: &[SelectionStep]) -> Option<&str> {
    match steps {
        [SelectionStep::Filter(sql)] => Some(sql),
        _ => None,
    }
}

/// Returns the steps of both.
pub(crate) fn joined(first: &[SelectionStep], second: &[SelectionStep]) -> Arc<[SelectionStep]> {
    second.iter().fold(first.into(), |steps, step| with_step(&steps, step.clone()))
}

/// Returns the text for fingerprints: SQL if there is only a filter, as in cursors of releases that had no other steps.
pub(crate) fn text(steps: &[SelectionStep]) -> Option<String> {
    match steps {
        [] => None,
        [SelectionStep::Filter(sql)] => Some(sql.clone()),
        steps => Some(Value::from_iter(steps.iter().map(SelectionStep::value)).to_string()),
    }
}

/// Returns the text for fingerprints of steps that follow others.
pub(crate) fn text_after(before: Option<String>, steps: &[SelectionStep]) -> Option<String> {
    match (before, text(steps)) {
        (Some(first), Some(second)) => Some(and(&first, &second)),
        (first, second) => first.or(second),
    }
}

/// Joins two filters into one SQL expression. A line end ends a comment, which would hide the parenthesis.
pub(crate) fn and(first: &str, second: &str) -> String {
    let end = |sql: &str| if sql.contains("--") { "\n" } else { "" };
    format!("({first}{}) AND ({second}{})", end(first), end(second))
}

/// Returns the steps in words: `filter.take(100)`; `parts` are those of the parts of a mix or a concatenation. `None` if only
/// filters select.
pub(crate) fn shown(parts: &[Option<String>], steps: &[SelectionStep]) -> Option<String> {
    let own: Vec<String> = steps.iter().map(SelectionStep::shown).collect();
    let is_filter = steps.is_empty() || only_filter(steps).is_some();
    if is_filter && parts.iter().all(Option::is_none) {
        return None;
    }
    let parts: Vec<&str> = parts.iter().map(|part| part.as_deref().unwrap_or("-")).collect();
    let all = match parts.as_slice() {
        [] => own.join("."),
        parts => [format!("[{}]", parts.join(", "))].into_iter().chain(own).collect::<Vec<_>>().join("."),
    };
    Some(match all.len() <= SHOWN_BYTES {
        true => all,
        false => {
            let start: String = all.chars().take(SHOWN_BYTES - 40).collect();
            format!("{start}… ({:016x})", Cursor::hash_ops(&all))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedstock_base::SampleId;
    use feedstock_plan::SampleSet;

    fn filter(sql: &str) -> SelectionStep {
        SelectionStep::Filter(sql.into())
    }

    /// Cursors hold a hash of this text: a change here refuses saved cursors.
    #[test]
    fn the_texts_of_fingerprints_are_pinned() {
        assert_eq!(text(&[]), None);
        assert_eq!(text(&with_step(&[filter("a < 1")], filter("b"))).unwrap(), "(a < 1) AND (b)");
        assert_eq!(
            text(&joined(&[filter("a")], &[filter("b"), filter("c")])).unwrap(),
            "((a) AND (b)) AND (c)"
        );
        assert_eq!(text(&joined(&[filter("a -- b")], &[filter("c")])).unwrap(), "(a -- b\n) AND (c)");
        let steps = with_step(&[filter("a < 1")], SelectionStep::Take(5));
        assert_eq!(text(&steps).unwrap(), r#"[{"filter":"a < 1"},{"take":5}]"#);
        let set = PackedSet::of(&SampleSet::new([4, 1, 7].map(SampleId)).unwrap());
        let steps = [SelectionStep::Skip(2), SelectionStep::Select(set)];
        assert_eq!(text(&steps).unwrap(), r#"[{"skip":2},{"select":"3:6349f343c467f56232c1984d2f48c640"}]"#);
        assert_eq!(
            text_after(Some("a".into()), &[SelectionStep::Take(1)]).unwrap(),
            r#"(a) AND ([{"take":1}])"#
        );
        let steps = [
            SelectionStep::WithColumn { name: "n".into(), sql: "length(t)".into() },
            SelectionStep::Rename([("a".into(), "b".into())].into()),
            SelectionStep::Join { on: vec![("id".into(), "key".into())], digest: "1f".into() },
        ];
        let expected = r#"[{"sql":"length(t)","with_column":"n"},{"rename":{"a":"b"}},{"digest":"1f","join":[["id","key"]]}]"#;
        assert_eq!(text(&steps).unwrap(), expected);
        assert_eq!(shown(&[], &steps).unwrap(), "with_column(n, length(t)).rename(a: b).join(id, 1f)");
    }

    #[test]
    fn steps_in_words_are_short() {
        let shown_steps = |steps: &[SelectionStep]| shown(&[], steps);
        assert_eq!(shown_steps(&[filter("a")]), None);
        assert_eq!(shown_steps(&[filter("a"), SelectionStep::Take(5)]).unwrap(), "filter.take(5)");
        assert_eq!(shown(&[None, None], &[filter("a")]), None);
        assert_eq!(
            shown(&[None, Some("skip(1)".into())], &[SelectionStep::Take(5)]).unwrap(),
            "[-, skip(1)].take(5)"
        );
        let many: Vec<_> = (0..100).map(SelectionStep::Take).collect();
        let other: Vec<_> = (0..101).map(SelectionStep::Take).collect();
        assert!(shown_steps(&many).unwrap().len() <= SHOWN_BYTES);
        assert_ne!(shown_steps(&many), shown_steps(&other));
    }

    #[test]
    fn steps_are_the_same_after_they_were_sent() {
        let set = PackedSet::of(&SampleSet::new([4, 1, 7].map(SampleId)).unwrap());
        let steps = vec![
            filter("a"),
            SelectionStep::Take(5),
            SelectionStep::Skip(1),
            SelectionStep::Select(set),
            SelectionStep::WithColumn { name: "n".into(), sql: "length(t)".into() },
            SelectionStep::Rename([("a".into(), "b".into())].into()),
            SelectionStep::Join { on: vec![("id".into(), "key".into())], digest: "1f".into() },
        ];
        let text = serde_json::to_string(&steps).unwrap();
        assert!(
            text.starts_with(r#"[{"filter":"a"},{"take":5},{"skip":1},{"select":{"samples":3,"ids":""#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Vec<SelectionStep>>(&text).unwrap(), steps);
    }
}

//! The list of ops, and errors about wrong descriptions.

use feedstock_ops::{ChainSpec, Op};
use serde_json::{Value, json};

#[test]
fn every_op_is_known_by_the_name_and_the_parameters_that_it_is_read_with() {
    let all = Op::all();
    assert!(all.len() >= 44, "{}", all.len());
    for op in &all {
        assert!(op.unnamed.iter().all(|name| op.parameters.contains(name)), "{op:?}");
        assert!(op.summary.ends_with('.') || op.summary.ends_with(')'), "{op:?}");
        let described = json!({ "op": op.name, "no_such_parameter": 0 });
        let refused = serde_json::from_value::<Op>(described).unwrap_err().to_string();
        assert!(refused.contains("unknown field `no_such_parameter`"), "{}: {refused}", op.name);
        for parameter in op.parameters {
            assert!(refused.contains(&format!("`{parameter}`")), "{}: {refused}", op.name);
        }
    }
    let crop = all.iter().find(|op| op.name == "random_resized_crop").unwrap();
    assert!(crop.parameters.starts_with(&["size", "scale"]), "{crop:?}");
}

/// Returns the schema of an op.
fn schema(name: &str) -> Value {
    let schemas = Op::json_schema();
    schemas["oneOf"].as_array().unwrap().iter().find(|op| op["title"] == name).unwrap().clone()
}

#[test]
fn schemas_state_names_defaults_and_what_is_required() {
    assert_eq!(Op::json_schema()["oneOf"].as_array().unwrap().len(), Op::all().len());
    for op in Op::all() {
        let schema = schema(op.name);
        let names: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        assert_eq!(names.len(), 1 + op.parameters.len(), "{names:?}");
        assert!(op.parameters.iter().all(|name| names.iter().any(|known| known == name)), "{op:?}");
        assert_eq!(schema["positional"], json!(op.unnamed));
        // The name alone describes an op if and only if nothing else is required.
        let alone = serde_json::from_value::<Op>(json!({ "op": op.name }));
        assert_eq!(alone.is_ok(), schema["required"] == json!(["op"]), "{op:?}");
    }
    assert_eq!(schema("volume")["properties"]["gain_db"], json!({ "default": [-6.0, 6.0] }));
    assert_eq!(schema("add_noise")["required"], json!(["op", "noise"]));
    assert_eq!(schema("global_mvn")["required"], json!(["op", "mean", "std"]));
    assert_eq!(schema("random_apply")["required"], json!(["op", "ops"]));
    assert_eq!(schema("random_apply")["properties"]["probability"], json!({ "default": 0.5 }));
    assert_eq!(schema("gaussian_blur")["properties"]["sigma"], json!({ "default": [0.1, 2.0] }));
    assert_eq!(schema("random_resized_crop")["required"], json!(["op", "size"]));
    assert_eq!(schema("tokenize_chars")["required"], json!(["op", "vocabulary"]));
}

#[test]
fn errors_say_what_is_wrong_without_the_words_of_libraries() {
    let refusals = [
        ("decode_imge", "op 0: `decode_imge` is not an op (did you mean decode_image?); the ops are "),
        ("blur", "op 0: `blur` is not an op; the ops are decode_image, "),
        (
            "decode_image,resize:sise=3",
            "op 1 (resize): `sise` is not a parameter (did you mean size?); the parameters are ",
        ),
        (
            "to_f32:3",
            "op 0 (to_f32): `3` has no parameter to go to; write key=value; the op has no parameters",
        ),
        ("resample", "op 0 (resample): `sample_rate` is missing; write it as key=value"),
        ("resample:fast", "op 0 (resample): `sample_rate` must be an integer, 0 or more; got fast"),
        ("resample:-8000", "op 0 (resample): `sample_rate` must be an integer, 0 or more; got -8000"),
        ("horizontal_flip:yes", "op 0 (horizontal_flip): `probability` must be a number; got yes"),
        ("random_resized_crop:224:filter=cube", "op 0 (random_resized_crop): `filter` must be "),
        (
            "random_resized_crop:wide",
            "op 0 (random_resized_crop): `size` must be a side in pixels, or height and width as 224x288; got wide",
        ),
        ("color_jitter:much:0.1:little", "op 0 (color_jitter): `brightness` must be a number; got much"),
        ("volume:loud", "op 0 (volume): `gain_db` must be a number, or a range as 0.5..1.5; got loud"),
        (
            "decode_image,random_apply:[invert,resize]",
            "op 1 (random_apply): op 1 (resize): `size` is missing; write it as key=value",
        ),
        ("random_choice:[inver]", "op 0 (random_choice): op 0: `inver` is not an op (did you mean invert?)"),
        ("random_apply:[invert", "a quotation or a bracket has no end"),
        ("random_apply:invert", "op 0 (random_apply): `ops` "),
        ("rotate:a", "op 0 (rotate): `degrees` must be a number, or a range as -10..10; got a"),
        (
            "pad:1/2/3",
            "op 0 (pad): `padding` must be pixels, left/top as 4/8, or left/top/right/bottom as 4/8/4/8",
        ),
        (
            "pad:1:fill=300",
            "op 0 (pad): `fill` must be a number from 0 to 255, or three as 124/116/104; got 300",
        ),
        ("horizontal_flip:1x2", "op 0 (horizontal_flip): `probability` must be a number; got 1x2"),
    ];
    for (text, expected) in refusals {
        let error = ChainSpec::parse(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}\nshould contain: {expected}");
    }
}

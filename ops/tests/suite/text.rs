//! Text chains.

use crate::speech::golden;
use feedstock_ops::text::{Tokenize, TokenizeChars, Vocabulary};
use feedstock_ops::{
    Chain, ChainSpec, DType, ErrorKind, Layout, Need, RaggedRow, Resources, SampleSeed, Scratch, tokenize,
    tokenize_chars,
};
use serde_json::Value;

const URI: &str = "s3://models/small/tokenizer.json";

fn run(chain: &Chain, text: &[u8]) -> feedstock_ops::Result<Vec<i64>> {
    let mut row = RaggedRow::new();
    chain.apply_ragged(text, SampleSeed::new(1, 0, 0), &mut Scratch::new(), &mut row)?;
    let ids: Vec<i64> =
        row.bytes().chunks_exact(8).map(|x| i64::from_ne_bytes(x.try_into().unwrap())).collect();
    assert_eq!(ids.len(), row.length());
    Ok(ids)
}

fn resources() -> Resources {
    Resources::new().with_file(URI, golden("tokenizer.json"))
}

fn compile(op: Tokenize) -> Chain {
    ChainSpec::from([op.into()]).compile_with(&resources()).unwrap()
}

#[test]
fn tokens_are_those_of_the_python_library() {
    let references: Value = serde_json::from_slice(&golden("references.json")).unwrap();
    let plain = compile(Tokenize::new(URI).add_special_tokens(false));
    let special = compile(Tokenize::new(URI));
    let cut = compile(Tokenize::new(URI).max_tokens(5).truncate(true));
    let bounded = compile(Tokenize::new(URI).max_tokens(5));
    for case in references["tokens"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let expected = |field: &str| -> Vec<i64> {
            case[field].as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect()
        };
        assert_eq!(run(&plain, text.as_bytes()).unwrap(), expected("plain"), "{text:?}");
        assert_eq!(run(&special, text.as_bytes()).unwrap(), expected("special"), "{text:?}");
        assert_eq!(run(&cut, text.as_bytes()).unwrap(), expected("cut_to_5"), "{text:?}");
        match run(&bounded, text.as_bytes()) {
            Ok(ids) => assert!(ids == expected("special") && ids.len() <= 5, "{text:?}"),
            Err(error) => {
                assert!(expected("special").len() > 5 && error.kind() == ErrorKind::BadSample);
                assert!(error.message().contains("over max_tokens 5"), "{error}");
            }
        }
    }
    assert!(run(&plain, b"").unwrap().is_empty());
}

#[test]
fn cuts_as_short_as_the_special_tokens() {
    let text = b"the quick brown fox";
    let plain = run(&compile(Tokenize::new(URI).add_special_tokens(false)), text).unwrap();
    assert!(plain.len() > 2);
    for most in 1..=2 {
        let cut = Tokenize::new(URI).add_special_tokens(false).max_tokens(most).truncate(true);
        assert_eq!(run(&compile(cut), text).unwrap(), plain[..most]);
    }
    // [CLS] and [SEP] alone.
    assert_eq!(run(&compile(Tokenize::new(URI).max_tokens(2).truncate(true)), text).unwrap(), [1, 2]);
}

#[test]
fn long_texts_are_refused_or_cut_before_they_are_split() {
    let text = "the quick brown fox jumps over the lazy dog. ".repeat(40_000);
    let error = run(&compile(Tokenize::new(URI)), text.as_bytes()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSample);
    let why = "the text is 1800000 bytes long, over max_text_bytes (1048576); raise the limit";
    assert!(error.message().contains(why), "{error}");
    let raised = compile(Tokenize::new(URI).max_text_bytes(2 << 20).max_tokens(9).truncate(true));
    let cut = compile(Tokenize::new(URI).max_tokens(9).truncate(true));
    let expected = run(&raised, text.as_bytes()).unwrap();
    assert_eq!(expected.len(), 9);
    assert_eq!(run(&cut, text.as_bytes()).unwrap(), expected);
    // The part that is cut off is not read, and no character is split.
    let head = "ééé fox ";
    for most in 1..head.len() {
        let op = Tokenize::new(URI).add_special_tokens(false).max_tokens(1).truncate(true);
        let text = [head.as_bytes(), b"\xFF\xFE"].concat();
        if let Err(error) = run(&compile(op.max_text_bytes(most)), &text) {
            assert!(error.message().contains("over max_text_bytes"), "{most}: {error}");
        }
    }
    // Cut at the limit, it would have fewer tokens than `max_tokens`.
    let op = Tokenize::new(URI).max_tokens(100).truncate(true).max_text_bytes(20);
    let error = run(&compile(op.clone()), b"the quick brown fox jumps").unwrap_err();
    assert!(error.message().contains("25 bytes long, over max_text_bytes (20)"), "{error}");
    assert!(run(&compile(op), b"the quick brown fox.").is_ok(), "as long as the limit");
}

#[test]
fn chains_say_what_they_need_and_give() {
    let spec: ChainSpec = format!("tokenize:{URI}:max_text_bytes=99").parse().unwrap();
    assert_eq!(spec, ChainSpec::from([Tokenize::new(URI).max_text_bytes(99).into()]));
    let json = serde_json::to_string(&spec).unwrap();
    assert!(json.ends_with(r#""truncate":false,"max_text_bytes":99}]"#), "{json}");
    assert!(!serde_json::to_string(&ChainSpec::from([tokenize(URI)])).unwrap().contains("max_text_bytes"));
    let spec: ChainSpec = format!("tokenize:{URI}:max_tokens=9:truncate=true").parse().unwrap();
    assert_eq!(spec, ChainSpec::from([Tokenize::new(URI).max_tokens(9).truncate(true).into()]));
    assert_eq!(spec.needs(), [Need::File(URI.to_owned())]);
    let error = spec.compile().unwrap_err();
    assert!(error.kind() == ErrorKind::BadConfig && error.message().contains(URI), "{error}");
    let chain = spec.compile_with(&resources()).unwrap();
    let output = chain.output();
    assert_eq!((output.dtype, output.layout, output.ragged_axis), (DType::I64, Layout::T, Some(0)));
    assert_eq!(ChainSpec::from([tokenize(URI)]).needs(), [Need::File(URI.to_owned())]);
    let json = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<ChainSpec>(&json).unwrap(), spec);
}

#[test]
fn mistakes_are_named() {
    let mut random: Value = serde_json::from_slice(&golden("tokenizer.json")).unwrap();
    random["model"]["dropout"] = 0.1.into();
    let random = serde_json::to_vec(&random).unwrap();
    for (text, words) in [
        ("tokenize", "`tokenizer` is missing"),
        ("tokenize:t.json:truncate=true", "truncate needs max_tokens"),
        ("tokenize:t.json:max_tokens=0", "at least 1"),
        ("tokenize:t.json:max_text_bytes=0", "max_text_bytes must be at least 1"),
        ("tokenize:t.json:max_tokens=1", "below the 2 special tokens"),
        ("tokenize:t.json:max_tokens=1:truncate=true", "below the 2 special tokens"),
        ("tokenize:random.json", "save the tokenizer without dropout"),
        ("tokenize:t.json,tokenize:t.json", "nothing can follow tokenize"),
        ("tokenize:broken.json", "broken.json is not a tokenizer.json"),
        ("tokenize_chars", "`vocabulary` is missing"),
        ("tokenize_chars:abca", "'a' is both 0 and 3"),
        ("tokenize_chars:abc:unknown=word", "tokenize_chars"),
        ("tokenize_chars:abc:case=true", "`case` is not a parameter"),
    ] {
        let resources = Resources::new()
            .with_file("t.json", golden("tokenizer.json"))
            .with_file("random.json", random.clone())
            .with_file("broken.json", b"{\"model\": 1}".to_vec());
        let error = ChainSpec::parse(text).and_then(|spec| spec.compile_with(&resources)).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{text}");
        assert!(error.message().contains(words), "{text}: {error}");
    }
}

#[test]
fn characters_by_vocabulary() {
    let chain = Chain::parse("tokenize_chars:\" ,:abcdé\":lowercase=true").unwrap();
    assert_eq!(run(&chain, "Bad, ÉA:".as_bytes()).unwrap(), [4, 3, 6, 1, 0, 7, 3, 2]);
    assert!(run(&chain, b"").unwrap().is_empty());
    let error = run(&chain, b"box").unwrap_err();
    assert!(error.kind() == ErrorKind::BadSample && error.message().contains("'o' (U+006F)"), "{error}");
    let error = run(&chain, b"ab\xFF").unwrap_err();
    assert!(error.kind() == ErrorKind::BadSample && error.message().contains("byte 2"), "{error}");
    let error = run(&chain, &vec![b'a'; 5 << 20]).unwrap_err();
    assert!(error.kind() == ErrorKind::BadSample && error.message().contains("bytes long"), "{error}");
    let digits = Chain::parse("tokenize_chars:'0123456789':unknown=10").unwrap();
    assert_eq!(run(&digits, b"3 14").unwrap(), [3, 10, 1, 4]);
    let listed = ["<blank>", "a", "b"].map(str::to_owned).to_vec();
    let spec = ChainSpec::from([TokenizeChars::new(Vocabulary::Entries(listed)).unknown(0).into()]);
    let json = serde_json::to_string(&spec).unwrap();
    assert_eq!(
        json,
        r#"[{"op":"tokenize_chars","vocabulary":["<blank>","a","b"],"unknown":0,"lowercase":false}]"#
    );
    assert_eq!(run(&spec.compile().unwrap(), b"ba?").unwrap(), [2, 1, 0]);
    assert_eq!(run(&ChainSpec::from([tokenize_chars("xy")]).compile().unwrap(), b"yx").unwrap(), [1, 0]);
}

//! `feedstock ops`: the ops and their parameters.

use super::failure::Outcome;
use super::output::Output;
use clap::Args;
use feedstock_ops::{Op, OpInfo};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  feedstock ops
  feedstock ops --json | jq -r .op

--ops takes ops separated by commas. Parameters follow an op as :name=value; those in [brackets] may also be given
as :value, in the order shown.
  decode_image,random_resized_crop:224:scale=0.2..1,horizontal_flip
Values are numbers, true or false, words, 224x288 (height x width), 0.2..1 (a range)
or 1/2/3 (a list); those of random_apply and random_choice are ops in brackets:
  random_apply:[color_jitter:0.8:0.8:0.8:0.2,solarize:128]:0.8
Parameters that are not given have their defaults.";

/// List the ops and their parameters.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Command {}

impl Command {
    pub(crate) fn run(&self, json: bool) -> Outcome {
        let mut output = Output::new();
        for op in Op::all() {
            if json {
                output.json(&json!({
                    "op": op.name,
                    "summary": op.summary,
                    "parameters": op.parameters,
                    "unnamed": op.unnamed,
                }))?;
            } else {
                output.line(format!("{}: {}", op.name, op.summary))?;
                if !op.parameters.is_empty() {
                    output.line(format!("    {}", parameters(&op)))?;
                }
            }
        }
        output.end()
    }
}

/// Returns the names of the parameters, optional ones first in [brackets].
fn parameters(op: &OpInfo) -> String {
    let unnamed = op.unnamed.iter().map(|name| format!("[{name}]"));
    let named = op.parameters.iter().filter(|name| !op.unnamed.contains(name)).map(|name| (*name).to_owned());
    unnamed.chain(named).collect::<Vec<_>>().join(", ")
}

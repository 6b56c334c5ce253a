//! The public face of `feedstock-plan`: the promises of the order, as properties.

#![expect(clippy::disallowed_types, reason = "what grows with its input is measured here")]

mod bucket;
mod mix;
mod order;
mod rest;
